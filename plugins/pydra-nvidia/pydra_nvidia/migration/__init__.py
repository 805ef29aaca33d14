"""Coming after NVIDIA's own DRA driver: its checkpoint, its CDI files, and whether it still runs."""
