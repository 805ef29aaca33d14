"""Passthrough of whole GPUs to virtual machines: which driver takes them, who must let go first, and binding them."""
