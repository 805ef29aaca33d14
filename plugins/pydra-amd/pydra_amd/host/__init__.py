"""What the kernel shows of the machine: files below roots that are settings."""
