"""The API of Kubernetes as values: kinds, types, feature gates, quantities and errors."""
