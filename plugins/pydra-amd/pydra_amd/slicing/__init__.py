"""What claims get: decided in `plan`, done and undone in `execution`."""
