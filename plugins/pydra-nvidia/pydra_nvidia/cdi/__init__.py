"""What containers get: device nodes, the driver's files, hooks."""
