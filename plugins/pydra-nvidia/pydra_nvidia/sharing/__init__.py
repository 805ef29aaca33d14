"""How claims and processes share hardware: who holds what, time slices, MPS."""
