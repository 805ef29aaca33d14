"""Metrics, logs, traces and the HTTP endpoint."""
