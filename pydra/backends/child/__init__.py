"""Code that runs in a backend's child process, and what its starters need: loading a module, orders of a check."""
