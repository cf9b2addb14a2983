"""Ending a sweep at its n-th line, or where Python runs signal handlers, whichever that is: killed, or by signals.

python -m crashing JOURNAL LINE      a sweep on the card of simulated_nvml.environment() that kills itself there
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from simulated_nvml import UUID

from fathom.experiments.capping import sweep
from fathom.experiments.journal import Journal
from fathom.machine.governor import Governor, find_governors
from fathom.machine.meter import Target

SOURCE = str(Path(sys.modules[Journal.__module__].__file__ or "").parents[1])
OTHERS = {contextlib.__file__, signal.__file__}  # what our own lines run through
VALUES = [300.0, 450.0]
CALLS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW"}


class Stopped(BaseException):
    """What the command line makes of a signal."""


def stop(number: int, _: object) -> None:
    raise Stopped(number)


def handle_at_once(number: int) -> None:
    """As a signal that another thread takes: it is handled in the main thread even where that blocks it."""
    handler = signal.getsignal(number)
    assert callable(handler)
    handler(number, sys._getframe())


def stopped_by_signal(action: Callable[[], object], further: int = 3) -> bool:
    """Where several signals are unblocked at once, all but the first raise after it has; they are caught here, too."""
    try:
        stopped = stopped_by_signal(action, further - 1) if further else bool(action())
        signal.pthread_sigmask(signal.SIG_BLOCK, ())  # runs the handlers of those that wait
        return stopped
    except Stopped:
        return True


@contextlib.contextmanager
def at_lines(actions: Mapping[int, Callable[[], None]]) -> Iterator[list[int]]:
    """Calls these at the n-th line of Fathom's that runs within; gives how many there were, as a list of one.

    No garbage is collected meanwhile: an exception in a generator that is collected would be lost.
    """
    count, before = [0], sys.gettrace()

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            count[0] += 1
            actions.get(count[0], lambda: None)()
        return on_line

    def on_call(frame: FrameType, *_: Any) -> Any:
        return on_line if _is_ours(frame) else None

    gc.disable()
    sys.settrace(on_call)
    try:
        yield count
    finally:
        sys.settrace(before)
        gc.enable()


class at_checkpoints:
    """As at_lines, but where the interpreter runs signal handlers, and only there; also after an action has raised.

    Python ends tracing when a trace function raises: the profile function, which is called whenever a function is left,
    starts it again. Not made by contextlib, whose functions are traced.
    """

    def __init__(self, actions: Mapping[int, Callable[[], None]]) -> None:
        self._actions, self._before, self._count = actions, sys.gettrace(), [0]

    def __enter__(self) -> list[int]:
        gc.disable()
        sys.settrace(self._on_call)
        sys.setprofile(self._start_again)
        return self._count

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        sys.settrace(self._before)
        gc.enable()

    def _on_opcode(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and frame.f_lasti in _checkpoints(frame.f_code):
            self._count[0] += 1
            if action := self._actions.get(self._count[0]):
                action()
        return self._on_opcode

    def _on_call(self, frame: FrameType, *_: Any) -> Any:
        if not _is_ours(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._on_opcode

    def _start_again(self, frame: FrameType | None, *_: Any) -> None:
        if sys.gettrace() is None:
            sys.settrace(self._on_call)
            while frame is not None:
                frame.f_trace = self._on_call(frame)
                frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(SOURCE) or name in OTHERS


@functools.cache
def _checkpoints(code: CodeType) -> frozenset[int]:
    """The instructions before which a handler may run: at the start of a function, in a loop, after a call.

    The interpreter looks for signals at the end of a call, so the next instruction stands for it only where an
    exception would be handled in the same place: __exit__ of a `with` block that ends with a call comes next.
    """
    instructions = list(dis.get_instructions(code))
    found = {each.offset for each in instructions if each.opname in {"RESUME", "JUMP_BACKWARD"}}
    for before, after in itertools.pairwise(instructions):
        if before.opname in CALLS and _handler(code, before.offset) == _handler(code, after.offset):
            found.add(after.offset)
    return frozenset(found)


def _handler(code: CodeType, offset: int) -> int | None:
    """Where an exception at this instruction is handled."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]  # since Python 3.11
    return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)


def governors() -> list[Governor]:
    return find_governors("nvml_power_limit", Target(gpu_uuids=(UUID,)))


def main(path: str, line: str) -> None:
    found, journal = governors(), Journal(Path(path))
    with at_lines({int(line): lambda: os.kill(os.getpid(), signal.SIGKILL)}) as count:
        sweep(found, VALUES, lambda value: None, journal)
    print(count[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
