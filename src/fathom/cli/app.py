"""The parser of the command line: every file of commands/ is a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from fathom import __version__
from fathom.cli.renamed import with_new_names
from fathom.core import plugins
from fathom.core.errors import UnknownName


def run(arguments: Sequence[str]) -> object:
    """Loads the command that was asked for, or all of them where help or a wrong name needs their list."""
    known = plugins.names("commands")
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    app = typer.Typer(no_args_is_help=True, add_completion=False)
    app.callback()(_fathom)
    renamed: dict[str, str] = {}
    for each in [name] if name in known else known:
        module = plugins.load("commands", each)
        app.command(each)(module.command)
        renamed |= getattr(module, "RENAMED", {}) if each == name else {}
    current, hints = with_new_names(arguments, renamed)
    for hint in hints:
        print(f"fathom: {hint}", file=sys.stderr)
    return app(args=current, standalone_mode=False)


def usage_error(error: BaseException) -> str | None:
    """An error of the parser in one line; None for anything else."""
    describe = getattr(error, "format_message", None)
    if describe is None:
        return None
    if type(error).__name__ == "NoArgsIsHelpError":  # click's or typer's own
        raise SystemExit(2)  # the help has been printed
    option, known = getattr(error, "option_name", None), getattr(error, "possibilities", None)
    if option and known:
        return str(UnknownName.among("option", option, known))
    return " ".join(describe().split())


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fathom {__version__}")
        raise typer.Exit


def _fathom(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure where the time and energy of deep learning go on this machine, and predict them for others."""
