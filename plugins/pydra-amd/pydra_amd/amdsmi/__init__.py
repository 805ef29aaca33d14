"""AMD's library, where a node has it: what only it reports. Nothing here is needed."""
