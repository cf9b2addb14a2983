"""speech learns: ten utterances by heart, to the same numbers after a kill; errors by hand; AN4 and TIMIT."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import real_data
from test_timit import corpus, noise, sphere, write
from training_runs import Killed, learning_of, numbers, trained

from fathom.core.errors import DataError
from fathom.core.spec import RunSpec
from fathom.data import timit
from fathom.data._audio import Sizes, Utterance
from fathom.data._utterance_batches import by_length, speed_perturbed, time_masked
from fathom.data.base import Batch
from fathom.engine.session import Session
from fathom.training import checkpoint
from fathom.training.checkpoint import FOLDER
from fathom.training.trainer import HeldOut, recipe_for, trainer_for
from fathom.workloads._deep_speech import DeepSpeech
from fathom.workloads.speech import AN4, TIMIT, Speech, compared, confused

CPU = torch.device("cpu")
SMALL = {"units": 64, "frames": 60, "phones": 6, "batch": 5, "stride": 2, "by_length": True, "adam": True}
AUGMENTED = {"speed_perturbation": 0.1, "time_mask": 3, "noise": 0.1, "dropout": 0.1}
TEN = RunSpec(
    workload="speech",
    preset="tiny",
    device="cpu",
    kind="training",
    evaluations=100,
    options={**SMALL, "dropout": 0.0, "learning_rate": 3e-3},
)


@pytest.fixture
def ten_utterances(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learnt is also what is asked: can it be learnt by heart?"""
    monkeypatch.setattr(Speech, "synthetic", lambda self, seed: timit.synthetic(0, self.sizes, items=10))


def until(monkeypatch: pytest.MonkeyPatch, target: float) -> None:
    monkeypatch.setattr(Speech, "recipe", replace(AN4, target=target, stop_at=target))


# --- errors


def test_errors_are_counted_as_by_hand() -> None:
    said = ["sh iy hh ae d", "y ao r d aa r k", "s uw t"]
    heard = ["sh iy ae d", "y ao r d aa r k", "s ih t t"]  # one left out; none; one changed and one added
    found = compared(said, heard)
    assert (found.deletions, found.substitutions, found.insertions) == (1, 1, 1)
    assert found.wer == pytest.approx(3 / 15), "of all phones said, not the mean of three ratios"
    assert compared(["s uw t"], [""]).wer == 1
    assert compared(["s"], ["s uw t"]).wer == 2, "more may be heard than was said"


def test_errors_are_told_phone_by_phone() -> None:
    errors = confused(["b iy d iy", "p iy"], ["d iy d", "d iy p"])
    assert errors == {("b", "d"): 1, ("iy", "-"): 1, ("p", "d"): 1, ("-", "p"): 1}


def test_quality_is_the_error_rate_of_the_hypotheses(ten_utterances: None, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Speech.configured("tiny", **SMALL).synthetic(0)
    said = int(source.columns["phone_count"].sum())
    with Session(TEN).setup() as session:
        workload = session.workload
        assert isinstance(workload, Speech)
        truth = workload.synthetic(0)
        monkeypatch.setattr(Speech, "infer", lambda self, model, batch: batch)
        assert AN4.evaluate(workload, session.state, truth) == 0
        wrong = {"phones": truth.columns["phones"].clone(), "phone_count": truth.columns["phone_count"] - 1}
        wrong["phones"][:2, 0] = wrong["phones"][:2, 0] % 61 + 1
        monkeypatch.setattr(Speech, "infer", lambda self, model, batch: wrong)
        assert AN4.evaluate(workload, session.state, truth) == pytest.approx(100 * 12 / said)


def test_timit_is_scored_in_39_classes(tmp_path: Path) -> None:
    source = timit.read(corpus(tmp_path), "train", Sizes(20, 8))
    assert source.scored("h# ao zh q ix pau") == "sil aa sh ih sil"
    assert timit.synthetic(0, Sizes(20, 8), items=2).scored("h# q") == "h# q", "only the corpus itself is folded"


# --- learning


def test_ten_utterances_are_learnt_without_an_error(ten_utterances: None, monkeypatch: pytest.MonkeyPatch) -> None:
    until(monkeypatch, 0.0)
    found = learning_of(trained(TEN))
    assert found.reached
    assert found.quality == 0
    assert found.curve[0].quality > 50, "it had to be learnt"
    assert found.metric == "phone error rate"
    shown, errors = found.artifacts
    assert [row[1] for row in shown.rows] == [row[2] for row in shown.rows]
    assert len(shown.rows) == 10
    assert errors.rows == []


def test_a_killed_run_resumes_to_the_very_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "checkpoints"))
    monkeypatch.setattr(checkpoint, "INTERVAL_S", 0.0)
    monkeypatch.setattr(Speech, "synthetic", lambda self, seed: timit.synthetic(seed, self.sizes, items=12))
    spec = replace(TEN, evaluations=4, options={**TEN.options, **AUGMENTED})
    with pytest.raises(Killed):
        trained(spec, die_at=3)
    resumed = trained(spec)
    monkeypatch.delenv(FOLDER)
    whole = trained(spec)
    assert numbers(resumed) == numbers(whole)
    assert [point.items for point in learning_of(whole).curve] == [15, 30, 45, 60]
    assert learning_of(resumed).resumed == 1


def test_a_gradient_that_is_not_finite_changes_no_weight(ten_utterances: None) -> None:
    with Session(replace(TEN, options={**SMALL, "adam": False, "momentum": 0.5})).setup() as session:
        trainer = trainer_for(session, recipe_for(session.spec), HeldOut(None, None))
        model, optimizer = session.state.model, session.state.optimizer
        assert optimizer is not None
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)  # there is no momentum yet
        assert next(model.parameters()).grad is not None
        next(model.parameters()).grad[0, 0] = float("inf")  # type: ignore[index]
        optimizer.step()
        assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
        trainer.train(lambda done: None)
        assert not any(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_the_learning_rate_has_linear_warm_up_and_cosine_decay() -> None:
    workload = Speech.configured("tiny")
    optimizer = workload.optimizer(torch.nn.Linear(1, 1))
    schedule = AN4.schedule(workload, optimizer, 200)
    rates = []
    for _ in range(200):
        rates.append(optimizer.param_groups[0]["lr"] / workload.learning_rate)
        optimizer.step()
        schedule.step()
    peak = rates.index(max(rates))
    assert rates[0] == pytest.approx(0.1)
    assert 5 < peak < 15
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < 1e-3


# --- batches


def test_an_epoch_has_every_utterance_once_and_little_padding() -> None:
    source = timit.synthetic(1, Sizes(200, 20), items=64)
    feed = by_length(source, 8, CPU, seed=3)
    batches = [next(feed) for _ in range(16)]
    for epoch in (batches[:8], batches[8:]):
        seen = torch.cat([batch["features"][:, 0, 0] for batch in epoch])
        assert torch.equal(seen.sort()[0], source.columns["features"][:, 0, 0].sort()[0])
    for batch in batches:
        assert batch["features"].shape[1] == batch["frames"].max()
        assert batch["frames"].min() > 0.6 * batch["frames"].max()
    assert not torch.equal(batches[0]["frames"], batches[8]["frames"])


def test_a_feed_can_start_at_any_batch() -> None:
    source = timit.synthetic(1, Sizes(60, 6), items=13)
    whole, later = by_length(source, 4, CPU, seed=3), by_length(source, 4, CPU, seed=3, start=6)
    for _ in range(6):
        next(whole)
    for _ in range(9):
        ours, theirs = next(whole), next(later)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def ramps(*frames: int) -> Batch:
    """Utterances whose only feature is the frame number."""
    time = torch.arange(float(max(frames)))
    rows = [torch.where(time < length, time, 0.0) for length in frames]
    return {"features": torch.stack(rows)[..., None], "frames": torch.tensor(frames)}


def test_speed_perturbation_keeps_the_beginning_and_the_end() -> None:
    torch.manual_seed(0)
    found = speed_perturbed(ramps(*[100, 40] * 50), 0.25)
    assert found["features"].shape == (100, 125, 1)
    for row, (frames, was) in enumerate(zip(found["frames"].tolist(), [100, 40] * 50, strict=True)):
        assert was / 1.25 - 0.5 <= frames <= was * 1.25 + 0.5
        ramp = found["features"][row, :frames, 0]
        steps = ramp.diff()
        assert ramp[0] == 0
        assert was - 2.3 <= ramp[-1] <= was - 1
        assert steps[:-2].max() - steps[:-2].min() < 1e-4, "the speed is constant"
    assert len(set(found["frames"].tolist())) > 30


def test_time_masks_are_zero_and_short() -> None:
    torch.manual_seed(0)
    batch = ramps(*[50] * 200)
    batch["features"] += 1
    masked = time_masked(batch, 10)["features"][..., 0] == 0
    assert masked.sum(1).max() <= 20
    assert 5 < masked.sum(1).float().mean() < 12
    assert masked.any(0)[1:-1].all(), "a mask may be anywhere"


@pytest.mark.parametrize("stride", [2, 3])
def test_a_stride_looks_at_every_so_many_frames(stride: int) -> None:
    torch.manual_seed(1)
    features, frames = torch.randn(2, 20, 26), torch.tensor([20, 13])
    model = DeepSpeech(9, 8, 0.0, stride).eval()
    every = DeepSpeech(9, 8, 0.0)._in_context(features, frames)
    assert torch.equal(model._in_context(features, frames), every[::stride])
    together, alone = model(features, frames), model(features[1:, :13], frames[1:])
    assert len(together) == -(-20 // stride)
    torch.testing.assert_close(together[: len(alone), 1], alone[:, 0])


def test_an_utterance_must_be_long_enough_for_stride_and_speed() -> None:
    def kept(**options: float) -> bool:
        sizes = Speech.configured("tiny", **options).sizes
        utterance = _utterance(frames=22, phones=10)
        return sizes.reason_to_skip(utterance) is None

    assert kept()
    assert kept(stride=2)
    assert kept(stride=2, speed_perturbation=0.1)
    assert not kept(stride=2, speed_perturbation=0.11)
    assert not kept(stride=3)


def _utterance(frames: int, phones: int) -> Utterance:
    return Utterance(np.zeros((frames, 26), np.float32), list(range(1, phones + 1)), "")


# --- corpora


def test_each_corpus_has_its_recipe(tmp_path: Path) -> None:
    assert Speech.recipe is AN4
    assert AN4.for_run(None, {}) is AN4
    assert AN4.for_run(corpus(tmp_path), {}).protocol == TIMIT.protocol
    assert AN4.id != TIMIT.id
    for recipe in (AN4, TIMIT):
        Speech.configured(recipe.preset, **recipe.options)


def test_a_part_of_an4_has_no_target(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for test, target in ((130, 15.0), (129, None)):
        for split, count in {"train": 948, "test": test}.items():
            (tmp_path / f"etc/an4_{split}.fileids").write_text("an4_clstk/fash/an251\n" * count)
        recipe = AN4.for_run(tmp_path, {})
        told = "" if target else "no target: that of 15 % is for the whole of AN4"
        assert (recipe.target, recipe.taken, recipe.options) == (target, told, AN4.options)


def test_a_part_of_timit_has_no_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = {name: len(timit.read(corpus(tmp_path), name, Sizes(20, 8))) for name in timit.WHOLE}
    assert timit.WHOLE == {"train": 3696, "core": 192}
    part = AN4.for_run(tmp_path, {})
    assert (part.target, part.taken) == (None, "no target: that of 25 % is for the whole of TIMIT")
    assert (part.options, part.protocol) == (TIMIT.options, TIMIT.protocol)
    monkeypatch.setattr(timit, "WHOLE", recordings)
    assert AN4.for_run(tmp_path, {}) is TIMIT
    for split, count in recordings.items():
        monkeypatch.setattr(timit, "WHOLE", {**recordings, split: count + 1})
        assert AN4.for_run(tmp_path, {}).target is None, f"some of {split} is missing"


def test_augmentation_options_still_go_by_their_old_names() -> None:
    assert Speech.configured("tiny", speed=0.1, gap=3) == Speech.configured("tiny", speed_perturbation=0.1, time_mask=3)


def test_protocols_are_true_of_any_folder_and_say_how_the_test_set_was_used() -> None:
    """Numbers are those of the whole corpora: a folder may hold a part of one."""
    evaluated = (
        "after every epoch on every tenth training speaker, who is not trained on, and the best of these is tested"
    )
    whole = {"AN4": (AN4, "(130 in the whole corpus)"), "TIMIT": (TIMIT, "192 utterances in the whole corpus)")}
    for name, (recipe, count) in whole.items():
        assert name in recipe.protocol
        assert "that the folder holds" in recipe.protocol
        assert count in recipe.protocol
        assert evaluated in recipe.protocol
        assert (recipe.validated_on, recipe.stop_at) == ("validation", None)


def test_the_core_test_set_is_24_speakers_of_the_test_split(tmp_path: Path) -> None:
    assert len(set(timit.CORE)) == 24
    assert sum(speaker.startswith("f") for speaker in timit.CORE) == 8
    other = corpus(tmp_path) / "TEST" / "DR1" / "FAKS0"
    other.mkdir()
    for path in (tmp_path / "TEST" / "DR1" / "MDAB0").iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    sizes = Sizes(20, 8)
    assert (len(timit.read(tmp_path, "test", sizes)), len(timit.read(tmp_path, "core", sizes))) == (4, 2)


def test_timit_is_learnt_with_its_protocol_in_the_record(tmp_path: Path) -> None:
    options = {**TIMIT.options, "units": 8, "frames": 20, "phones": 8, "batch": 2, "stride": 1}
    record = trained(
        RunSpec(
            workload="speech", device="cpu", kind="training", evaluations=1, data=str(corpus(tmp_path)), options=options
        )
    )
    found = learning_of(record)
    assert found.protocol == TIMIT.protocol
    assert (found.target, found.recipe) == (None, TIMIT.without_target("the whole").id), "two recordings of it"
    assert len(found.artifacts[0].rows) == 2, "the SA sentence is left out"
    assert found.artifacts[0].rows[0][1] == "sil sh iy sil"


def test_a_test_utterance_that_is_too_short_is_left_out_and_told(tmp_path: Path) -> None:
    folder = corpus(tmp_path) / "TEST/DR1/MDAB0"
    short = sphere(noise(560)), "0 100 h#\n100 200 sh\n200 560 iy\n"  # 2 frames
    write(folder, "SX9", *short)
    workload = Speech.configured("tiny", frames=20, phones=8)
    (note,) = TIMIT.evaluation_data(workload, tmp_path, "test").notes
    assert note.startswith("2 recordings left out, 2 kept: 1 that are SA sentences, "), (
        "that of training is not its own"
    )
    assert note.endswith("1 with fewer frames than CTC needs for its phones")
    for stem in ("SX37", "SI648"):
        write(folder, stem, *short)
    with pytest.raises(DataError, match="3 utterances, all with fewer frames than CTC needs"):
        TIMIT.evaluation_data(workload, tmp_path, "test")


@pytest.mark.realdata
def test_no_test_utterance_is_passed_over(tmp_path: Path) -> None:
    workload = Speech.configured("tiny", frames=10)
    with pytest.raises(DataError, match="none of 2 utterances fits"):
        AN4.evaluation_data(workload, corpus(tmp_path), "test")
    folder = real_data("an4")
    with pytest.raises(
        DataError,
        match="test utterances do not fit the network: 121 with more than 120 frames; try a larger --set frames=N",
    ):
        AN4.evaluation_data(Speech.configured("tiny"), folder, "test")


@pytest.mark.realdata
@pytest.mark.parametrize(("name", "held_out"), [("timit-style", 2), ("an4-sph-mini", 2)])
def test_real_recordings_are_learnt_from(name: str, held_out: int) -> None:
    folder = real_data(name)
    options = {**AN4.for_run(folder, {}).options, "units": 16, "frames": 400, "batch": 2}
    record = trained(
        RunSpec(workload="speech", device="cpu", kind="training", evaluations=2, data=str(folder), options=options)
    )
    found = learning_of(record)
    assert record.outcome == "ok"
    assert len(found.artifacts[0].rows) == held_out
    assert found.quality is not None


@pytest.mark.realdata
def test_every_utterance_of_an4_counts() -> None:
    workload = Speech.configured("paper", **AN4.options)
    folder = real_data("an4")
    validation, test = (AN4.evaluation_data(workload, folder, split) for split in ("validation", "test"))
    train, rest = (workload.real(folder, split) for split in ("train", "train_subset"))
    assert (len(test), len(train), len(validation) + len(rest)) == (130, 948, 948)
    assert 0.05 * len(train) < len(validation) < 0.15 * len(train)
    assert test.skipped == train.skipped == validation.skipped == {}
