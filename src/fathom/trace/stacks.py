"""The source line of every event, from the stacks in a trace: the innermost frame that is the user's own code.

A trace made with with_stack=True has Python's functions as events, nested in time with the ops; one of torch before
1.12 has the stack as an argument of each op. A backward op has the line of its forward op, found by autograd's sequence
number, unless Python code runs in the backward itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

import msgspec

from fathom.trace.event import LAUNCH, Event, sequence_args, view
from fathom.trace.event_columns import EventColumns
from fathom.trace.marks import EVALUATE, is_backward_node
from fathom.trace.owners import FRAMEWORK, HARNESS, LIBRARY, NO_SOURCE, owner_of
from fathom.trace.sequences import ForwardOps

SAMPLED = 2000  # ops that are searched for stacks: all threads but those of backward have them, or none


class StackArgs(msgspec.Struct, gc=False):
    stack: str = msgspec.field(default="", name="Call stack")  # innermost frame first


stack_args = view(StackArgs)


class Place(NamedTuple):
    """Where in the source something was called."""

    line: str = ""
    owner: int = NO_SOURCE
    library: str = ""  # the innermost function of a library below the user's line

    def inside(self, frame: str) -> Place:
        """The place of what the frame calls, if this is the place of the frame."""
        owner = owner_of(frame)
        if owner == HARNESS:
            return Place(frame, FRAMEWORK)
        if owner and owner >= self.owner:
            return Place(frame, owner)
        return Place(self.line, self.owner, frame) if owner == LIBRARY else self


def has_frames(columns: EventColumns) -> bool:
    """Whether Python's functions are events of the trace."""
    functions = columns.of_category("python_function")
    return bool(functions.any()) and bool((functions & columns.named(owner_of)).any())


def has_call_stacks(columns: EventColumns) -> bool:
    """Whether ops have their stack as an argument, as before torch 1.12."""
    ops = columns.chosen(columns.of_category("cpu_op"))
    return any(stack_args(event).stack for event in ops[:: 1 + len(ops) // SAMPLED])


def places(columns: EventColumns, wanted: Set[int], call_stacks: bool) -> dict[int, Place]:
    """The places of events, by their id(); of those wanted that have one."""
    frames = columns.of_category("python_function") & columns.named(owner_of)  # those with a source
    calls = columns.of_category(LAUNCH)
    calls[calls] = [id(event) in wanted for event in columns.chosen(calls)]
    chosen = frames | calls | columns.of_category("cpu_op")
    threads = [columns.at(index) for index in columns.nested(chosen)]
    sweep = _Sweep(wanted, call_stacks)
    # the thread with the forward pass first: backward ops look up its sequence numbers
    for thread in sorted(threads, key=_first_forward_us):
        sweep.thread(thread)
    return sweep.found


class _Sweep:
    def __init__(self, wanted: Set[int], call_stacks: bool) -> None:
        self.wanted = wanted
        self.call_stacks = call_stacks
        self.found: dict[int, Place] = {}
        self.forward = ForwardOps[Place]()
        self.stacks: dict[str, Place] = {}  # of stacks as text: a trace repeats its steps
        self.last_backward = Place()

    def thread(self, events: Iterable[Event]) -> None:
        stack: list[tuple[float, Place, bool]] = [(float("inf"), Place(), False)]  # until when; in a backward
        for event in events:
            while stack[-1][0] <= event.ts:
                stack.pop()
            _, place, backward = stack[-1]
            if event.cat == "python_function":
                stack.append((event.ts + event.dur, place.inside(event.name), backward))
                continue
            if event.cat == "cpu_op":
                if event.name.startswith(EVALUATE) or (not backward and is_backward_node(event.name)):
                    place, backward = self._backward(event, place), True
                    stack.append((event.end, place, backward))
                else:
                    place = self._op(event, place, backward)
            if place.line and id(event) in self.wanted:
                self.found[id(event)] = place

    def _op(self, event: Event, place: Place, backward: bool) -> Place:
        if self.call_stacks and (frames := stack_args(event).stack):
            place = self._innermost(frames)
        if place.line:
            self.forward.remember(event, place, again=backward)
        return place

    def _innermost(self, frames: str) -> Place:
        if frames not in self.stacks:
            place = Place()
            for frame in reversed(frames.split(";")):
                place = place.inside(frame)
            self.stacks[frames] = place
        return self.stacks[frames]

    def _backward(self, event: Event, outer: Place) -> Place:
        """The forward op's place, or else that of the call of backward(), where it is on the same thread.

        AccumulateGrad has no sequence number; it runs right after the node that produced the gradient.
        """
        if sequence_args(event).sequence is not None:
            self.last_backward = self.forward.of(event) or outer
        return self.last_backward


def _first_forward_us(thread: Iterable[Event]) -> float:
    begins = (event.ts for event in thread if event.cat == "cpu_op" and not event.name.startswith("autograd::"))
    return next(begins, float("inf"))
