"""Simulated accelerators."""
