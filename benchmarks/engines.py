"""An engine beside eager: losses or outputs over the same steps, and step times in turns, all workloads in one run.

Run on a GPU, from the root of the checkout: PYTHONPATH=src python benchmarks/engines.py --out FILE.json
Both engines start from one seed. Sums on a GPU depend on the order in which threads finish, so eager is run twice: what
the engine may differ by is what eager differs from itself. Each pair is a process of its own, as a capture that fails
leaves torch's random generator in a state of its own. The ratio of step times is the median over turns; its 95 %
interval holds within that process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fathom.analysis.statistics import median_interval
from fathom.core import plugins
from fathom.core.errors import FathomError
from fathom.core.spec import PHASES, RunSpec
from fathom.engine.session import Session
from fathom.machine.clock import wait
from fathom.machine.host import fingerprint

STEPS = 20  # compared
TURNS, STEPS_A_TURN = 7, 10  # timed


def compare(name: str, phase: str, engine: str, preset: str) -> dict[str, Any]:
    spec = RunSpec(workload=name, phase=phase, preset=preset, device="cuda", seed=1)
    found: dict[str, Any] = {"workload": name, "phase": phase, "preset": preset, "engine": engine}
    usual = [_results(spec) for _ in range(2)]
    try:
        other = _results(dataclasses.replace(spec, engine=engine))
    except FathomError as refused:
        return found | {"refused": str(refused)}
    found |= {"difference": _difference(usual[0], other), "eager_again": _difference(*usual)}
    with Session(spec).setup() as eager, Session(dataclasses.replace(spec, engine=engine)).setup() as session:
        both = {"eager": eager, engine: session}
        times: dict[str, list[float]] = {each: [] for each in both}
        for turn in range(TURNS + 1):
            for each, running in both.items():
                seconds = _timed(running)
                if turn:  # the first captures
                    times[each].append(seconds)
    ratio = median_interval([[one / other for one, other in zip(times[engine], times["eager"], strict=True)]])
    interval = [ratio.low, ratio.high]
    return found | {"step_s": times, "over_eager": ratio.median, "over_eager_within_this_process": interval}


def _results(spec: RunSpec) -> list[Any]:
    """The losses of training, or the numbers of inference's last outputs."""
    with Session(spec).setup() as session:
        results: list[Any] = session.run(STEPS)
        if spec.phase == "train":
            return results
        return [number for _, values in sorted(results[-1].items()) for number in values.double().flatten().tolist()]


def _difference(one: list[float], other: list[float]) -> float:
    """The largest, relative to the larger of the two values and to 1e-6."""
    return max(abs(a - b) / max(abs(a), abs(b), 1e-6) for a, b in zip(one, other, strict=True))


def _timed(session: Session) -> float:
    wait(session.device)
    begun = time.perf_counter()
    session.run(STEPS_A_TURN)
    wait(session.device)
    return (time.perf_counter() - begun) / STEPS_A_TURN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=plugins.names("workloads"))
    parser.add_argument("--engine", default="cudagraph")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--phase", choices=PHASES, help="one phase, in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.phase:
        print(json.dumps(compare(arguments.names[0], arguments.phase, arguments.engine, arguments.preset)))
        return
    found = []
    for name in arguments.names:
        for phase in PHASES:
            command = [sys.executable, __file__, name, "--phase", phase, "--engine", arguments.engine]
            done = subprocess.run([*command, "--preset", arguments.preset], capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            shown = {key: value for key, value in found[-1].items() if key not in ("step_s", "preset", "engine")}
            print(*(f"{key}={value:.4g}" if isinstance(value, float) else value for key, value in shown.items()))
            if arguments.out:
                document = {"machine": dataclasses.asdict(fingerprint()), "results": found}
                arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
