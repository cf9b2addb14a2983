"""How autoenc learns: its kernels are so small that a GPU would wait for every launch, so they are launched as one."""

from __future__ import annotations

from fathom.replaying import ReplayingLearner


class AutoencoderLearner(ReplayingLearner):
    """As any other, replayed."""
