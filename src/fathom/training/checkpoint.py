"""Checkpoints: what a training run is resumed from after a kill, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import torch

from fathom.core.errors import DataError, first_line
from fathom.core.spec import RunSpec

FOLDER = "FATHOM_CHECKPOINTS"  # the variable that names where checkpoints are kept; without it there are none
INTERVAL_S = 2.0  # between two checkpoints, at least
TIME_SHARE = 0.05  # of the time, at most: a gigabyte takes seconds to write


class Checkpoint:
    """The checkpoint of one run: its file, and when it is due to be written."""

    def __init__(self, spec: RunSpec, device: torch.device) -> None:
        folder = os.environ.get(FOLDER)
        self.path = Path(folder) / f"{spec.slug}-{spec.id}.pt" if folder else None
        self.device = device
        self.problem = ""  # why the last one could not be written
        self._written = time.perf_counter()
        self._cost_s = 0.0  # what the last one took

    def due(self) -> bool:
        waited = time.perf_counter() - self._written
        return waited >= max(INTERVAL_S, self._cost_s / TIME_SHARE)

    def load(self) -> dict[str, Any] | None:
        """What the last process left, with the random state set as it was then; None where there is nothing."""
        if self.path is None or not self.path.exists():
            return None
        kept: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        torch.set_rng_state(kept["random"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(kept["random_gpu"], self.device)
        return kept

    def unreadable(self, error: Exception) -> DataError:
        assert self.path is not None
        why = first_line(error).partition(". ")[0]  # torch goes on for long
        return DataError.at(self.path, f"not a checkpoint of this run; remove it to start over: {why}")

    def save(self, document: dict[str, Any]) -> None:
        """Through a second file, so that a kill in the middle leaves the checkpoint before.

        Where it cannot be written, the run goes on: without a kill it will not be missed.
        """
        if self.path is None:
            return
        begun = time.perf_counter()
        random_gpu = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        document = {**document, "random": torch.get_rng_state(), "random_gpu": random_gpu}
        part = self.path.with_suffix(".part")
        self.problem = ""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                torch.save(document, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
        except (OSError, RuntimeError) as error:  # torch makes a RuntimeError of a disk that fills up while it writes
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(cause, OSError):
                raise
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            self.problem = f"no checkpoint could be written to {self.path}: {cause.strerror or cause}"
        self._written = time.perf_counter()
        self._cost_s = self._written - begun
