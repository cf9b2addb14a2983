"""The command line: every file of commands/ is a command; an error the user can correct is one line and exit code 2."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from fathom import __version__
from fathom.cli.renamed import with_new_names
from fathom.core import plugins
from fathom.core.errors import FathomError, UnknownName


class Stopped(BaseException):
    """A signal that asks the program to end, as an exception: everything is released on the way out."""


def main() -> None:
    _handle_signals()
    try:
        code = _run(sys.argv[1:])
    except FathomError as error:
        code = _fail(str(error))
    except Stopped as stop:
        number = signal.Signals(stop.args[0])
        print(f"fathom: {'interrupted' if number == signal.SIGINT else f'ended by {number.name}'}", file=sys.stderr)
        code = 128 + number
    except Exception as error:
        code = _fail(_usage_error(error))
    sys.exit(code if isinstance(code, int) else 0)


def _run(arguments: Sequence[str]) -> object:
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


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fathom {__version__}")
        raise typer.Exit


def _fathom(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Deep-learning benchmarks: where the time goes on your machine, and what training to a target takes."""


def _handle_signals() -> None:
    """Before the commands are loaded: Ctrl-C then gives one line too."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `fathom list | head` is no error

    def stop(number: int, _: object) -> NoReturn:
        raise Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and a shell's & ask
            signal.signal(number, stop)


def _usage_error(error: Exception) -> str:
    """An error of the parser in one line; anything else is a bug of ours and keeps its traceback."""
    describe = getattr(error, "format_message", None)
    if describe is None:
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":  # click's or typer's own
        raise SystemExit(2)  # the help has been printed
    option, known = getattr(error, "option_name", None), getattr(error, "possibilities", None)
    if option and known:
        return str(UnknownName.among("option", option, known))
    return " ".join(describe().split())


def _fail(line: str) -> int:
    print(f"fathom: {line}", file=sys.stderr)
    return 2
