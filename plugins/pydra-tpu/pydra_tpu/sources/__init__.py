"""What tells a machine about the TPU slice that it is a worker of."""
