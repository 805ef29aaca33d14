"""Taking over from NVIDIA's own DRA driver: its checkpoint, its claims as ours, and what it was stopped in."""
