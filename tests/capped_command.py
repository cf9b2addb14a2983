"""fathom energy below caps of a simulated card, in a process of its own, with real workers on the CPU.

python -m capped_command RECORDS [SIGNAL]

Three runs, at 450 W, at 300 W and without a cap; the second would last ten minutes. A line on stdout says that a worker
makes steps. With a number, that signal comes below the first cap, before there is a worker.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from crashing import governors

from fathom.cli.main import main
from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import energy
from fathom.experiments.isolate import isolated

CAPS = "300,450"
LONG, LONG_S = 1, 600.0  # which run, and its window
run_all = energy.run_all


def watched(
    ordered: Sequence[energy.Setting],
    store: Store,
    watch: Callable[[int, RunSpec], OnProgress],
    on_wait: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Record, Path]]:
    def begun(index: int, spec: RunSpec) -> OnProgress:
        return lambda done, total: print(f"run {index}", flush=True)

    found = sorted(ordered, key=lambda setting: setting.spec.power_cap_w or 0.0, reverse=True)
    found[LONG] = replace(found[LONG], spec=replace(found[LONG].spec, window_s=LONG_S))
    return run_all(found, store, begun, on_wait)


def interrupted(spec: RunSpec, on_progress: OnProgress) -> Record:
    signal.raise_signal(int(early[0]))
    return isolated(spec, on_progress)


if __name__ == "__main__":
    records, *early = sys.argv[1:]
    os.geteuid = lambda: 0  # whom NVML permits it
    energy.mechanism = lambda cap, device: governors()
    energy.run_all = watched
    if early:
        vars(energy)["isolated"] = interrupted
    options = ["--trials", "1", "--idle", "0", "--window", "0.05", "--warmup", "0", "--no-profile"]
    # inference: the first optimizer of a process loads all of torch._dynamo, which takes as long as torch
    where = ["--phase", "infer", "--preset", "tiny", "--device", "cpu"]
    where += ["--power-caps", CAPS, "--allow-capping", "--out", records]
    sys.argv = ["fathom", "energy", "autoenc", *where, *options]
    main()
