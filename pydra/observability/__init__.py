"""Metrics, Events, logs, traces and the HTTP endpoint."""
