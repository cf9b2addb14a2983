"""How findings say alike: names in a row, ends and middle of a range, a part in percent, and that nothing is known."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from fathom.analysis.finding import Finding


def listed(names: Sequence[str]) -> str:
    """One, two and three."""
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


def least_and_most(values: Mapping[str, float], style: str) -> str:
    """Two numbers, and whose they are."""
    ends = dict.fromkeys((min(values, key=lambda name: values[name]), max(values, key=lambda name: values[name])))
    return " to ".join(f"{values[name]:{style}} ({name})" for name in ends)


def spread(values: Sequence[float]) -> str:
    """32 (31 to 33): the median, the least and the most; 32 where they are the same."""
    middle, least, most = (f"{of(values):.4g}" for of in (statistics.median, min, max))
    return middle if least == most else f"{middle} ({least} to {most})"


def in_percent(part: float | None) -> float | None:
    return None if part is None else 100 * part


def unanswered(question: str, title: str, missing: str, notes: Iterable[str] = ()) -> Finding:
    return Finding(question=question, title=title, summary=f"Nothing to answer from: {missing}.", notes=list(notes))
