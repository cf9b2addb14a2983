"""How speech learns: batch by batch, but for an update that is not finite after hundreds of frames."""

from __future__ import annotations

from fathom.guarded import GuardedLearner


class SpeechLearner(GuardedLearner):
    """As any other, guarded."""
