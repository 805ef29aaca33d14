"""A control plane and a node in one process, for development and tests."""
