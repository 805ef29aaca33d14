"""Several processes or claims on one GPU: time slices, MPS, shares that the scheduler counts."""
