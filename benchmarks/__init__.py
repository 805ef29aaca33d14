"""What pydra's claims of speed and memory are measured with: `make bench`."""
