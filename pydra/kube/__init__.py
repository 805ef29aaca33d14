"""Kubernetes API client: transport, credentials, errors, informer, Events. Of DRA it knows API resources only."""
