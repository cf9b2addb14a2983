"""Lets `python -m fathom` be the command."""

from fathom.cli import main

main()
