"""Autograd's sequence numbers: from a node of the backward pass to what is known of its forward op.

Each thread counts for itself. A checkpoint computes layers again in the thread of the backward pass, whose numbers may
be those of other ops in the thread of the forward pass. A node says in which of torch's threads its op ran, by a number
that the trace has nowhere else: which thread it is, is found by which ones have such ops.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from fathom.trace.event import Event, sequence_args

Known = TypeVar("Known")
Thread = tuple[object, object]


class ForwardOps(Generic[Known]):
    def __init__(self) -> None:
        self._known: dict[int, dict[Thread, Known]] = {}  # by number and thread, in the order in which they were met
        self._threads: dict[int, Thread] = {}  # torch's number of a thread -> the thread

    def remember(self, event: Event, known: Known, *, again: bool) -> None:
        """Of a forward op; `again`: in the backward pass, where nodes have the numbers of their forward ops too."""
        args = sequence_args(event)
        if args.sequence is None or (again and args.forward_thread):
            return
        of_threads = self._known.setdefault(args.sequence, {})
        thread = (event.pid, event.tid)
        if again:
            of_threads.setdefault(thread, known)
        else:
            of_threads[thread] = known

    def of(self, node: Event) -> Known | None:
        """What was remembered of the forward op of a node; None where nothing was."""
        args = sequence_args(node)
        of_threads = self._known.get(-1 if args.sequence is None else args.sequence, {})
        if not args.forward_thread:
            return next(iter(of_threads.values()), None)
        if args.forward_thread not in self._threads:
            taken = set(self._threads.values())
            if (free := next((each for each in of_threads if each not in taken), None)) is None:
                return None
            self._threads[args.forward_thread] = free
        return of_threads.get(self._threads[args.forward_thread])
