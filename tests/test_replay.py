"""The replay buffer against a naive one that keeps every stack of every transition in plain lists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fathom.workloads._replay import STACK, ReplayBuffer

CPU = torch.device("cpu")
SIDE = 2  # four pixels are enough to write a frame's row and environment into it


@dataclass
class Transition:
    observation: Tensor
    action: int
    reward: float
    terminal: bool
    next_observation: Tensor


class Naive:
    """Every transition of every environment, stored in full; a truncated one is None."""

    def __init__(self, frames: NDArray[np.uint8]) -> None:
        self.stacks = [_opening(frame) for frame in torch.from_numpy(frames)]
        self.rows: list[list[Transition | None]] = [[None] * len(frames)]

    def add(self, frames: NDArray[np.uint8], *facts: NDArray[np.generic]) -> None:
        row: list[Transition | None] = []
        for env, frame in enumerate(torch.from_numpy(frames)):
            action, reward, terminal, truncated = (column[env].item() for column in facts)
            before = self.stacks[env]
            after = _opening(frame) if terminal or truncated else torch.cat([before[1:], frame[None]])
            row.append(None if truncated else Transition(before, int(action), float(reward), bool(terminal), after))
            self.stacks[env] = after
        self.rows.append(row)


def _opening(frame: Tensor) -> Tensor:
    return torch.cat([torch.zeros(STACK - 1, *frame.shape, dtype=torch.uint8), frame[None]])


def encoded_frames(row: int, envs: int) -> NDArray[np.uint8]:
    """Frames that encode their row and environment, and are never zero."""
    return np.array([[[row % 256, row // 256], [env, 255]] for env in range(envs)], np.uint8)


def filled(rows: int, envs: int, steps: int, seed: int, ends: float = 0.15) -> tuple[ReplayBuffer, Naive]:
    """Both buffers after the same random episodes, three in ten of whose ends are truncations."""
    rng = np.random.default_rng(seed)
    replay = ReplayBuffer(rows * envs + envs - 1, envs, SIDE, CPU, seed)
    replay.start(encoded_frames(0, envs))
    naive = Naive(encoded_frames(0, envs))
    length = np.zeros(envs, np.int64)
    for step in range(1, steps):
        ended = rng.random(envs) < ends
        truncated = ended & (rng.random(envs) < 0.3) & (length > 0)
        length = np.where(ended, 0, length + 1)
        facts = (rng.integers(18, size=envs), rng.normal(size=envs).astype(np.float32), ended & ~truncated, truncated)
        frames = encoded_frames(step, envs)
        replay.add(frames, *facts)
        naive.add(frames, *facts)
        assert torch.equal(replay.latest(), torch.stack(naive.stacks)), f"step {step}"
    return replay, naive


def origin(next_observation: Tensor) -> tuple[int, int]:
    """The row and environment encoded in the newest frame."""
    low, high, env, mark = next_observation[-1].flatten().tolist()
    assert mark == 255
    return low + 256 * high, env


@pytest.mark.parametrize("steps", [2, 3, 5, 30, 40, 41, 42, 43, 45, 79, 80, 81, 400])
@pytest.mark.parametrize("envs", [1, 3])
def test_samples_equal_the_stored_transitions(steps: int, envs: int) -> None:
    """A ring of 40 rows, sampled before it is full, as it fills, and after it has been written over many times."""
    replay, naive = filled(rows=40, envs=envs, steps=steps, seed=steps)
    batch = replay.sample(1000)
    for index in range(1000):
        row, env = origin(batch["next_observation"][index])
        expected = naive.rows[row][env]
        assert expected is not None, "a truncated transition was sampled"
        assert torch.equal(batch["observation"][index], expected.observation)
        assert torch.equal(batch["next_observation"][index], expected.next_observation)
        assert batch["action"][index] == expected.action
        assert batch["reward"][index] == expected.reward
        assert batch["terminal"][index] == expected.terminal


@pytest.mark.parametrize("cut", range(17, 30))
def test_a_truncation_anywhere_in_the_ring(cut: int) -> None:
    """Thirty rows in a ring of twelve, one truncation: the transition returned instead must be complete as well."""
    replay = ReplayBuffer(12, envs=1, side=SIDE, device=CPU)
    replay.start(encoded_frames(0, 1))
    naive = Naive(encoded_frames(0, 1))
    for step in range(1, 30):
        facts = (np.array([step]), np.ones(1, np.float32), np.array([False]), np.array([step == cut]))
        replay.add(encoded_frames(step, 1), *facts)
        naive.add(encoded_frames(step, 1), *facts)
    batch = replay.sample(200)
    for before, after in zip(batch["observation"], batch["next_observation"], strict=True):
        expected = naive.rows[origin(after)[0]][0]
        assert expected is not None
        assert torch.equal(before, expected.observation)
        assert torch.equal(after, expected.next_observation)


def test_every_stored_transition_is_sampled_equally_often() -> None:
    replay, naive = filled(rows=20, envs=2, steps=47, seed=3)
    draws = 40_000
    counts: dict[tuple[int, int], int] = {}
    for stack in replay.sample(draws)["next_observation"]:
        counts[origin(stack)] = counts.get(origin(stack), 0) + 1
    in_ring = range(47 - 20, 47)
    oldest = min(row for row, _ in counts)
    assert oldest <= in_ring[0] + STACK + 1, "no more of the ring is unusable than a stack needs"
    reachable = [(row, env) for row in range(oldest + 1, 47) for env in range(2) if naive.rows[row][env] is not None]
    assert set(counts) >= set(reachable)
    mean = draws / len(replay)
    for row, env in reachable:
        replaces_truncated = row + 1 < 47 and naive.rows[row + 1][env] is None  # the next one is truncated
        assert abs(counts[row, env] - mean * (1 + replaces_truncated)) < 6 * (2 * mean) ** 0.5


def test_transitions_of_any_row_can_be_read() -> None:
    replay, naive = filled(rows=30, envs=3, steps=70, seed=5)
    for row in range(70 - 30 + STACK, 70):
        for env in range(3):
            expected = naive.rows[row][env]
            if expected is not None:
                given = replay.transitions(torch.tensor([row]), torch.tensor([env]))
                assert torch.equal(given["observation"][0], expected.observation)
                assert torch.equal(given["next_observation"][0], expected.next_observation)


def test_a_frame_is_kept_once() -> None:
    replay = ReplayBuffer(1000, envs=4, side=84, device=CPU)
    assert replay.frames.shape == (250, 4, 84, 84)
    assert replay.frames.nbytes == 1000 * 84 * 84


def test_dtypes_and_shapes_of_a_batch() -> None:
    batch = filled(rows=10, envs=2, steps=9, seed=0)[0].sample(7)
    assert {name: (column.dtype, tuple(column.shape)) for name, column in batch.items()} == {
        "observation": (torch.uint8, (7, STACK, SIDE, SIDE)),
        "action": (torch.int64, (7,)),
        "reward": (torch.float32, (7,)),
        "terminal": (torch.bool, (7,)),
        "next_observation": (torch.uint8, (7, STACK, SIDE, SIDE)),
    }


def test_the_seed_determines_the_samples() -> None:
    first, again = (filled(rows=20, envs=2, steps=50, seed=1)[0].sample(64) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = ReplayBuffer(40, envs=2, side=SIDE, device=CPU, seed=2)
    same = filled(rows=20, envs=2, steps=50, seed=1)[0]
    other.frames, other.facts, other.written = same.frames, same.facts, same.written
    assert not torch.equal(other.sample(64)["next_observation"], first["next_observation"])


def test_invalid_uses_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer than 4 for each of 8"):
        ReplayBuffer(31, envs=8, side=SIDE, device=CPU)
    replay = ReplayBuffer(40, envs=1, side=SIDE, device=CPU)
    replay.start(encoded_frames(0, 1))
    with pytest.raises(ValueError, match="nothing to sample"):
        replay.sample(1)
    truncated = np.array([True])
    with pytest.raises(ValueError, match="after its first step"):
        replay.add(encoded_frames(1, 1), np.array([0]), np.zeros(1, np.float32), ~truncated, truncated)


def test_a_transition_of_several_steps_sums_their_rewards_up_to_the_end_of_the_episode() -> None:
    """Every transition in the ring against the same counted by hand from a log of what was added."""
    random, envs, steps, discount = np.random.default_rng(0), 3, 3, 0.9
    buffer = ReplayBuffer(60 * envs, envs, 2, torch.device("cpu"), steps=steps, discount=discount)
    frames = [random.integers(1, 255, (envs, 2, 2)).astype(np.uint8)]
    buffer.start(frames[0])
    never = np.zeros(envs, np.bool_)
    log = [(np.zeros(envs, np.int64), np.zeros(envs, np.float32), never, never)]
    age = np.zeros(envs, np.int64)
    for _ in range(199):
        terminal = random.random(envs) < 0.1
        truncated = (random.random(envs) < 0.05) & ~terminal & (age >= 2)
        reward = random.integers(-1, 2, envs).astype(np.float32)
        log.append((random.integers(0, 4, envs), reward, terminal, truncated))
        frames.append(random.integers(1, 255, (envs, 2, 2)).astype(np.uint8))
        buffer.add(frames[-1], *log[-1])
        age = np.where(terminal | truncated, 0, age + 1)
    checked = 0
    for row in range(buffer.written - len(buffer) // envs, buffer.written):
        for env in range(envs):
            past = [tuple(fact[env] for fact in log[row - steps + 1 + step]) for step in range(steps)]
            if any(truncated for _, _, _, truncated in past):
                continue
            found = buffer.transitions(torch.tensor([row]), torch.tensor([env]))
            end = next((step for step, fact in enumerate(past) if fact[2]), steps - 1)
            expected = sum(discount**step * fact[1] for step, fact in enumerate(past[: end + 1]))
            assert float(found["reward"]) == pytest.approx(float(expected))
            assert bool(found["terminal"]) == any(fact[2] for fact in past)
            assert int(found["action"]) == past[0][0]
            assert (found["observation"][0, -1].numpy() == frames[row - steps][env]).all()
            assert (found["next_observation"][0, -1].numpy() == frames[row][env]).all()
            checked += 1
    assert checked > 100


def test_no_drawn_transition_of_several_steps_crosses_a_truncation() -> None:
    """Frames count the steps of an episode, so that a stack of two episodes would show."""
    buffer = ReplayBuffer(40, 1, 1, torch.device("cpu"), steps=3, discount=1.0)
    buffer.start(np.full((1, 1, 1), 1, np.uint8))
    never, always, episode = np.array([False]), np.array([True]), 1
    for step in range(1, 60):
        cut = step % 7 == 0
        episode += cut
        frame = np.full((1, 1, 1), episode, np.uint8)
        buffer.add(frame, np.array([0]), np.array([1], np.float32), never, always if cut else never)
    drawn = buffer.sample(500)
    newest = [drawn[name][:, -1].flatten() for name in ("observation", "next_observation")]
    assert torch.equal(*newest)
    assert (drawn["reward"] == 3).all()


@pytest.mark.parametrize("steps", [1, 3])
def test_the_smallest_ring_that_deepq_accepts_can_always_be_sampled(steps: int) -> None:
    envs = 2
    buffer = ReplayBuffer((STACK + 2 * steps) * envs, envs, 3, torch.device("cpu"), steps=steps)
    frames, never = np.zeros((envs, 3, 3), np.uint8), np.zeros(envs, np.bool_)
    buffer.start(frames)
    for added in range(1, 40):
        buffer.add(frames, np.zeros(envs, np.int64), np.zeros(envs, np.float32), never, never)
        if added >= steps:
            assert len(buffer.sample(4)["action"]) == 4
