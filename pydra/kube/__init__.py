"""Kubernetes API client: transport, credentials, errors, informer. Of DRA it knows the names of API resources only."""
