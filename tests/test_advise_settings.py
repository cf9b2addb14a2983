"""Settings tried beside the usual one: which are tried, which help, how they are combined, confirmed and told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from sample_records import engine_run, op_row, record_of, trial_of

from fathom.analysis.advice import AT_MOST, MEASURED, changes, in_code
from fathom.core.advice import USUAL, Setting, SettingTrial
from fathom.experiments import advise
from fathom.experiments.advise import CONFIRMED, Found, Try, Usual, candidates, gain, helps, ranked, search

BF16, COMPILE, FUSED, ONE = (
    Setting(precision="bf16"),
    Setting(engine="compile"),
    Setting(engine="fused"),
    Setting(threads=1),
)


def trial(setting: Setting, times: float = 1.0, against: Setting = USUAL, *, wrong: bool = False) -> SettingTrial:
    """So many times as many items a second as the usual or another setting, in every turn."""
    engine: dict[str, Any] = {"engine": engine_run(0.2 / times, [9.0, 9.0, 9.0])} if wrong else {}
    return SettingTrial(setting=setting, against=against, trial=trial_of(0.2, 0.2 / times, **engine))


def crashed(setting: Setting, against: Setting = USUAL) -> SettingTrial:
    return SettingTrial(setting=setting, against=against, failed="crashed")


def tries(gains: Mapping[Setting, float], asked: list[Setting] | None = None) -> Try:
    def attempt(setting: Setting, against: Setting) -> SettingTrial:
        if asked is not None:
            asked.append(setting)
        return trial(setting, gains.get(setting, 1.0) / gains.get(against, 1.0), against)

    return attempt


# settings


def test_a_setting_is_what_it_changes() -> None:
    assert Setting().changes == {}
    assert str(Setting()) == "as it is"
    assert Setting(engine="fused+compile") == Setting(engine="compile+fused")
    assert str(Setting(engine="compile", precision="bf16", batch=8, threads=1, workers=2)) == (
        "compile, bf16, batch 8, 1 thread, 2 data workers"
    )


def test_settings_combine() -> None:
    assert COMPILE.with_(FUSED).with_(BF16) == Setting(engine="compile+fused", precision="bf16")
    assert Setting(batch=8).with_(Setting(batch=16)) == Setting(batch=16)


def test_a_trial_survives_json() -> None:
    found = SettingTrial(
        setting=BF16, trial=trial_of(), items=8, usual_items=4, precision="bf16", disturbed=["by others"]
    )
    assert SettingTrial.from_json(found.to_json()) == found


def test_a_gain_is_of_items_and_not_of_steps() -> None:
    """Twice the time for four times the items."""
    found = replace(trial(Setting(batch=32), 0.5), items=32, usual_items=8, compared=False)
    assert gain(found) == pytest.approx(2.0)
    assert found.agreement == "not compared"


def test_a_fast_setting_with_other_results_does_not_help() -> None:
    found = trial(COMPILE, 5.0, wrong=True)
    assert found.agreement.startswith("no: the loss of step 0 differs by ")
    assert not helps(found)
    assert ranked([found, trial(FUSED, 1.2)])[0].setting == FUSED


def test_a_gain_within_the_scatter_of_turns_does_not_help() -> None:
    usual = engine_run(0.2, [1.0])
    usual = replace(usual, turn_step_s=[0.2] * 7)
    noisy = replace(usual, turn_step_s=[0.1, 0.1, 0.1, 0.1, 0.3, 0.3, 0.3])
    steady = replace(usual, turn_step_s=[0.1, 0.11, 0.1, 0.12, 0.1, 0.1, 0.1])
    for tried, helpful in ((noisy, False), (steady, True)):
        found = SettingTrial(setting=COMPILE, trial=trial_of(eager=usual, engine=tried, rounded_losses=[[1.0]]))
        assert gain(found) == pytest.approx(2.0)
        assert helps(found) == helpful
    assert not helps(trial(COMPILE, 1.005))


# which are tried


def test_what_is_tried_on_a_cpu() -> None:
    usual = Usual(device="cpu", batch=8, threads=4, own=True)
    assert [*map(str, candidates(usual, cores=4))] == [
        "compile",
        "channels_last",
        "fused",
        "bf16",
        "batch 16",
        "batch 32",
        "1 thread",
        "2 threads",
    ]


def test_what_is_tried_on_a_gpu() -> None:
    usual = Usual(device="cuda:0", batch=8, threads=4, own=True)
    tried = [*map(str, candidates(usual, cores=4))]
    assert tried == ["compile+cudagraph", "compile", "channels_last", "fused", "bf16", "tf32", "batch 16", "batch 32"]
    named = [*map(str, candidates(replace(usual, own=False, precision="bf16", batch=None, data=True), cores=2))]
    assert named == [
        "compile+cudagraph",
        "cudagraph",
        "compile",
        "channels_last",
        "fused",
        "1 data worker",
        "2 data workers",
    ]


def test_inference_has_no_optimizer_and_a_step_only_threads() -> None:
    usual = Usual(device="cpu", phase="infer", threads=2)
    tried = [*map(str, candidates(usual, cores=2))]
    assert tried == ["compile", "channels_last", "onnxruntime", "openvino", "bf16", "1 thread"]
    assert candidates(replace(usual, own=True, step=True), cores=2) == [ONE]


# the search


def test_helpful_settings_are_combined_and_the_best_is_measured_again() -> None:
    asked: list[Setting] = []
    both = COMPILE.with_(BF16)
    found = search([COMPILE, FUSED, BF16, ONE], tries({COMPILE: 1.5, BF16: 1.3, both: 1.9}, asked))
    assert asked[:5] == [COMPILE, FUSED, BF16, ONE, both]
    assert found.advised == both
    again = [(each.setting, each.against) for each in found.confirmed]
    assert again == [(both, USUAL), (COMPILE, both), (BF16, both)], "those nearest to it run beside it"
    assert len(found.confirmed) == CONFIRMED
    assert found.distance == 0.0


def test_what_a_helpful_setting_covers_is_not_tried_alone() -> None:
    """Nor is it advised from the profile; a covering setting that does not help leaves its parts to be tried."""
    together, tf32 = Setting(engine="compile+cudagraph"), Setting(precision="tf32")
    singles = [together, COMPILE, FUSED, BF16, tf32]
    asked: list[Setting] = []
    found = search(singles, tries({together: 2.0, BF16: 1.5, together.with_(BF16): 3.0}, asked))
    assert asked[:4] == [together, FUSED, BF16, together.with_(BF16)]
    record = record_of("autoenc", [op_row("MatMul", 0.06), op_row("Add", 0.04)])
    assert {each.known for each in changes(record, found.helpful, found.trials)} == {MEASURED}
    asked.clear()
    search(singles, tries({COMPILE: 1.2, tf32: 1.5}, asked))
    assert asked[:5] == singles


def test_a_larger_change_does_not_cover_another_batch_or_thread() -> None:
    both = Setting(engine="compile+cudagraph", precision="bf16")
    assert [both.covers(each) for each in (COMPILE, Setting(precision="tf32"))] == [True, True]
    others = (both, BF16, Setting(batch=16), ONE, Setting(precision="tf32", batch=16), Setting())
    assert not any(both.covers(each) for each in others)
    assert not BF16.covers(COMPILE)


def test_a_combination_that_is_slower_is_not_advised() -> None:
    found = search([COMPILE, BF16], tries({COMPILE: 1.5, BF16: 1.3, COMPILE.with_(BF16): 1.4}))
    assert found.advised == COMPILE
    assert [each.setting for each in found.trials] == [COMPILE, BF16, COMPILE.with_(BF16)]


def test_two_values_of_one_axis_are_not_combined() -> None:
    asked: list[Setting] = []
    search([Setting(batch=16), Setting(batch=32)], tries({Setting(batch=16): 1.2, Setting(batch=32): 1.4}, asked))
    assert set(asked) == {Setting(batch=16), Setting(batch=32)}


def test_where_nothing_helps_the_usual_setting_is_advised_and_still_checked() -> None:
    found = search([COMPILE, BF16], tries({COMPILE: 0.9, BF16: 0.5}))
    assert found.advised == Setting()
    assert [each.setting for each in found.confirmed] == [COMPILE, BF16]
    assert found.distance == 0.0


def test_the_distance_is_of_the_second_measurement() -> None:
    """What was best by luck is told to be worse: beside another one, or than the usual setting."""
    again = [trial(COMPILE, 1.2), trial(BF16, 1.25, COMPILE), trial(FUSED, 0.9, COMPILE)]
    assert Found([], COMPILE, again).distance == pytest.approx(0.2)
    assert Found([], COMPILE, [trial(COMPILE, 0.8)]).distance == pytest.approx(0.2)
    assert Found([], Setting(), [trial(COMPILE, 1.25)]).distance == pytest.approx(0.2)
    assert Found([], COMPILE, []).distance is None
    assert Found([], COMPILE, [crashed(COMPILE)]).distance is None


def test_two_settings_are_compared_beside_each_other_and_not_by_what_each_gained() -> None:
    """The usual setting was slow in one of the trials, as where a host that changes its speed paces it."""
    again = [trial(COMPILE, 1.2), trial(BF16, 0.8, COMPILE)]
    found = Found([trial(COMPILE, 1.3), trial(BF16, 1.29)], COMPILE, again)
    assert (found.distance, found.better) == (0.0, None)


def test_what_is_faster_when_measured_again_is_told() -> None:
    fresh = trial(COMPILE, 1.2)
    assert Found([], COMPILE, [fresh, trial(BF16, 1.25, COMPILE)]).better == BF16
    assert Found([], COMPILE, [fresh, trial(BF16, 1.04, COMPILE)]).better is None  # within 5 %
    assert Found([], COMPILE, [trial(COMPILE, 0.9)]).better == USUAL
    assert Found([], Setting(), [trial(BF16, 1.2), trial(COMPILE, 1.3, wrong=True)]).better == BF16


def test_a_setting_that_was_luck_is_not_advised() -> None:
    """The usual setting is better, and the third measurement bears that out."""
    found = search([COMPILE], measured_in_turn({(COMPILE, USUAL): [1.1, 0.9, 0.92]}))
    assert (found.advised, found.better, found.distance) == (Setting(), None, 0.0)


def test_a_setting_that_fails_twice_when_measured_again_is_not_advised() -> None:
    """The next one is."""
    failing = [trial(COMPILE, 1.1), crashed(COMPILE), crashed(COMPILE)]
    found = search([COMPILE], lambda *_: failing.pop(0))
    assert (found.advised, found.better, failing) == (Setting(), None, [])
    failing = [trial(COMPILE, 1.1), crashed(COMPILE), trial(COMPILE, 1.2)]
    assert search([COMPILE], lambda *_: failing.pop(0)).advised == COMPILE
    both = COMPILE.with_(BF16)
    trials: dict[tuple[Setting, Setting], list[float | None]] = {
        (COMPILE, USUAL): [1.5, None, None],
        (BF16, USUAL): [1.3, 1.2],
        (both, USUAL): [1.4, None, None],
    }
    found = search([COMPILE, BF16], measured_in_turn(trials))
    assert (found.advised, found.distance) == (BF16, 0.0)


def measured_in_turn(gains: Mapping[tuple[Setting, Setting], list[float | None]]) -> Try:
    """The first, second, third trial of each pair; None fails."""
    left = {pair: list(values) for pair, values in gains.items()}

    def attempt(setting: Setting, against: Setting) -> SettingTrial:
        times = left[setting, against].pop(0)
        return crashed(setting, against) if times is None else trial(setting, times, against)

    return attempt


ALONE = LUCKY, BETTER = [Setting(batch=16), Setting(batch=32)]


def test_a_choice_that_was_luck_is_made_again_and_measured_a_third_time() -> None:
    gains: dict[tuple[Setting, Setting], list[float | None]] = {
        (LUCKY, USUAL): [1.2, 1.1],
        (BETTER, USUAL): [1.1],
        (BETTER, LUCKY): [1.2, 1.18],
    }
    found = search(ALONE, measured_in_turn(gains))
    assert found.advised == BETTER
    assert [gain(each) for each in found.confirmed] == [pytest.approx(each) for each in (1.1, 1.2, 1.18)]
    assert (found.distance, found.better) == (0.0, None)


def test_what_helps_is_listed_once_by_its_newest_trial_and_the_advised_first() -> None:
    refuted = search([COMPILE], measured_in_turn({(COMPILE, USUAL): [2.0, 0.8, 0.8]}))
    assert (refuted.advised, refuted.helpful) == (Setting(), [])
    gains: dict[tuple[Setting, Setting], list[float | None]] = {
        (LUCKY, USUAL): [2.0, 1.02],
        (BETTER, USUAL): [1.5],
        (BETTER, LUCKY): [1.4, 1.3],
    }
    found = search(ALONE, measured_in_turn(gains))
    assert [each.setting for each in found.helpful] == [BETTER, LUCKY]
    assert [gain(each) for each in found.helpful] == [pytest.approx(1.5), pytest.approx(1.02)]
    near = Found([trial(LUCKY, 1.2), trial(BETTER, 1.3)], LUCKY, [])
    assert [each.setting for each in near.helpful] == [LUCKY, BETTER], "the advised one first"


def test_a_third_measurement_against_the_second_leaves_the_choice_as_it_was() -> None:
    """By both together the other one is hardly faster."""
    gains: dict[tuple[Setting, Setting], list[float | None]] = {
        (LUCKY, USUAL): [1.2, 1.2],
        (BETTER, USUAL): [1.1],
        (BETTER, LUCKY): [1.2, 0.85],
    }
    found = search(ALONE, measured_in_turn(gains))
    assert (found.advised, found.better) == (LUCKY, None)
    assert found.distance == pytest.approx(1 - (1 / (1.2 * 0.85)) ** 0.5)


def test_a_trial_that_scatters_is_made_again() -> None:
    """Faster by its median, but not in every turn; the second trial is calm."""
    usual = replace(engine_run(0.2, [1.0]), turn_step_s=[0.2] * 7)
    noisy = replace(usual, turn_step_s=[0.1] * 6 + [9.0])
    scattered = SettingTrial(setting=COMPILE, trial=trial_of(eager=usual, engine=noisy, rounded_losses=[[1.0]]))
    left = [scattered, trial(COMPILE, 1.8), trial(COMPILE, 1.8)]
    found = search([COMPILE], lambda *_: left.pop(0))
    assert [gain(each) for each in found.trials] == [pytest.approx(1.8)]
    assert found.advised == COMPILE
    assert left == []


def test_a_failed_trial_costs_only_itself() -> None:
    def attempt(setting: Setting, _: Setting) -> SettingTrial:
        return SettingTrial(setting=setting, failed="it broke") if setting == COMPILE else trial(setting, 1.2)

    found = search([COMPILE, BF16], attempt)
    assert found.advised == BF16
    assert [each.failed for each in found.trials] == ["it broke", None]


# advice


def test_measured_changes_go_first_and_replace_the_rule_of_the_profile() -> None:
    rows = [op_row("MatMul", 0.06), op_row("Add", 0.03), *[op_row("ApplyAdam", 0.01, calls=20.0)]]
    record = record_of("autoenc", rows)
    untried = changes(record, [], [])
    assert {each.known for each in untried} == {AT_MOST}
    by_what = {each.what: each.times for each in untried}
    assert by_what["torch.compile, which joins them into few kernels"] == pytest.approx(1 / 0.7)
    assert by_what["the optimizer's fused=True"] == pytest.approx(1 / 0.9)
    slower, faster = trial(COMPILE, 0.9), trial(FUSED, 1.05)
    advice = changes(record, ranked([slower, faster]), [slower, faster])
    assert [each.what for each in advice] == ["the optimizer with fused=True"]
    assert advice[0].times == pytest.approx(1.05)


def test_a_rule_whose_trial_failed_stays() -> None:
    record = record_of("autoenc", [op_row("MatMul", 0.06), op_row("Add", 0.04)])
    failed = SettingTrial(setting=COMPILE, failed="no compiler")
    assert [each.what for each in changes(record, [], [failed])] == ["torch.compile, which joins them into few kernels"]


def test_settings_as_code() -> None:
    assert in_code(Setting(engine="compile+cudagraph+fused", precision="bf16", batch=64)) == (
        "torch.compile(model, mode='reduce-overhead') (CUDA graphs), the optimizer with fused=True, "
        "torch.autocast in bfloat16, a batch of 64"
    )
    assert in_code(Setting(threads=2, workers=4)) == "torch.set_num_threads(2), 4 data workers"
    assert in_code(Setting()) == "nothing"


def test_a_worker_that_dies_is_a_failed_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    from fathom.core.spec import RunSpec
    from fathom.experiments.isolate import NoRecord

    monkeypatch.setattr(advise, "in_worker", lambda *_, **__: NoRecord("killed by signal 9"))
    found = advise.in_process(RunSpec(workload="memnet", kind="trial"), {}, BF16)
    assert found == SettingTrial(setting=BF16, failed="killed by signal 9")
