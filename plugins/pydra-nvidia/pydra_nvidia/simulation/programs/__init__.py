"""The driver's programs, for a machine that is not there; `tree.launchers` puts them into its file system."""
