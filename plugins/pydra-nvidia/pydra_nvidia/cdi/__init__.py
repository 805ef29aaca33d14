"""What containers get: the driver's files, device nodes and hooks, found without running anything of the driver."""
