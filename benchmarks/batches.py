"""Profiled steps of every workload at other batches, for the error of predictions at an unseen batch.

    PYTHONPATH=src python benchmarks/batches.py --preset small --device cpu --out records-batches
    fathom predict --evaluate RECORDS --evaluate records-batches --calibration FOLDER

RECORDS have the steps at the preset's own batch (`fathom study`), or `--factors 0.5 1 2` measures them, too. Steps that
wait for the host differ from launch to launch; of several (`--launches`) the median counts. Runs that are there already
are not repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fathom.core.spec import EAGER, RunSpec
from fathom.core.store import Store
from fathom.experiments.study import BUDGET_S, plan, run_all
from fathom.workloads.base import workload_class

FACTORS = (0.5, 2.0)  # of the preset's batch, as `fathom calibrate` times them


def specs(
    names: Sequence[str],
    preset: str,
    device: str,
    factors: Sequence[float] = FACTORS,
    engine: str = EAGER,
    budget_s: float = BUDGET_S,
) -> list[RunSpec]:
    """The study's profiled runs of one device at other batches; a batch below 1 is left out."""
    found = []
    for spec in plan(names, preset, [device], engine):
        if spec.kind != "profiled" or spec.threads is not None:
            continue
        own = workload_class(spec.workload).configured(preset).batch
        batches = [None if factor == 1 else round(own * factor) for factor in factors if own * factor >= 1]
        found += [replace(spec, batch=batch, budget_s=budget_s) for batch in batches]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="workloads; default: the eight")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--factors", type=float, nargs="+", default=FACTORS, help="of the preset's batch")
    parser.add_argument("--engine", default=EAGER)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of timed steps of a run")
    parser.add_argument("--launches", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    planned = specs(asked.names, asked.preset, asked.device, asked.factors, asked.engine, asked.budget) * asked.launches
    for at, (record, path) in enumerate(run_all(planned, Store(asked.out), lambda *_: lambda *_: None), start=1):
        state = "disturbed" if record.disturbed else record.outcome
        print(f"{at}/{len(planned)} {record.spec.workload} {record.spec.phase} {record.spec.batch}: {state}, {path}")


if __name__ == "__main__":
    main()
