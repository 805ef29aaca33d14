"""What people see of a run: descriptions of what happens, and the terminal."""
