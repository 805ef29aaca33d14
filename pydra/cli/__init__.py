"""Command lines of `pydra-agent` and `pydra`."""
