"""Facts about the TPU slice that a machine is a worker of, from several sources."""
