"""`pydra dev --web`: a page that shows the node as it changes, says why, and breaks things."""
