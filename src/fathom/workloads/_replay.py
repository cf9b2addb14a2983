"""Replay buffer on the compute device: every frame is stored once, and frames are stacked when sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fathom.data.base import Batch

STACK = 4  # frames in one observation
_ACTION, _REWARD, _TERMINAL, _TRUNCATED, _HISTORY = range(5)  # the columns of `facts`


class ReplayBuffer:
    """A ring buffer of rows; each row holds one step of all environments.

    A row has the new frame of every environment and its facts: action, reward, terminal, truncated, history. A frame's
    history is the number of the three previous frames that belong to the same episode; older frames are replaced by
    zeros in a stack. A transition is the stack that ends one row earlier, the facts, and the stack that ends in this
    row; of several steps, that many rows earlier, and its reward is the discounted sum of theirs up to the first that
    ends the episode. A truncated transition has no second stack, because the next frame starts another episode: when
    it is drawn, the last one before it is returned instead.
    """

    def __init__(
        self,
        capacity: int,
        envs: int,
        side: int,
        device: torch.device,
        seed: int = 0,
        *,
        steps: int = 1,
        discount: float = 1.0,
    ) -> None:
        self.rows = capacity // envs
        self.envs, self.steps = envs, steps
        if self.rows < STACK + steps - 1:
            raise ValueError(f"{capacity} frames are fewer than {STACK + steps - 1} for each of {envs} environments")
        # uninitialised: history masks rows that were never written
        self.frames = torch.empty(self.rows, envs, side, side, dtype=torch.uint8, device=device)
        self.facts = torch.zeros(self.rows, envs, 5, device=device)
        self.written = (
            0  # rows written in total; kept on the host, which needs no transfer to find the head of the ring
        )
        self._history: NDArray[np.int64] = np.zeros(envs, np.int64)
        self._random = torch.Generator(device).manual_seed(seed)
        self._back = torch.arange(STACK - 1, -1, -1, device=device)  # 3, 2, 1, 0 frames back
        self._window = torch.arange(STACK + steps - 1, -1, -1, device=device)  # rows back that a transition reads
        self._weight = discount ** torch.arange(steps, device=device)  # of each step's reward

    def start(self, frames: NDArray[np.uint8]) -> None:
        """Empties the buffer and stores the first frames, which have no action."""
        self.written = 0
        never = np.zeros(self.envs, np.bool_)
        self._history[:] = -1
        self.add(frames, np.zeros(self.envs, np.int64), np.zeros(self.envs, np.float32), never, never)

    def add(
        self,
        frames: NDArray[np.uint8],
        action: NDArray[np.int64],
        reward: NDArray[np.float32],
        terminal: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> None:
        """Stores one step. Where an episode ended, the frame must be the first of the next episode."""
        if (self._history[truncated] < 1).any():
            raise ValueError("an episode cannot be truncated after its first step")
        self._history = np.where(terminal | truncated, 0, np.minimum(self._history + 1, STACK - 1))
        facts = np.stack([action, reward, terminal, truncated, self._history], axis=1, dtype=np.float32)
        row = self.written % self.rows
        self.frames[row].copy_(self._staged(frames), non_blocking=True)
        self.facts[row].copy_(self._staged(facts), non_blocking=True)
        self.written += 1

    def latest(self) -> Tensor:
        """The current observation: the stack that ends in the newest frame of each environment."""
        newest = self.written - 1
        stack = torch.stack([self.frames[(newest - back) % self.rows] for back in range(STACK - 1, -1, -1)], dim=1)
        return self._within_episode(stack, self.facts[newest % self.rows, :, _HISTORY])

    def __len__(self) -> int:
        """The number of transitions that can be sampled."""
        return max(0, self.written - self._oldest()) * self.envs

    def sample(self, count: int) -> Batch:
        """Transitions drawn uniformly with replacement; host and device neither synchronise nor exchange data."""
        if len(self) == 0:
            raise ValueError("nothing to sample: the buffer has no complete transition")
        index = torch.randint(len(self), (count,), generator=self._random, device=self.frames.device)
        row = self._oldest() + index // self.envs
        env = index % self.envs
        back = torch.arange(self.steps, device=row.device)
        truncated = self.facts[(row[:, None] - back) % self.rows, env[:, None], _TRUNCATED].long()
        row -= (truncated * (back + 1)).amax(1)
        return self.transitions(row, env)

    def transitions(self, row: Tensor, env: Tensor) -> Batch:
        """The transitions that end in the given rows, counted from the first row ever written."""
        window = (row[:, None] - self._window) % self.rows * self.envs + env[:, None]
        frames = self.frames.view(-1, *self.frames.shape[2:]).index_select(0, window.view(-1))
        frames = frames.view(len(row), len(self._window), *self.frames.shape[2:])
        facts = self.facts.view(-1, 5)[window[:, -self.steps - 1 :]]
        before, after = facts[:, 0], facts[:, 1:]
        going_on = (1 - after[:, :, _TERMINAL]).cumprod(1)  # after each step
        counted = torch.cat([torch.ones_like(going_on[:, :1]), going_on[:, :-1]], 1) * self._weight
        return {
            "observation": self._within_episode(frames[:, :STACK], before[:, _HISTORY]),
            "action": after[:, 0, _ACTION].long(),
            "reward": (after[:, :, _REWARD] * counted).sum(1),
            "terminal": going_on[:, -1] == 0,
            "next_observation": self._within_episode(frames[:, -STACK:], after[:, -1, _HISTORY]),
        }

    def state_dict(self) -> dict[str, Any]:
        filled = min(self.written, self.rows)
        return {
            "frames": self.frames[:filled],
            "facts": self.facts[:filled],
            "written": self.written,
            "history": torch.from_numpy(self._history),
            "random": self._random.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        filled = len(state["frames"])
        self.frames[:filled].copy_(state["frames"])
        self.facts[:filled].copy_(state["facts"])
        self.written = int(state["written"])
        self._history = state["history"].numpy()
        self._random.set_state(state["random"])

    def _oldest(self) -> int:
        """The first row whose transition, and those up to `steps` rows before, have all their frames in the ring."""
        return max(self.steps, self.written - self.rows + STACK - 1 + 2 * self.steps)

    def _within_episode(self, stack: Tensor, history: Tensor) -> Tensor:
        return stack * (self._back <= history[:, None])[:, :, None, None]

    def _staged(self, array: NDArray[np.generic]) -> Tensor:
        """Pinned memory, so that the copy to a GPU is asynchronous; torch reuses it when the copy is done.

        NumPy fills it: torch would copy with a thread on every core, and these threads spin on while the emulators need
        the cores.
        """
        tensor = torch.from_numpy(array)
        if self.frames.device.type != "cuda":
            return tensor
        pinned = torch.empty_like(tensor, pin_memory=True)
        np.copyto(pinned.numpy(), array)
        return pinned
