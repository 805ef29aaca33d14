"""The kernel's network namespaces, read and changed by netlink."""
