"""Container Device Interface 1.1.0: what a container gets, and the files that tell the runtime."""
