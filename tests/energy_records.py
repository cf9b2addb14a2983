"""Metered records for tests: a machine of constant power, its idle baseline, and its trace with all sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sample_records import GPU, record_of

from fathom.core.energy import COUNTER, IDLE, SETUP, STEPS, WARM_UP, Energy, MeterEnergy, PowerTrace, Stretch
from fathom.core.record import OpRow, Record

IDLE_W = 70.0


def part(joules: float, window_s: float, **changes: Any) -> MeterEnergy:
    fields: dict[str, Any] = {
        **{"meter": "NVML", "scope": "GPU 0", "kind": COUNTER, "joules": joules, "mean_w": joules / window_s},
        **{"peak_w": 1.1 * joules / window_s, "idle_w": IDLE_W, "integrated_j": 1.01 * joules, "updates": 60},
    }
    return MeterEnergy(**{**fields, **changes})


def trace_of(watts: float, window_s: float) -> PowerTrace:
    """Idle for 5 s, setup and warm-up for one each, then the window."""
    seconds = [0.1 * number for number in range(round(10 * (7 + window_s)) + 1)]
    power: list[float | None] = [IDLE_W if at < 5 else watts for at in seconds]
    clock: list[float | None] = [345.0 if at < 5 else 1980.0 for at in seconds]
    return PowerTrace(meter="NVML", scope="GPU 0", kind=COUNTER, seconds=seconds, watts=power, clock_mhz=clock)


def energy_of(per_step_j: float, step_s: float, window_s: float = 6.0, **changes: Any) -> Energy:
    steps = round(window_s / step_s)
    names = ((IDLE, 0.0, 5.0), (SETUP, 5.0, 6.0), (WARM_UP, 6.0, 7.0), (STEPS, 7.0, 7.0 + window_s))
    fields: dict[str, Any] = {
        **{"window_s": window_s, "steps": steps, "period_s": 0.1, "parts": [part(steps * per_step_j, window_s)]},
        "stretches": [Stretch(name=name, begin_s=begin, end_s=end) for name, begin, end in names],
        "traces": [trace_of(per_step_j / step_s, window_s)],
    }
    return Energy(**{**fields, **changes})


def metered_record(
    workload: str = "autoenc",
    per_step_j: float = 3.0,
    step_s: float = 0.01,
    *,
    rows: Sequence[OpRow] | None = None,
    energy: Energy | None = None,
    items_per_step: int = 100,
    spec: dict[str, Any] | None = None,
    **changes: Any,
) -> Record:
    """A GPU's run for its energy: 600 steps in 6 s by default, 3 J each."""
    return record_of(
        workload,
        rows,
        place=GPU,
        spec={"kind": "energy", **(spec or {})},
        step_s=[step_s] * 20,
        items_per_step=items_per_step,
        item="image",
        energy=energy or energy_of(per_step_j, step_s),
        **changes,
    )
