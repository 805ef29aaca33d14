"""Containers as containerd and CRI-O prepare them: CDI specs, read and applied to OCI runtime configurations."""
