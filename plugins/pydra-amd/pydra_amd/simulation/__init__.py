"""Machines that are not there: files as the kernel has them. Left out of images for nodes."""
