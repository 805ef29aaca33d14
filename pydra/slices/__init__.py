"""ResourceSlices: what should be published, and the loop that keeps it so."""
