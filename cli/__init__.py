"""The ``rlaudit`` command: one file for each subcommand, a few lines over the Python API."""
