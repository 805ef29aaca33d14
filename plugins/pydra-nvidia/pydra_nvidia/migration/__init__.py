"""Coming after NVIDIA's own DRA driver: its checkpoint, and whether it still runs."""
