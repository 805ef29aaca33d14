"""What Google's library libtpu reports: links between chips, throttling, cores. It runs in a process of its own."""
