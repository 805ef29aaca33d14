"""The Kubernetes API: a client, a watch, their errors. Knows nothing of devices."""
