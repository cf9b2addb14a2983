"""Signals while a setting of the machine is changed: none may interrupt a change, or the way out that undoes it."""

from __future__ import annotations

import contextlib
import inspect
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Self

from fathom.core.stopping import importing

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # of Ctrl-C, a scheduler and a closed terminal
_set_mask = inspect.unwrap(signal.pthread_sigmask)  # a signal could interrupt its Python wrapper before the mask is set


class Deferral:
    """Within it, a signal that would end the program raises at once, except where that would leave something half done.

    Inside critical(), inside the functions `protected` and all that they call, and while a module is imported, it waits
    for the next critical() or for the end. After the first one that raised, further ones wait too: its exception is on
    its way out, and where it gets there they are dropped. Blocking signals would not be enough: where the main thread
    blocks one, another thread takes it, and Python still runs the handler in the main thread.
    """

    def __init__(self, *protected: Callable[..., Any]) -> None:
        functions = (*protected, Deferral.__enter__, Deferral.__exit__)
        self._protected: set[CodeType] = {function.__code__ for function in functions}
        self._handlers: dict[int, Any] = {}  # those of before
        self._waiting: list[int] = []
        self._held = self._raised = self._over = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other thread gets signals
            found = {number: signal.getsignal(number) for number in SIGNALS}
            self._handlers = {number: old for number, old in found.items() if old not in (signal.SIG_IGN, None)}
            self._waiting, self._raised, self._over = [], False, False
            self._install(dict.fromkeys(self._handlers, self._on_signal))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._install(self._handlers)
        if kind is None:
            self._raised = False  # whoever caught the exception of a signal did not end the program
        self._deliver_waiting()

    @contextlib.contextmanager
    def critical(self) -> Iterator[None]:
        self._raised = False  # as above: this is not the way out
        self._deliver_waiting()
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self._deliver_waiting()

    def _install(self, handlers: Mapping[int, Any]) -> None:
        """All of them, or those of before where a signal raises in between.

        Signals are blocked meanwhile, and wait for the last line. Where another thread takes one even so, a handler
        may raise here. One of ours that a second such signal leaves installed stands aside when it is called.
        """
        mask = _set_mask(signal.SIG_BLOCK, ())  # a call of its own: the next one may raise after it has blocked them
        try:
            _set_mask(signal.SIG_BLOCK, SIGNALS)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        except BaseException:
            self._over = True
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            raise
        finally:
            _set_mask(signal.SIG_SETMASK, mask)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._over:
            signal.signal(number, self._handlers[number])
            signal.raise_signal(number)
        elif self._held or self._raised or self._is_protected(frame) or importing(frame):
            self._waiting.append(number)
        else:
            self._deliver(number, frame)
            self._deliver_waiting()

    def _deliver_waiting(self) -> None:
        while self._waiting and not self._raised:
            self._deliver(self._waiting.pop(0), None)

    def _deliver(self, number: int, frame: FrameType | None) -> None:
        handler = self._handlers[number]
        self._raised = True  # a second signal that comes within the handler waits
        if handler == signal.SIG_DFL:  # would end the process on the spot
            raise SystemExit(128 + number)
        handler(number, frame)
        self._raised = False  # it did not raise: the program goes on

    def _is_protected(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code in self._protected:
                return True
            frame = frame.f_back
        return False
