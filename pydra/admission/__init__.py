"""Admission of opaque configs: the validating webhook, the policy and the JSON Schema."""
