"""The command line `tidegate`, one file per group of commands."""
