"""An API server in memory: HTTP, verbs, storage and validation of the kinds that pydra and its drivers use."""
