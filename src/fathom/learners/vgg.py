"""How vgg learns: batch by batch, but for an update that is not finite: nothing normalises what passes its layers."""

from __future__ import annotations

from fathom.guarded import GuardedLearner


class VGGLearner(GuardedLearner):
    """As any other, guarded."""
