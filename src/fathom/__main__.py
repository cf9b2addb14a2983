"""Lets `python -m fathom` be the command."""

from fathom.cli.main import main

main()
