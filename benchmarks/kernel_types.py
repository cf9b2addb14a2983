"""How much of the kernel time of traces has no op type: one line for each trace below a folder.

    PYTHONPATH=src python benchmarks/kernel_types.py [FOLDER]

The folder is FATHOM_DATA/traces unless given. Names and durations are read from the files themselves, not through
Fathom's reader, so that the table holds whatever the reader does. Exit code 1 if more than 5 % are untyped anywhere.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections import Counter
from pathlib import Path

from fathom.trace.taxonomy import OTHER, family_of, kernel_type

MOST_UNTYPED = 0.05
SHOWN = 5
# categories of what runs on a GPU, as torch.profiler writes them since 2022 and did before
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}


def kernel_us(path: Path) -> Counter[str]:
    """Kernel name -> microseconds, of all kernels, copies and memsets in a trace; empty for a trace without a GPU."""
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    events = document["traceEvents"] if isinstance(document, dict) else document
    total: Counter[str] = Counter()
    for event in events:
        if str(event.get("cat", "")).lower() in ON_GPU:
            total[event["name"]] += float(event.get("dur", 0))
    return total


def share_by_type(durations: Counter[str]) -> dict[str, float]:
    """Op type -> share of the kernel time, the largest first."""
    total: Counter[str] = Counter()
    for name, microseconds in durations.items():
        total[kernel_type(name)] += microseconds
    return {kind: value / sum(total.values()) for kind, value in total.most_common()}


def traces(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.json*") if path.name.endswith((".json", ".json.gz")))


def main(folder: Path) -> int:
    worst = 0.0
    for path in traces(folder):
        durations = kernel_us(path)
        if not sum(durations.values()):
            continue
        shares = share_by_type(durations)
        families: Counter[str] = Counter()
        for kind, share in shares.items():
            families[family_of(kind)] += share
        untyped = shares.get(OTHER, 0.0)
        worst = max(worst, untyped)
        heaviest = ", ".join(f"{name} {100 * share:.0f}" for name, share in families.most_common(SHOWN))
        print(
            f"{path.relative_to(folder)!s:70} {100 * untyped:5.2f} % untyped of "
            f"{sum(durations.values()) / 1e3:9.1f} ms; {heaviest}"
        )
    print(f"most untyped: {100 * worst:.2f} %")
    return int(worst > MOST_UNTYPED)


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else Path(os.environ.get("FATHOM_DATA", "data")) / "traces"
    sys.exit(main(Path(given)))
