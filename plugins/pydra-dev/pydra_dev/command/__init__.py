"""The command `pydra dev`: its runs on one node and on several, and in this process."""
