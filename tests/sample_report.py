"""A study as the report would get it: records of two machines, and findings with every kind of chart, some hostile."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from fathom import published
from fathom.analysis.finding import Band, Chart, Finding, Series, Table
from fathom.core.fingerprint import Machine
from fathom.core.record import OpRow, Profile, Record, Sections
from fathom.core.spec import RunSpec
from fathom.report import charts
from fathom.trace.taxonomy import GROUPS, group_of

WORKLOADS = tuple(published.op_percent())
CPU = {
    "cpu": {"name": "Example-N1", "logical_cores": 2, "physical_cores": 2, "affinity": [0, 1], "threads": 2},
    "memory_bytes": 24 * 2**30,
    "gpus": [],
    "system": "Linux 6.1 aarch64",
    "python": "3.11.7",
    "libraries": {"torch": "2.13.0", "numpy": "2.4.6", "ale-py": None},
    "commit": "abc1234",
}
CARD = {"name": "Example H200", "memory_bytes": 141 * 2**30, "driver": "570.1", "sm_clock_mhz": 1980}
CARD |= {"sm_clock_max_mhz": 1980, "power_limit_w": 700.0, "temperature_c": 41, "throttle_reasons": 0x4 | 0x20}
GPU = CPU | {"cpu": {**CPU["cpu"], "name": "Example Xeon", "logical_cores": 16}, "gpus": [CARD]}  # type: ignore[dict-item]
DRAWING = "\n".join("".join(" .:-=+*#%@"[min(9, abs(9 - abs(x - 14) - y))] for x in range(28)) for y in range(14))
HOSTILE = '<script>alert("x")</script> & </script><b>bold</b> | `code` $x$ {{ 7 * 7 }}'
AWKWARD = [
    "",
    " ",
    HOSTILE,
    "%{x} %{fullData.name}",
    "</ScRiPt >",
    "a\nb",
    "\u2028\u2029\x00",
    "“é”∑🙂",
    "x" * 300,
    "vgg",
    "1e5",
]
ROLES: list[Any] = ["measured", "published", "remainder", "limit", "target"]
VALUES = [None, 0, 1, -1, 0.5, 1e-300, 1e300, -2.5, float("nan"), float("inf"), 2**40]


def record(workload: str, phase: str = "train", machine: dict[str, Any] = CPU, **own: Any) -> Record:
    """A run that went well, with a profile whose op types have the published shares."""
    noise = random.Random(f"{workload} {phase} {machine['gpus']} {own.get('threads')}")
    base = 0.004 * (1 + WORKLOADS.index(workload)) ** 2 if workload in WORKLOADS else 0.01
    base *= (0.02 if machine["gpus"] else 1.0) * (0.4 if phase == "infer" else 1.0)
    steps = [base * noise.lognormvariate(0, 0.02) for _ in range(40)]
    spec = own.pop("spec", None) or RunSpec(workload=workload, phase=phase, threads=own.pop("threads", None))
    facts: dict[str, Any] = {
        "device": "cuda:0" if machine["gpus"] else "cpu",
        "outcome": "ok",
        "sections": Sections(setup_s=1.2, first_step_s=3 * base, run_s=sum(steps)),
        "warmup_s": [3 * base, 1.1 * base],
        "step_s": steps,
        "losses": [5 * math.exp(-step / 12) + 0.2 * noise.random() for step in range(42)] if phase == "train" else [],
        "answers": ([DRAWING, DRAWING] if workload == "autoenc" else ["the cat sat"]) if phase == "infer" else [],
        "items_per_step": 32,
        "peak_host_bytes": 2**30,
        "profile": profile(workload, base, on_gpu=bool(machine["gpus"])),
        "started": "2026-11-15T01:22:00+00:00",
    }
    return Record(spec=spec, machine=msgspec.convert(machine, Machine), **{**facts, **own})


def profile(workload: str, base: float, on_gpu: bool) -> Profile:
    shares = published.op_percent().get(workload, {"MatMul": 90.0})
    rows = [
        OpRow(op=f"aten::{kind.lower()}", type=kind, group=group_of(kind), layer="network.layer", role="layer",
              phase="forward", shapes="[32, 64]", calls=4, cpu_s=base * share / 100,
              device_s=base * share / 100 if on_gpu else None, flop=base * share * 1e8, bytes=base * share * 1e7)
        for kind, share in shares.items() if share
    ]  # fmt: skip
    per_step = {row.type: [row.cpu_s * (1 + 0.01 * (step % 3)) for step in range(8)] for row in rows}
    outside = base * (100 - sum(shares.values())) / 100
    return Profile(rows=rows, kernels=[], step_s=[1.2 * base] * 8, plain_step_s=[base] * 8, outside_s=outside,
                   per_step_s=per_step, ceiling_flop_per_s=3e10, ceiling_bytes_per_s=1e10)  # fmt: skip


def sample_records() -> list[Record]:
    """Eight workloads, two phases, two machines, a sweep over threads, and one failure."""
    found = [
        record(name, phase, machine) for machine in (CPU, GPU) for name in WORKLOADS for phase in ("train", "infer")
    ]
    found += [record("deepq", threads=threads) for threads in (1, 2)]
    broken = record(
        "vgg", "train", GPU, outcome="failed", reason=f"OutOfMemoryError: {HOSTILE}", step_s=[], profile=None
    )
    return [*found, broken, record("memnet", notes=[HOSTILE])]


def sample_findings() -> list[Finding]:
    """Every kind of chart, with awkward names, missing values and text that would like to be markup."""
    types = list(published.op_percent()["vgg"])
    bands = [
        Band(label=f"{letter} {name}", columns=sum(group_of(kind) == letter for kind in types))
        for letter, name in GROUPS.items()
    ]
    shares = {name: [float(row[kind]) for kind in types] for name, row in published.op_percent().items()}
    heat = Chart(kind="heatmap", title="Share of time", x_title="op type", y_title="workload", bands=bands,
                 series=[Series(name=name, x=types, y=[*row[:-1], None]) for name, row in shares.items()])  # fmt: skip
    points = list(range(1, 23))
    skew = Chart(kind="line", title="Cumulative share", x_title="op types", y_title="share (%)", note=HOSTILE,
                 series=[Series(name=name, x=points, y=[float(sum(sorted(row)[-end:])) for end in points])
                         for name, row in shares.items()])  # fmt: skip
    phases = Chart(kind="bar", title="Time per item", x_title="workload", y_title="over CPU training", log_y=True,
                   series=[Series(name=name, x=list(WORKLOADS), y=[1.0 * scale] * 7 + [None])
                           for name, scale in (("train, CPU", 1), ("infer, CPU", 0.3), ("train, GPU", 0.02))]
                   + [Series(name="published in 2016", role="published", x=list(WORKLOADS), y=[0.5] * 8)])  # fmt: skip
    stacked = Chart(kind="stacked", title="Classes", x_title="workload", y_title="share (%)",
                    series=[Series(name=f"{letter} {name}", x=list(WORKLOADS), y=[float(index + 1)] * 8)
                            for index, (letter, name) in enumerate(GROUPS.items())])  # fmt: skip
    roof = Series(name="roof", role="limit", x=[0.1, 3.0, 100.0], y=[1e9, 3e10, 3e10], text=["measured"] * 3)
    cloud = [Series(name=name, x=[0.5 + index / 9, 2.0 + index, 30.0], y=[1e8, 5e9, 2e10 / (1 + index)],
                    text=["MatMul", HOSTILE, "Add"])
             for index, name in enumerate(WORKLOADS)]  # fmt: skip
    roofline = Chart(kind="scatter", title="Roofline", x_title="FLOP/byte", y_title="FLOP/s", series=[*cloud, roof],
                     log_x=True, log_y=True)  # fmt: skip
    noise = random.Random(0)
    boxes = Chart(kind="box", title="Op times", x_title="op type", y_title="time over median",
                  series=[Series(name=name, x=[kind for kind in types[:6] for _ in range(20)],
                                 y=[noise.gauss(1, 0.03) for _ in range(120)]) for name in WORKLOADS[:3]])  # fmt: skip
    table = Table(title="Shares", columns=["workload", "share (%)", "calls", "why"],
                  rows=[["vgg", 12.5, 100, "a"], ["alexnet", 9.25, None, HOSTILE],
                        ["deepq", None, 20000, "c"]])  # fmt: skip
    return [
        finding("breakdown", [heat, stacked], [table], [HOSTILE]),
        finding("skew", [skew]),
        finding("similarity", [tree()]),
        finding("phases", [phases]),
        finding("roofline", [roofline]),
        finding("your model", [nested(), lanes()]),
        finding("stationarity", [boxes], [Table(title="Nothing", columns=["op"], rows=[])]),
    ]


def finding(question: str, drawn: list[Chart], tables: Sequence[Table] = (), notes: Sequence[str] = ()) -> Finding:
    return Finding(question=question, title=f"What of {question}?", summary=f"It is {len(question)} % of all.",
                   charts=drawn, tables=list(tables), notes=list(notes))  # fmt: skip


def tree() -> Chart:
    """vgg with residual at 0.003, alexnet to them at 0.015."""
    first = Series(name="vgg, residual", x=[0, 0.003, 0.003, 0], y=[0, 0, 1, 1], text=["vgg", "", "", "residual"])
    second = Series(name="all", x=[0.003, 0.015, 0.015, 0], y=[0.5, 0.5, 2, 2], text=["", "", "", "alexnet"])
    return Chart(kind="dendrogram", title="Tree", x_title="distance", y_title="", series=[first, second])


def nested(names: Sequence[str] = ("features", HOSTILE, "aten::conv2d")) -> Chart:
    """Two modules, one of them with two ops; the parts add up to a little more than their whole, by rounding."""
    first, second, op = names
    paths = [["net"], ["net", first], ["net", first, op], ["net", first, "aten::relu"], ["net", second]]
    values = [1.0, 0.7, 0.4, 0.30000000000000004, 0.3]
    return Chart(kind="icicle", title="Step", x_title="module, op, kernel", y_title="per step (ms)", unit="ms",
                 series=[Series(name="step", x=paths, y=values, text=[f"{each} ms" for each in values])])  # fmt: skip


def lanes(names: Sequence[str] = ("thread 1", "GPU 0 stream 7")) -> Chart:
    thread, stream = names
    products = Series(
        name="Matrix operations", x=[[0.0, 0.4], [0.5, 1.5]], y=[thread, stream], text=["aten::mm", HOSTILE]
    )
    sums = Series(name="Reduction", x=[[0.4, 0.6], [1.5, 2.0]], y=[thread, stream], text=["aten::sum", "reduce"])
    return Chart(kind="timeline", title="Timeline", x_title="time (ms)", y_title="", unit="ms", series=[products, sums],
                 lanes=[thread, stream])  # fmt: skip


def any_finding(chance: random.Random) -> Finding:
    """What the types allow, whether or not it makes sense."""

    def chart() -> Chart:
        kind: Any = chance.choice(sorted(charts.KINDS))
        many = chance.choice([0, 1, 2, 7, 60])
        x = [chance.choice(AWKWARD) for _ in range(many)] if chance.random() < 0.5 else list(range(many))
        series = [
            Series(
                name=name,
                x=x,
                y=[chance.choice(VALUES) for _ in x],
                text=[chance.choice(AWKWARD) for _ in x],
                role=chance.choice(ROLES),
            )
            for name in chance.sample(AWKWARD, chance.choice([0, 1, 9]))
        ]
        shaped = {"dendrogram": tree(), "icicle": nested(chance.sample(AWKWARD, 3)), "timeline": lanes(AWKWARD[3:5])}
        if kind in shaped:
            series = shaped[kind].series[: chance.randrange(3)]
        total = chance.choice(["", HOSTILE])
        bands = [Band(label=chance.choice(AWKWARD), columns=many, total=total)] if kind == "heatmap" else []
        return Chart(kind=kind, title=chance.choice(AWKWARD), x_title=chance.choice(AWKWARD), bands=bands,
                     y_title=chance.choice(AWKWARD), series=series, log_x=chance.random() < 0.3,
                     log_y=chance.random() < 0.3, note=chance.choice(AWKWARD), unit=chance.choice(AWKWARD),
                     limits=chance.choice([None, (0.0, 1.0)]),
                     lanes=AWKWARD[3:5] if kind == "timeline" else [])  # fmt: skip

    columns = chance.randrange(1, 20)
    rows = [[chance.choice(AWKWARD + VALUES) for _ in range(columns)] for _ in range(chance.choice([0, 1, 30]))]  # type: ignore[operator]
    table = Table(title=chance.choice(AWKWARD), columns=[chance.choice(AWKWARD) for _ in range(columns)], rows=rows)
    return finding(chance.choice(AWKWARD), [chart() for _ in range(3)], [table], [chance.choice(AWKWARD)])
