"""What the harness costs: a training step inside Fathom over the same step in a bare loop, all workloads in one run.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/overhead.py --device cpu --out FILE.json
They take turns, step by step, on the same network and the same stream of batches, so that whatever else the machine
does meets all alike. Inside Fathom a step is made by the session, passes through its hook, is marked on the clock and
told to a parent through a pipe, as in a worker. The usual step is what one would write by hand, and keeps its loss too.
The lean one also clears the gradients as Fathom does, which is quicker than optimizer.zero_grad(): over it, Fathom's
step has what the harness adds and nothing that it saves. For deepq, whose step is more than an update, both are the
session's own step. Each turn ends when the device has done its work: nothing of what Fathom adds can hide behind it.
A ratio is the median over turns that follow each other. It is measured in several launches, each a process of its own,
and the interval is over launches: of the turns of one process it would hold within this process only, and two processes
differ by more. Turns end when both ratios are known well enough within the process, or when the seconds are over.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.nn.utils import clip_grad_norm_

from fathom.analysis.statistics import median_interval
from fathom.core.events import throttled
from fathom.core.spec import RunSpec
from fathom.engine.session import Session, Step
from fathom.machine.clock import StepClock, wait
from fathom.machine.host import fingerprint
from fathom.measure.stopping import StoppingRule
from fathom.workloads.catalogue import suite

WARM_UP = 5  # rounds of turns, before it is known how long one takes
FEWEST = 10  # rounds, however long they take
BETWEEN_S = 2.0  # looks at how well the ratios are known, at least
KNOWN = 0.004  # of a ratio, either way, is well enough to tell 1.01 from less
BARE = ("usual", "lean")


def by_hand(session: Session, lean: bool) -> Callable[[], Any]:
    """One step without Fathom around it."""
    workload, state = session.workload, session.state
    optimizer, model, weights = state.optimizer, state.model, state.weights
    assert optimizer is not None
    if workload.interactive:
        return session.train_step

    losses = []

    def step() -> None:
        batch = next(state.batches)
        if lean:
            for weight in weights:
                weight.grad = None
        else:
            optimizer.zero_grad(set_to_none=True)
        with state.autocast():
            loss = workload.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if workload.clip_norm is not None:
            clip_grad_norm_(weights, workload.clip_norm)
        optimizer.step()
        losses.append(loss.detach())

    return step


def compare(name: str, arguments: argparse.Namespace, pipe: int) -> dict[str, list[float]]:
    """The seconds of every turn, of one launch: this process."""
    spec = RunSpec(workload=name, preset=arguments.preset, device=arguments.device, precision=arguments.precision)
    times: dict[str, list[float]] = {loop: [] for loop in ("fathom", *BARE)}
    rules = {loop: StoppingRule() for loop in BARE}
    with Session(spec).setup() as session:
        alternate(session, WARM_UP, pipe)
        tried = alternate(session, WARM_UP, pipe)
        round_s = statistics.median(map(sum, zip(*tried.values(), strict=True)))
        stop = time.perf_counter() + arguments.seconds / arguments.launches
        rounds = max(FEWEST, int(BETWEEN_S / round_s))
        while True:
            for loop, seconds in alternate(session, rounds, pipe).items():
                times[loop] += seconds
            known = [rules[loop].half_width(turn_ratios(times, loop)) <= KNOWN for loop in BARE]
            if all(known) or time.perf_counter() >= stop:
                return times
            rounds = len(times["fathom"])  # as many again: each look costs


def turn_ratios(times: dict[str, list[float]], loop: str) -> list[float]:
    """Fathom's step over the one by hand, of each turn."""
    return [ours / theirs for ours, theirs in zip(times["fathom"], times[loop], strict=True)]


def summarised(name: str, launches: list[dict[str, list[float]]]) -> dict[str, Any]:
    """The ratios with their intervals over launches, and every turn of every launch."""
    found: dict[str, Any] = {"workload": name, "rounds": [len(times["fathom"]) for times in launches]}
    for loop in BARE:
        ratio = median_interval([turn_ratios(times, loop) for times in launches])
        found[f"over_{loop}"] = {"ratio": ratio.median, "low": ratio.low, "high": ratio.high, "claim": ratio.claim}
    for loop in ("fathom", *BARE):
        found[f"{loop}_s"] = statistics.quantiles([each for times in launches for each in times[loop]], n=4)
    return found | {"launches": launches}


def alternate(session: Session, rounds: int, pipe: int) -> dict[str, list[float]]:
    """The seconds of so many steps each: one as a worker runs it, one of either kind by hand, and so on."""
    device, bare = session.device, {loop: by_hand(session, loop == "lean") for loop in BARE}
    times: dict[str, list[float]] = {loop: [] for loop in ("fathom", *BARE)}
    tell = throttled(lambda done, total: _write(pipe, {"progress": [done, total]}))
    clock = StepClock(device, marks=rounds)
    wait(device)
    begun = time.perf_counter()

    def turn_ends(loop: str) -> None:
        nonlocal begun
        wait(device)
        ended = time.perf_counter()
        times[loop].append(ended - begun)
        begun = time.perf_counter()

    def timed(step: Step) -> None:
        """What the session does between two hooks was done since `begun`, and counts as Fathom's."""
        step.run()
        clock.mark()
        tell(step.index + 1, 1 << 30)
        turn_ends("fathom")
        for loop, run in bare.items():
            run()
            turn_ends(loop)

    session.run(rounds, on_step=timed)
    return times


def _write(pipe: int, message: dict[str, Any]) -> None:
    os.write(pipe, json.dumps(message).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=suite())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each workload, at most, all launches together")
    parser.add_argument("--launches", type=int, default=5, help="processes for each workload")
    parser.add_argument("--one", action="store_true", help="one launch of one workload, in this process, as JSON")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.one:
        nobody = os.open(os.devnull, os.O_WRONLY)
        print(json.dumps(compare(arguments.names[0], arguments, nobody)))
        return
    found = []
    for name in arguments.names:
        found.append(summarised(name, [launched(name, arguments) for _ in range(arguments.launches)]))
        usual_s = found[-1]["usual_s"][1]
        usual, lean = (
            "{ratio:.4f} ({low:.4f} to {high:.4f}, {claim})".format_map(found[-1][f"over_{loop}"]) for loop in BARE
        )
        print(
            f"{name:9} {1e3 * usual_s:10.3f} ms as usual; inside Fathom {usual} of it, {lean} of the lean", flush=True
        )
        if arguments.out:  # after each, so that a run that is cut short leaves what it has
            document = {"machine": dataclasses.asdict(fingerprint()), "preset": arguments.preset, "results": found}
            arguments.out.write_text(json.dumps(document, indent=1))


def launched(name: str, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """The turns of one launch, made in a process of its own."""
    options = {each: getattr(arguments, each) for each in ("device", "preset", "precision", "seconds", "launches")}
    settings = [text for option, value in options.items() for text in (f"--{option}", str(value))]
    command = [sys.executable, __file__, name, "--one", *settings]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    times: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return times


if __name__ == "__main__":
    main()
