"""For authors of backends: the conformance kit."""
