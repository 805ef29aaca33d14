"""A real machine, read without changing anything, as a scenario for the simulation."""
