"""What the TPU runtime of a workload says while it runs: memory and use of each chip."""
