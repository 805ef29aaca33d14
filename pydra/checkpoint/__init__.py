"""Checkpoint records: what the node remembers about each prepared claim."""
