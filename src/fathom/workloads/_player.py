"""deepq's Q-network, and the agent that acts in the environments and fills the replay buffer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fathom.data import atari
from fathom.workloads._replay import STACK, ReplayBuffer


class QNetwork(nn.Module):
    """From four frames to the value of each action; torch's default initialisation is that of the authors' code."""

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
    """The environments, the replay buffer, in training the target network, and the state of the running games."""

    environment: atari.Environment
    memory: ReplayBuffer
    random: np.random.Generator  # on the host, so that exploration is the same on every device
    target: nn.Module | None  # None in inference
    score: NDArray[np.float32]  # of each running game so far
    over: NDArray[np.bool_]  # which games ended with the last action
    finished: list[float] = field(default_factory=list)  # final scores of completed games
    evaluated: list[tuple[float, int]] = field(
        default_factory=list
    )  # score and number of actions of each game of the last evaluation
    frames: int = 0  # since training began
    updates: int = 0
    _sent: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def act(self, best: Tensor | None, epsilon: float) -> NDArray[np.int64]:
        """Epsilon-greedy: sends the network's action or, with probability epsilon, a random one; does not wait."""
        envs = self.environment.envs
        any_action = self.random.integers(len(self.environment.actions), size=envs)
        exploring = self.random.random(envs) < epsilon
        # the only synchronisation with the device: emulators run on the host
        self._sent = any_action if best is None else np.where(exploring, any_action, best.cpu().numpy())
        self.environment.send(self._sent)
        return self._sent

    def observe(self) -> NDArray[np.float32]:
        """Waits for the emulators and stores their transitions; returns the score of each game after this step."""
        result = self.environment.recv()
        learning = self.target is not None
        terminal = result.game_over | result.life_lost if learning else result.game_over
        reward = np.clip(result.reward, -1, 1)
        self.memory.add(result.frames, self._sent, reward, terminal, result.truncated)
        score = self.score + result.reward
        self.over = result.game_over | result.truncated
        self.finished += score[self.over].tolist()
        self.score = np.where(self.over, np.float32(0), score)
        return score
