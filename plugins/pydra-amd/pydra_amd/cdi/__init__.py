"""What containers get."""
