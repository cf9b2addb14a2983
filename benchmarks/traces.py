"""All traces of a folder: Fathom's sums beside independent ones, its time and memory, and HolisticTraceAnalysis's.

Run from the root of the checkout:
PYTHONPATH=src python benchmarks/traces.py FOLDER --hta HTA_ENVIRONMENT/bin/python --out traces.json
The independent sum and union are taken from the plain JSON without any code of Fathom's. --golden FILE keeps
HolisticTraceAnalysis's answers, with which tests/test_hta.py compares ours.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# read in a process of its own, whose peak memory is then that of reading this trace
OURS = """
import json, sys, time
from pathlib import Path
from fathom.trace.profile import from_trace
begun = time.perf_counter()  # imports count on neither side
record = from_trace(Path(sys.argv[1]))
seconds = time.perf_counter() - begun
profile = record.profile
depth = profile.depth
lines = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
untyped = sum(kernel.device_s for kernel in profile.kernels if kernel.type == "Other")
total = sum(kernel.device_s for kernel in profile.kernels)
print(json.dumps({
    "seconds": seconds,
    "peak_bytes": peak * 1024,
    "kernel_us": sum(kind.seconds for kind in depth.kinds) * 1e6,
    "busy_us": depth.whole.busy_s * 1e6 if depth.whole else 0.0,
    "steps_busy_us": profile.gpu.busy_s * len(profile.step_s) * 1e6 if profile.gpu else 0.0,
    "untyped": untyped / total if total else None,
}))
"""
GPU = {"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}
WAITS = {"event_wait", "event_record"}  # of MTIA: all its other events on the device are work
COLUMNS = (
    "trace",
    "kernels (us)",
    "sum off",
    "busy (us)",
    "busy off",
    "untyped %",
    "s",
    "MB",
    "HTA s",
    "HTA MB",
    "times",
)


def independent(path: Path) -> tuple[float, float]:
    """The sum of all GPU durations and the length of their union, by the plainest code."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig") as file:
        document = json.load(file)
    events = document["traceEvents"] if isinstance(document, dict) else document
    spans = sorted((float(each["ts"]), float(each["dur"])) for each in events if _on_gpu(each))
    total, union, reached = sum(duration for _, duration in spans), 0.0, float("-inf")
    for begin, duration in spans:
        union += max(0.0, begin + duration - max(begin, reached))
        reached = max(reached, begin + duration)
    return total, union


def _on_gpu(event: dict[str, Any]) -> bool:
    category = event.get("cat")
    return event.get("ph") == "X" and (
        category in GPU or (category == "mtia_ccp_events" and event.get("name") not in WAITS)
    )


def answer(command: list[str]) -> dict[str, Any]:
    """What a process prints as JSON; its error where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(path: Path, hta: str | None) -> dict[str, Any]:
    total, union = independent(path)
    ours = answer([sys.executable, "-c", OURS, str(path)])
    theirs = answer([hta, str(HERE / "hta_answers.py"), str(path)]) if hta else {}
    return {"sum_us": total, "union_us": union, "fathom": ours, "hta": theirs}


def off(ours: float, theirs: float) -> float:
    return abs(ours - theirs) / theirs if theirs else abs(ours)


def row(name: str, found: dict[str, Any]) -> list[str]:
    ours, theirs = found["fathom"], found["hta"]
    if "error" in ours:
        return [name, ours["error"]]
    untyped = "" if ours["untyped"] is None else f"{100 * ours['untyped']:.1f}"
    cells = [name, f"{ours['kernel_us']:.0f}", f"{off(ours['kernel_us'], found['sum_us']):.0e}"]
    cells += [f"{ours['busy_us']:.0f}", f"{off(ours['busy_us'], found['union_us']):.0e}", untyped]
    cells += [f"{ours['seconds']:.2f}", f"{ours['peak_bytes'] / 1e6:.0f}"]
    if "seconds" in theirs:
        ratio = theirs["seconds"] / ours["seconds"]
        cells += [f"{theirs['seconds']:.2f}", f"{theirs['peak_bytes'] / 1e6:.0f}", f"{ratio:.1f}"]
    elif "error" in theirs:
        cells += [theirs["error"][:40]]
    return cells


def golden(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """HolisticTraceAnalysis's answers without times and memory."""
    measured = ("load_s", "seconds", "peak_bytes")
    return {
        name: {key: value for key, value in each["hta"].items() if key not in measured}
        for name, each in found.items()
        if "error" not in each["hta"]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with traces in it or in its subfolders, or one trace")
    parser.add_argument("--hta", help="the Python of an environment with HolisticTraceAnalysis")
    parser.add_argument("--out", type=Path, help="write everything there, as JSON")
    parser.add_argument("--golden", type=Path, help="write HolisticTraceAnalysis's answers there")
    arguments = parser.parse_args()
    root = arguments.folder
    paths = [root] if root.is_file() else sorted([*root.rglob("*.json"), *root.rglob("*.json.gz")])
    found: dict[str, dict[str, Any]] = {}
    print(" | ".join(COLUMNS))
    for path in paths:
        name = path.name if root.is_file() else str(path.relative_to(root))
        found[name] = measure(path, arguments.hta)
        print(" | ".join(row(name, found[name])), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.golden:
        arguments.golden.write_text(json.dumps(golden(found), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
