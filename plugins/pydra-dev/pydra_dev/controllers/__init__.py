"""The controllers that the API of Dynamic Resource Allocation needs, as in kube-controller-manager."""
