"""What a job tells of itself on its way, so that somebody can watch it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

Progress = Callable[[int, int], None]  # steps done, steps in all
# Of learning, each kind of news by its first key: items_per_step; resumed (after which round), rounds; looking (at
# held-out data, in which round); round, rounds, loss, quality, items_per_s.
Hear = Callable[[Mapping[str, Any]], None]
TELL_EVERY_S = 0.1


def now_and_then(progress: Progress) -> Progress:
    """Tells at most ten times a second and at the end: a step may take less time than telling of it."""
    told = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal told
        now = time.perf_counter()
        if now - told >= TELL_EVERY_S or done == total:
            told = now
            progress(done, total)

    return tell
