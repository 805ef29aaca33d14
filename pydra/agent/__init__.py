"""The node agent: assembles all components of the drivers on one node."""
