"""The daemon of a ComputeDomain on one node: a container that configures, runs and watches NVIDIA's nvidia-imex.

The command starts it; `daemon` reads, decides and acts; `configuration` and `readiness` are pure.
"""
