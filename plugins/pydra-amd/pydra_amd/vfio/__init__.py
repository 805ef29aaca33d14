"""Passthrough of GPUs and virtual functions to virtual machines: plans the step, and carries it out."""
