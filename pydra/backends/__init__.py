"""Backends: their contract, their discovery, and the child process that each of them runs in."""
