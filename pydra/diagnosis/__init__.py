"""Finds out what `pydra doctor`, `explain`, `slices` and `checkpoint` tell, with the agent's own code."""
