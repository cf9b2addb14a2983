"""Atari 2600 environments for deepq: many emulators advanced together by ale-py's own threads."""

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

EXPECTS = "nothing: deepq plays the games included in ale-py, so leave --data out"
SIDE = 84
MAX_EPISODE_FRAMES = 108_000  # of the emulator: half an hour of play
CATCH = "catch"  # the one game that needs no emulator

# two-player games: ale-py ends the whole process when one of them is played alone
_TWO_PLAYER = frozenset({"combat", "joust", "maze_craze", "warlords"})


@dataclass(frozen=True)
class StepResult:
    """The result of one step of every environment; arrays are in the order of the environments."""

    frames: NDArray[np.uint8]  # [envs, 84, 84]; after the end of a game, the first frame of the next one
    reward: NDArray[np.float32]  # in the game's points, not clipped
    life_lost: NDArray[np.bool_]  # a life was lost and the game continues
    game_over: NDArray[np.bool_]
    truncated: NDArray[np.bool_]  # ended by the time limit, not by the rules of the game


class Environment(Protocol):
    """Many copies of one game, advanced together: send() returns immediately, recv() waits for all of them."""

    @property
    def actions(self) -> tuple[str, ...]:
        """The names of the actions; send() takes their indices."""

    @property
    def envs(self) -> int: ...

    def reset(self) -> NDArray[np.uint8]:
        """Restarts every game from the same seed; returns the first frames."""

    def send(self, actions: NDArray[np.int64]) -> None: ...

    def recv(self) -> StepResult: ...

    def close(self) -> None: ...


@runtime_checkable
class Checkpointable(Protocol):
    """An environment whose state can be saved and restored. The emulators' cannot."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and strings; must not be called between send() and recv()."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def make(game: str, envs: int, seed: int, *, frame_skip: int = 4, threads: int = 0) -> Environment:
    """`envs` copies of the named game; threads = 0 lets ale-py choose (one per core)."""
    if game == CATCH:
        from fathom.data._catch import Catch

        return Catch(envs, seed)
    if game not in games():
        raise UnknownName.among("game", game, games())
    return Emulators(game, envs, seed, frame_skip=frame_skip, threads=threads)


def games() -> list[str]:
    """The names that make() accepts."""
    if find_spec("ale_py") is None or find_spec("gymnasium") is None:
        raise MissingExtra("deepq plays Atari through ale-py, which is not installed: pip install 'fathom[atari]'")
    from ale_py import roms

    return sorted({CATCH, *roms.get_all_rom_ids()} - _TWO_PLAYER)


def tiled_png(frames: NDArray[np.uint8], across: int) -> str:
    """Frames tiled into one image, `across` per line: a PNG in base64."""
    lines = frames.reshape(-1, across, SIDE, SIDE).swapaxes(1, 2).reshape(-1, across * SIDE)
    file = io.BytesIO()
    Image.fromarray(lines).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


class Emulators:
    """Atari games, preprocessed as in the Nature paper except for frame stacking, which the replay buffer does.

    A game starts with up to 30 no-ops. An action is repeated for frame_skip frames; the pixel-wise maximum of the last
    two is converted to grey and scaled to 84 x 84. There is no automatic FIRE at reset and there are no sticky actions.
    """

    def __init__(self, game: str, envs: int, seed: int, *, frame_skip: int = 4, threads: int = 0) -> None:
        self.envs = envs
        self._seeds = np.random.SeedSequence(seed).generate_state(envs).astype(np.int64) >> 1  # 31 bits, not negative
        self._vector: Any = _vector_environment(game, envs, frame_skip, threads)
        self.actions = tuple(action.name for action in self._vector.ale.get_action_set())
        self._lives: NDArray[np.int32] = np.zeros(envs, np.int32)

    def reset(self) -> NDArray[np.uint8]:
        frames, info = self._vector.reset(seed=self._seeds)
        self._lives = info["lives"]
        first: NDArray[np.uint8] = frames[:, 0]
        return first

    def send(self, actions: NDArray[np.int64]) -> None:
        if actions.min() < 0 or actions.max() >= len(self.actions):
            raise ValueError(f"actions must be 0 to {len(self.actions) - 1}: {actions}")  # ale-py would hang
        self._vector.send(actions)

    def recv(self) -> StepResult:
        """Waits for the slowest environment. ale-py returns results in the order of the environments."""
        frames, reward, game_over, truncated, info = self._vector.recv()
        life_lost = (info["lives"] < self._lives) & ~(game_over | truncated)
        self._lives = info["lives"]
        return StepResult(frames[:, 0], reward.astype(np.float32), life_lost, game_over, truncated)

    def close(self) -> None:
        """Stops the threads: ale-py joins them when its last reference is dropped."""
        self._vector = None


def _vector_environment(game: str, envs: int, frame_skip: int, threads: int) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    try:
        with contextlib.redirect_stdout(sys.stderr):  # ale-py prints to stdout when ALE_ROMS_DIR is set
            return AtariVectorEnv(
                game,
                envs,
                num_threads=threads,
                frameskip=frame_skip,
                stack_num=1,
                noop_max=30,
                use_fire_reset=False,
                reward_clipping=False,  # the agent clips; scores are in unclipped points
                max_num_frames_per_episode=MAX_EPISODE_FRAMES,
                autoreset_mode="SameStep",  # a reset takes no extra step
            )
    except OSError as error:
        raise DataError(f"the ROM of {game}: {' '.join(str(error).split())}") from None
