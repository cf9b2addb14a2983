"""The command line: every file of commands/ is a command; errors a user can put right are one line and exit code 2."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, NoReturn

import typer

from fathom import __version__
from fathom.core import plugins
from fathom.core.errors import FathomError, UnknownName


class Stopped(BaseException):
    """A signal that asks the program to end: raised where it is, so that it lets go of all it holds on the way out."""


def main() -> None:
    _heed_signals()
    try:
        code = _app()(standalone_mode=False)
    except FathomError as error:
        code = _refuse(str(error))
    except Stopped as stop:
        number = signal.Signals(stop.args[0])
        print(f"fathom: {'interrupted' if number == signal.SIGINT else f'ended by {number.name}'}", file=sys.stderr)
        code = 128 + number
    except Exception as error:
        code = _refuse(_usage_problem(error))
    sys.exit(code if isinstance(code, int) else 0)


def _app() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
    )
    app.callback()(_whole)
    for name in plugins.names("commands"):
        app.command(name)(plugins.load("commands", name).command)
    return app


def _version(asked: bool) -> None:
    if asked:
        print(f"fathom {__version__}")
        raise typer.Exit


def _whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Says which Fathom this is.")
    ] = False,
) -> None:
    """Where the time of deep learning goes on your machine, and what it takes to learn."""


def _heed_signals() -> None:
    """Before the commands are loaded: Ctrl-C is answered with one line then too."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `fathom list | head` is no error

    def stop(number: int, _: object) -> NoReturn:
        raise Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and a shell's & ask
            signal.signal(number, stop)


def _usage_problem(error: Exception) -> str:
    """The parser's own errors in one line; anything else is a fault of ours and keeps its traceback."""
    describe = getattr(error, "format_message", None)
    if describe is None:
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":  # click's or typer's own
        raise SystemExit(2)  # the help has been shown
    option, known = getattr(error, "option_name", None), getattr(error, "possibilities", None)
    if option and known:
        return str(UnknownName.among("option", option, known))
    return " ".join(describe().split())


def _refuse(line: str) -> int:
    print(f"fathom: {line}", file=sys.stderr)
    return 2
