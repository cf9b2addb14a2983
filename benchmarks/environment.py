"""deepq's frames per second beside those of the bare vector of emulators, interleaved in one run.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/environment.py --out FILE.json
All three play the same game, as many at once and in as many threads, and prepare its frames alike: "bare" sends random
actions and looks at nothing; "act" is deepq's inference, in which the network chooses every action; "train" remembers
every frame and learns from 32 transitions for every four actions. Frames are the emulator's own, four to an action.
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

LOOPS = ("bare", "act", "train")


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
    begin = time.perf_counter()
    training = load("deepq", phase="train", **run, **choice).setup()
    setup_s = time.perf_counter() - begin
    acting = load("deepq", phase="infer", **run, **choice).setup()
    loops: dict[str, Callable[[], Any]] = {
        "bare": Bare(arguments.game, arguments.envs, arguments.threads),
        "act": _step_of(acting),
        "train": _step_of(training),
    }
    workload = training.workload
    assert isinstance(workload, Deepq)
    speeds: dict[str, list[float]] = {name: [] for name in LOOPS}
    for number in range(arguments.rounds + 1):
        for name in LOOPS:
            speed = frames_per_second(loops[name], workload.frames_per_step, arguments.seconds, training.device)
            if number:  # the first round warms up
                speeds[name].append(speed)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    found = {
        **choice, **run, "device": str(training.device), "updates_per_step": workload.updates_per_step,
        "batch": workload.batch, "setup_s": setup_s, "random_play_frames": workload.learning_starts,
        "frames_per_s": speeds, "over_bare": {name: medians[name] / medians["bare"] for name in LOOPS[1:]},
    }  # fmt: skip
    acting.close()  # the last to be set up is the first to put the settings of the process back
    training.close()
    return found


def _step_of(session: Session) -> Callable[[], Any]:
    return session.train_step if session.spec.phase == "train" else session.infer_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--threads", type=int, default=0, help="0: one a core, and no more than games")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each loop in each round")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = compare(arguments)
    print(f"{found['game']}, {found['envs']} games at once, on {found['device']}; set up in {found['setup_s']:.1f} s")
    print("loop    frames/s       min       max  over bare")
    for name, speeds in found["frames_per_s"].items():
        ratio = found["over_bare"].get(name, 1.0)
        print(f"{name:5} {statistics.median(speeds):10.0f}{min(speeds):10.0f}{max(speeds):10.0f}{ratio:11.3f}")
    if arguments.out:
        document = {"machine": dataclasses.asdict(fingerprint(torch.device(found["device"]))), "results": [found]}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
