"""How the GPUs are: events and conditions, what they mean for a device, and when it is well again."""
