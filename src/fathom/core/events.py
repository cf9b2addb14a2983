"""What a run reports while it is going on: the types of its callbacks, and a limit on how often they are called."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

OnProgress = Callable[[int, int], None]  # steps done, steps in all
# Events of a training run, each recognised by its first key: items_per_step; resumed (after which evaluation),
# evaluations; evaluating (which one); evaluation, evaluations, loss, quality, items_per_s; no_checkpoint (why).
OnEvent = Callable[[Mapping[str, Any]], None]
INTERVAL_S = 0.1


def no_progress(done: int, total: int) -> None:
    """For a run that nobody watches."""


def throttled(on_progress: OnProgress) -> OnProgress:
    """Calls at most ten times a second, and at the end: a step may take less time than reporting it."""
    last = 0.0

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last >= INTERVAL_S or done == total:
            last = now
            on_progress(done, total)

    return report
