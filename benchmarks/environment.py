"""deepq's frames per second beside those of the bare vector of emulators, interleaved in one run.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/environment.py --out FILE.json
All three play the same game, as many at once and in as many threads, and prepare its frames alike: "bare" sends random
actions and looks at nothing; "act" is deepq's inference, in which the network chooses every action; "train" remembers
every frame and learns from 32 transitions for every four actions. Frames are the emulator's own, four to an action.
Acting and training run once for each of --engines. Where the time of a step goes is measured after the comparison, in
steps of their own: "emulators" is waiting for them, "network" is waiting for the actions that it chooses, "store" is
handing frames to the device, and "rest" is mostly launching kernels.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv

from fathom.engine.session import Session, load
from fathom.machine.host import fingerprint
from fathom.workloads.deepq import Deepq

BARE = "bare"
TARGETS = {"act": 0.6, "train": 0.3}  # over bare, on 16 cores with an H200 and 32 games
PIECE_STEPS = 50


class Bare:
    """The vector of emulators as ale-py gives it, with the preparation that deepq asks for."""

    def __init__(self, game: str, envs: int, threads: int) -> None:
        self.vector = AtariVectorEnv(
            game, envs, num_threads=threads, stack_num=1, use_fire_reset=False, reward_clipping=False,
            autoreset_mode="SameStep",
        )  # fmt: skip
        self.vector.reset(seed=0)
        choices = len(self.vector.ale.get_action_set())
        self.actions = np.random.default_rng(0).integers(choices, size=(4096, envs))  # drawn before the clock runs
        self.step = 0

    def __call__(self) -> None:
        self.vector.step(self.actions[self.step % len(self.actions)])
        self.step += 1


def frames_per_second(step: Callable[[], Any], frames: int, seconds: float, device: torch.device) -> float:
    """Whole steps for about the given time, to the end of the device's work."""
    begin = time.perf_counter()
    steps = 0
    while time.perf_counter() - begin < seconds:
        step()
        steps += 1
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return steps * frames / (time.perf_counter() - begin)


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    choice = {"game": arguments.game, "envs": arguments.envs, "emulator_threads": arguments.threads}
    run = {"device": arguments.device, "precision": arguments.precision, "preset": arguments.preset}
    engines = arguments.engines.split(",")
    begin = time.perf_counter()
    sessions = {
        f"{name}_{engine}": load("deepq", phase=phase, engine=engine, **run, **choice).setup()
        for name, phase in (("act", "infer"), ("train", "train"))
        for engine in engines
    }
    setup_s = time.perf_counter() - begin
    loops: dict[str, Callable[[], Any]] = {BARE: Bare(arguments.game, arguments.envs, arguments.threads)}
    loops |= {name: _step_of(session) for name, session in sessions.items()}
    training = next(session for session in sessions.values() if session.spec.phase == "train")
    workload = training.workload
    assert isinstance(workload, Deepq)
    speeds = interleaved(loops, workload.frames_per_step, arguments.rounds, arguments.seconds, training.device)
    pieces = {name: pieces_of(session) for name, session in sessions.items()}
    found = {
        **choice, **run, "device": str(training.device), "updates_per_step": workload.updates_per_step,
        "batch": workload.batch, "setup_s": setup_s, "random_play_frames": workload.learning_starts,
        "frames_per_s": speeds, "over_bare": over_bare(speeds), "seconds_of_a_step": pieces,
    }  # fmt: skip
    for session in reversed(sessions.values()):  # the last to be set up first puts the process's settings back
        session.close()
    return found


def interleaved(
    loops: dict[str, Callable[[], Any]], frames: int, rounds: int, seconds: float, device: torch.device
) -> dict[str, list[float]]:
    speeds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds + 1):
        for name, step in loops.items():
            speed = frames_per_second(step, frames, seconds, device)
            if number:  # the first round warms up, and captures graphs
                speeds[name].append(speed)
    return speeds


def over_bare(speeds: dict[str, list[float]]) -> dict[str, float]:
    """The median of the rounds' ratios: a drift of the machine cancels from each round."""
    return {
        name: statistics.median(one / bare for one, bare in zip(values, speeds[BARE], strict=True))
        for name, values in speeds.items()
        if name != BARE
    }


def pieces_of(session: Session) -> dict[str, float]:
    """Seconds of a step by what the host does."""
    agent, spent = session.state.extra, {"emulators": 0.0, "network": 0.0, "store": 0.0}
    step = _step_of(session)

    def watched(owner: Any, name: str, piece: str, without: str | None = None) -> None:
        """Adds the time of a method to a piece, less what it adds to another."""
        work = getattr(owner, name)

        def timed(*given: Any) -> Any:
            begun, inside = time.perf_counter(), spent[without] if without else 0.0
            result = work(*given)
            spent[piece] += time.perf_counter() - begun - ((spent[without] - inside) if without else 0.0)
            return result

        setattr(owner, name, timed)

    watched(agent.environment, "recv", "emulators")
    watched(agent.environment, "send", "emulators")
    watched(agent, "act", "network", without="emulators")
    watched(agent.memory, "add", "store")
    begun = time.perf_counter()
    for _ in range(PIECE_STEPS):
        step()
    if session.device.type != "cpu":
        torch.accelerator.synchronize(session.device)
    whole = time.perf_counter() - begun
    spent["rest"] = whole - sum(spent.values())
    return {name: seconds / PIECE_STEPS for name, seconds in spent.items()}


def _step_of(session: Session) -> Callable[[], Any]:
    return session.train_step if session.spec.phase == "train" else session.infer_step


def shown(found: dict[str, Any]) -> None:
    print(f"{found['game']}, {found['envs']} games at once, on {found['device']}; set up in {found['setup_s']:.1f} s")
    print(f"{'loop':24}{'frames/s':>10}{'min':>10}{'max':>10}{'over bare':>11}  aim")
    for name, speeds in found["frames_per_s"].items():
        ratio, aim = found["over_bare"].get(name, 1.0), TARGETS.get(name.partition("_")[0], "")
        median = statistics.median(speeds)
        print(f"{name:24}{median:10.0f}{min(speeds):10.0f}{max(speeds):10.0f}{ratio:11.3f}  {aim}")
    print("\nmicroseconds of a step")
    for name, pieces in found["seconds_of_a_step"].items():
        print(f"{name:24}" + ", ".join(f"{piece} {1e6 * seconds:.0f}" for piece, seconds in pieces.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--threads", type=int, default=0, help="0: one a core, and no more than games")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--engines", default="eager", help="such as eager,cudagraph on a GPU")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each loop in each round")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = compare(arguments)
    shown(found)
    if arguments.out:
        document = {"machine": dataclasses.asdict(fingerprint(torch.device(found["device"]))), "results": [found]}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
