"""asynchronous: every rank exchanges gradients for weights with a server by itself, with bounded staleness.

It is hybrid with groups of one rank: nobody waits for anybody, unless it is too far ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fathom.core.errors import BadOption
from fathom.engine.ranks.strategies.hybrid import Hybrid


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Hybrid):
    name: ClassVar = "asynchronous"

    group_size: int = 1

    def check(self) -> None:
        super().check()
        if self.group_size != 1:
            raise BadOption("asynchronous has groups of one rank; larger ones are strategy hybrid")
