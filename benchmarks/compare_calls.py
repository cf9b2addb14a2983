"""Does `fathom compare --interleave` call what is there, and nothing else? A against A, and a planted slowdown.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/compare_calls.py --out FILE.json
Every try measures anew: two checkouts, worker processes launched in turns, then compared as the command does. For "A
against A" both are copies of this checkout; for "planted" a step of inference in the second one takes so much longer,
by doing nothing after its work. Tries run side by side, each bound to a core of its own: a machine that is not idle.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import queue
import random
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import fathom
from fathom.analysis.compare import compare
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments.interleave import interleave, launch_order, parse_side
from fathom.machine.host import affinity, fingerprint

EXPECTED = {"A against A": "no change", "planted": "slower"}
SPEC = RunSpec(workload="autoenc", phase="infer", device="cpu", threads=1, warmup=5, steps=60)
SLOWED = """

from time import perf_counter as _now

_quick = Session.infer_step


def _slow(self):
    begun = _now()
    result = _quick(self)
    until = _now() + {slowdown} * (_now() - begun)
    while _now() < until:
        pass
    return result


Session.infer_step = _slow
"""


def checkouts(folder: Path, slowdown: float) -> dict[str, tuple[Path, Path]]:
    """The two sides of each kind of try."""
    source = Path(fathom.__file__).parent
    for name in ("one", "same", "slowed"):
        shutil.copytree(source, folder / name / "src" / "fathom")
    with (folder / "slowed" / "src" / "fathom" / "engine" / "session.py").open("a") as file:
        file.write(SLOWED.format(slowdown=slowdown))
    return {
        "A against A": (folder / "one", folder / "same"),
        "planted": (folder / "one", folder / "slowed"),
    }


def attempt(kind: str, sides: tuple[Path, Path], launches: int, seed: int, core: int, folder: Path) -> dict[str, Any]:
    spec = replace(SPEC, cores=(core,))
    order = [replace(launch, spec=spec) for launch in launch_order([spec], launches, seed)]  # no profile is needed
    both = parse_side("A", str(sides[0])), parse_side("B", str(sides[1]))
    stores = Store(folder / "a"), Store(folder / "b")
    for _, record in interleave(order, both, stores):
        if record.outcome != "ok":
            raise RuntimeError(record.reason)
    (found,) = compare(list(stores[0].records()), list(stores[1].records()))
    keys = ("ratio", "low", "high", "detectable", "launches_a", "launches_b", "paired", "verdict", "remark")
    return {"kind": kind, "seed": seed, "core": core} | {key: getattr(found, key) for key in keys}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=20, help="of each kind")
    parser.add_argument("--launches", type=int, default=8, help="of each side in a try")
    parser.add_argument("--slowdown", type=float, default=0.05)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    kinds = [kind for kind in EXPECTED for _ in range(arguments.tries)]
    random.Random(0).shuffle(kinds)
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    usable = affinity() or [0]
    for core in usable:
        cores.put(core)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(len(usable)) as pool:
        sides = checkouts(Path(scratch) / "checkouts", arguments.slowdown)

        def on_a_core(seed: int, kind: str) -> dict[str, Any]:
            core = cores.get()
            try:
                return attempt(kind, sides[kind], arguments.launches, seed, core, Path(scratch) / f"try-{seed}")
            finally:
                cores.put(core)

        for done in as_completed(pool.submit(on_a_core, seed, kind) for seed, kind in enumerate(kinds)):
            found = done.result()
            results.append(found)
            interval = f"{found['low']:.3f}-{found['high']:.3f}, detectable {100 * found['detectable']:.1f} %"
            told = f"{found['kind']:11}  {found['ratio']:.3f} ({interval}): {found['verdict']}"
            print(f"{len(results):3} of {len(kinds)}  {told}", flush=True)
    counts = {}
    for kind, verdict in EXPECTED.items():
        counts[kind] = sum(found["kind"] == kind and found["verdict"] == verdict for found in results)
        print(f"{kind}: {verdict} in {counts[kind]} of {arguments.tries}")
    if arguments.out:
        settings = {name: value for name, value in vars(arguments).items() if name != "out"}
        document = {"machine": dataclasses.asdict(fingerprint()), "spec": SPEC.non_defaults(), **settings}
        document |= {"as_expected": counts, "tries": results}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
