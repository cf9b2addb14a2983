"""How alexnet learns: batch by batch, but for an update that is not finite: nothing normalises its dense layers."""

from __future__ import annotations

from fathom.guarded import GuardedLearner


class AlexNetLearner(GuardedLearner):
    """As any other, guarded."""
