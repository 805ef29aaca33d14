"""A container runtime for tests. Images leave it out."""
