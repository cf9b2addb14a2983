"""The energy model on machines whose coefficients are known: found again, with an error that is the true one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sample_records import op_row, profile_of

from fathom.analysis.energy_model import GRAINS, OUTSIDE, STATIC, EnergyModel, MeteredRun, fit, refusal

WORKLOADS = ("seq2seq", "memnet", "speech", "autoenc", "residual", "vgg", "alexnet", "deepq")
STATIC_W = 90.0
PER_FLOP = {"MatMul": 8e-12, "Conv2D": 5e-12, "Mul": 20e-12}
PER_BYTE = {"MatMul": 40e-12, "Conv2D": 40e-12, "Mul": 70e-12}


def machine_run(
    workload: str,
    phase: str,
    random: np.random.Generator,
    *,
    noise: float = 0.0,
    types: Sequence[str] = tuple(PER_FLOP),
    per_flop: dict[str, float] = PER_FLOP,
    per_byte: dict[str, float] = PER_BYTE,
    outside_s: float = 0.002,
) -> MeteredRun:
    """A step of random work, and the joules that a machine with these coefficients takes for it."""
    rows, dynamic = [], 0.0
    for kind in types:
        flop, moved, seconds = 10 ** random.uniform(9, 12), 10 ** random.uniform(8, 11), random.uniform(1e-3, 2e-2)
        rows.append(op_row(kind, seconds, place="gpu", flop=flop, bytes=moved, layer=f"layer.{kind}"))
        dynamic += per_flop[kind] * flop + per_byte[kind] * moved
    profile = profile_of(rows, outside_s=outside_s)
    step_s = sum(row.device_s or 0.0 for row in rows) + outside_s
    step_j = (STATIC_W * step_s + dynamic) * (1 + noise * random.standard_normal())
    return MeteredRun(workload, f"{workload} {phase}", step_j, step_s, profile)


def machine(seed: int = 0, **how: object) -> list[MeteredRun]:
    random = np.random.default_rng(seed)
    return [machine_run(name, phase, random, **how) for name in WORKLOADS for phase in ("train", "infer")]  # type: ignore[arg-type]


def test_known_coefficients_are_found_again() -> None:
    model = fit(machine())
    assert model.grain == "every class"
    assert model.static_w == pytest.approx(STATIC_W, rel=1e-6)
    for kind, group in (("MatMul", "B"), ("Conv2D", "D"), ("Mul", "A")):
        assert model.coefficients[f"FLOP of class {group}"] == pytest.approx(PER_FLOP[kind], rel=1e-6)
        assert model.coefficients[f"bytes of class {group}"] == pytest.approx(PER_BYTE[kind], rel=1e-6)
    assert model.error < 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_two_percent_leaves_them_within_noise_and_the_left_out_error_says_so(seed: int) -> None:
    model = fit(machine(seed, noise=0.02))
    assert model.static_w == pytest.approx(STATIC_W, rel=0.15)
    assert 0.003 < model.error < 0.08, "as large as the noise: a fit on itself would show less"
    assert set(model.errors) == {f"{name} {phase}" for name in WORKLOADS for phase in ("train", "infer")}


def test_a_workload_that_is_unlike_the_others_has_the_error_that_it_had_when_left_out() -> None:
    """It takes twice the energy that the others' coefficients give it: seen from without, that is half too little."""
    runs = machine()
    odd = [replace(run, step_j=2 * run.step_j) if run.workload == "vgg" else run for run in runs]
    model = fit(odd)
    assert model.errors["vgg train"] == pytest.approx(-0.5, abs=0.02)
    assert model.errors["vgg infer"] == pytest.approx(-0.5, abs=0.02)
    assert model.worst[0].startswith("vgg")
    assert all(abs(error) < 0.4 for name, error in model.errors.items() if not name.startswith("vgg"))


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_shares_add_up_to_what_was_measured_and_are_those_of_the_machine(noise: float) -> None:
    runs = machine(3, noise=noise)
    model = fit(runs)
    for run in runs:
        for key in (lambda row: row.group, lambda row: row.layer):
            shares = model.shares(run, key)
            assert sum(share.joules for share in shares.values()) == pytest.approx(run.step_j)
            assert all(share.low <= share.joules <= share.high for share in shares.values())
            assert OUTSIDE in shares
    if not noise:
        run = runs[0]
        (row,) = [row for row in run.profile.rows if row.type == "MatMul"]
        true_j = STATIC_W * (row.device_s or 0) + PER_FLOP["MatMul"] * row.flop + PER_BYTE["MatMul"] * row.bytes  # type: ignore[operator]
        assert model.shares(run, lambda row: row.type)["MatMul"].joules == pytest.approx(true_j, rel=1e-5)
        assert model.shares(run, lambda row: row.type)[OUTSIDE].joules == pytest.approx(STATIC_W * 0.002, rel=1e-5)


def test_ops_that_cost_alike_are_not_told_apart() -> None:
    """With one coefficient for all, a finer model is no better, and the coarser one is kept."""
    alike = dict.fromkeys(PER_FLOP, 8e-12), dict.fromkeys(PER_BYTE, 40e-12)
    model = fit(machine(1, noise=0.02, per_flop=alike[0], per_byte=alike[1]))
    assert model.grain == "all ops alike"
    assert model.coefficients["FLOP of all ops"] == pytest.approx(8e-12, rel=0.2)


def test_constant_power_is_found_as_such() -> None:
    nothing = dict.fromkeys(PER_FLOP, 0.0)
    model = fit(machine(2, noise=0.01, per_flop=nothing, per_byte=nothing))
    assert model.grain == "time alone"
    assert model.coefficients == {STATIC: pytest.approx(STATIC_W, rel=0.02)}


def collinear(random: np.random.Generator, workload: str) -> MeteredRun:
    """FLOP, bytes and time in one proportion in every run: nothing can tell their coefficients apart."""
    seconds = random.uniform(1e-3, 5e-2)
    row = op_row("MatMul", seconds, place="gpu", flop=1e12 * seconds, bytes=1e10 * seconds)
    return MeteredRun(workload, workload, 250 * seconds, seconds, profile_of([row]))


def test_collinear_work_gives_no_nonsense() -> None:
    random = np.random.default_rng(0)
    model = fit([collinear(random, name) for name in WORKLOADS])
    assert model.error < 1e-9
    assert all(value >= 0 for value in model.coefficients.values())
    assert model.grain == "time alone", "a dynamic term would explain nothing more"


def test_unknown_flop_and_bytes_are_left_to_static_power() -> None:
    runs = machine()
    blind = op_row("Unknown", 0.004, place="gpu", flop=None, bytes=None)
    profile = profile_of([*runs[0].profile.rows, blind], outside_s=0.002)
    first = runs[0]
    extended = replace(first, profile=profile, step_j=first.step_j + STATIC_W * 0.004, step_s=first.step_s + 0.004)
    model = fit([extended, *runs[1:]])
    shares = model.shares(extended, lambda row: row.type)
    assert shares["Unknown"].joules == pytest.approx(STATIC_W * 0.004, rel=1e-4)


def test_a_profile_that_was_faster_is_stretched_to_the_metered_step() -> None:
    run = machine()[0]
    slower = replace(run, step_s=2 * run.step_s)
    assert sum(seconds for _, seconds in slower.rows) + slower.outside_s == pytest.approx(2 * run.step_s)


@pytest.mark.parametrize("runs", [machine()[:5], [run for run in machine() if run.workload in ("vgg", "memnet")] * 3])
def test_too_few_runs_are_refused_with_the_reason(runs: list[MeteredRun]) -> None:
    why = refusal(runs)
    assert why is not None
    assert why.startswith(f"{len(runs)} metered and profiled runs of {len({run.workload for run in runs})} workloads")
    assert "an energy model needs 6 runs, of at least 3 workloads" in why


def test_the_grains_go_from_coarse_to_fine() -> None:
    """A tie is decided for the coarser one only where they stand in this order."""
    terms = [len({grain(group) for group in "ABCDEFGH"} - {None}) for grain in GRAINS.values()]
    assert terms == sorted(terms) == [0, 1, 2, 8]
    assert isinstance(fit(machine()), EnergyModel)
