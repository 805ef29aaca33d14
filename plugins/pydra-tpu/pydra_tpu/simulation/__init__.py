"""Machines with TPUs that are not there: files for the backend to read. Left out of images for nodes."""
