"""Catch: a ball falls and a paddle must be under it. A minimal game with the interface of the emulators."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fathom.data.atari import SIDE, StepResult

CELLS = 7  # the board is 7 x 7 cells of 12 x 12 pixels
_MOVES = np.array([0, 1, -1])
_CELL_PIXELS = SIDE // CELLS


class Catch:
    """All games are computed as one array. The winning policy is to move towards the ball.

    The ball falls straight down, one cell per step, so a game lasts six steps: +1 for a catch, -1 for a miss.
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
        return self._render()

    def send(self, actions: NDArray[np.int64]) -> None:
        self.paddle = np.clip(self.paddle + _MOVES[actions], 0, CELLS - 1)
        self.row = self.row + 1

    def recv(self) -> StepResult:
        landed = self.row == CELLS - 1
        reward = np.where(landed, np.where(self.paddle == self.column, 1, -1), 0).astype(np.float32)
        self.row = np.where(landed, 0, self.row)
        self.column = np.where(landed, self._random.integers(CELLS, size=self.envs), self.column)
        never = np.zeros(self.envs, np.bool_)
        return StepResult(self._render(), reward, life_lost=never, game_over=landed, truncated=never)

    def state_dict(self) -> dict[str, Any]:
        positions = {"row": self.row, "column": self.column, "paddle": self.paddle}
        state = {name: torch.from_numpy(position.copy()) for name, position in positions.items()}
        return {**state, "random": self._random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.row, self.column, self.paddle = (state[name].numpy() for name in ("row", "column", "paddle"))
        self._random.bit_generator.state = state["random"]

    def close(self) -> None:
        """Nothing to stop: there are no threads."""

    def _render(self) -> NDArray[np.uint8]:
        """Ball and paddle, in grey levels that Atari games use."""
        cells = np.zeros((self.envs, CELLS, CELLS), np.uint8)
        env = np.arange(self.envs)
        cells[env, self.row, self.column] = 255
        cells[env, CELLS - 1, self.paddle] = 142
        return cells.repeat(_CELL_PIXELS, axis=1).repeat(_CELL_PIXELS, axis=2)
