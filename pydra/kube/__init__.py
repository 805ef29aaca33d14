"""Kubernetes API client: transport, credentials, errors, informer. It knows nothing about DRA."""
