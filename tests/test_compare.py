"""Two lots of records compared: noise is left alone, what was planted is called, and the ops that did it are named."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import fathom
from numpy.typing import NDArray
from sample_records import GPU, failed_record, op_row, record_of

from fathom.analysis.compare import Comparison, compare, geometric_mean
from fathom.analysis.explained_change import OUTSIDE
from fathom.analysis.ratio import FEW, FLOOR, Ratio, launches_needed, ratio
from fathom.core.disturbance import Disturbance
from fathom.core.errors import BadOption, Refused, UnknownName
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import interleave
from fathom.experiments.interleave import Launch, Side, launch_order, parse_side

LAUNCH, STEP = 0.01, 0.03  # noise between launches, and between steps
TRIALS = 200


def steps_of(
    launches: int, seed: int, *, factor: float = 1.0, drift: NDArray[np.float64] | float = 1.0
) -> list[list[float]]:
    """Launches whose levels scatter by a normal law, and their steps by one with a long tail to the right."""
    random = np.random.default_rng(seed)
    levels = factor * np.exp(LAUNCH * random.standard_normal(launches)) * drift
    return [(level * (1 + STEP * random.gamma(1.0, 1.0, 40))).tolist() for level in levels]


def trials(launches: int, *, factor: float = 1.0, paired: bool) -> list[Ratio]:
    return [
        ratio(steps_of(launches, seed), steps_of(launches, 10_000 + seed, factor=factor), paired=paired)
        for seed in range(TRIALS)
    ]


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws that are tested hold for any number, and hundreds of trials are to take seconds."""
    monkeypatch.setattr("fathom.analysis.ratio.RESAMPLES", 200)


@pytest.mark.parametrize("paired", [False, True])
def test_equal_launches_rarely_differ_significantly(paired: bool) -> None:
    found = trials(10, paired=paired)
    assert sum(each.significant for each in found) <= 4
    assert sum(each.low <= 1 <= each.high for each in found) >= 0.9 * TRIALS, "of 95 % intervals that many hold the 1"


@pytest.mark.parametrize("paired", [False, True])
def test_five_percent_are_significant_from_ten_launches(paired: bool) -> None:
    for factor, right in ((1.05, 1), (1 / 1.05, -1)):
        found = trials(10, factor=factor, paired=paired)
        assert sum(each.significant for each in found) >= (0.94 if paired else 0.98) * TRIALS
        assert all(math.copysign(1, math.log(each.value)) == right for each in found if each.significant)
        assert sum(each.low <= factor <= each.high for each in found) >= 0.9 * TRIALS


def test_a_drift_of_both_sides_is_not_significant_and_hides_no_change() -> None:
    """The machine becomes slower by a quarter while the launches of both sides are made in turns."""
    drift = np.linspace(1.0, 1.25, 10)
    called = {1.0: 0, 1.05: 0}
    for factor in called:
        for seed in range(100):
            a, b = steps_of(10, seed, drift=drift), steps_of(10, 10_000 + seed, factor=factor, drift=drift)
            called[factor] += ratio(a, b, paired=True).significant
    assert called[1.0] <= 3
    assert called[1.05] >= 95


def test_noise_is_that_between_launches_not_between_steps() -> None:
    """A thousand steps know their median well, and say nothing of the next launch; whichever side they are of."""
    scattered, alike = [[level] * 1000 for level in np.linspace(0.96, 1.04, 9)], [[1.0] * 1000] * 9
    assert ratio(scattered, alike).noise == pytest.approx(ratio(alike, scattered).noise, rel=0.2)
    assert ratio(scattered, alike).noise > 0.03
    assert ratio(alike, alike).noise == pytest.approx(0.0)


@pytest.mark.parametrize("launches", [2, 3, 4])
def test_few_launches_that_scatter_rarely_differ_significantly(launches: int) -> None:
    random = np.random.default_rng(launches)
    levels = np.exp(random.normal(0.0, 0.1, (400, 2, launches)))
    sides = [[[[each] * 8 for each in side] for side in both] for both in levels.tolist()]
    assert sum(ratio(*both).significant for both in sides) <= 8, "once in 200 times, or a little more"


def test_few_launches_are_given_a_floor() -> None:
    one = ratio([[1.0] * 50], [[1.14] * 50])
    assert (one.noise, one.significant) == (FLOOR, False)
    assert ratio([[1.0] * 50], [[1.16] * 50]).significant
    assert ratio([[1.0] * 50] * 4, [[1.0] * 50] * 4).noise == pytest.approx(FLOOR / 2)
    assert ratio([[1.0] * 50] * FEW, [[1.0] * 50] * FEW).noise == pytest.approx(0.0)


def test_the_ratio_of_b_over_a_is_one_over_that_of_a_over_b() -> None:
    a, b = steps_of(6, 1), steps_of(6, 2, factor=1.3)
    assert ratio(a, b).value == pytest.approx(1 / ratio(b, a).value)


def test_detectable_is_what_a_change_must_exceed() -> None:
    found = Ratio(1.10, 1.05, 1.16, 0.02)
    assert found.significant
    assert found.detectable == pytest.approx(1.16 / 1.10 - 1)
    assert not Ratio(1.10, 1.05, 1.16, 0.11).significant, "not beyond the noise"
    assert not Ratio(1.10, 0.99, 1.16, 0.02).significant, "the interval holds 1"
    assert launches_needed(found, 10, 0.10) is None
    assert launches_needed(Ratio(1, 0.9, 1.1, 0.2), 10, 0.05) == 160, "a quarter of the noise takes sixteen times"
    assert launches_needed(Ratio(1, 0.9, 1.1, 0.2), 1, 0.05) == 2 * FEW


def launched(steps: Sequence[Sequence[float]], begin: int = 0, every: int = 20, **changes: Any) -> list[Record]:
    """Records of these launches, so many seconds apart."""
    first = datetime(2026, 1, 1, tzinfo=UTC)
    started = [(first + timedelta(seconds=begin + every * number)).isoformat() for number in range(len(steps))]
    return [
        record_of(step_s=list(times), warmup_s=list(times[:2]), started=when, **changes)
        for times, when in zip(steps, started, strict=True)
    ]


def only(found: list[Comparison]) -> Comparison:
    (each,) = found
    return each


def test_a_disturbed_launch_that_was_made_again_does_not_count() -> None:
    quiet, disturbed = [[0.0037] * 12], [[0.0119] * 12]
    busy = launched(disturbed, disturbance=Disturbance(others_cpu=1.5, cores=2))
    found = only(compare(launched(quiet), [*busy, *launched(quiet, begin=60)]))
    assert found.verdict == "no change"
    assert found.ratio == pytest.approx(1.0)


def test_launches_made_in_turns_are_paired() -> None:
    """In turns, the drift cancels; one side after the other, it cannot be told from a change, and widens the noise."""
    drift = np.linspace(1.0, 1.25, 10)
    a, b = steps_of(10, 1, drift=drift), steps_of(10, 2, factor=1.05, drift=drift)
    in_turns = only(compare(launched(a), launched(b, begin=5)))
    after = only(compare(launched(a), launched(b, begin=1000)))
    assert (in_turns.paired, in_turns.verdict) == (True, "slower")
    assert (after.paired, after.verdict) == (False, "no change")
    assert in_turns.ratio == pytest.approx(1.05, abs=0.02)


def test_each_configuration_is_compared_with_its_like_wherever_it_ran() -> None:
    here = [record_of("vgg"), record_of("memnet", spec={"threads": 1}), record_of("memnet", spec={"threads": 2})]
    there = [
        record_of("memnet", spec={"threads": 2, "seed": 7, "kind": "profiled"}, step_s=[0.5] * 10),
        record_of("memnet", spec={"threads": 1}, step_s=[2.0] * 10),
        record_of("speech"),
    ]
    found = {each.name: each for each in compare(here, there)}
    assert {name: each.verdict for name, each in found.items()} == {
        "memnet train (threads 1)": "slower",
        "memnet train (threads 2)": "faster",
        "speech train": "not comparable",
        "vgg train": "not comparable",
    }
    assert found["memnet train (threads 1)"].ratio == pytest.approx(2.0)
    assert found["memnet train (threads 2)"].ratio == pytest.approx(0.5)
    assert (found["vgg train"].remark, found["speech train"].remark) == ("only in A", "only in B")
    assert geometric_mean(found.values()) == pytest.approx(1.0)


def test_two_settings_of_the_same_work_are_compared_and_named() -> None:
    one = record_of(spec={"threads": 1, "options": {"latent": 20}})
    other = record_of(spec={"precision": "bf16", "options": {"latent": 40}}, step_s=[3.0] * 10, place=GPU)
    each = only(compare([one], [other]))
    assert each.ratio == pytest.approx(3.0)
    assert each.setting == "precision fp32 → bf16, threads 1 → default, latent 20 → 40"
    assert each.device == "cpu → cuda:0"


def test_other_work_is_not_compared() -> None:
    found = compare([record_of()], [record_of(spec={"preset": "paper"})])
    assert [(each.verdict, each.remark) for each in found] == [
        ("not comparable", "only in A"),
        ("not comparable", "only in B"),
    ]


def test_steps_of_different_sizes_are_compared_per_item() -> None:
    a = record_of(spec={"batch": 100}, rows=[op_row("MatMul", 0.9)])
    b = record_of(spec={"batch": 200}, rows=[op_row("MatMul", 0.9)], items_per_step=200, step_s=[1.5] * 10)
    each = only(compare([a], [b]))
    assert each.ratio == pytest.approx(0.75)
    assert (each.step_b_s, each.setting) == (1.5, "batch 100 → 200")
    assert "compared per item: 100 items per step in A, 200 in B" in each.remark
    assert each.explanation == [], "op times are of a step"
    unknown = only(compare([replace(a, items_per_step=None)], [b]))
    assert (unknown.verdict, unknown.ratio) == ("not comparable", None)


def test_a_doubled_layer_is_compared_and_told() -> None:
    each = only(compare([record_of(parameters=1000)], [record_of(parameters=1500, step_s=[1.5] * 10)]))
    assert each.verdict == "slower"
    assert "different networks: 1,000 parameters in A, 1,500 in B" in each.remark


def test_what_fails_in_b_is_a_regression_whatever_the_limit() -> None:
    each = only(compare([record_of("vgg")], [failed_record("vgg", "out of memory")]))
    assert (each.verdict, each.remark, each.regressed(9.0)) == ("not comparable", "failed in B: out of memory", True)
    fixed = only(compare([failed_record("vgg", "out of memory")], [record_of("vgg")]))
    assert (fixed.remark, fixed.regressed(0.0)) == ("failed in A: out of memory", False)


def test_launches_that_fail_beside_good_ones_are_counted_and_are_a_regression_in_b() -> None:
    good, failed = [record_of() for _ in range(3)], [failed_record("autoenc", "out of memory") for _ in range(7)]
    each = only(compare([record_of() for _ in range(10)], good + failed))
    assert (each.launches_a, each.failed_a, each.launches_b, each.failed_b) == (10, 0, 3, 7)
    assert (each.verdict, each.regressed(9.0)) == ("no change", True)
    assert "failed in B, 7 of 10 launches: out of memory" in each.remark
    before = only(compare(good + failed, good))
    assert (before.failed_a, before.failed_b, before.regressed(9.0)) == (7, 0, False)
    assert "failed in A, 7 of 10 launches: out of memory" in before.remark
    assert not only(compare(good + failed, good + failed)).regressed(9.0), "it fails in A too"
    assert only(compare(good + failed, failed)).regressed(9.0), "it never runs in B"


def test_a_failure_counts_against_its_own_configuration_and_device_alone() -> None:
    """One thread has failed in B; four threads were not tried there, nor was the GPU."""
    a = [record_of(spec={"threads": 4}), record_of(spec={"threads": 1}, place=GPU)]
    b = replace(failed_record("autoenc", "out of memory"), spec=RunSpec(workload="autoenc", threads=1))
    found = compare(a, [b])
    assert {(each.device, each.setting): each.remark for each in found} == {
        ("cpu", "threads 4"): "only in A",
        ("cuda:0", "threads 1"): "only in A",
        ("cpu", "threads 1"): "failed in B: out of memory; not in A",
    }
    assert not any(each.broke for each in found)
    assert only(compare([record_of(spec={"threads": 1})], [b])).broke
    together = only(compare([record_of(spec={"threads": 4})], [b], one_setting=True))
    assert (together.broke, together.setting) == (True, "threads 4 → 1")


def test_the_same_work_on_two_devices_has_two_names() -> None:
    both = [record_of(), record_of(place=GPU)]
    assert [each.name for each in compare(both, both)] == ["autoenc train on cpu", "autoenc train on cuda:0"]
    assert [each.name for each in compare(both, both[:1])] == ["autoenc train on cpu", "autoenc train on cuda:0"]
    assert only(compare(both[:1], both[:1])).name == "autoenc train"


def test_what_failed_before_it_had_a_device_counts_where_its_configuration_ran() -> None:
    early = replace(failed_record("autoenc", "out of memory"), device="auto")
    beside = only(compare([record_of()], [record_of(), early]))
    assert (beside.device, beside.launches_b, beside.failed_b) == ("cpu", 1, 1)
    on_gpu, on_cpu = compare([record_of(), record_of(place=GPU)], [early])[::-1]
    assert (on_gpu.device, on_gpu.broke) == ("cuda:0", True), "auto takes an accelerator where there is one"
    assert (on_cpu.device, on_cpu.remark) == ("cpu", "only in A")
    nowhere = only(compare([early], [early]))
    assert (nowhere.device, nowhere.broke) == ("auto", False)
    assert nowhere.remark == "failed in A: out of memory; failed in B: out of memory"


def test_the_same_records_on_both_sides_are_told_and_are_not_in_turns() -> None:
    runs = launched(steps_of(10, 1))
    each = only(compare(runs, runs))
    assert (each.verdict, each.paired) == ("no change", False)
    assert each.remark == "the same records on both sides"
    some = only(compare(runs, runs[:6]))
    assert some.remark == "6 records are on both sides"


def test_warm_up_steps_have_no_part_in_the_ratio() -> None:
    slow_start = [4.0] * 5 + [1.0] * 20
    assert only(compare([record_of(step_s=slow_start)], [record_of(step_s=[1.0] * 25)])).ratio == pytest.approx(1.0)


def test_the_ops_that_made_the_difference_are_named_with_their_shares() -> None:
    before = [op_row("MatMul", 0.5, calls=8.0), op_row("Add", 0.3), op_row("Tile", 1e-6)]
    after = [op_row("MatMul", 0.8, calls=10.0), op_row("Add", 0.3), op_row("Concat", 0.15)]
    a, b = record_of(rows=before, outside_s=0.2), record_of(rows=after, outside_s=0.25, step_s=[1.5] * 10)
    each = only(compare([a, record_of()], [b, record_of(step_s=[1.5] * 10)]))
    told = {change.type: change for change in each.explanation}
    assert list(told) == ["MatMul", "Concat", OUTSIDE, "Tile"], "Add has not changed"
    shares = {kind: change.share for kind, change in told.items()}
    assert shares == pytest.approx({"MatMul": 0.6, "Concat": 0.3, OUTSIDE: 0.1, "Tile": 0.0}, abs=1e-4)
    assert told["MatMul"].difference_s == pytest.approx(0.3)
    assert (told["MatMul"].calls_a, told["MatMul"].calls_b) == (8.0, 10.0)
    assert (told["Concat"].calls_a, told["Tile"].calls_b) == (0.0, 0.0), (
        "an op that was not there, and one that is gone"
    )
    assert each.slowdowns == (1.0, 1.0)


def test_profiles_that_do_not_show_the_difference_explain_nothing() -> None:
    a = record_of(rows=[op_row("MatMul", 0.9)])
    each = only(compare([a], [record_of(rows=[op_row("MatMul", 0.8)], step_s=[1.5] * 10)]))
    assert each.unexplained
    assert only(compare([a], [record_of(step_s=[1.5] * 10)])).explanation == []


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Ten launches of two workloads on each side; autoenc is 8 % slower in B."""
    for name, factor in (("a", 1.0), ("b", 1.08)):
        for number, workload in enumerate(("autoenc", "memnet")):
            seed = 10 * number + (name == "b")
            steps = steps_of(10, seed, factor=factor if workload == "autoenc" else 1.0)
            for record in launched(steps, workload=workload):
                Store(tmp_path / name).add(record)
    return tmp_path / "a", tmp_path / "b"


def test_scripts_get_one_document_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folders: tuple[Path, Path]
) -> None:
    assert fathom(monkeypatch, "compare", *folders, "--json", "--fail-over", "5%") == 1
    told = json.loads(capsys.readouterr().out)
    found = {each["workload"]: each for each in told["workloads"]}
    assert {name: each["verdict"] for name, each in found.items()} == {"autoenc": "slower", "memnet": "no change"}
    keys = "workload phase device ratio low high verdict detectable launches_a launches_b explanation"
    assert set(keys.split()) <= set(found["autoenc"])
    assert found["autoenc"]["low"] < found["autoenc"]["ratio"] < found["autoenc"]["high"]
    expected = statistics.geometric_mean(each["ratio"] for each in found.values())
    assert told["geometric_mean"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], 1), (["--fail-over", "0.05"], 1), (["--fail-over", "20%"], 0), (["memnet"], 0), (["autoenc"], 1)],
)
def test_only_a_regression_beyond_the_limit_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, folders: tuple[Path, Path], arguments: list[str], code: int
) -> None:
    assert fathom(monkeypatch, "compare", *folders, *arguments) == code
    assert fathom(monkeypatch, "compare", *reversed(folders), *arguments) == 0, "faster is no regression"
    assert fathom(monkeypatch, "compare", folders[0], folders[0], *arguments) == 0


def test_a_folder_against_itself_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folders: tuple[Path, Path]
) -> None:
    assert fathom(monkeypatch, "compare", folders[0], folders[0]) == 0
    printed = capsys.readouterr()
    assert "all: the same records on both sides" in printed.err
    assert "interleaved" not in printed.out


def test_what_could_not_have_been_seen_is_not_passed_as_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folders: tuple[Path, Path]
) -> None:
    assert fathom(monkeypatch, "compare", folders[0], folders[0], "--fail-over", "0.0001%") == 0
    told = " ".join(capsys.readouterr().err.split())
    assert told.endswith("regressions above 0.0001 %: none; not detectable in memnet train, autoenc train")


def test_a_table_fits_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folders: tuple[Path, Path]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    fathom(monkeypatch, "compare", *folders)
    printed = capsys.readouterr()
    (line,) = [line for line in printed.out.splitlines() if line.startswith(" autoenc")]
    assert line.split()[-1] == "slower"
    assert "regressions above 5 %: autoenc train" in printed.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{a}", "nowhere"], "nowhere: no such folder of records"),
        (["{a}", "{empty}"], "no records; make some with fathom study"),
        (["{a}", "{b}", "vgg"], "no records of vgg"),
        (["{a}", "{other}"], "nothing in common: "),
        (
            ["{a}", "{infer}"],
            "has autoenc, memnet (train, small, cpu); {infer} has autoenc (infer, small, cpu, threads 2)",
        ),
        (["{a}", "{b}", "--fail-over", "5%junk"], "not '5%junk'"),
        (["{a}", "{b}", "--fail-over", "5%%"], "not '5%%'"),
        (["{a}", "{b}", "--runs", "10"], "--runs needs --interleave"),
        (["{a}", "{b}", "--out", "{empty}"], "--out needs --interleave"),
        (["{a}", "{b}", "--phase", "train"], "--phase needs --interleave"),
        (["{a}", "{b}", "--fail-over", "five"], "--fail-over takes a percentage such as 5% or 0.05, not 'five'"),
        (["{a}", "{b}", "--fail-over", "5"], "not '5'"),
        (["{a}", "{b}", "--fail-over", "-5%"], "not '-5%'"),
        (["{a}", "{b}", "--fail-over", "nan"], "not 'nan'"),
        (["{a}", "{b}", "--interleave"], "not a checkout (src/fathom), not a Python environment (bin/python)"),
        (["threads=1", "thread=2", "--interleave"], "no setting 'thread'; did you mean threads?"),
        (["threads=1", "threads=two", "--interleave"], "threads takes a whole number, not 'two'"),
        (["threads=1", "threads=2", "autoen", "--interleave"], "no workload 'autoen'; did you mean autoenc?"),
        (["threads=1", "threads=2", "--interleave", "--out", "{parent}"], "has records already"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folders: tuple[Path, Path],
    arguments: list[str],
    expected: str,
) -> None:
    a, b = folders
    (a.parent / "empty").mkdir()
    Store(a.parent / "other").add(record_of("vgg"))
    Store(a.parent / "infer").add(record_of(spec={"phase": "infer", "threads": 2}))
    places = {"a": a, "b": b, "parent": a.parent} | {name: a.parent / name for name in ("empty", "other", "infer")}
    assert fathom(monkeypatch, "compare", *(argument.format(**places) for argument in arguments)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected.format(**places) in printed.err
    assert printed.err.count("\n") == 1


def test_runs_are_in_pairs_and_each_side_begins_equally_often() -> None:
    specs = [RunSpec(workload="autoenc"), RunSpec(workload="memnet")]
    order = launch_order(specs, 10)
    pairs = list(zip(order[::2], order[1::2], strict=True))
    assert all(one.spec == other.spec and {one.side, other.side} == {0, 1} for one, other in pairs)
    begins = Counter((one.spec.workload, one.side) for one, _ in pairs)
    assert set(begins.values()) == {5}
    assert Counter(launch.spec.kind == "profiled" for launch in order) == {True: 4, False: 36}, (
        "one profile of each, on each side"
    )
    assert order == launch_order(specs, 10)
    assert [launch.side for launch in order] != [launch.side for launch in launch_order(specs, 10, seed=1)]


def test_a_side_is_a_checkout_an_environment_or_settings(tmp_path: Path) -> None:
    (tmp_path / "checkout/src/fathom").mkdir(parents=True)
    python = tmp_path / "environment/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    checkout = parse_side("A", str(tmp_path / "checkout"))
    assert (checkout.python, checkout.environment["PYTHONPATH"]) == (sys.executable, str(tmp_path / "checkout/src"))
    environment = parse_side("B", str(tmp_path / "environment"))
    assert (environment.python, environment.environment["PYTHONPATH"]) == (str(python), ""), "its own Fathom, not ours"
    settings = parse_side("B", "threads=2,precision=bf16,engine=cudagraph,set.latent=40")
    base = RunSpec(workload="autoenc", options={"hidden": 30})
    changed = {"threads": 2, "precision": "bf16", "engine": "cudagraph", "options": {"hidden": 30, "latent": 40}}
    assert settings.spec(base) == replace(base, **changed)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="no setting 'seed'"):
        parse_side("A", "seed=3")


def stores(folder: Path) -> tuple[Store, Store]:
    return Store(folder / "a"), Store(folder / "b")


def test_each_side_runs_the_fathom_that_it_names(tmp_path: Path) -> None:
    """A checkout in which a batch of the tiny autoenc is one image larger, and an environment that has it installed."""
    source = shutil.copytree(Path(interleave.__file__).parents[1], tmp_path / "src/fathom")
    autoenc = source / "workloads/autoenc.py"
    autoenc.write_text(autoenc.read_text().replace('"tiny": {"batch": 32,', '"tiny": {"batch": 33,'))
    python = tmp_path / "environment/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/src exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    sides = parse_side("A", str(tmp_path)), parse_side("B", str(tmp_path / "environment"))
    spec = RunSpec(workload="autoenc", preset="tiny", device="cpu", steps=3)
    done = list(interleave.interleave([Launch(spec, 0), Launch(spec, 1)], sides, stores(tmp_path)))
    assert [(launch.side, record.items_per_step) for launch, record in done] == [(0, 33), (1, 33)]
    assert [[record.id for record in store.records()] for store in stores(tmp_path)] == [
        [record.id] for _, record in done
    ]


def test_what_fails_at_first_is_not_run_again_and_the_rest_continues(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(spec: RunSpec, *_: object, **__: object) -> Record:
        return failed_record(spec.workload) if spec.workload == "vgg" else record_of(spec.workload)

    monkeypatch.setattr(interleave, "isolated", run)
    order = launch_order([RunSpec(workload="vgg"), RunSpec(workload="autoenc")], 3)
    done = [
        record.spec.workload for _, record in interleave.interleave(order, (Side("A"), Side("B")), stores(tmp_path))
    ]
    assert Counter(done) == {"vgg": 2, "autoenc": 6}, "each side has tried it once"


def test_what_a_worker_would_refuse_is_told_with_its_side(tmp_path: Path) -> None:
    spec = RunSpec(workload="autoenc", preset="tiny", device="cpu")
    sides = Side("A"), parse_side("B", "set.nonsense=1")
    with pytest.raises(BadOption, match="B: no option of autoenc 'nonsense'"):
        list(interleave.interleave([Launch(spec, 0), Launch(spec, 1)], sides, stores(tmp_path)))
    assert not (tmp_path / "a").exists(), "nothing was measured"


def launching(monkeypatch: pytest.MonkeyPatch, *failing: tuple[str, int]) -> list[tuple[str, int | None]]:
    """Runs that take no time; the worker refuses those in failing; gives the list of what was run."""
    ran: list[tuple[str, int | None]] = []

    def run(spec: RunSpec, *_: object, **__: object) -> Record:
        ran.append((spec.workload, spec.threads))
        if ran[-1] in failing:
            raise Refused(f"batch 8 of {spec.workload} does not fit")
        return replace(record_of(spec.workload), spec=spec)

    monkeypatch.setattr(interleave, "isolated", run)
    return ran


INTERLEAVED = ("compare", "threads=1", "threads=2", "--interleave", "--preset", "tiny", "--json")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("names", [["autoenc", "memnet"], ["memnet"]])
def test_what_fails_in_b_alone_is_told_whichever_side_begins(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    seed: int,
    names: list[str],
) -> None:
    ran = launching(monkeypatch, ("memnet", 2))
    monkeypatch.setattr("fathom.cli.commands.compare.launch_order", lambda specs, runs: launch_order(specs, runs, seed))
    assert fathom(monkeypatch, *INTERLEAVED, *names, "--runs", 1, "--out", tmp_path / "out") == 1
    assert Counter(ran) == {(name, threads): 1 for name in names for threads in (1, 2)}
    found = {each["workload"]: each for each in json.loads(capsys.readouterr().out)["workloads"]}
    assert list(found) == [name for name in ("memnet", "autoenc") if name in names]
    broken = found["memnet"]
    assert (broken["remark"], broken["broke"]) == ("failed in B: batch 8 of memnet does not fit", True)
    assert (broken["launches_a"], broken["failed_a"], broken["launches_b"], broken["failed_b"]) == (1, 0, 0, 1)
    assert broken["setting"] == "threads 1 → 2"


def test_one_refused_run_is_a_failed_record_and_the_rest_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each kind of failure is told, in the table too; what could not be measured in A is exit code 1 as well."""
    ran = launching(monkeypatch, ("memnet", 1), ("vgg", 1), ("vgg", 2))
    arguments = [each for each in INTERLEAVED if each != "--json"]
    names = ("memnet", "vgg", "autoenc")
    assert fathom(monkeypatch, *arguments, *names, "--runs", 3, "--out", tmp_path / "out") == 1
    assert Counter(name for name, _ in ran) == {"autoenc": 6, "memnet": 2, "vgg": 2}
    printed = capsys.readouterr()
    rows = {
        line.split()[0]: line for line in printed.out.splitlines() if line.startswith(tuple(f" {n}" for n in names))
    }
    assert rows["memnet"].rstrip().endswith("failed in A")
    assert rows["vgg"].rstrip().endswith("failed in A and B")
    assert rows["autoenc"].rstrip().endswith("no change")
    assert "failed in A: memnet train, vgg train; failed in B: vgg train" in " ".join(printed.err.split())
    failed = [record for store in stores(tmp_path / "out") for record in store.records() if record.outcome != "ok"]
    assert {record.reason for record in failed} == {f"batch 8 of {name} does not fit" for name in ("memnet", "vgg")}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["threads=1", "set.nonsense=1"], "B: no option of autoenc 'nonsense'"),
        (["threads=1", "threads=0"], "B: threads must be at least 1, not 0"),
        (["device=nosuch", "threads=1"], "A: no device 'nosuch'"),
        (["threads=1", "threads=2", "--preset", "tine"], "no preset 'tine'; did you mean tiny?"),
        (["threads=1", "threads=2", "--out", "{file}"], "cannot write to {file}/a: "),
        (["threads=1", "threads=2", "--out", "{half}"], "{half} has records already, in {half}/a: give a new --out"),
        (["threads=1", "threads=2", "--out", "{full}"], "or compare these: fathom compare {full}/a {full}/b"),
    ],
)
def test_what_can_be_refused_is_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    expected: str,
) -> None:
    ran = launching(monkeypatch)
    places = {name: tmp_path / name for name in ("file", "half", "full")}
    places["file"].touch()
    for folder in ("half/a", "full/a", "full/b"):
        Store(tmp_path / folder).add(record_of())
    options = [argument.format(**places) for argument in arguments]
    if "--out" not in options:
        options += ["--out", str(tmp_path / "out")]
    assert fathom(monkeypatch, "compare", *options, "--interleave", "autoenc") == 2
    printed = capsys.readouterr().err
    assert expected.format(**places) in printed
    assert printed.count("\n") == 1
    assert "half/b" not in printed, "there is no such folder to compare"
    assert (ran, (tmp_path / "out").exists()) == ([], False)


def test_a_folder_without_records_may_be_given_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a run leaves it that was interrupted in its first launch."""
    launching(monkeypatch)
    (tmp_path / "out/a").mkdir(parents=True)
    assert fathom(monkeypatch, *INTERLEAVED, "autoenc", "--runs", 1, "--out", tmp_path / "out") == 0


def test_a_workload_that_is_broken_here_is_left_to_its_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = launching(monkeypatch)
    monkeypatch.setattr("fathom.workloads.base.workload_class", lambda name: 1 / 0)
    assert fathom(monkeypatch, *INTERLEAVED, "autoenc", "--runs", 1, "--out", tmp_path / "out") == 0
    assert len(ran) == 2


def test_any_slowdown_may_fail_and_no_number_of_launches_is_named_for_it() -> None:
    noisy = trials(6, paired=False)[0]
    assert launches_needed(noisy, 6, noisy.detectable / 10) == 600
    assert [launches_needed(noisy, 6, change) for change in (0.0, 1e-200)] == [None, None]


def test_ranks_strategies_and_caps_are_named() -> None:
    specs: list[dict[str, Any]] = [
        {"ranks": 2, "strategy": "ddp"},
        {"ranks": 4, "strategy": "ddp"},
        {"power_cap_w": 300.0},
    ]
    records = [record_of(spec=spec) for spec in specs]
    found = [each.setting for each in compare(records, records)]
    assert sorted(found) == ["power cap (W) 300.0", "ranks 2, strategy ddp", "ranks 4, strategy ddp"]
