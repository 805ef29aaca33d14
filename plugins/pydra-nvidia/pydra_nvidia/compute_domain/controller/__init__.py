"""The controller of ComputeDomains, one Deployment for each cluster: docs/compute-domain-controller.md.

The command starts it; `controller` reads, decides and writes; `decisions` and what it imports are pure.
"""
