"""Machines with other CPUs, and a container runtime without containers. Images leave it out."""
