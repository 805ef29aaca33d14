"""A simulated PCI bus as files: functions in /sys, and the kernel that binds drivers to them. Not in images."""
