"""How GPUs are: signals to health and taints."""
