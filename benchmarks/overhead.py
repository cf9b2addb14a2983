"""What the harness costs: a training step inside Fathom over the same step in a bare loop, all workloads in one run.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/overhead.py --device cpu --out FILE.json
Both loops train the same network on the same batches, a few steps in turn, in balanced order; the turns are short, so
that whatever else the machine does meets both alike. Inside Fathom every step passes through its hook, is marked on the
clock and told to a parent through a pipe, as in a worker; the bare loop is what one would write by hand. For deepq,
whose step is more than an update, it calls the workload's step itself. The interval is of the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.nn.utils import clip_grad_norm_

from fathom import registry
from fathom.machine import fingerprint
from fathom.progress import now_and_then
from fathom.session import Session, Step
from fathom.spec import RunSpec
from fathom.statistics import median_interval
from fathom.timing import StepClock, wait

TURN_S = 0.1  # of steps in one turn, at least one


def bare(session: Session) -> Callable[[], Any]:
    """One step, by hand."""
    workload, state = session.workload, session.state
    optimizer, model = state.optimizer, state.model
    assert optimizer is not None
    if workload.name == "deepq":
        return lambda: workload.train_step(state)

    def step() -> None:
        batch = next(state.batches)
        optimizer.zero_grad(set_to_none=True)
        with state.autocast():
            loss = workload.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if workload.clip_norm is not None:
            clip_grad_norm_(model.parameters(), workload.clip_norm)
        optimizer.step()

    return step


def inside(session: Session, clock: StepClock, pipe: int) -> Callable[[int], Any]:
    """So many steps as a worker runs them."""
    tell = now_and_then(lambda done, total: os.write(pipe, json.dumps({"progress": [done, total]}).encode()) and None)

    def timed(step: Step) -> None:
        step.run()
        clock.mark()
        tell(step.index + 1, 1 << 30)

    return lambda steps: session.run(steps, on_step=timed)


def compare(name: str, arguments: argparse.Namespace, pipe: int) -> dict[str, Any]:
    spec = RunSpec(workload=name, preset=arguments.preset, device=arguments.device, precision=arguments.precision)
    with Session(spec).setup() as session:
        by_hand = bare(session)

        def seconds(loop: str, steps: int) -> float:
            in_fathom = inside(session, StepClock(session.device, marks=steps), pipe)
            wait(session.device)
            begun = time.perf_counter()
            if loop == "fathom":
                in_fathom(steps)
            else:
                for _ in range(steps):
                    by_hand()
            wait(session.device)
            return (time.perf_counter() - begun) / steps

        steps = max(1, int(TURN_S / min(seconds("fathom", 3), seconds("bare", 3))))
        times: dict[str, list[float]] = {"bare": [], "fathom": []}
        stop = time.perf_counter() + arguments.seconds
        while time.perf_counter() < stop or len(times["bare"]) < 10:
            first, second = random.sample(list(times), 2)
            for loop in (first, second, second, first):  # a drift meets both alike
                times[loop].append(seconds(loop, steps))
    pairs = [ours / theirs for ours, theirs in zip(_by_round(times["fathom"]), _by_round(times["bare"]), strict=True)]
    found = median_interval([pairs])
    ratio = {"ratio": found.median, "low": found.low, "high": found.high}
    return {"workload": name, "steps_a_turn": steps, "rounds": len(pairs), **ratio, "seconds": times}


def _by_round(times: list[float]) -> list[float]:
    return [one + other for one, other in zip(times[::2], times[1::2], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=registry.names("workloads"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each workload")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    random.seed(0)
    nobody = os.open(os.devnull, os.O_WRONLY)
    found = []
    for name in arguments.names:
        found.append(compare(name, arguments, nobody))
        bare_s = statistics.median(found[-1]["seconds"]["bare"])
        told = "{ratio:.4f} ({low:.4f} to {high:.4f}) of it".format_map(found[-1])
        print(f"{name:9} {1e3 * bare_s:10.3f} ms bare; inside Fathom {told}", flush=True)
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"machine": fingerprint(), "preset": arguments.preset, "results": found}, indent=1)
        )


if __name__ == "__main__":
    main()
