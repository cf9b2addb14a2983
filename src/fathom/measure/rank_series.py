"""From the moments of all ranks to what each step was spent on: computing, exposed communication, waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fathom.engine.ranks.timeline import Span, StepSpans


@dataclass(frozen=True)
class StepParts:
    """One step of one rank. compute_s + exposed_s + wait_s = step_s; hidden_s is a part of compute_s."""

    step_s: float
    compute_s: float
    exposed_s: float
    wait_s: float
    hidden_s: float
    wire_bytes: int


def parts_of(ranks: Sequence[Sequence[StepSpans]], synchronous: bool = True) -> list[list[StepParts]]:
    """Of every rank and step. Ranks that take part in the same communication have the same number of exposed spans.

    A rank that reaches such a span waits until the slowest one has reached it; the rest of the span is the transfer.
    A span of a message between two ranks waits for the other one: in a pipeline that is the bubble.
    Where the ranks' spans do not correspond, or in asynchronous training, all of it is exposed communication.
    """
    steps = min((len(each) for each in ranks), default=0)
    found: list[list[StepParts]] = [[] for _ in ranks]
    for number in range(steps):
        same = [each[number] for each in ranks]
        everyone = _latest_begins(same) if synchronous else []
        for parts, step in zip(found, same, strict=True):
            latest = _latest_of_messages(step, same) if any(step.messages) else everyone
            parts.append(_parts(step, latest))
    return found


def _latest_begins(same: Sequence[StepSpans]) -> list[float]:
    """When the last rank reached each exposed span; none where the ranks have different numbers of them."""
    counts = {len(step.exposed) for step in same}
    if len(counts) != 1:
        return []
    return [max(step.exposed[index][0] for step in same) for index in range(counts.pop())]


def _latest_of_messages(step: StepSpans, same: Sequence[StepSpans]) -> list[float]:
    """When both ranks of the message that each span waited for were ready for it."""
    spans = zip(step.exposed, step.messages, strict=True)
    return [
        max([begin, *(each.reached[message] for each in same if message in each.reached)]) if message else begin
        for (begin, _), message in spans
    ]


def _parts(step: StepSpans, latest: Sequence[float]) -> StepParts:
    step_s = step.end_s - step.begin_s
    blocked_s = min(step_s, sum(end - begin for begin, end in step.exposed))
    pairs = zip(step.exposed, latest, strict=False)
    wait_s = min(blocked_s, sum(max(0.0, min(last, end) - begin) for (begin, end), last in pairs))
    inside = [(max(begin, step.begin_s), min(end, step.end_s)) for begin, end in step.communication]
    hidden_s = covered(inside) - overlap(inside, step.exposed)
    return StepParts(
        step_s=step_s,
        compute_s=step_s - blocked_s,
        exposed_s=blocked_s - wait_s,
        wait_s=wait_s,
        hidden_s=min(max(0.0, hidden_s), step_s - blocked_s),
        wire_bytes=step.wire_bytes,
    )


def merged(spans: Sequence[Span]) -> list[Span]:
    """The same time in spans that do not overlap."""
    found: list[Span] = []
    for begin, end in sorted(span for span in spans if span[1] > span[0]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def covered(spans: Sequence[Span]) -> float:
    return sum(end - begin for begin, end in merged(spans))


def overlap(one: Sequence[Span], other: Sequence[Span]) -> float:
    """Time that is in both."""
    return covered(one) + covered(other) - covered([*one, *other])
