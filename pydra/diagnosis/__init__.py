"""What `pydra doctor`, `explain`, `slices`, `checkpoint` and `cdi` find out and repair, with the agent's own code."""
