"""Catch: a ball falls, a paddle must be under it. The smallest game behind the interface of the emulators."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fathom.data.atari import SIDE, Arrival

CELLS = 7  # the field is 7 x 7 cells of 12 x 12 pixels
_MOVES = np.array([0, 1, -1])
_CELL = SIDE // CELLS


class Catch:
    """All games as one array: instant, exact, and won by who moves towards the ball.

    The ball falls straight down, a cell a step, so that a game lasts six: one point for a catch, minus one else.
    """

    actions = ("NOOP", "RIGHT", "LEFT")

    def __init__(self, envs: int, seed: int) -> None:
        self.envs = envs
        self._seed = seed
        self.reset()

    def reset(self) -> NDArray[np.uint8]:
        self._random = np.random.default_rng(self._seed)
        self.row = np.zeros(self.envs, np.int64)
        self.column = self._random.integers(CELLS, size=self.envs)
        self.paddle = self._random.integers(CELLS, size=self.envs)
        return self._drawn()

    def send(self, actions: NDArray[np.int64]) -> None:
        self.paddle = np.clip(self.paddle + _MOVES[actions], 0, CELLS - 1)
        self.row = self.row + 1

    def recv(self) -> Arrival:
        landed = self.row == CELLS - 1
        reward = np.where(landed, np.where(self.paddle == self.column, 1, -1), 0).astype(np.float32)
        self.row = np.where(landed, 0, self.row)
        self.column = np.where(landed, self._random.integers(CELLS, size=self.envs), self.column)
        never = np.zeros(self.envs, np.bool_)
        return Arrival(self._drawn(), reward, life_lost=never, game_over=landed, truncated=never)

    def state_dict(self) -> dict[str, Any]:
        places = {"row": self.row, "column": self.column, "paddle": self.paddle}
        kept = {name: torch.from_numpy(place.copy()) for name, place in places.items()}
        return {**kept, "random": self._random.bit_generator.state}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        self.row, self.column, self.paddle = (kept[name].numpy() for name in ("row", "column", "paddle"))
        self._random.bit_generator.state = kept["random"]

    def close(self) -> None:
        """Nothing runs in the background."""

    def _drawn(self) -> NDArray[np.uint8]:
        """Ball and paddle, as bright as Atari draws them."""
        cells = np.zeros((self.envs, CELLS, CELLS), np.uint8)
        every = np.arange(self.envs)
        cells[every, self.row, self.column] = 255
        cells[every, CELLS - 1, self.paddle] = 142
        return cells.repeat(_CELL, axis=1).repeat(_CELL, axis=2)
