"""Who plays in deepq: the network that values actions, and the agent that takes them and remembers what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fathom.data import atari
from fathom.workloads._replay import STACK, Replay


class QNetwork(nn.Module):
    """From four frames to the value of each action; torch's default weights are also those of the authors' code."""

    def __init__(self, actions: int, filters: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(STACK, filters, 8, stride=4)
        self.conv2 = nn.Conv2d(filters, 2 * filters, 4, stride=2)
        self.conv3 = nn.Conv2d(2 * filters, 2 * filters, 3)
        self.hidden = nn.Linear(2 * filters * 7 * 7, hidden)
        self.value = nn.Linear(hidden, actions)

    def forward(self, observation: Tensor) -> Tensor:
        x = F.relu(self.conv1(observation / 255))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        x = F.relu(self.hidden(x.flatten(1)))
        values: Tensor = self.value(x)
        return values


@dataclass
class Agent:
    """Who plays: the emulators, the memory of what was seen, and in training the network that sets the targets."""

    environment: atari.Environment
    memory: Replay
    random: np.random.Generator  # on the host, where the actions are needed: the same play on every device
    target: nn.Module | None  # None in inference
    score: NDArray[np.float32]  # points so far in each running game
    over: NDArray[np.bool_]  # which games the last action ended
    finished: list[float] = field(default_factory=list)  # final scores of the games played to their end
    judged: list[tuple[float, int]] = field(default_factory=list)  # score and actions of each game last evaluated
    frames: int = 0  # seen since learning began
    updates: int = 0
    _sent: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def act(self, best: Tensor | None, epsilon: float) -> NDArray[np.int64]:
        """Sets the emulators off, with the network's choice or, by chance epsilon, any action; does not wait."""
        envs = self.environment.envs
        any_action = self.random.integers(len(self.environment.actions), size=envs)
        exploring = self.random.random(envs) < epsilon
        # the one place where the host waits for the device: emulators live on the host
        self._sent = any_action if best is None else np.where(exploring, any_action, best.cpu().numpy())
        self.environment.send(self._sent)
        return self._sent

    def observe(self) -> NDArray[np.float32]:
        """Waits for the emulators and remembers what they bring; gives the score of each game after this step."""
        arrival = self.environment.recv()
        learning = self.target is not None
        terminal = arrival.game_over | arrival.life_lost if learning else arrival.game_over
        reward = np.clip(arrival.reward, -1, 1)
        self.memory.add(arrival.frames, self._sent, reward, terminal, arrival.truncated)
        score = self.score + arrival.reward
        self.over = arrival.game_over | arrival.truncated
        self.finished += score[self.over].tolist()
        self.score = np.where(self.over, np.float32(0), score)
        return score
