"""AMD's library, where a node has it: what only it tells. Nothing here is needed."""
