"""The entry point: handles signals before anything else is imported; an error the user can correct is one line, code 2.

Everything else of the command line is imported by main(), when a signal already has its answer.
"""

from __future__ import annotations

import sys

from fathom.core import stopping


def main() -> None:
    stopping.install()
    from fathom.cli import streams

    with streams.prepared():
        code = streams.flushed(_code(sys.argv[1:]))
    sys.exit(code)


def _code(arguments: list[str]) -> int:
    """What the command comes to as an exit code. A fault of Fathom's own keeps its traceback."""
    from fathom.cli import app, streams
    from fathom.core.errors import FathomError

    try:
        code = app.run(arguments)
        return code if isinstance(code, int) else 0
    except BaseException as error:
        if (number := stopping.requested(error)) is not None:
            streams.say(stopping.WORDS[number])
            return 128 + number
        if isinstance(error, FathomError):
            line: str | None = str(error)
        else:
            line = streams.fault(error) if isinstance(error, OSError) else app.usage_error(error)
        if line is None:
            raise
        streams.say(line)
        return 2
