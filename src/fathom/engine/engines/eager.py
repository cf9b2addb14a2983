"""eager: every op is launched by the host when Python comes to it, as PyTorch does by default."""

from __future__ import annotations

from typing import ClassVar

from fathom.engine.base import Engine


class Eager(Engine):
    name: ClassVar = "eager"
    alone: ClassVar = True  # it is what every other engine changes
