"""The command lines: arguments to Settings, exit codes."""
