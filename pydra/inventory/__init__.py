"""From what a backend reports to the pool to publish: the API's rules for devices, and health."""
