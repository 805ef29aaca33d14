"""The API server: transport, credentials, errors, watch. No knowledge of DRA."""
