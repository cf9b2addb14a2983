"""Which points of a long series are kept so that its picture stays the same."""

from __future__ import annotations

from collections.abc import Sequence


def extremes(values: Sequence[float | None], most: int) -> list[int]:
    """Indices of at most so many values: the first, the last, and the least and the greatest of stretches between.

    A value that is not known is kept only where nothing else is in its stretch.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    parts = max(1, (most - 2) // 2)
    kept = {0, count - 1}
    for number in range(parts):
        inside = range(number * count // parts, (number + 1) * count // parts)
        known = [(value, at) for at in inside if (value := values[at]) is not None]
        kept |= {min(known)[1], max(known)[1]} if known else {inside[0]}
    return sorted(kept)
