"""A study of quick runs without the command line's torch and report: python -m little_study FOLDER RUNS."""

from __future__ import annotations

import sys

from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments.study import run_all


def planned(runs: int) -> list[RunSpec]:
    """Every third run leaves a daemon behind."""
    return [
        RunSpec(
            workload="quick",
            device="cpu",
            steps=5,
            seed=number,
            options={"answers": 8000} | ({"misdeed": "leaves_a_daemon"} if number % 3 == 0 else {}),
        )
        for number in range(runs)
    ]


def wait() -> None:
    print("waiting", flush=True)


def main() -> None:
    store, outcomes = Store(sys.argv[1]), set()
    left = store.remaining(planned(int(sys.argv[2])))
    for record, path in run_all(left, store, lambda index, spec: lambda *_: None, on_wait=wait):
        print(path.name, record.outcome, flush=True)
        outcomes.add(record.outcome)
    sys.exit("failed" in outcomes)


if __name__ == "__main__":
    main()
