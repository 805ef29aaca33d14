"""A node with network interfaces that are only values. Images leave it out."""
