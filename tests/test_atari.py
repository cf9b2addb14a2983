"""The emulators and Catch behind one interface: rules, order, reproducibility and error messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from fathom.core.errors import DataError, MissingExtra, UnknownName
from fathom.data import atari
from fathom.data._catch import CELLS, Catch


def breakout(envs: int = 2, seed: int = 0, threads: int = 0) -> atari.Environment:
    pytest.importorskip("ale_py", reason="the extra 'atari' is not installed")
    return atari.make("breakout", envs, seed, threads=threads)


@pytest.fixture(scope="module")
def pair() -> Iterator[atari.Environment]:
    """Two games with seed 0, shared as starting an emulator takes a while; every test resets them."""
    game = breakout()
    yield game
    game.close()


def played(environment: atari.Environment, actions: NDArray[np.int64]) -> Iterator[atari.StepResult]:
    """Results of the given actions after a reset, one row per step."""
    environment.reset()
    for row in actions:
        environment.send(row)
        yield environment.recv()


def random_actions(steps: int, envs: int, choices: int = 4) -> NDArray[np.int64]:
    return np.random.default_rng(7).integers(choices, size=(steps, envs))


def test_breakout_looks_like_breakout(pair: atari.Environment) -> None:
    assert pair.actions == ("NOOP", "FIRE", "RIGHT", "LEFT")
    frames = pair.reset()
    assert frames.shape == (2, 84, 84)
    assert frames.dtype == np.uint8
    assert (frames[:, 18:60, :4] == 142).all(), "the wall at the left, grey by luminance"
    assert (frames[:, 23:37, 5:79] >= 85).all(), "six rows of bricks"
    assert (frames[:, 40:60, 5:79] == 0).all(), "and nothing below them"


def test_results_are_in_the_order_of_the_games_whatever_the_threads(pair: atari.Environment) -> None:
    """Each game gets its own actions; with several threads they finish in any order, and must not be mixed up."""
    actions = random_actions(200, 2)
    one_thread = breakout(threads=1)
    for one, many in zip(played(one_thread, actions), played(pair, actions), strict=True):
        for field in ("frames", "reward", "life_lost", "game_over", "truncated"):
            assert (getattr(one, field) == getattr(many, field)).all(), field
    one_thread.close()


def test_an_environment_does_not_depend_on_the_others(pair: atari.Environment) -> None:
    actions = random_actions(100, 2)
    single = breakout(envs=1)
    for alone, among in zip(played(single, actions[:, :1]), played(pair, actions), strict=True):
        assert (among.frames[:1] == alone.frames).all()
    single.close()


def test_reset_starts_over_and_seeds_differ(pair: atari.Environment) -> None:
    other = breakout(seed=1)
    actions = random_actions(60, 2)
    runs = [[result.frames for result in played(game, actions)] for game in (pair, pair, other)]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    other.close()


def test_a_lost_life_is_not_the_end_of_the_game(pair: atari.Environment) -> None:
    """Breakout has five lives: four are lost and reported, with the fifth the game is over."""
    lost = np.zeros(2, np.int64)
    ended = 0
    for result in played(pair, random_actions(1000, 2)):
        assert not (result.life_lost & result.game_over).any()
        assert (lost[result.game_over] == 4).all()
        ended += int(result.game_over.sum())
        lost = np.where(result.game_over, 0, lost + result.life_lost)
        bricks = result.frames[result.game_over][:, 23:37, 5:79]
        assert (bricks >= 85).all(), "where a game is over the frame is the next one's, its wall whole again"
    assert ended > 4


def test_fewer_lives_in_a_new_game_are_no_loss(pair: atari.Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A game that ended or was truncated with an extra life restarts with fewer lives."""

    class Vector:
        def recv(self) -> tuple[Any, ...]:
            over, truncated = np.array([True, False]), np.array([False, True])
            return np.zeros((2, 1, 84, 84), np.uint8), np.zeros(2), over, truncated, {"lives": np.array([5, 5])}

    monkeypatch.setattr(pair, "_lives", np.array([6, 6]))
    monkeypatch.setattr(pair, "_vector", Vector())
    result = pair.recv()
    assert result.life_lost.tolist() == [False, False]
    assert result.game_over.tolist() == [True, False]
    assert result.truncated.tolist() == [False, True]


def test_rewards_are_true_points() -> None:
    """Every step of Skiing costs some hundredths of a second: clipping is the agent's business."""
    pytest.importorskip("ale_py", reason="the extra 'atari' is not installed")
    game = atari.make("skiing", 1, seed=0)
    rewards = np.concatenate([result.reward for result in played(game, np.zeros((20, 1), np.int64))])
    assert rewards.dtype == np.float32
    assert set(rewards.tolist()) <= {-6.0, -7.0}, "four frames of a sixtieth of a second"
    game.close()


def test_close_stops_the_threads() -> None:
    process = psutil.Process()
    before = {thread.id for thread in process.threads()}
    game = breakout(envs=1, threads=1)
    game.reset()
    game.send(np.zeros(1, np.int64))  # still at work when closed
    (own,) = {thread.id for thread in process.threads()} - before
    game.close()
    last = time.monotonic() + 20  # the kernel may show a thread for a moment that has been joined
    while own in {thread.id for thread in process.threads()}:
        assert time.monotonic() < last


def test_an_invalid_action_is_refused_instead_of_hanging(pair: atari.Environment) -> None:
    pair.reset()
    for actions in ([0, 4], [-1, 0]):
        with pytest.raises(ValueError, match="actions must be 0 to 3"):
            pair.send(np.array(actions))


def test_unknown_game_names_the_nearest() -> None:
    pytest.importorskip("ale_py", reason="the extra 'atari' is not installed")
    with pytest.raises(UnknownName, match="no game 'brekout'; did you mean breakout"):
        atari.make("brekout", 4, 0)
    with pytest.raises(UnknownName, match="no game 'warlords'"):
        atari.make("warlords", 4, 0)
    assert {"breakout", "pong", "catch"} <= set(atari.games())
    assert not {"combat", "joust", "maze_craze", "warlords"} & set(atari.games())


def test_without_the_emulator_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"^[^\n]*pip install 'fathom\[atari\]'$"):
        atari.make("breakout", 4, 0)
    assert atari.make("catch", 4, 0).envs == 4


@pytest.mark.parametrize("content", [None, b"not a ROM"])
def test_user_roms_that_are_missing_or_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "breakout.bin").write_bytes(content)
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(DataError, match=r"^the ROM of breakout: [^\n]*breakout\.bin[^\n]*$"):
        breakout()
    assert capsys.readouterr().out == "", "standard output belongs to --json"


@pytest.mark.parametrize(("follow", "reward"), [(True, 1), (False, -1)])
def test_catch_is_won_by_following_the_ball_and_lost_by_keeping_away(follow: bool, reward: int) -> None:
    game = Catch(64, seed=0)
    for step in range(1, 5 * (CELLS - 1) + 1):
        aim = game.column if follow else (CELLS - 1) * (game.column <= CELLS // 2)
        game.send(np.select([aim > game.paddle, aim < game.paddle], [1, 2], 0))
        result = game.recv()
        landed = step % (CELLS - 1) == 0
        assert (result.game_over == landed).all()
        assert (result.reward == (reward if landed else 0)).all()
        assert not (result.life_lost | result.truncated).any()


def test_catch_renders_its_state() -> None:
    game = Catch(3, seed=4)
    game.reset()
    game.send(np.array([0, 1, 2]))
    frames = game.recv().frames
    pixels = 84 // CELLS
    for env in range(3):
        cells = frames[env].reshape(CELLS, pixels, CELLS, pixels)
        assert (cells == cells[:, :1, :, :1]).all(), "cells are of one colour"
        expected = np.zeros((CELLS, CELLS), np.uint8)
        expected[1, game.column[env]] = 255
        expected[CELLS - 1, game.paddle[env]] = 142
        assert (cells[:, 0, :, 0] == expected).all()


def test_catch_is_reproducible_from_its_seed() -> None:
    runs = [[result.frames for result in played(Catch(5, seed), random_actions(40, 5, 3))] for seed in (0, 0, 1)]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
