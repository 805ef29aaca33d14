"""Claims: their values, their allocation, their life on this node."""
