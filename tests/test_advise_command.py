"""fathom advise as typed: both kinds of advice, what is refused in one line, and the table behind the page's form."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom
from sample_records import op_row, record_of, trial_of

from fathom.analysis.advice import PREDICTED, Change
from fathom.cli.commands import _advise_model as of_model
from fathom.cli.commands import _advise_predicted
from fathom.cli.commands._advise_options import Asked, is_function, listed_in
from fathom.cli.commands._advise_plan import duration, prices_of, uncertainty
from fathom.core.advice import USUAL, Setting, SettingTrial
from fathom.core.errors import BadOption
from fathom.core.record import Record
from fathom.experiments import advise
from fathom.experiments.advise import Usual
from fathom.experiments.trials import KeptTrials
from fathom.predict.choice import Choice
from fathom.predict.estimate import Interval
from fathom.predict.predictors.roofline import Roofline
from fathom.predict.target import HostCosts, Target
from fathom.workloads.base import workload_class

PLAN = ["advise", "sensor_net", "--items", "1e6", "--on", "h100,k40", "--count", "1,2", "--batch", "64"]
OWN = """\
import torch
from fathom.workloads.autoenc import Autoenc

raise SystemExit("imported")

def make():
    return torch.nn.Linear(4, 2), torch.randn(6, 4)

class Mine(Autoenc):
    pass
"""


def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The JSON document of a command that succeeds."""
    assert fathom(monkeypatch, *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


# a slow model, with made-up trials


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Setting]:
    """Settings that were tried: bf16 is twice as fast, compile is refused, all else is as fast."""
    asked: list[Setting] = []

    def attempt(spec: Any, own: Any, setting: Setting, against: Setting, *_: object) -> SettingTrial:
        asked.append(setting)
        if setting.engine == "compile":
            return SettingTrial(setting=setting, failed="no compiler", refused=True)
        beside_s, step_s = (0.1 if each.precision else 0.2 for each in (against, setting))
        return SettingTrial(setting=setting, against=against, trial=trial_of(beside_s, step_s), items=8, usual_items=8)

    def profiled(asked: Asked) -> Record:
        rows = [op_row("MatMul", 0.06), op_row("Add", 0.04)]
        record = record_of(asked.name, rows)
        return replace(record, device="cpu", items_per_step=8)

    monkeypatch.setattr(advise, "in_process", attempt)

    def predicted(asked: Asked, usual: advise.Usual) -> tuple[list[Change], str]:
        return [Change(what="a batch of 16", times=3.0, known=PREDICTED)], "from nowhere"

    monkeypatch.setattr(of_model, "profiled", profiled)
    monkeypatch.setattr(of_model, "_predicted", predicted)
    return asked


def test_without_verify_nothing_is_measured(
    tried: list[Setting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = typed(monkeypatch, capsys, "advise", "autoenc", "--preset", "tiny", "--out", tmp_path)
    assert tried == []
    assert [each["known"] for each in found["changes"]] == ["predicted", "at most, from the profile"]  # by their gain
    assert found["prediction"] == "from nowhere"
    assert found["advised"] is None
    assert "bf16" in found["untried"]
    assert len(list(tmp_path.glob("*.json"))) == 1  # the profile's record


def test_verified_advice_is_measured_twice(
    tried: list[Setting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = typed(monkeypatch, capsys, "advise", "autoenc", "--preset", "tiny", "--verify", "--out", tmp_path)
    assert found["advised"] == {"precision": "bf16"}
    assert tried.count(Setting(precision="bf16")) == 2
    assert found["distance_from_best"] == 0.0
    assert found["changes"][0]["times"] == pytest.approx(2.0)
    assert [each["failed"] for each in found["trials"]].count("no compiler") == 1
    assert found["changes"][1]["what"].startswith("torch.compile")  # it failed: what the profile says of it stands


def test_an_interrupted_search_goes_on_after_its_trials(
    tried: list[Setting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["advise", "autoenc", "--preset", "tiny", "--verify", "--keep-batch", "--out", tmp_path]
    whole = typed(monkeypatch, capsys, *arguments)
    planned, measure = list(tried), advise.in_process
    assert list(tmp_path.glob("*.trials")) == [], "a search that has ended leaves nothing"

    def interrupted(*given: Any) -> SettingTrial:
        if len(tried) == 3:
            raise KeyboardInterrupt
        return measure(*given)

    tried.clear()
    monkeypatch.setattr(advise, "in_process", interrupted)
    assert fathom(monkeypatch, *arguments, "--json") == 130
    capsys.readouterr()
    assert tried == planned[:3]
    monkeypatch.setattr(advise, "in_process", measure)
    resumed = typed(monkeypatch, capsys, *arguments)
    assert tried == planned, "each of them once"
    names = ("advised", "distance_from_best", "trials", "confirmed")
    assert [resumed[name] for name in names] == [whole[name] for name in names]


def kept_in(folder: Path, identity: object, *settings: Setting) -> tuple[list[Setting], KeptTrials]:
    """What was measured of these, and the file afterwards."""
    measured: list[Setting] = []

    kept = KeptTrials(folder, identity)
    for setting in settings:
        assert keep(kept, setting, measured).setting == setting
    return measured, kept


def keep(kept: KeptTrials, setting: Setting, measured: list[Setting], against: Setting = USUAL) -> SettingTrial:
    def measure() -> SettingTrial:
        measured.append(setting)
        return SettingTrial(setting=setting, against=against, trial=trial_of(0.2, 0.1))

    return kept.trial(setting, against, measure)


def test_kept_trials_hold_for_the_same_model_machine_and_order_alone(tmp_path: Path) -> None:
    first, second, third = Setting(precision="bf16"), Setting(engine="compile"), Setting(threads=1)
    measured, kept = kept_in(tmp_path, "a", first, second)
    assert measured == [first, second]
    assert kept_in(tmp_path, "a", first, second, third)[0] == [third]
    assert kept_in(tmp_path, "b", first)[0] == [first], "of another model"
    assert kept_in(tmp_path, "a", first, third, second)[0] == [third, second], "in another order"
    assert keep(KeptTrials(tmp_path, "a"), first, measured, third).against == third
    assert measured == [first, second, first], "against another setting"
    kept_in(tmp_path, "a", first)
    kept.path.write_text(kept.path.read_text()[:-20])
    assert kept_in(tmp_path, "a", first)[0] == [first], "of a damaged file none is taken"


def test_what_failed_then_is_measured_again_and_the_others_are_not(tmp_path: Path) -> None:
    first, second, third = Setting(precision="bf16"), Setting(engine="compile"), Setting(threads=1)
    kept = KeptTrials(tmp_path, "a")
    kept.trial(first, USUAL, lambda: SettingTrial(setting=first, failed="no CUDA", refused=True))
    kept.trial(second, USUAL, lambda: SettingTrial(setting=second, failed="no progress for 5 s: ended"))
    kept.trial(third, USUAL, lambda: SettingTrial(setting=third, trial=trial_of(0.2, 0.1)))
    assert kept_in(tmp_path, "a", first, second, third)[0] == [second]


def test_an_edited_model_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    seen = set()
    for name, text in [("mine.py", "a"), ("mine.py", "b"), ("layers.py", "a"), ("models/own.py", "a")]:
        (tmp_path / name).write_text(text)
        seen.add(of_model.source_digest("mine:make"))
    assert len(seen) == 3, "not by what is in other folders"
    assert of_model.source_digest("models.own:make") != of_model.source_digest("mine:make")
    assert of_model.source_digest("installed.package:make"), "whose code is elsewhere"


def test_verified_advice_in_words(
    tried: list[Setting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["advise", "autoenc", "--preset", "tiny", "--verify", "--keep-batch", "--out", tmp_path]
    assert fathom(monkeypatch, *arguments) == 0
    told = capsys.readouterr().out
    assert "1. 2 times as fast (2 to 2, measured): torch.autocast in bfloat16; results agree: yes" in told
    assert "Advised: bf16 (torch.autocast in bfloat16)" in told
    assert "0.0 % slower than the best of those measured again" in told
    assert not any(setting.batch for setting in tried)


def test_a_model_of_ones_own_in_real_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one trial only: each starts a process."""
    text = OWN.replace('raise SystemExit("imported")\n', "")
    (tmp_path / "advised_model.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(advise, "candidates", lambda usual: [Setting(engine="fused"), Setting(engine="cudagraph")])
    monkeypatch.setattr(advise, "CONFIRMED", 0)
    arguments = ["advise", "advised_model:make", "--verify", "--seconds", "0.01", "--device", "cpu", "--out", tmp_path]
    found = typed(monkeypatch, capsys, *arguments)
    fused, graph = found["trials"]
    assert fused["failed"] is None
    assert 7 <= len(fused["trial"]["engine"]["turn_step_s"]) <= 15
    assert graph["failed"].startswith("engine cudagraph alone is for workloads")
    assert (found["usual"]["own"], found["usual"]["batch"]) == (True, 6)


@pytest.mark.parametrize(("kind", "label"), [("float16", "fp16"), ("bfloat16", "bf16"), ("float64", "fp64")])
def test_a_model_that_is_not_in_fp32_has_one_precision(
    kind: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no autocast: of a grid of precisions, all settings would be the same."""
    made = f"torch.nn.Linear(64, 64).to(torch.{kind}), torch.randn(32, 64, dtype=torch.{kind})"
    (tmp_path / f"model_in_{kind}.py").write_text(f"import torch\ndef make():\n    return {made}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"model_in_{kind}:make"
    plan = typed(monkeypatch, capsys, "advise", name, "--items", "1e6", "--on", "h100", "--count", "1")
    assert {each["precision"] for each in plan["choices"]} == {label}
    settings = [(each["batch"], each["engine"]) for each in plan["choices"]]
    assert len(set(settings)) == len(settings), "every setting once"
    assert typed(monkeypatch, capsys, "predict", name, "--on", "H100")["precision"] == label
    for command in (["predict", name, "--on", "H100"], ["advise", name, "--items", "1e6", "--on", "h100"]):
        assert fathom(monkeypatch, *command, "--precision", "tf32") == 2
        assert f"precision tf32 is for a model in fp32; the parameters of this one are {label}" in (
            " ".join(capsys.readouterr().err.split())
        )


def test_a_users_module_is_not_imported_to_tell_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_model.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert is_function("raising_model:make")
    assert is_function("no_such_module:make")
    assert not is_function("memnet")
    with pytest.raises(BadOption, match="called sys.exit"):
        is_function("raising_model:Mine")  # a class, which may be a workload


def test_a_workload_class_is_no_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "class_model.py").write_text(OWN.replace('raise SystemExit("imported")\n', ""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert not is_function("class_model:Mine")


# predictions for a slow model


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 TFLOP/s in fp32 and 4 in bf16, 1 TB/s; the host takes a second for every op."""

    def here(device: str, calibration: Path, precision: str, also: object = ()) -> Choice:
        target = Target(
            name="here",
            gpu=True,
            flop_per_s={"fp32": 1e12, "bf16": 4e12},
            bytes_per_s=1e12,
            host=HostCosts(forward_s=1.0, backward_s=1.0, optimizer_s=1.0),
        )
        return Choice(target, Roofline(), Interval(), ["made up"])

    monkeypatch.setattr(_advise_predicted, "here", here)


def test_what_waits_for_its_host_gains_by_batch_and_graph(machine: None) -> None:
    """Twice the items in the same time; a graph removes all of the host's time; bf16 gains nothing."""
    workload = workload_class("sensor_net").configured("tiny", batch=8)
    usual = Usual(device="cuda:0", batch=8)
    tried = [Setting(batch=16), Setting(precision="bf16"), Setting(engine="cudagraph"), Setting(engine="compile")]
    found, basis = _advise_predicted.predicted_changes(workload, usual, tried, Path("nowhere"))
    assert [each.setting for each in found] == [Setting(engine="cudagraph"), Setting(batch=16)]
    assert found[1].times == pytest.approx(2.0)
    assert found[1].caution
    assert {each.known for each in found} == {PREDICTED}
    assert basis == "made up"


def test_a_precision_that_is_not_simulated_has_no_prediction(machine: None) -> None:
    workload = workload_class("sensor_net").configured("tiny")
    found = _advise_predicted.predicted_changes(workload, Usual(device="cpu", precision="mixed"), [], Path("nowhere"))
    assert found == ([], "no prediction in mixed")


# a whole training run


def test_a_plan_is_ranked_and_its_reasons_are_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = typed(monkeypatch, capsys, *PLAN, "--price", "h100=3600", "--precision", "fp32,bf16")
    times = [each["seconds"] for each in found["choices"]]
    assert times == sorted(times)
    assert found["advised"] == found["choices"][0]
    assert {each["device"] for each in found["choices"]} == {"H100 SXM", "K40"}
    refused = [(each["device"], each["why"]) for each in found["impossible"]]
    assert refused == [("K40", "no bf16 peak of K40 is known")]
    for each in found["choices"]:
        steps = -(-1_000_000 // (64 * each["count"]))
        assert each["seconds"] == pytest.approx(steps * each["step_s"])
        assert each["low_s"] <= each["seconds"] <= each["high_s"]
        priced = each["seconds"] * each["count"] if each["device"] == "H100 SXM" else None
        assert each["cost"] == (None if priced is None else pytest.approx(priced))
    assert found["largest_batch"] > 64
    assert {each["source"] for each in found["checks"]} == {found["checks"][0]["source"]}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([*PLAN, "--on", "h101"], "no device 'h101'; did you mean "),
        ([*PLAN, "--interconnect", "nvlink9"], "no interconnect 'nvlink9'; did you mean NVLink"),
        ([*PLAN, "--precision", "fp31"], "no precision 'fp31'; did you mean fp32?"),
        ([*PLAN, "--within", "soon"], "--within must be a time such as 24h, 90m or 2d, not 'soon'"),
        ([*PLAN, "--within", "1s", "--epochs", "1e6"], "no setting takes 0.000278 h or less: the fastest, "),
        ([*PLAN, "--budget", "5"], "--budget needs prices, such as --price h100=2.5"),
        ([*PLAN, "--price", "h100"], "--price takes device=price per device and hour, such as h100=2.5, not 'h100'"),
        ([*PLAN, "--price", "h100=cheap"], "--price takes device=price per device and hour"),
        ([*PLAN, "--count", "0"], "--count takes whole numbers from 1 to 1,000,000,000, not '0'"),
        ([*PLAN, "--count", "99999999"], "--count must be 1 to 65,536, not 99999999"),
        ([*PLAN, "--items", "-1"], "--items must be above 0, not -1"),
        ([*PLAN, "--items", "1e18"], "--items must be below 1e+18, not 1e+18"),
        ([*PLAN, "--items", "1e6", "--budget", "nan"], "--budget must be 0 or more, not nan"),
        ([*PLAN, "--on", "Neoverse-N1"], "the catalogue has no peak FLOP/s of Neoverse-N1"),
        (
            [*PLAN, "--on", "k40", "--precision", "bf16"],
            "no combination is possible: bf16 on K40: no bf16",
        ),
        (["advise", "sensor_net", "autoenc", "--items", "5"], "advice is for one model at a time, not 2; --html takes"),
        (
            ["advise", "sensor_net", "--within", "1h"],
            "--within, --budget, --price, --on and --interconnect need ",
        ),
        (["advise"], "name a workload of `fathom list`, or package.module:function"),
        (["advise", "autoencc"], "no workload 'autoencc'; did you mean autoenc?"),
        (["advise", "autoenc", "--batch", "8,16"], "--batch takes one value here; several are compared with --items"),
        (["advise", "autoenc", "--loss", "mse_loss"], "--loss and --optimizer are for a model of your own"),
        (
            ["advise", "a.b:make", "--preset", "tiny"],
            "a model of your own brings its own batch; --data, --set and ",
        ),
        (["advise", "autoenc", "--seconds", "0"], "--seconds must be above 0, not 0"),
        (["advise", "no_such_module:make"], "cannot import no_such_module"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fathom(monkeypatch, *arguments, "--out", tmp_path) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith(f"fathom: {told}")
    assert "\n" not in error


def test_what_does_not_fit_says_what_would(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["advise", "sensor_net", "--items", "1e6", "--on", "k40", "--precision", "fp32", "--batch", "9000000"]
    assert fathom(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert "batch 9000000 in fp32 on K40: needs " in error
    assert " GB, K40 has 12 GB; the largest batch that K40 holds is " in error


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (["--precision", "tf32"], "tf32 on K40: no tf32 peak of K40 is known"),
        (["--count", "2", "--interconnect", "nvlink4"], "2 x K40 on NVLink 4: K40 has no NVLink; bf16 on K40"),
    ],
)
def test_what_no_smaller_batch_would_make_possible_names_no_batch(
    asked: list[str], reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fathom(monkeypatch, "advise", "sensor_net", "--items", "1e6", "--on", "k40", "--batch", "8", *asked) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert "largest batch" not in error


@pytest.mark.parametrize(
    ("coverages", "told"),
    [
        ({("H100", "fp32"): 0.87}, "held 87 % of held-out steps of one device in eager."),
        ({("H100", "fp32"): 0.87, ("H100", "bf16"): None}, "in eager (not measured: bf16)."),
        ({("H100", "fp32"): 0.87, ("here", "fp32"): None}, "in eager (not measured: here)."),
        ({("H100", "bf16"): None}, "have no measured coverage."),
    ],
)
def test_a_coverage_is_not_told_of_what_it_was_not_measured_in(
    coverages: dict[tuple[str, str], float | None], told: str
) -> None:
    target = Target(name="H100", gpu=True, flop_per_s={"fp32": 1.0}, bytes_per_s=1.0)
    known = {key: Choice(target, Roofline(), Interval(0.5, 2.0, each)) for key, each in coverages.items()}
    assert uncertainty(known).endswith(told)


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86400), ("90m", 5400), ("2d", 172800), ("1.5", 5400), ("30 s", 30)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "0h", "1y", "nan", "1e999h"])
def test_no_durations(text: str) -> None:
    with pytest.raises(BadOption, match="--within must be a time such as"):
        duration(text)


def test_prices_are_by_the_catalogues_names() -> None:
    assert prices_of(["h100=2.5", "tesla k40=0"]) == {"H100 SXM": 2.5, "K40": 0.0}


@pytest.mark.parametrize("text", ["", ",", "1,x", "1.5", "-1", "9" * 30])
def test_lists_of_numbers(text: str) -> None:
    with pytest.raises(BadOption):
        listed_in(text, "--batch", int)
    assert listed_in("2,1,2", "--batch", int) == [2, 1]


def test_the_page_has_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    arguments = ["advise", "sensor_net", "--html", path, "--on", "h100,k40", "--count", "1,2", "--batch", "64"]
    assert fathom(monkeypatch, *arguments) == 0
    text = path.read_text()
    table = json.loads(text.partition('id="table">')[2].partition("</script>")[0])
    rows = {tuple(row[: table["columns"].index("engine")]) for row in table["rows"]}
    assert len(rows) == (2 + 1) * (1 + 3)  # precisions that the two have; one device, or two on three links
    bf16, nvlink = table["refusals"]
    assert bf16["why"] == "no bf16 peak of K40 is known"
    assert (nvlink["device"], nvlink["interconnect"], nvlink["why"]) == ("K40", "NVLink 4", "K40 has no NVLink")
    assert "http://" not in text
    assert "https://" not in text


def test_a_page_of_several_models_is_the_answer_with_the_items_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.html"
    asked = ["--items", "1e6", "--html", path, "--on", "h100", "--count", "1", "--batch", "64"]
    assert fathom(monkeypatch, "advise", "sensor_net", "deep_mnist", *asked) == 0
    assert "one model at a time" not in capsys.readouterr().err
    assert path.exists()


def test_a_page_that_cannot_be_written_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert fathom(monkeypatch, "advise", "sensor_net", "--html", tmp_path / "file" / "page.html") == 2
    assert capsys.readouterr().err.startswith("fathom: cannot write ")
