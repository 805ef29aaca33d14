"""Fabric Manager's partitions: which one a claim's GPUs are, and having it active while the claim has them."""
