"""Time outside ops by the function that ran, in seconds of the unprofiled step.

Recording the calls of Python's functions makes steps slower. How much of a function's time that was is not known, and
estimated twice: as if each call cost the profiler the same, and in proportion to the function's time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fathom.analysis.selection import on_gpu, outside, starved
from fathom.core.record import Profile
from fathom.core.traced import OutsidePart
from fathom.trace.host import OUTSIDE
from fathom.trace.owners import LIBRARY, USERS, owner_of


@dataclass
class OutsideLine:
    """One function, with what it called that is nobody's own function."""

    line: str
    by_calls_s: float = 0.0  # less what recording its calls took, if each took the same
    by_time_s: float = 0.0
    torch_s: float = 0.0  # of the middle of the two, torch's own
    callees: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # -> seconds, likewise

    @property
    def seconds(self) -> float:
        """The middle of the two estimates."""
        return (self.by_calls_s + self.by_time_s) / 2

    @property
    def own_s(self) -> float:
        return max(0.0, self.seconds - self.torch_s)

    @property
    def is_users(self) -> bool:
        """Whether it is the user's own, or of a library that runs without any."""
        return owner_of(self.line) in (USERS, LIBRARY)


def outside_lines(profile: Profile) -> list[OutsideLine]:
    """Longest first; none where the trace has no Python functions. They add up to what is divided among them."""
    parts = profile.sources.outside if profile.sources else []
    total_s = divided_s(profile)
    found: dict[str, OutsideLine] = {}
    for part, by_calls_s, by_time_s in zip(parts, _by_calls(parts, total_s), _by_time(parts, total_s), strict=True):
        line = found.setdefault(part.line, OutsideLine(part.line))
        line.by_calls_s += by_calls_s
        line.by_time_s += by_time_s
        line.torch_s += (by_calls_s + by_time_s) / 2 if part.in_torch else 0.0
        line.callees[part.callee] += (by_calls_s + by_time_s) / 2
    return sorted(found.values(), key=lambda line: -line.seconds)


def divided_s(profile: Profile) -> float:
    """Outside ops; on a GPU, of that only what it waits for a host that is outside ops."""
    return outside(profile) * (starved(profile, OUTSIDE) if on_gpu(profile) else 1.0)


def _by_time(parts: Sequence[OutsidePart], total_s: float) -> list[float]:
    return _scaled([part.seconds for part in parts], total_s)


def _by_calls(parts: Sequence[OutsidePart], total_s: float) -> list[float]:
    recording_s = max(0.0, sum(part.seconds for part in parts) - total_s)
    per_call_s = recording_s / calls if (calls := sum(part.calls for part in parts)) else 0.0
    return _scaled([max(0.0, part.seconds - per_call_s * part.calls) for part in parts], total_s)


def _scaled(seconds: Sequence[float], total_s: float) -> list[float]:
    whole = sum(seconds)
    return [each * total_s / whole if whole else 0.0 for each in seconds]


def longest(callees: Mapping[str, float], count: int) -> list[tuple[str, float]]:
    """What a function called, longest first; its own lines are not among them."""
    named = [(name, seconds) for name, seconds in callees.items() if name and seconds > 0]
    return sorted(named, key=lambda each: -each[1])[:count]
