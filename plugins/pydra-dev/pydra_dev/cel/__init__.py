"""The CEL that DRA selectors are written in: Google's CEL for Python, and what Kubernetes adds to it."""
