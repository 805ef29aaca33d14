"""Partitions: what may be created where, creating and destroying it, and what others left."""
