"""``python -m control.cli``: the command line without its entry point."""

from control.cli.main import main

main()
