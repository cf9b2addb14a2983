"""Records as a study would leave them, made by hand or plausibly at random, for tests of whatever reads records."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fathom import published
from fathom.core.fingerprint import Cpu, Gpu, Machine
from fathom.core.record import OpRow, Profile, Record, Sections
from fathom.core.spec import RunSpec
from fathom.core.trial import FIRST_STEPS, EngineRun, Trial
from fathom.trace.taxonomy import group_of

LAPTOP, GPU = "laptop", "gpu"
MACHINES = {
    LAPTOP: Machine(cpu=Cpu(name="Laptop CPU", logical_cores=4, affinity=[0, 1, 2, 3], threads=4)),
    GPU: Machine(cpu=Cpu(name="Server CPU", logical_cores=16, threads=16), gpus=[Gpu(name="NVIDIA H200")]),
}
STEP_S = {  # of a training step on the laptop, about what one sees
    "seq2seq": 1.5, "memnet": 0.02, "speech": 1.0, "autoenc": 0.01,
    "residual": 2.5, "vgg": 3.0, "alexnet": 0.8, "deepq": 0.1,
}  # fmt: skip
LAYERS = {  # op type -> where it mostly happens, and what for
    "MatMul": ("classifier.hidden.linear", "fully connected"),
    "Conv2D": ("features.first.convolution", "convolution"),
    "Conv2DBackFilter": ("features.first.convolution", "convolution"),
    "Conv2DBackInput": ("features.second.convolution", "convolution"),
    "CrossEntropy": ("", "loss"),
}


def op_row(kind: str, seconds: float, *, place: str = LAPTOP, **changes: Any) -> OpRow:
    """A row of this op type that takes so long: on the CPU, or on the device for a GPU's."""
    layer, role = LAYERS.get(kind, ("network", "network"))
    optimizer, backward = kind.startswith("Apply"), "Back" in kind or "Grad" in kind
    fields: dict[str, Any] = {
        "op": f"aten::{kind.lower()}",
        "type": kind,
        "group": group_of(kind),
        "layer": "" if optimizer else layer,
        "role": "optimizer" if optimizer else role,
        "phase": "optimizer" if optimizer else "backward" if backward else "forward",
        "shapes": "[8, 8]",
        "calls": 1.0,
        "cpu_s": seconds if place == LAPTOP else 5e-6,
        "device_s": None if place == LAPTOP else seconds,
        "flop": 0.0,
        "bytes": 0.0,
    }
    return OpRow(**{**fields, **changes})


def profile_of(rows: Sequence[OpRow], *, outside_s: float = 0.0, steps: int = 12, **changes: Any) -> Profile:
    """Every step the same, and no slowdown, unless changed."""
    per_type: dict[str, float] = {}
    for row in rows:
        seconds = row.cpu_s if row.device_s is None else row.device_s
        per_type[row.type] = per_type.get(row.type, 0.0) + seconds
    step = sum(per_type.values()) + outside_s
    fields: dict[str, Any] = {
        "rows": list(rows),
        "kernels": [],
        "step_s": [step] * steps,
        "plain_step_s": [step] * steps,
        "outside_s": outside_s,
        "per_step_s": {kind: [seconds] * steps for kind, seconds in per_type.items()},
    }
    return Profile(**{**fields, **changes})


def record_of(
    workload: str = "autoenc",
    rows: Sequence[OpRow] | None = None,
    *,
    place: str = LAPTOP,
    spec: Mapping[str, Any] | None = None,
    outside_s: float = 0.0,
    **changes: Any,
) -> Record:
    """A good run with these op rows (without any: no profile), ten equal steps of one second, 100 items each."""
    fields: dict[str, Any] = {
        "spec": RunSpec(workload=workload, **(spec or {})),
        "machine": MACHINES[place],
        "device": "cpu" if place == LAPTOP else "cuda:0",
        "outcome": "ok",
        "warmup_s": [1.0, 1.0],
        "step_s": [1.0] * 10,
        "items_per_step": 100,
        "profile": profile_of(rows, outside_s=outside_s) if rows else None,
    }
    return Record(**{**fields, **changes})


def failed_record(workload: str = "vgg", reason: str = "out of memory") -> Record:
    return record_of(workload, outcome="failed", reason=reason, step_s=[], warmup_s=[])


def engine_run(step_s: float, losses: Sequence[float] = (), **changes: Any) -> EngineRun:
    """Three equal turns of ten steps, after first steps that took as long as any others."""
    fields: dict[str, Any] = {
        "start_s": FIRST_STEPS * step_s,
        "turn_step_s": [step_s] * 3,
        "steps": 30,
        "losses": list(losses),
    }
    return EngineRun(**{**fields, **changes})


def trial_of(eager_s: float = 0.2, engine_s: float = 0.1, *, phase: str = "train", **changes: Any) -> Trial:
    """An engine that is twice as fast as eager and gives the same."""
    losses = [2.0, 1.0, 0.5] if phase == "train" else []
    fields: dict[str, Any] = {"eager": engine_run(eager_s, losses), "engine": engine_run(engine_s, losses)}
    fields |= {"rounded_losses": [losses]} if losses else {"output_difference": 0.0, "rounded_output_difference": 0.0}
    return Trial(**{**fields, **changes})


def trial_record(
    workload: str = "autoenc",
    engine: str = "compile",
    trial: Trial | None = None,
    *,
    place: str = LAPTOP,
    spec: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Record:
    fields = {"kind": "trial", "engine": engine, **(spec or {})}
    found = trial or trial_of(phase=fields.get("phase", "train"))
    return record_of(workload, None, place=place, spec=fields, step_s=[], warmup_s=[], trial=found, **changes)


def launch(workload: str, wall_s: float, *, gpu: bool = False, spec: Mapping[str, Any] | None = None) -> Record:
    """A whole program on the server: INIT a tenth of its wall time, SETUP two, RUN six, MAIN nine."""
    place = GPU if gpu else LAPTOP
    fields = {"device": "cuda:0" if gpu else "cpu", **(spec or {})}
    sections = sections_of(wall_s, gpu=gpu)
    return record_of(workload, None, place=place, machine=MACHINES[GPU], spec=fields, sections=sections)


def sections_of(wall_s: float, *, gpu: bool = False) -> Sections:
    tenth = wall_s / 10
    return Sections(
        import_s=0.8 * tenth,
        init_s=tenth,
        context_s=0.5 * tenth if gpu else None,
        setup_s=2 * tenth,
        first_step_s=1.5 * tenth,
        run_s=6 * tenth,
        main_s=9 * tenth,
        wall_s=wall_s,
    )


def study() -> list[Record]:
    """The eight in both phases on a laptop and a GPU, deepq at 1, 2 and 4 threads, some launches, one failed run."""
    records = [
        _plausible(workload, phase, place)
        for place in (LAPTOP, GPU)
        for workload in STEP_S
        for phase in ("train", "infer")
    ]
    records += [_plausible("deepq", "train", LAPTOP, threads=threads) for threads in (1, 2, 4)]
    records += [
        launch(workload, wall_s * (1 + 0.02 * number), gpu=gpu)
        for workload, gpu, wall_s in (("vgg", False, 30.0), ("vgg", True, 6.0), ("autoenc", False, 4.0))
        for number in range(5)
    ]
    return [*records, failed_record()]


def _plausible(workload: str, phase: str, place: str, threads: int | None = None) -> Record:
    """Op shares near the published ones, noise of two percent, a GPU 50 times as fast but never below 2 ms a step."""
    random = np.random.default_rng(zlib.crc32(f"{workload} {phase} {place} {threads}".encode()))
    step = STEP_S[workload] * (0.35 if phase == "infer" else 1.0) * (0.4 + 2.4 / (threads or 4))
    busy = step if place == LAPTOP else step / 50
    plain = busy if place == LAPTOP else max(2e-3, 1.02 * busy)
    rows = _rows(workload, phase, place, 0.98 * busy, plain)
    noise = 1 + 0.02 * random.gamma(1.0, 1.0, 30)
    profile = profile_of(
        rows,
        outside_s=0.02 * busy if place == LAPTOP else plain - 0.98 * busy,
        step_s=(1.1 * plain * noise[:12]).tolist(),
        plain_step_s=(plain * noise[12:24]).tolist(),
        per_step_s={
            row.type: ((row.flop or 0) * 1e-9 * (1 + 0.02 * random.gamma(1.0, 1.0, 12))).tolist() for row in rows
        },
        ceiling_flop_per_s=1e11 if place == LAPTOP else 5e13,
        ceiling_bytes_per_s=2e10 if place == LAPTOP else 4e12,
    )
    spec = {"phase": phase, "threads": threads, "preset": "small" if place == LAPTOP else "paper", "kind": "profiled"}
    return record_of(
        workload,
        place=place,
        spec=spec,
        profile=profile,
        warmup_s=[3 * plain, 1.1 * plain],
        step_s=(plain * noise).tolist(),
        sections=sections_of(60 * plain, gpu=place == GPU),
        items_per_step=8 if place == LAPTOP else 64,
        parameters=1_000_000,
    )


def _rows(workload: str, phase: str, place: str, busy_s: float, step_s: float) -> list[OpRow]:
    shares = published.op_percent()[workload]
    kept = [kind for kind in shares if phase == "train" or not any(word in kind for word in ("Apply", "Back", "Grad"))]
    rows = []
    for kind in kept:
        if percent := shares[kind]:
            seconds = busy_s * percent / sum(shares.values())
            costs = {
                "flop": percent * 1e8 * STEP_S[workload],
                "bytes": percent * (1e6 if group_of(kind) in "BD" else 5e7) * STEP_S[workload],
                "cpu_s": seconds if place == LAPTOP else step_s * percent / 200,
            }
            rows.append(op_row(kind, seconds, place=place, calls=4.0, **costs))
    return rows
