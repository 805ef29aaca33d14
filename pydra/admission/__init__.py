"""What is refused before it is stored: opaque configs, judged by the backends' own types."""
