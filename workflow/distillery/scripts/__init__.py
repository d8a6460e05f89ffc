"""The command lines of the workflow's jobs: `python -m distillery.scripts.targets --help`."""
