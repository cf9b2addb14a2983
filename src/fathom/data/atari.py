"""Atari 2600 games as deepq plays them: many emulators at once in ale-py's own threads, behind a small interface."""

from __future__ import annotations

import base64
import contextlib
import io
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fathom.core.errors import DataError, MissingExtra, UnknownName

EXPECTS = "nothing: deepq plays the games that ale-py carries, so leave --data out"
SIDE = 84
LONGEST_GAME = 108_000  # emulator frames: half an hour of play
CATCH = "catch"  # the one game that needs no emulator

# ale-py knows these as games for two: playing one of them alone ends the whole process
_FOR_TWO = frozenset({"combat", "joust", "maze_craze", "warlords"})


@dataclass(frozen=True)
class Arrival:
    """What one step of every environment brought, each array in the order of the environments."""

    frames: NDArray[np.uint8]  # [envs, 84, 84]; where a game ended, already the first frame of the next one
    reward: NDArray[np.float32]  # the game's own points, not clipped
    life_lost: NDArray[np.bool_]  # a life fewer, and the game goes on
    game_over: NDArray[np.bool_]
    truncated: NDArray[np.bool_]  # broken off by a limit of time, not by the rules of the game


class Environment(Protocol):
    """Many copies of one game, advanced together; send() returns at once, recv() waits for all of them."""

    @property
    def actions(self) -> tuple[str, ...]:
        """What the numbers given to send() mean."""

    @property
    def envs(self) -> int: ...

    def reset(self) -> NDArray[np.uint8]:
        """Starts every game anew, always from the same seed; gives the first frames."""

    def send(self, actions: NDArray[np.int64]) -> None: ...

    def recv(self) -> Arrival: ...

    def close(self) -> None: ...


@runtime_checkable
class Keepable(Protocol):
    """Games that can be kept as they stand, and taken up there again. The emulators cannot."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and words; asked for only when nothing is under way between send() and recv()."""

    def load_state_dict(self, kept: dict[str, Any]) -> None: ...


def play(game: str, envs: int, seed: int, *, frame_skip: int = 4, threads: int = 0) -> Environment:
    """The named game, many times over; threads = 0 leaves their number to the emulator (one a core)."""
    if game == CATCH:
        from fathom.data._catch import Catch

        return Catch(envs, seed)
    if game not in games():
        raise UnknownName.among("game", game, games())
    return Emulators(game, envs, seed, frame_skip=frame_skip, threads=threads)


def games() -> list[str]:
    """The names that play() takes."""
    if find_spec("ale_py") is None or find_spec("gymnasium") is None:
        raise MissingExtra("deepq plays Atari through ale-py, which is not installed: pip install 'fathom[atari]'")
    from ale_py import roms

    return sorted({CATCH, *roms.get_all_rom_ids()} - _FOR_TWO)


def drawn(frames: NDArray[np.uint8], across: int) -> str:
    """Frames side by side, and in lines below each other: a PNG in base 64."""
    lines = frames.reshape(-1, across, SIDE, SIDE).swapaxes(1, 2).reshape(-1, across * SIDE)
    file = io.BytesIO()
    Image.fromarray(lines).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


class Emulators:
    """Atari games, prepared as in the Nature paper but for the stacking of frames, which the replay memory does.

    Up to 30 no-ops open a game, an action is held for frame_skip frames, the last two of these are joined by their
    maximum, made grey and scaled to 84 x 84. The agent presses FIRE itself, and no action is ever repeated by chance.
    """

    def __init__(self, game: str, envs: int, seed: int, *, frame_skip: int = 4, threads: int = 0) -> None:
        self.envs = envs
        self._seeds = np.random.SeedSequence(seed).generate_state(envs).astype(np.int64) >> 1  # 31 bits, never below 0
        self._vector: Any = _vector_environment(game, envs, frame_skip, threads)
        self.actions = tuple(action.name for action in self._vector.ale.get_action_set())
        self._lives: NDArray[np.int32] = np.zeros(envs, np.int32)

    def reset(self) -> NDArray[np.uint8]:
        frames, facts = self._vector.reset(seed=self._seeds)
        self._lives = facts["lives"]
        first: NDArray[np.uint8] = frames[:, 0]
        return first

    def send(self, actions: NDArray[np.int64]) -> None:
        if actions.min() < 0 or actions.max() >= len(self.actions):
            raise ValueError(f"actions must be 0 to {len(self.actions) - 1}: {actions}")  # ale-py would wait for ever
        self._vector.send(actions)

    def recv(self) -> Arrival:
        """Waits for the slowest; ale-py then hands over all of them by their numbers, whichever was done first."""
        frames, reward, game_over, truncated, facts = self._vector.recv()
        life_lost = (facts["lives"] < self._lives) & ~(game_over | truncated)
        self._lives = facts["lives"]
        return Arrival(frames[:, 0], reward.astype(np.float32), life_lost, game_over, truncated)

    def close(self) -> None:
        """Stops the threads: ale-py joins them when the last reference goes."""
        self._vector = None


def _vector_environment(game: str, envs: int, frame_skip: int, threads: int) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    try:
        with contextlib.redirect_stdout(sys.stderr):  # where ALE_ROMS_DIR is set ale-py says so with a plain print
            return AtariVectorEnv(
                game,
                envs,
                num_threads=threads,
                frameskip=frame_skip,
                stack_num=1,
                noop_max=30,
                use_fire_reset=False,
                reward_clipping=False,  # the agent clips: the score is counted in true points
                max_num_frames_per_episode=LONGEST_GAME,
                autoreset_mode="SameStep",  # no step is spent on the reset alone
            )
    except OSError as error:
        raise DataError(f"the ROM of {game}: {' '.join(str(error).split())}") from None
