"""Bytes from elsewhere for every parser: what its tests draw from, and `make fuzz`, which searches for longer."""
