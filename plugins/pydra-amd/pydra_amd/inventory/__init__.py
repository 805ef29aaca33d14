"""What is published of a machine."""
