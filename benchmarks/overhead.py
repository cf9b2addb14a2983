"""What the harness costs: a training step inside Fathom over the same step in a bare loop, all workloads in one run.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/overhead.py --device cpu --out FILE.json
The two take turns, step by step, on the same network and the same stream of batches, so that whatever else the machine
does meets both alike. Inside Fathom a step is made by the session, passes through its hook, is marked on the clock and
told to a parent through a pipe, as in a worker; the bare step is what one would write by hand, and keeps its loss too.
For deepq, whose step is more than an update, that is the workload's own step. Each turn ends when the device has done
its work: nothing of what Fathom adds can hide behind it. The ratio is the median over pairs of neighbours, and the
interval is of this median.
"""

from __future__ import annotations

import argparse
import json
import os
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

WARM_UP = 5  # pairs, before it is known how long one takes
FEWEST = 10  # pairs, however long they take


def bare(session: Session) -> Callable[[], Any]:
    """One step, by hand."""
    workload, state = session.workload, session.state
    optimizer, model = state.optimizer, state.model
    assert optimizer is not None
    if workload.name == "deepq":
        return lambda: workload.train_step(state)

    losses = []

    def step() -> None:
        batch = next(state.batches)
        optimizer.zero_grad(set_to_none=True)
        with state.autocast():
            loss = workload.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if workload.clip_norm is not None:
            clip_grad_norm_(model.parameters(), workload.clip_norm)
        optimizer.step()
        losses.append(loss.detach())

    return step


def compare(name: str, arguments: argparse.Namespace, pipe: int) -> dict[str, Any]:
    spec = RunSpec(workload=name, preset=arguments.preset, device=arguments.device, precision=arguments.precision)
    with Session(spec).setup() as session:
        alternate(session, WARM_UP, pipe)
        times = alternate(session, WARM_UP, pipe)
        pair_s = statistics.median(ours + theirs for ours, theirs in zip(*times.values(), strict=True))
        times = alternate(session, max(FEWEST, int(arguments.seconds / pair_s)), pipe)
    ratios = [ours / theirs for ours, theirs in zip(*times.values(), strict=True)]
    found = median_interval([ratios])
    ratio = {"ratio": found.median, "low": found.low, "high": found.high}
    quartiles = {f"{loop}_s": statistics.quantiles(each, n=4) for loop, each in times.items()}
    return {"workload": name, "pairs": len(ratios), **ratio, **quartiles}


def alternate(session: Session, pairs: int, pipe: int) -> dict[str, list[float]]:
    """The seconds of so many steps each: one as a worker runs it, one by hand, and so on."""
    device, by_hand = session.device, bare(session)
    times: dict[str, list[float]] = {"fathom": [], "bare": []}
    tell = now_and_then(lambda done, total: os.write(pipe, json.dumps({"progress": [done, total]}).encode()) and None)
    clock = StepClock(device, marks=pairs)
    wait(device)
    begun = time.perf_counter()

    def timed(step: Step) -> None:
        """What the session does between two hooks was done since `begun`, and counts as Fathom's."""
        nonlocal begun
        step.run()
        clock.mark()
        tell(step.index + 1, 1 << 30)
        wait(device)
        between = time.perf_counter()
        by_hand()
        wait(device)
        times["fathom"].append(between - begun)
        begun = time.perf_counter()
        times["bare"].append(begun - between)

    session.run(pairs, on_step=timed)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=registry.names("workloads"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each workload")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    nobody = os.open(os.devnull, os.O_WRONLY)
    found = []
    for name in arguments.names:
        found.append(compare(name, arguments, nobody))
        bare_s = found[-1]["bare_s"][1]
        told = "{ratio:.4f} ({low:.4f} to {high:.4f}) of it".format_map(found[-1])
        print(f"{name:9} {1e3 * bare_s:10.3f} ms bare; inside Fathom {told}", flush=True)
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"machine": fingerprint(), "preset": arguments.preset, "results": found}, indent=1)
        )


if __name__ == "__main__":
    main()
