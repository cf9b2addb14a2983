"""Energy as commands and tables show it: J per step where it is metered, "not metered" elsewhere, and never 0."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import fathom
from metering import every, samples
from sample_records import record_of

from fathom.analysis.frame import frame
from fathom.cli.commands import run, study
from fathom.core.energy import ESTIMATE, Energy
from fathom.core.record import Record
from fathom.machine import meter
from fathom.measure.energy import energy_of


def metered(**how: str) -> Record:
    shown = {"watts" if "kind" in how else "joules": (lambda at: 50.0) if "kind" in how else (lambda at: 50.0 * at)}
    found = energy_of(samples(every(0.05, 10), **shown, **how), [("steps", 2.0, 8.0)], steps=30)  # type: ignore[arg-type]
    assert found is not None
    return replace(record_of("vgg"), energy=found)


VALID = metered()
SHORT = replace(VALID, energy=replace(VALID.energy or Energy(window_s=1, steps=1, parts=[], period_s=1), window_s=2.0))


def test_a_study_shows_joules_per_step_or_that_there_is_no_meter() -> None:
    row = study._row(VALID)
    assert (row["J/step"], row["energy"]) == (pytest.approx(10), "valid")
    row = study._row(record_of("vgg"))
    assert (row["J/step"], row["energy"]) == (None, "not metered")
    assert study._row(SHORT)["energy"] == "INVALID: 2 s measured, 5 s are needed"
    assert study._row(metered(kind=ESTIMATE, scope="CPU"))["energy"] == "estimated"


@pytest.mark.parametrize(
    ("record", "printed"),
    [
        (VALID, "10 J per step, 50 W; valid"),
        (SHORT, "10 J per step, 150 W; INVALID: 2 s measured, 5 s are needed"),
        (record_of("vgg"), "not metered"),
    ],
    ids=["valid", "too short", "not metered"],
)
def test_run_prints_the_energy(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    record: Record,
    printed: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "isolated", lambda spec, *_: replace(record, spec=spec))
    assert fathom(monkeypatch, "run", "vgg", "--device", "cpu") == 0
    assert f"energy {printed}" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(run, "isolated", lambda spec, *_: replace(record, spec=spec, id="another"))
    assert fathom(monkeypatch, "run", "vgg", "--device", "cpu", "--json") == 0
    told = json.loads(capsys.readouterr().out)["energy"]
    assert told == (
        None
        if record.energy is None
        else {
            "joules": record.energy.joules,
            "per_step_j": record.energy.per_step_j,
            "mean_w": record.energy.mean_w,
            "estimated": False,
            "invalid": record.energy.invalid,
        }
    )


def test_the_frame_has_it_and_missing_is_not_zero() -> None:
    table = frame([VALID, SHORT, record_of("vgg")])
    assert table["step_energy_j"].isna().tolist() == [False, False, True]
    assert table["step_energy_j"][0] == pytest.approx(10)
    assert table["energy_valid"].tolist()[:2] == [True, False]
    assert table["mean_power_w"][0] == pytest.approx(50)


def test_doctor_says_that_nothing_is_metered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(meter, "_kinds", list)
    assert fathom(monkeypatch, "doctor", "--json") == 0
    assert json.loads(capsys.readouterr().out)["meters"] == ["energy is not metered"]
