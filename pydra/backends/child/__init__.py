"""Code that runs in a backend's child process."""
