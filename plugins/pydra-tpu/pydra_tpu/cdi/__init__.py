"""What containers get: the device nodes of their chips, and the environment of libtpu."""
