"""fathom learn as people and scripts meet it: what is seen on the way, what is told at the end, and mistakes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fathom
from rich.console import Console
from rich.progress import Progress

from fathom.cli import terminal
from fathom.cli.commands import learn as command
from fathom.cli.commands._running import own_store
from fathom.cli.commands.learn import View
from fathom.core import stopping
from fathom.core.errors import Refused
from fathom.core.record import EarlierMachine, Learning, Point, Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.engine import session
from fathom.experiments.isolate import failed
from fathom.machine import devices
from fathom.machine.devices import resolve
from fathom.machine.host import fingerprint
from fathom.workloads.autoenc import Autoenc
from fathom.workloads.deepq import Deepq
from fathom.workloads.recipe import Recipe
from fathom.workloads.seq2seq import Seq2Seq

SPEC = RunSpec(workload="autoenc", preset="tiny", device="cpu", threads=1, kind="training", evaluations=4)
BLEU = replace(Seq2Seq.recipe, metric="BLEU", unit="points", target=33.0, better="higher")
TINY = ["learn", "autoenc", "--preset", "tiny", "--device", "cpu"]


def made(spec: RunSpec, qualities: Sequence[float], energy_j: float | None = 95975.4) -> Record:
    """A record of a run that was evaluated to these qualities, after ten items and ten seconds each."""
    curve = [
        Point(items=10 * number, seconds=10.0 * number, loss=1.0, quality=quality, energy_j=energy_j)
        for number, quality in enumerate(qualities, 1)
    ]
    recipe, last = Autoenc.recipe, curve[-1]
    learning = Learning(
        metric=recipe.metric,
        unit=recipe.unit,
        target=recipe.target,
        better=recipe.better,
        protocol=recipe.protocol,
        recipe=recipe.id,
        quality=last.quality,
        reached=recipe.reached(last.quality),
        seconds=last.seconds,
        items=last.items,
        energy_j=energy_j,
        metered=None,
        curve=curve,
    )
    return Record(spec=spec, machine=fingerprint(), device="cpu", outcome="ok", learning=learning)


def runs_come_to(monkeypatch: pytest.MonkeyPatch, outcome: Callable[[RunSpec], Record]) -> None:
    """In place of the worker."""
    monkeypatch.setattr(command, "isolated", lambda spec, *_, **__: outcome(spec))


def test_a_run_of_another_recipe_is_trained_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As after an update of Fathom that changed a recipe; another wording of its protocol changes nothing."""
    original = Autoenc.recipe
    qualities = iter([-120.0, -99.0])
    runs_come_to(monkeypatch, lambda spec: made(spec, [next(qualities)]))
    recipes = [
        (replace(original, evaluations=9), -120.0),
        (original, -99.0),
        (replace(original, protocol="in other words"), -99.0),
    ]
    for recipe, quality in recipes:
        monkeypatch.setattr(Autoenc, "recipe", recipe)
        for _ in range(2):  # the second time, it is there
            assert fathom(monkeypatch, *TINY, "--out", str(tmp_path), "--json") == 0
            assert json.loads(capsys.readouterr().out)["quality"] == quality


def test_the_command_tells_what_it_took_and_trains_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [*TINY, "--evaluations", "2", "--runs", "2", "--out", str(tmp_path / "records"), "--json"]
    program = [sys.executable, "-m", "fathom", *arguments]
    first = subprocess.run(program, capture_output=True, text=True, check=True)
    document = json.loads(first.stdout)
    assert [run["seed"] for run in document["runs"]] == [0, 1]
    wanted = {"metric", "quality", "target", "reached", "seconds", "items", "energy_j"}
    assert wanted <= document["runs"][0].keys()
    lines = first.stderr.splitlines()
    assert lines[0] == (
        "autoenc on synthetic data: 2 runs of at most 2 evaluations, seeds 0, 1; the target is a variational bound of "
        "-100 nats or higher"
    )
    for seed in (0, 1):
        assert any(line.startswith(f"seed {seed}, evaluation 2 of at most 2: loss") for line in lines), lines
    runs_come_to(monkeypatch, lambda spec: pytest.fail("trained again"))
    assert fathom(monkeypatch, *arguments) == 0
    assert json.loads(capsys.readouterr().out) == document


def test_rounds_is_the_old_name_of_evaluations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[RunSpec] = []

    def note(spec: RunSpec) -> Record:
        asked.append(spec)
        return made(spec, [-90])

    runs_come_to(monkeypatch, note)
    assert fathom(monkeypatch, *TINY, "--rounds", "3", "--out", str(tmp_path), "--json") == 0
    assert asked[0].evaluations == 3


def test_the_command_says_that_it_waits_for_a_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    happened: list[str] = []

    def say(line: str) -> None:
        if line.startswith("waiting"):
            happened.append(line)
            other.close()

    def train(spec: RunSpec) -> Record:
        happened.append("trained")
        return made(spec, [-90])

    monkeypatch.setattr(command, "_say", say)
    runs_come_to(monkeypatch, train)
    with ExitStack() as other:
        other.enter_context(own_store(tmp_path).lock(lambda: None))
        assert fathom(monkeypatch, *TINY, "--out", str(tmp_path)) == 0
    assert happened == [f"waiting: another run holds {tmp_path}", "trained"]


def test_what_another_command_has_trained_meanwhile_is_not_trained_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    claim = Store.claim

    def meanwhile(store: Store, spec: RunSpec) -> Any:
        Store(tmp_path).add(made(spec, [-90]))
        return claim(store, spec)

    monkeypatch.setattr(Store, "claim", meanwhile)
    runs_come_to(monkeypatch, lambda spec: pytest.fail("trained again"))
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["quality"] == -90


def test_a_failure_is_forgotten_once_a_run_of_the_same_kind_is_good(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A crash, a full disk: a failed record stays in the folder, but is no result."""
    arguments = [*TINY, "--out", str(tmp_path)]
    runs_come_to(monkeypatch, lambda spec: failed(spec, "the worker was ended by SIGKILL"))
    assert fathom(monkeypatch, *arguments, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["metric"], told["target"], told["quality"]) == ("variational bound", -100.0, None)
    runs_come_to(monkeypatch, lambda spec: made(spec, [-120, -90]))
    assert fathom(monkeypatch, *arguments) == 0
    for _ in range(2):
        assert fathom(monkeypatch, *arguments, "--json") == 0
    captured = capsys.readouterr()
    assert "autoenc: variational bound (nats)" in captured.out
    assert "SIGKILL" not in captured.out + captured.err
    Store(tmp_path).add(failed(next(Store(tmp_path).records()).spec, "a later attempt"))  # of another machine, say
    assert fathom(monkeypatch, *arguments, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["outcome"], told["quality"], told["reached"]) == ("ok", -90, True)


def test_a_checkpoint_goes_when_its_run_is_good_and_stays_when_it_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept: list[Path] = []

    def broken_off(spec: RunSpec) -> Record:
        kept.extend(tmp_path / "checkpoints" / f"autoenc-{each}.pt" for each in (spec.id, "another"))
        kept[0].parent.mkdir(exist_ok=True)
        for path in kept:
            path.touch()
        return failed(spec, "the worker was ended by SIGKILL")

    runs_come_to(monkeypatch, broken_off)
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path)) == 1
    assert [path.exists() for path in kept] == [True, True]
    runs_come_to(monkeypatch, lambda spec: made(spec, [-90]))
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path)) == 0
    assert [path.exists() for path in kept] == [False, True]


def test_a_failure_is_titled_by_the_recipe_and_told_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs_come_to(monkeypatch, lambda spec: failed(spec, "the worker was ended by SIGKILL"))
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path)) == 1
    captured = capsys.readouterr()
    assert "autoenc: variational bound (nats)" in captured.out
    assert "seed 0: failed: the worker was ended by SIGKILL" in captured.err


def test_what_the_worker_refuses_is_one_line_and_no_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse(spec: RunSpec) -> Record:
        raise Refused("no file train-images-idx3-ubyte")

    runs_come_to(monkeypatch, refuse)
    assert fathom(monkeypatch, *TINY, "--runs", "2", "--out", str(tmp_path)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[1:] == ["fathom: no file train-images-idx3-ubyte"]
    assert not list(tmp_path.glob("*.json"))


def test_a_folder_that_a_workload_does_not_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data, out = tmp_path / "mnist", tmp_path / "records"
    data.mkdir()
    arguments = ["--device", "cpu", "--data", str(data), "--out", str(out)]
    assert fathom(monkeypatch, "learn", "deepq", *arguments) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("fathom: deepq reads no data")
    assert not list(out.glob("*.json"))


def test_a_preset_that_is_asked_for_keeps_its_sizes() -> None:
    def options(name: str, preset: str | None, **said: Any) -> Mapping[str, Any]:
        asked = {"preset": preset, "precision": None, "engine": None}
        spec = command._planned(name, None, None, "cpu", asked, said)[1]
        return {**spec.options, **({} if spec.batch is None else {"batch": spec.batch})}

    tiny = Deepq.configured("tiny", **options("deepq", "tiny"))
    assert (tiny.envs, tiny.batch, tiny.capacity) == (4, 16, 2000)
    assert tiny.game == "pong", "what is learnt is the recipe's"
    assert tiny.adam, "and so is what the preset says nothing of"
    assert Autoenc.configured("tiny", **options("autoenc", "tiny")).batch == 32
    assert options("autoenc", "tiny", batch=7)["batch"] == 7
    assert options("autoenc", None) == options("autoenc", "paper") == Autoenc.recipe.options


def test_precision_and_engine_are_the_recipes_on_a_gpu_and_plain_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(name: str, **asked: str | None) -> tuple[str | None, str]:
        spec = command._planned(name, None, None, "auto", asked, {})[1]
        return spec.precision, spec.engine

    assert planned("seq2seq") == ("fp32", "eager")
    monkeypatch.setattr(devices, "resolve", lambda *_: torch.device("cuda:0"))
    monkeypatch.setattr(session, "resolve", lambda *_: torch.device("cuda:0"))
    assert planned("seq2seq") == (Seq2Seq.recipe.precision, Seq2Seq.recipe.engine) == ("tf32", "cudagraph")
    assert planned("seq2seq", precision="fp32", engine="eager") == ("fp32", "eager")
    assert planned("memnet") == ("fp32", "eager")


def test_runs_are_summed_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = {0: [-120.0, -90.0, -80.0], 1: [-130.0, -99.996], 2: [-120.0, -110.0]}
    runs_come_to(monkeypatch, lambda spec: made(spec, found[spec.seed or 0]))
    arguments = [*TINY, "--runs", "3", "--out", str(tmp_path)]
    assert fathom(monkeypatch, *arguments, "--json") == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert (summary["runs"], summary["reached"]) == (3, 2)
    assert summary["quality"] == {"median": -99.996, "least": -110, "most": -80, "of": 3}
    assert summary["seconds_to_target"] == {"median": 20, "least": 20, "most": 20, "of": 2}
    assert fathom(monkeypatch, *arguments) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["seed", "1", "-99.996", "-100", "yes", "20", "20", "95,975", "20", "20", "95,975"] in lines
    assert ["median", "-99.996", "-100", "2", "of", "3", "20", "20", "95,975", "20", "20", "95,975"] in lines
    assert ["most", "-80", "-100", "30", "30", "95,975", "20", "20", "95,975"] in lines


def test_one_run_is_one_flat_object_and_its_table_says_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs_come_to(monkeypatch, lambda spec: made(spec, [-120, -90], energy_j=None))
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {key: told[key] for key in ("seconds_to_target", "items_to_target", "energy_j_to_target")} == {
        "seconds_to_target": 20,
        "items_to_target": 20,
        "energy_j_to_target": None,
    }
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "to_target" not in shown
    assert "median" not in shown


@pytest.mark.parametrize("kept", [True, False])
def test_a_signal_is_answered_with_how_to_resume_if_there_is_a_checkpoint(
    kept: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def stop(spec: RunSpec) -> Record:
        if kept:
            (tmp_path / "checkpoints").mkdir(exist_ok=True)
            (tmp_path / "checkpoints" / f"autoenc-{spec.id}.pt").touch()
        raise stopping.Stopped(2)

    runs_come_to(monkeypatch, stop)
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path)) == 130
    advice = ["seed 0: run the command again to resume from the last checkpoint"] if kept else []
    assert capsys.readouterr().err.splitlines()[1:] == [*advice, "fathom: interrupted"]


class Clock:
    """A time that passes when it is told to."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


def view_of(
    monkeypatch: pytest.MonkeyPatch, shown: bool, recipe: Recipe[Any] = BLEU, several: bool = False
) -> tuple[View, Progress, io.StringIO, Clock]:
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, width=40)
    monkeypatch.setattr(command, "time", clock)
    monkeypatch.setattr(command, "human", console)
    bar = Progress(console=console, disable=not shown)
    return View(SPEC, recipe, bar, several), bar, out, clock


NEWS = {"evaluation": 1, "evaluations": 4, "loss": 0.5, "quality": 12.0, "items_per_s": 2000.0}


def test_a_log_says_how_long_it_may_still_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that was resumed at step 101: what was done before says nothing of the speed."""
    view, _, out, clock = view_of(monkeypatch, shown=False)
    view.start()
    clock.now = 110
    view.told(101, 200)
    clock.now = 130  # 20 steps in as many seconds
    view.told(121, 200)
    view.hear(NEWS)
    assert out.getvalue().splitlines() == [
        "step 121 of at most 200, 30 s, at most 79 s left",
        "evaluation 1 of at most 4: loss 0.5000, validation quality 12 points, 2000 images/s, 30 s, at most 79 s left",
    ]


def test_a_line_says_which_data_its_quality_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    view, _, out, _ = view_of(monkeypatch, shown=False, recipe=replace(BLEU, validated_on="train"))
    view.hear(NEWS)
    assert "loss 0.5000, quality on training data 12 points" in out.getvalue()


def test_what_was_taken_from_the_data_is_told_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for code in ("en", "fr"):
        (text / f"corpus.{code}").write_text("".join(f"{code} {n}\n" for n in range(100)))
    asked: list[RunSpec] = []

    def note(spec: RunSpec) -> Record:
        asked.append(spec)
        return failed(spec, "killed")

    runs_come_to(monkeypatch, note)
    arguments = ["--data", str(text), "--device", "cpu", "--set", "source_language=fr", "--set", "dropout=0.1"]
    arguments += ["--out", str(tmp_path / "records")]
    assert fathom(monkeypatch, "learn", "seq2seq", *arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "seq2seq: 1 run of at most 93 evaluations, seed 0; no target: evaluated by its BLEU alone"
    assert lines[1] == (
        "from the data: fr to en, 90 training pairs: source_vocabulary 2000, target_vocabulary 2000, source_length 4, "
        "target_length 8, dropout 0.1, word_dropout 0.2; validation: 5 pairs of the training text, "
        "test: 5 pairs of the training text; no target: that of 33 BLEU is for Multi30k from English to German"
    )
    options = asked[0].options
    assert (options["source_language"], options["target_language"], options["dropout"]) == ("fr", "en", 0.1)
    assert (options["source_vocabulary"], options["target_length"]) == (2000, 8)
    assert fathom(monkeypatch, "learn", "seq2seq", *arguments, "--evaluations", "1") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "seq2seq: 1 run of at most 1 evaluation, seed 0; no target: evaluated by its BLEU alone"
    assert "93" not in lines[1], "which is what the data ask for"


def test_too_little_text_is_one_line_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for code in ("en", "fr"):
        (tmp_path / f"train.{code}").write_text("".join(f"{code} {n}\n" for n in range(39)))
    assert fathom(monkeypatch, "learn", "seq2seq", "--data", str(tmp_path), "--device", "cpu") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no validation text in en and fr, and too few training pairs to take it from: 40 are needed" in line


def test_a_run_that_did_not_reach_its_target_tells_no_time_to_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Validation passed the target on the way, the test did not."""

    def missed(spec: RunSpec) -> Record:
        record = made(spec, [-120, -90])
        assert record.learning is not None
        told = replace(record.learning, quality=-101.0, reached=False, curve_split="validation", selected=2)
        return replace(record, learning=told)

    runs_come_to(monkeypatch, missed)
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["quality"], told["reached"], told["seconds_to_target"]) == (-101, False, None)
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path)) == 0
    assert "autoenc: variational bound (nats), test data" in capsys.readouterr().out


def test_of_several_runs_every_line_names_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    view, _, out, clock = view_of(monkeypatch, shown=False, several=True)
    view.hear({"resumed": 3, "evaluations": 4})
    clock.now += 2 * command.SAY_EVERY_S
    view.told(301, 400)
    view.hear(NEWS)
    assert [line.split()[:4] for line in out.getvalue().splitlines()] == [
        ["seed", "0", "resumes", "after"],
        ["seed", "0,", "step", "301"],
        ["seed", "0,", "evaluation", "1"],
    ]
    assert out.getvalue().startswith("seed 0 resumes after evaluation 3\n")


def test_a_run_of_two_machines_says_so_and_is_in_no_median_of_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    view, _, out, _ = view_of(monkeypatch, shown=False, several=True)
    view.hear({"resumed": 3, "evaluations": 4, "left": "Other CPU, 2 cores"})
    view.hear({"resumed": 3, "evaluations": 4, "left": None})
    assert out.getvalue().splitlines() == [
        "seed 0 resumes after evaluation 3, made on another machine (Other CPU, 2 cores): its time and energy are of "
        "no one machine",
        "seed 0 resumes after evaluation 3",
    ]

    def moved(spec: RunSpec) -> Record:
        record = made(spec, [-99.0])
        assert record.learning is not None
        earlier = EarlierMachine(name="Other CPU, 2 cores", host_id="a", gpu_uuid=None, evaluations=1)
        return replace(record, learning=replace(record.learning, earlier=[earlier])) if spec.seed == 1 else record

    runs_come_to(monkeypatch, moved)
    assert fathom(monkeypatch, *TINY, "--runs", 2, "--out", str(tmp_path), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [run["earlier_machines"] for run in told["runs"]] == [[], ["Other CPU, 2 cores"]]
    assert [told["summary"][key]["of"] for key in ("quality", "items", "seconds", "energy_j")] == [2, 2, 1, 1]
    assert fathom(monkeypatch, *TINY, "--runs", 2, "--out", str(tmp_path)) == 0
    shown = " ".join(out.getvalue().split())
    assert "seed 1 began on Other CPU, 2 cores: its time and energy are of no one machine" in shown


def test_below_the_bar_stands_what_it_does_and_what_the_last_evaluation_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    view, bar, _, clock = view_of(monkeypatch, shown=True)
    (task,) = bar.tasks
    assert (task.description, task.fields["state"]) == ("autoenc, seed 0", "")
    view.hear({"items_per_step": 32})
    view.told(1, 400)
    clock.now += 2
    view.told(101, 400)
    assert task.fields["state"] == "1600 images/s"
    view.hear({"evaluating": 1})
    assert task.fields["state"] == "evaluating"
    clock.now += 1000  # a long evaluation says nothing of the next interval's speed
    view.hear(NEWS)
    last = "last evaluation: loss 0.5000, validation quality 12 points, 2000 images/s"
    assert task.fields["state"] == last
    view.told(102, 400)
    clock.now += 1
    view.told(112, 400)
    assert task.fields["state"] == f"{last}; 320 images/s"


def test_the_bar_of_a_terminal_shows_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(terminal, "human", Console(file=out, width=80, force_terminal=True))
    with terminal.progress_bar() as bar:
        bar.add_task("autoenc, seed 0", state="last evaluation: loss 0.5 [nats]")
    assert "last evaluation: loss 0.5 [nats]" in out.getvalue()


@pytest.mark.parametrize(
    ("quality", "told"),
    [(32.996, "32.996"), (33.0, "33"), (31.0, "31"), (33.0000001, "33.0000001"), (1e-9, "1.000 × 10⁻⁹")],
)
def test_a_quality_is_told_from_its_target(quality: float, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view, _, out, _ = view_of(monkeypatch, shown=False)
    view.hear({**NEWS, "quality": quality})
    assert f"quality {told} points" in out.getvalue()


def test_without_a_target_it_is_evaluated_by_its_quality_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recipe = replace(Autoenc.recipe, target=None)
    monkeypatch.setattr(Autoenc, "recipe", recipe)
    runs_come_to(monkeypatch, lambda spec: made(spec, [-120]))
    assert fathom(monkeypatch, *TINY, "--runs", "2", "--out", str(tmp_path), "--json") == 0
    captured = capsys.readouterr()
    assert "no target: evaluated by its variational bound alone" in captured.err
    assert json.loads(captured.out)["summary"]["reached"] is None
    view, _, out, _ = view_of(monkeypatch, shown=False, recipe=recipe)
    view.hear(NEWS)
    assert "quality 12 nats" in out.getvalue()


@pytest.mark.parametrize(("count", "expected"), [(0, "cpu"), (2, "cuda:0")])
def test_auto_is_the_first_accelerator_by_its_full_name(
    count: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on "auto" is the same run on "cuda": it has the same id, and resumes where it was."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    assert str(resolve("auto")) == expected
    if count:
        assert resolve("auto") == resolve("cuda") == resolve("cuda:0")


def test_records_need_another_folder_than_the_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    arguments = ("learn", "autoenc", "--preset", "tiny", "--device", "cpu", "--data", ".", "--out", ".")
    assert fathom(monkeypatch, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "fathom: --out is the folder of the data, .: records need one of their own"
    assert list(Path.cwd().iterdir()) == []
