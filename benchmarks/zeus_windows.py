"""Energy of the same windows by Fathom and by Zeus, in one run on a GPU.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/zeus_windows.py --out FILE.json
Each window is steps of a workload for some seconds, inside Zeus's begin_window and end_window; Fathom's sampler runs
all the while. Both read the counter of the card, Fathom in a process of its own and by the moments of the window.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from zeus.monitor import ZeusMonitor

from fathom.core.energy import STEPS
from fathom.core.spec import RunSpec
from fathom.engine.session import Session
from fathom.machine.clock import wait
from fathom.machine.host import fingerprint
from fathom.machine.meter import Target
from fathom.machine.sampler import Sampler
from fathom.measure.energy import energy_of
from fathom.workloads.catalogue import suite

WARM_UP, WINDOWS = 10, 3
# the counter is renewed every 100 ms and Zeus takes it as it stands at either end: up to 0.7 % of 15 s, 1.7 % of 6 s
WINDOW_S = 15.0


def windows(name: str, precision: str, monitor: ZeusMonitor) -> list[dict[str, Any]]:
    spec = RunSpec(workload=name, preset="paper", device="cuda", precision=precision)
    found = []
    with Session(spec).setup() as session:
        session.run(WARM_UP)
        for _ in range(WINDOWS):
            with Sampler(Target.of(session.device)) as sampler:
                wait(session.device)
                begun = time.perf_counter()
                session.run(5)
                wait(session.device)
                steps = max(5, int(WINDOW_S / ((time.perf_counter() - begun) / 5)))
                monitor.begin_window("steps")
                begin = time.monotonic()
                session.run(steps)
                wait(session.device)
                end = time.monotonic()
                theirs = monitor.end_window("steps").total_energy
                samples = sampler.stop()
            energy = energy_of(samples, [(STEPS, begin, end)], steps) if samples else None
            if energy is None:
                continue
            gap = next((part.gap for part in energy.counted if part.gap is not None), None)
            found.append(
                {
                    "workload": name,
                    "precision": precision,
                    "window_s": end - begin,
                    "fathom_j": energy.joules,
                    "zeus_j": theirs,
                    "fathom_over_zeus": energy.joules / theirs,
                    "integrated_over_counter": None if gap is None else 1 + gap,
                    "invalid": energy.invalid,
                }
            )
            print(*(f"{key}={value:.5g}" if isinstance(value, float) else value for key, value in found[-1].items()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=suite())
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    monitor, found = ZeusMonitor(gpu_indices=[0], cpu_indices=[]), []
    for name in arguments.names:
        found += windows(name, arguments.precision, monitor)
        document = {"machine": dataclasses.asdict(fingerprint()), "results": found}
        arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
