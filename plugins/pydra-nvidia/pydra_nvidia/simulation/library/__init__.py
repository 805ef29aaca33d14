"""The fake libnvidia-ml: an object with the C symbols' names, argument order and return codes, over a `Machine`."""
