"""Publishes a pool as ResourceSlices."""
