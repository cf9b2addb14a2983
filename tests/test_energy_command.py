"""fathom energy: trials, sweeps in random order, what it prints, and a machine without a meter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import simulated_nvml as nvml
import torch
from conftest import fathom
from energy_records import energy_of, metered_record
from metering import PLUG, install_meter
from sample_records import MACHINES, op_row, profile_of

from fathom.cli.commands._energy import ITEMS, Rates
from fathom.core import plugins
from fathom.core.disturbance import Disturbance
from fathom.core.energy import IDLE, SETUP, STEPS, WARM_UP
from fathom.core.errors import BadOption
from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import energy, study
from fathom.machine.meter import Target
from fathom.measure import profiling
from fathom.measure.loop import measure

BASE = RunSpec(workload="autoenc", kind="energy", preset="tiny", device="cpu")


class Workers:
    """In place of worker processes: every run is metered, costs the same joules per item, and is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, metered: bool = True) -> None:
        self.ran: list[RunSpec] = []
        self.metered = metered
        monkeypatch.setattr(study, "run_all", self.run_all)
        monkeypatch.setattr(energy, "isolated", self.isolated)
        monkeypatch.setattr("fathom.cli.commands.energy.fingerprint", lambda: MACHINES["gpu"])

    def run_all(
        self, specs: Sequence[RunSpec], store: Store, watch: Any, run: Any, on_wait: Any
    ) -> Iterator[tuple[Record, Path]]:
        for spec in specs:
            record = run(spec, watch(0, spec))
            yield record, store.add(record)

    def isolated(self, spec: RunSpec, on_progress: OnProgress) -> Record:
        on_progress(1, 2)
        self.ran.append(spec)
        return self.record(spec)

    def record(self, spec: RunSpec) -> Record:
        batch = spec.batch or 100
        found = replace(metered_record(per_step_j=0.5 + 0.01 * batch, items_per_step=batch), spec=spec)
        if spec.kind == "profiled":
            return replace(found, energy=None, profile=profile_of([op_row("MatMul", 0.01, place="gpu")]))
        return found if self.metered else replace(found, energy=None)


def unwatched(index: int, spec: RunSpec) -> OnProgress:
    return lambda done, total: None


def test_three_trials_and_a_profile_and_what_they_come_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = Workers(monkeypatch)
    assert fathom(monkeypatch, "energy", "autoenc", "--out", tmp_path / "records", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert Counter(spec.kind for spec in workers.ran) == {"energy": 3, "profiled": 1}
    (setting,) = document["settings"]
    assert setting["per_item_j"] == pytest.approx(0.015)
    assert setting["per_step_j"] == pytest.approx(1.5)
    assert (setting["mean_w"], setting["idle_w"]) == (pytest.approx(150.0), 70.0)
    assert setting["step_edp"] == pytest.approx(0.015)
    assert (setting["trials"], setting["verdict"], setting["spread"]) == (3, "VALID", 0.0)
    assert setting[f"per_{ITEMS}_items"] == {}, "neither CO2 nor cost is guessed"
    assert document["not_metered"] == 0
    assert len(list(Store(tmp_path / "records").records())) == 4
    workers.ran.clear()
    assert fathom(monkeypatch, "energy", "autoenc", "--out", tmp_path / "records", "--trials", 1) == 0
    assert [spec.kind for spec in workers.ran] == ["energy"], "its profile is there already"


def test_what_is_printed_has_the_verdict_first_and_idle_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Workers(monkeypatch)
    rates = ("--grams-per-kwh", 360, "--price-per-kwh", 0.36)
    assert fathom(monkeypatch, "energy", "autoenc", "--out", tmp_path / "records", *rates) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        "verdict VALID",
        "energy per item 15 mJ per image",
        "average power 150 W",
        "peak power 165 W",
        "idle power 70 W before the run; not subtracted",
        "EDP 0.01500 J s per step",
        "integrated power is +1 % from the counter",
        "3, 0 % apart (within 3 %)",
        "CO2 1.500 g per 1,000,000 items, at the rate given",
        "cost 0.001500 per 1,000,000 items, at the rate given",
    ):
        assert text in shown, text
    assert shown.index("verdict") < shown.index("energy per item")
    assert "Power by section" in shown


def test_an_invalid_trial_is_run_once_more_where_others_are_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class OneShort(Workers):
        def record(self, spec: RunSpec) -> Record:
            found = super().record(spec)
            return replace(found, energy=energy_of(1.5, 0.01, window_s=1.0)) if len(self.ran) == 2 else found

    workers = OneShort(monkeypatch)
    options = ("--out", tmp_path / "records", "--no-profile", "--json")
    assert fathom(monkeypatch, "energy", "autoenc", *options) == 0
    (setting,) = json.loads(capsys.readouterr().out)["settings"]
    assert len(workers.ran) == 4
    assert (setting["trials"], setting["verdict"]) == (3, "VALID")


@pytest.mark.parametrize(("disturbed", "runs"), [({2}, 4), ({1, 2, 3}, 3)])
def test_disturbed_trials_are_run_once_more_unless_most_are(
    disturbed: set[int], runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disturbed(Workers):
        def record(self, spec: RunSpec) -> Record:
            found = super().record(spec)
            shared = Disturbance(gpu_shared=True)
            return replace(found, disturbance=shared) if len(self.ran) in disturbed else found

    workers = Disturbed(monkeypatch)
    assert fathom(monkeypatch, "energy", "autoenc", "--out", tmp_path / "records", "--no-profile") == 0
    assert len(workers.ran) == runs


def test_no_trial_is_run_again_where_none_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that is too slow stays too slow."""

    class Short(Workers):
        def record(self, spec: RunSpec) -> Record:
            return replace(super().record(spec), energy=energy_of(1.5, 0.01, window_s=1.0))

    workers = Short(monkeypatch)
    assert fathom(monkeypatch, "energy", "autoenc", "--out", tmp_path / "records", "--no-profile") == 0
    assert len(workers.ran) == 3


def test_a_machine_without_a_meter_runs_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Workers(monkeypatch, metered=False)
    assert fathom(monkeypatch, "energy", "autoenc", "--out", tmp_path / "records") == 0
    captured = capsys.readouterr()
    assert "not metered: no meter of this machine can be read for 3 of 3 runs" in captured.out
    assert "not metered, 10 ms per step" in captured.err
    assert "0 J" not in captured.out
    assert fathom(monkeypatch, "energy", "autoenc", "--out", tmp_path / "records", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["settings"], document["not_metered"]) == ([], 3)


def test_a_sweep_says_which_setting_costs_the_fewest_joules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = Workers(monkeypatch)
    options = ("--batches", "10,50", "--precisions", "fp32,bf16", "--no-profile", "--trials", 2)
    assert fathom(monkeypatch, "energy", "autoenc", "--out", tmp_path / "records", "--json", *options) == 0
    (sweep,) = json.loads(capsys.readouterr().out)["sweeps"]
    assert sorted(sweep["settings"]) == ["batch 10, bf16", "batch 10, fp32", "batch 50, bf16", "batch 50, fp32"]
    assert sweep["recommended"]["least energy"].startswith("batch 50")
    tried = Counter((spec.batch, spec.precision) for spec in workers.ran)
    assert tried == dict.fromkeys([(10, "fp32"), (10, "bf16"), (50, "fp32"), (50, "bf16")], 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batches", "1,x"), "--batches takes whole numbers such as 1,8,64, not 'x'"),
        (("--batches", "0"), "batch must be at least 1, not 0"),
        (("--engines", "eager,cudagraf"), "no engine 'cudagraf'; did you mean cudagraph?"),
        (("--precisions", "fp8"), "no precision 'fp8'"),
        (("--idle", "-1"), "the idle baseline must be some seconds, or 0 for none, not -1"),
        (("--grams-per-kwh", "-5"), "--grams-per-kwh must be a number of 0 or more, not -5"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workers = Workers(monkeypatch)
    assert fathom(monkeypatch, "energy", "autoenc", "--out", tmp_path / "records", *options) == 2
    assert capsys.readouterr().err.startswith(f"fathom: {message}")
    assert workers.ran == []


def test_a_trace_is_written_of_the_first_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Workers(monkeypatch)
    written: list[tuple[RunSpec, Path]] = []
    monkeypatch.setattr(profiling, "write_trace", lambda spec, path: written.append((spec, path)))
    path = tmp_path / "trace.json"
    options = ("--trace-out", path, "--batches", "4,8", "--trials", 1)
    assert fathom(monkeypatch, "energy", "autoenc", "--out", tmp_path / "records", *options) == 0
    assert [(spec.batch, where) for spec, where in written] == [(4, path)]


def test_settings_are_every_combination_once() -> None:
    found = energy.settings(BASE, [1, 8, 8], ["fp32", "bf16"], ["eager"])
    assert [(each.spec.batch, each.spec.precision) for each in found] == [
        *((1, "fp32"), (1, "bf16"), (8, "fp32"), (8, "bf16"))
    ]
    assert [setting.spec for setting in energy.settings(BASE)] == [BASE]


def test_each_setting_comes_once_in_each_block_of_trials() -> None:
    found = energy.settings(BASE, [1, 2, 4, 8])
    ordered = energy.run_order(found, 20)
    blocks = [[setting.spec.batch for setting in ordered[begin : begin + 4]] for begin in range(0, 80, 4)]
    assert all(sorted(block) == [1, 2, 4, 8] for block in blocks)  # type: ignore[type-var]
    assert len({tuple(block) for block in blocks}) > 5, "in another order each time"
    assert energy.run_order(found, 20) == ordered


def test_what_a_setting_changes_about_the_machine_is_put_back_after_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a run raises: the context of the setting is left."""
    told: list[str] = []

    @contextmanager
    def applied(name: str) -> Iterator[None]:
        told.append(f"{name} set")
        try:
            yield
        finally:
            told.append(f"{name} put back")

    workers = Workers(monkeypatch)
    found = [energy.Setting(replace(BASE, power_cap_w=cap), partial(applied, f"{cap:g} W")) for cap in (300.0, 400.0)]
    records = [record for record, _ in energy.run_all(found, Store(tmp_path), unwatched)]
    assert [record.spec.power_cap_w for record in records] == [300.0, 400.0]
    assert told == ["300 W set", "300 W put back", "400 W set", "400 W put back"]
    told.clear()
    monkeypatch.setattr(workers, "record", lambda spec: pytest.fail("lost"))
    with pytest.raises(pytest.fail.Exception):
        list(energy.run_all(found, Store(tmp_path), unwatched))
    assert told == ["300 W set", "300 W put back"]


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvml.Driver:
    """A simulated card that cuda:0 is, and a journal of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("fathom.machine.devices.resolve", lambda name, precision="fp32": torch.device("cuda:0"))
    monkeypatch.setattr(Target, "of", lambda device, estimates=False: Target(gpu_uuids=(nvml.UUID,)))
    return nvml.with_card(monkeypatch)


def test_caps_are_a_dry_run_unless_they_are_allowed(
    card: nvml.Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = Workers(monkeypatch)
    command = ("energy", "autoenc", "--device", "cuda:0", "--power-caps", "300,900", "--clock-caps", "1000")
    assert fathom(monkeypatch, *command, "--out", tmp_path / "records") == 0
    shown = capsys.readouterr().out
    assert "GPU 0, NVML power limit: 700 W -> 300 W" in shown
    assert "900 W is outside what the driver permits, 200 to 700 W" in shown
    assert "no limit -> 1005 MHz" in shown
    assert "Dry run: nothing was changed and nothing measured." in shown
    assert (workers.ran, card.card.state.sets) == ([], [])
    assert fathom(monkeypatch, *command, "--json", "--out", tmp_path / "records") == 0
    assert [change["to"] for change in json.loads(capsys.readouterr().out)["dry_run"]] == ["300 W", "900 W", "1005 MHz"]
    assert fathom(monkeypatch, *command, "--allow-capping", "--out", tmp_path / "records") == 2
    assert "900 W is outside" in capsys.readouterr().err
    assert (workers.ran, card.card.state.sets) == ([], []), "refused before anything ran"


def test_caps_that_are_allowed_are_set_for_their_runs_alone(
    card: nvml.Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = Workers(monkeypatch)
    limits: list[tuple[float | None, float]] = []
    record = workers.record

    def watched(spec: RunSpec) -> Record:
        (governor,) = energy.mechanism("power_cap_w", torch.device("cuda:0"))
        limits.append((spec.power_cap_w, governor.current() or 0.0))
        return record(spec)

    monkeypatch.setattr(workers, "record", watched)
    options = ("--power-caps", "300,400", "--allow-capping", "--trials", 2, "--no-profile", "--json")
    assert fathom(monkeypatch, "energy", "autoenc", "--device", "cuda:0", "--out", tmp_path / "records", *options) == 0
    (sweep,) = json.loads(capsys.readouterr().out)["sweeps"]
    assert sorted(sweep["settings"]) == ["300 W", "400 W", "no power cap"]
    assert Counter(limits) == {(None, 700.0): 2, (300.0, 300.0): 2, (400.0, 400.0): 2}
    (governor,) = energy.mechanism("power_cap_w", torch.device("cuda:0"))
    assert governor.current() == 700.0
    assert fathom(monkeypatch, "energy", "--restore") == 0
    assert "nothing to restore" in capsys.readouterr().out


def test_a_run_that_raises_below_a_cap_leaves_the_limit_as_it_was(
    card: nvml.Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(monkeypatch)
    monkeypatch.setattr(workers, "record", lambda spec: pytest.fail("lost"))
    governors = energy.mechanism("power_cap_w", torch.device("cuda:0"))
    found = energy.capped([energy.Setting(BASE)], "power_cap_w", governors, [300.0])
    with pytest.raises(pytest.fail.Exception):
        list(energy.run_all(found, Store(tmp_path), unwatched))
    assert governors[0].current() == 700.0
    assert card.card.state.sets != [], "it was changed"


def test_without_a_workload_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fathom(monkeypatch, "energy") == 2
    assert "give a workload of `fathom list`, or --restore" in capsys.readouterr().err


def test_emissions_and_cost_are_arithmetic_on_kilowatt_hours() -> None:
    assert Rates(grams_per_kwh=400.0, price_per_kwh=0.3).of(3.6e6) == {"co2_g": 400.0, "cost": 0.3}
    assert Rates(price_per_kwh=0.0).of(1.0) == {"cost": 0.0}
    assert Rates().of(3.6e6) == {}
    with pytest.raises(BadOption):
        Rates(price_per_kwh=-1)


@pytest.fixture
def metered_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With a meter of 100 W that every process finds, as a package would bring it."""
    folder = tmp_path / "site"
    folder.mkdir()
    install_meter(folder, monkeypatch, PLUG)
    yield
    plugins._installed.cache_clear()


@pytest.mark.usefixtures("metered_machine")
def test_a_real_run_is_metered_from_its_baseline_to_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fathom.measure.energy.REACH", 1e6)  # though the sampler may not get a core for a while
    spec = replace(BASE, phase="infer", idle_s=0.5, window_s=0.3, period_s=0.01)
    record = measure(spec)
    assert (record.outcome, record.reason) == ("ok", None)
    found = record.energy
    assert found is not None
    names = [stretch.name for stretch in found.stretches]
    assert names == [IDLE, SETUP, WARM_UP, *[STEPS] * (len(names) - 3)], "more steps where the window was too short"
    assert all(one.end_s <= other.begin_s for one, other in zip(found.stretches, found.stretches[1:], strict=False))
    (part,) = [part for part in found.parts if part.meter == "wall plug"]
    assert part.mean_w == pytest.approx(100.0, rel=0.2)  # a pause within a reading moves its time
    assert part.idle_w == pytest.approx(100.0, rel=0.2)
    assert part.updates >= 50, "the window was made longer for its counter"
    assert found.steps == len(record.step_s) >= 5
    assert sum(record.step_s) <= found.window_s + 1e-6
    assert record.sections.run_s is None, "no run of a fixed number of steps"


def test_a_cap_is_set_only_once_nobody_else_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another process in the same folder would be one below the cap that knows nothing of it."""
    told: list[str] = []

    @contextmanager
    def applied() -> Iterator[None]:
        told.append("set")
        yield
        told.append("put back")

    class Shared(Store):
        @contextmanager
        def lock(self, on_wait: Any) -> Iterator[None]:
            told.append("locked")
            yield
            told.append("unlocked")

    monkeypatch.setattr(energy, "isolated", lambda spec, on_progress: replace(metered_record(), spec=spec))
    list(energy.run_all([energy.Setting(BASE, applied)], Shared(tmp_path), unwatched))
    assert told == ["locked", "set", "put back", "unlocked"]
