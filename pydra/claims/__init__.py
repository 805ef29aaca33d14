"""Claim handling: allocation, prepare and unprepare, garbage collection."""
