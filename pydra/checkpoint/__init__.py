"""Checkpoints: one file for each claim, so that a node remembers what it prepared."""
