"""The node's files: /sys, /proc, /dev and the driver's installation, below roots that are settings."""
