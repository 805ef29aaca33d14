"""What runs in a backend's process."""
