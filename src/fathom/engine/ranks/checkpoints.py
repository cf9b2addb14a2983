"""Checkpoints of a job of several ranks: each rank writes its own, and all resume from the last step that all have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from fathom.engine.ranks.group import Group

KEPT = 2  # a kill may come when some ranks have written the last one and others have not


class Checkpoints:
    """In a folder that outlives the ranks, one file for each rank and step."""

    def __init__(self, folder: Path, group: Group, every: int) -> None:
        self.folder, self.group, self.every = folder, group, every
        folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> dict[str, Any] | None:
        """The last that every rank has, with the random state set as it was then; None where there is none."""
        common = set.intersection(*map(set, self.group.gathered(sorted(self._steps()))))
        if not common:
            return None
        kept: dict[str, Any] = torch.load(self._path(max(common)), map_location="cpu", weights_only=False)
        torch.set_rng_state(kept["random"])
        return kept

    def save(self, step: int, document: dict[str, Any]) -> None:
        """Through a second file, so that a kill in the middle leaves those before."""
        path = self._path(step)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            torch.save({**document, "step": step, "random": torch.get_rng_state()}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        for old in sorted(self._steps())[:-KEPT]:
            self._path(old).unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"rank-{self.group.rank}-{step}.pt"

    def _steps(self) -> list[int]:
        return [int(path.stem.rpartition("-")[2]) for path in self.folder.glob(f"rank-{self.group.rank}-*.pt")]
