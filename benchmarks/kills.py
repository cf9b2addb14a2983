"""Kills a study of real workloads, or a process below it, at random moments until it is done: is each record kept once?

Run from the root of the checkout: PYTHONPATH=src:tests python benchmarks/kills.py --kills 100 autoenc memnet
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from killing import environment, torment

from fathom.core.store import Store
from fathom.experiments.study import plan
from fathom.workloads.catalogue import suite


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="workloads; all of them where none is named")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=20.0, help="seconds between two kills, at most")
    arguments = parser.parse_args()
    names = arguments.names or suite()
    planned = {spec.id for spec in plan(names, "tiny", ["cpu"])}
    victims: Counter[str] = Counter()
    chapters = 0
    while victims.total() < arguments.kills:
        with tempfile.TemporaryDirectory() as place:
            folder, log = Path(place) / "records", Path(place) / "log"
            command = [sys.executable, "-m", "fathom", "study", *names, "--preset", "tiny", "--device", "cpu"]
            command += ["--out", str(folder), "--report", str(Path(place) / "report.html")]
            left = arguments.kills - victims.total()
            victims += torment(command, folder, log, environment(), left, arguments.seed + chapters, arguments.longest)
            records = list(Store(folder).records())
            good = Counter(record.spec.id for record in records if record.outcome == "ok")
            assert good == Counter(planned), "each planned run has one good record"
            assert Store(folder).unreadable() == []
        chapters += 1
        print(f"study {chapters}: {len(good)} runs, each kept once; {len(records) - len(good)} records of failed ones")
    print(f"{victims['study']} kills of a study, {victims['below']} of a process below one; nobody outlived his parent")


if __name__ == "__main__":
    main()
