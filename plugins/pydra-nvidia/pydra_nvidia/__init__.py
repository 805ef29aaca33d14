"""NVIDIA GPUs: a pydra backend in the place of NVIDIA's own DRA driver, with its names, kinds and classes."""
