"""Signals while a setting of the machine is changed: none may interrupt a change, or the way out that undoes it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # of Ctrl-C, a scheduler and a closed terminal


class Deferral:
    """Within it, a signal that would end the program raises at once, except where that would leave something half done.

    Inside critical(), and inside the functions `protected` and all that they call, it waits. After the first signal,
    further ones wait too: the exception of the first is on its way out. Blocking signals would not be enough: where the
    main thread blocks one, another thread takes it, and Python still runs the handler in the main thread.
    """

    def __init__(self, *protected: Callable[..., Any]) -> None:
        self._protected: set[CodeType] = {function.__code__ for function in protected}
        self._handlers: dict[int, Any] = {}
        self._waiting: list[int] = []
        self._held = self._raised = self._over = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other thread gets signals
            try:
                for number in SIGNALS:
                    if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                        self._handlers[number] = handler
                        signal.signal(number, self._on_signal)
            except BaseException:
                self._put_back()
                raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._put_back()
        self._deliver_waiting()

    @contextlib.contextmanager
    def critical(self) -> Iterator[None]:
        self._deliver_waiting()
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self._deliver_waiting()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._over and (self._held or self._raised or self._is_protected(frame)):
            self._waiting.append(number)
        else:
            self._deliver(number, frame)

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

    def _put_back(self) -> None:
        """A signal in the middle of this raises as it would have without us."""
        self._over = True
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
