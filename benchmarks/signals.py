"""Sends SIGINT or SIGTERM to every command at random moments of its first seconds: one line and exit code 130 or 143?

Run from the root of the checkout: PYTHONPATH=src:tests python benchmarks/signals.py --count 300 --longest 3
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from killing import alive, ended, environment, outlived

import fathom

SOURCES = str(Path(fathom.__file__).parents[1])
RECORDS = Path("results/neoverse-n1").resolve()
TINY = ["--preset", "tiny"]
ON_CPU = [*TINY, "--device", "cpu"]
COMMANDS = {
    "run": ["run", "autoenc", *ON_CPU, "--steps", "3"],
    "study": ["study", "autoenc", *ON_CPU],
    "scale": ["scale", "autoenc", *TINY, "--cores", "1", "--runs", "1", "--steps", "3"],
    "repeat": ["repeat", "autoenc", *ON_CPU, "--runs", "1", "--warmup-runs", "0", "--steps", "3"],
    "compare": ["compare", "threads=1", "threads=2", "autoenc", "--interleave", "--runs", "1", *ON_CPU],
    "learn": ["learn", "autoenc", *ON_CPU, "--evaluations", "1"],
    "profile": ["profile", "torch.nn:Identity", "--device", "cpu"],
    "analyse": ["analyse", "breakdown", str(RECORDS)],
    "report": ["report", str(RECORDS)],
    "export": ["export", str(RECORDS), "--out", "runs.csv"],
    "doctor": ["doctor"],
    "show": ["show", "autoenc"],
    "list": ["list"],
}
LINES = {signal.SIGINT: "fathom: interrupted", signal.SIGTERM: "fathom: ended by SIGTERM"}
PROMPT_S = 3.0  # from a signal to the end of a worker and of the command, on a loaded machine
GOOD = ("one line", "finished before", "before Fathom's first line")


@dataclass(frozen=True)
class Shot:
    command: str
    number: signal.Signals
    at_s: float

    def fired(self, folder: Path) -> tuple[str, str]:
        """What came of it, and what there is to learn where it is a fault."""
        # without the faulty workloads of the tests, which load half of Fathom before its first line
        env = environment(PYTHONFAULTHANDLER="1", PYTHONPATH=SOURCES)
        words = [sys.executable, "-m", "fathom", *COMMANDS[self.command]]
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_as_at_a_terminal,  # noqa: PLW1509  no other thread runs here
            text=True,
        )
        time.sleep(self.at_s)
        begun, handled = process.poll() is None, _handles_sigterm(process.pid)
        sent = time.monotonic()
        if begun:
            process.send_signal(self.number)
        remarks = process.communicate(timeout=120)[1]
        left = outlived(alive(env["FATHOM_MARK"]))
        ended(env["FATHOM_MARK"])
        lived_s = time.monotonic() - sent
        seen = f"code {process.returncode}, {lived_s:.1f} s after the signal, {len(left)} processes left: {remarks}"
        return self._verdict(begun, handled, process.returncode, remarks, lived_s, bool(left)), seen

    def _verdict(self, begun: bool, handled: bool, code: int, remarks: str, lived_s: float, left: bool) -> str:
        if left:
            return "left a process"
        if not begun:
            return "finished before"
        lines = remarks.splitlines()
        if code == 128 + self.number and lines and lines[-1] == LINES[self.number] and "Traceback" not in remarks:
            return "one line" if lived_s < PROMPT_S else "one line, but late"
        if not handled:
            return "before Fathom's first line"
        if code in (0, 1) and "Traceback" not in remarks:
            return "ran on" if lived_s > 0.3 else "finished at that moment"
        return "wrong end"


def _as_at_a_terminal() -> None:
    """What runs in the background has Ctrl-C ignored, and a command keeps it so, as it should."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _handles_sigterm(pid: int) -> bool:
    """Whether Fathom's handlers are there yet: Linux shows which signals a process catches."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="commands; all of them where none is named")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=3.0, help="seconds from the start to the signal, at most")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    names = arguments.names or list(COMMANDS)
    found: Counter[str] = Counter()
    for index in range(arguments.count):
        number = chance.choice([signal.SIGINT, signal.SIGTERM])
        shot = Shot(names[index % len(names)], number, chance.uniform(0, arguments.longest))
        with tempfile.TemporaryDirectory() as place:
            verdict, seen = shot.fired(Path(place))
        found[verdict] += 1
        if verdict not in GOOD:
            print(f"{shot.command} {shot.number.name} at {shot.at_s:.3f} s: {verdict}; {seen}", flush=True)
    print(", ".join(f"{number} {verdict}" for verdict, number in found.most_common()))
    sys.exit(any(verdict not in GOOD for verdict in found))


if __name__ == "__main__":
    main()
