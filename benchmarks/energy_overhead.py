"""What sampling of energy costs: the training step beside the sampling process over the step without it, in one run.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/energy_overhead.py --device cpu --out FILE.json
Short blocks of steps with and without sampling take turns in one process, on the same network and stream of batches;
of every two pairs of blocks one begins with it, and one without. The sampler is started once, and stopped and continued
by signals between blocks. A block's time is that of all its steps, so that an interruption of any of them counts.
"alone" are pairs with a stopped sampler in both blocks: how far such a ratio is from 1 by chance. A ratio is the median
over pairs; it is measured in several launches, each a process of its own, and the interval is over launches. Where a
machine has no meter, a fake one with as many files as RAPL of two packages and their memory is read (--fake).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from fathom.analysis.statistics import median_interval
from fathom.core.spec import RunSpec
from fathom.engine.session import Session
from fathom.machine.clock import wait
from fathom.machine.host import fingerprint
from fathom.machine.meter import Target, find_meters
from fathom.machine.sampler import PERIOD_S, Sampler, Samples

BLOCK_S = 0.25  # of steps between two turns: some periods of the sampler
FEWEST = 4  # pairs of blocks in a launch
FAKE = """
from pathlib import Path
from fathom.core.energy import Reading
from fathom.machine.meter import Meter

class Fake(Meter):
    label = "fake"

    def __init__(self, number):
        self.scope, self._file = f"CPU package {number}", Path(__file__).with_name(f"energy_uj{number}")
        self._file.write_text("123456789012\\n")

    @classmethod
    def find(cls, target):
        return [cls(number) for number in range(4)]

    def read(self):
        return Reading(joules=float(self._file.read_text()) / 1e6)
"""


def install_fake(folder: Path) -> dict[str, str]:
    """A package with a meter; gives the environment in which it is found."""
    (folder / "fake_meter.py").write_text(FAKE)
    information = folder / "fake_meter-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-meter\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[fathom.meters]\nfake = fake_meter:Fake\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """The ratios of every pair of blocks of one launch: this process."""
    spec = RunSpec(
        workload=arguments.names[0], preset=arguments.preset, device=arguments.device, precision=arguments.precision
    )
    chance = random.Random(os.getpid())
    found: dict[str, list[float]] = {"sampled": [], "alone": []}
    with Session(spec).setup() as session:
        target = Target.of(session.device)
        meters = [f"{meter.label} of {meter.scope}" for meter in find_meters(target)]
        if not meters:
            raise SystemExit("no meter on this machine: --fake reads a fake one")
        steps = block_of(session)
        others = psutil.Process().children()  # those of a data loader, say
        with Sampler(target, arguments.period) as sampler:
            process = next(child for child in psutil.Process().children() if child not in others)
            process.send_signal(signal.SIGSTOP)
            stop, number = time.perf_counter() + arguments.seconds / arguments.launches, chance.randrange(2)
            while time.perf_counter() < stop or len(found["sampled"]) < FEWEST:
                for kind, ratios in found.items():
                    seconds = {}
                    for sampled in (number % 2, 1 - number % 2):
                        seconds[sampled] = block(session, steps, process if sampled and kind == "sampled" else None)
                    ratios.append(seconds[1] / seconds[0])
                number += 1
            process.send_signal(signal.SIGCONT)
            samples = sampler.stop()
        assert samples is not None
        assert not samples.problems, samples.problems
    return {"meters": meters, "steps_per_block": steps, "sample_cpu_s": sample_cpu_s(samples), **found}


def sample_cpu_s(samples: Samples) -> float:
    """CPU time of one sample, without the sampler's start."""
    first, last = samples.samples[0], samples.samples[-1]
    return (last.cpu_s - first.cpu_s) / (len(samples.samples) - 1)


def block_of(session: Session) -> int:
    """How many steps a block has, after warm-up."""
    session.run(5)
    wait(session.device)
    begun = time.perf_counter()
    session.run(5)
    wait(session.device)
    return max(5, round(BLOCK_S / ((time.perf_counter() - begun) / 5)))


def block(session: Session, steps: int, sampling: psutil.Process | None) -> float:
    """The seconds of so many steps, to the end of the device's work."""
    if sampling is not None:
        sampling.send_signal(signal.SIGCONT)
    wait(session.device)
    begun = time.perf_counter()
    session.run(steps)
    wait(session.device)
    seconds = time.perf_counter() - begun
    if sampling is not None:
        sampling.send_signal(signal.SIGSTOP)
    return seconds


def launched(name: str, arguments: argparse.Namespace, environment: dict[str, str]) -> dict[str, Any]:
    options = ("device", "preset", "precision", "seconds", "launches", "period")
    settings = [text for each in options for text in (f"--{each}", str(getattr(arguments, each)))]
    command = [sys.executable, __file__, name, "--one", *settings]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def summarised(name: str, launches: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"workload": name, "meters": launches[0]["meters"]}
    for kind in ("sampled", "alone"):
        ratio = median_interval([launch[kind] for launch in launches])
        found[kind] = {"ratio": ratio.median, "low": ratio.low, "high": ratio.high, "claim": ratio.claim}
    return found | {"launches": launches}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["autoenc", "alexnet"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--period", type=float, default=PERIOD_S, help="of the sampler, in seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each workload, at most, all launches together")
    parser.add_argument("--launches", type=int, default=5, help="processes for each workload")
    parser.add_argument("--fake", action="store_true", help="add a fake meter of four files")
    parser.add_argument("--one", action="store_true", help="one launch of one workload, in this process, as JSON")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(compare(arguments)))
        return
    found = []
    with tempfile.TemporaryDirectory() as folder:
        environment = install_fake(Path(folder)) if arguments.fake else dict(os.environ)
        for name in arguments.names:
            found.append(summarised(name, [launched(name, arguments, environment) for _ in range(arguments.launches)]))
            sampled, alone = (
                "{ratio:.4f} ({low:.4f} to {high:.4f}, {claim})".format_map(found[-1][kind])
                for kind in ("sampled", "alone")
            )
            cpu_s = max(launch["sample_cpu_s"] for launch in found[-1]["launches"])
            of_core = f"{100 * cpu_s / arguments.period:.2g} % of a core"
            print(f"{name:9} sampled over not sampled {sampled}; neither {alone}; {of_core}", flush=True)
    if arguments.out:
        document = {"machine": dataclasses.asdict(fingerprint()), "preset": arguments.preset, "results": found}
        arguments.out.write_text(json.dumps(document | {"period_s": arguments.period}, indent=1))


if __name__ == "__main__":
    main()
