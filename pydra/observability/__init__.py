"""What an admin sees: metrics, Events, logs, traces, the HTTP endpoint."""
