"""One driver on one node: the parts of every other room, put together. `pydra.agent.main` runs it."""
