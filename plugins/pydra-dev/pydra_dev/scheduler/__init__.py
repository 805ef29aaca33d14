"""A scheduler that gives pods nodes and their claims devices, as kube-scheduler does."""
