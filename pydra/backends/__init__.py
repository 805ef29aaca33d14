"""Backends: the contract they keep, how they are found, and the process each of them runs in."""
