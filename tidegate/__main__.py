"""``python -m tidegate``: the command line without its entry point."""

from tidegate.control.cli.main import main

main()
