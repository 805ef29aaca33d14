"""The driver's programs, for a machine that is not there; `tree.installation` puts them into its file system."""
