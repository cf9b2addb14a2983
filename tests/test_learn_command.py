"""fathom learn as people and scripts meet it: what is seen on the way, what is told at the end, and mistakes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fathom
from rich.console import Console
from rich.progress import Progress

from fathom.cli import main, terminal
from fathom.cli.commands import learn as command
from fathom.cli.commands.learn import View
from fathom.core.record import Learning, Point, Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments.isolate import Refused, failed
from fathom.machine.devices import resolve
from fathom.machine.host import fingerprint
from fathom.workloads.autoenc import Autoenc
from fathom.workloads.deepq import Deepq
from fathom.workloads.recipe import Quality

SPEC = RunSpec(workload="autoenc", preset="tiny", device="cpu", threads=1, kind="training", evaluations=4)
BLEU = Quality(metric="BLEU", unit="points", target=33.0, better="higher", protocol="")
TINY = ["learn", "autoenc", "--preset", "tiny", "--device", "cpu"]


def made(spec: RunSpec, qualities: Sequence[float], energy_j: float | None = 95975.4) -> Record:
    """A record of a run whose rounds came to these qualities, of ten items and ten seconds each."""
    curve = [
        Point(items=10 * number, seconds=10.0 * number, loss=1.0, quality=quality, energy_j=energy_j)
        for number, quality in enumerate(qualities, 1)
    ]
    quality, last = Autoenc.lesson.quality, curve[-1]
    learning = Learning(
        metric=quality.metric,
        unit=quality.unit,
        target=quality.target,
        better=quality.better,
        protocol=quality.protocol,
        quality=last.quality,
        reached=quality.reached(last.quality),
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


def test_what_another_lesson_came_to_is_learnt_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As after an update of Fathom that changed how a workload is judged."""
    qualities = iter([-120.0, -99.0])
    runs_come_to(monkeypatch, lambda spec: made(spec, [next(qualities)]))
    for protocol, quality in (("the old way", -120.0), (Autoenc.lesson.quality.protocol, -99.0)):
        other = replace(Autoenc.lesson.quality, protocol=protocol)
        monkeypatch.setattr(Autoenc, "lesson", replace(Autoenc.lesson, quality=other))
        for _ in range(2):  # the second time, it is there
            assert fathom(monkeypatch, *TINY, "--out", str(tmp_path), "--json") == 0
            assert json.loads(capsys.readouterr().out)["quality"] == quality


def test_the_command_tells_what_it_took_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fathom", *TINY, "--rounds", "2", "--runs", "2"]
    command += ["--out", str(tmp_path / "records"), "--json"]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    document = json.loads(first.stdout)
    assert [run["seed"] for run in document["runs"]] == [0, 1]
    wanted = {"metric", "quality", "target", "reached", "seconds", "items", "energy_j"}
    assert wanted <= document["runs"][0].keys()
    lines = first.stderr.splitlines()
    assert (
        lines[0]
        == "autoenc on synthetic data: 2 runs, seeds 0, 1; the target is a variational bound of -100 nats or higher"
    )
    for seed in (0, 1):
        assert any(line.startswith(f"seed {seed}, round 2 of at most 2: loss") for line in lines), lines
    again = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert again == document, "what has been learnt is not learnt again"


def test_the_command_says_that_it_waits_for_a_turn(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fathom", *TINY, "--rounds", "1", "--out", str(tmp_path)]
    with Store(tmp_path).lock(lambda: None):
        waiting = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        lines = iter(waiting.stderr)
        assert "waiting: another run holds" in next(line for line in lines if "target" not in line)
    assert "round 1 of at most 1: loss" in waiting.communicate()[1]
    assert waiting.returncode == 0


def test_what_another_command_has_learnt_meanwhile_is_not_learnt_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    take = Store.claim

    def meanwhile(store: Store, spec: RunSpec) -> Any:
        Store(tmp_path).add(made(spec, [-90]))
        return take(store, spec)

    monkeypatch.setattr(Store, "claim", meanwhile)
    runs_come_to(monkeypatch, lambda spec: pytest.fail("learnt again"))
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
        kept[0].parent.mkdir()
        for path in kept:
            path.touch()
        return failed(spec, "the worker was ended by SIGKILL")

    runs_come_to(monkeypatch, broken_off)
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path)) == 1
    assert [path.exists() for path in kept] == [True, True]
    runs_come_to(monkeypatch, lambda spec: made(spec, [-90]))
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path)) == 0
    assert [path.exists() for path in kept] == [False, True]


def test_a_failure_is_titled_by_the_lesson_and_told_below(
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


def test_a_folder_that_a_workload_does_not_read_is_refused(tmp_path: Path) -> None:
    data, out = tmp_path / "mnist", tmp_path / "records"
    data.mkdir()
    program = [sys.executable, "-m", "fathom", "learn", "deepq", "--device", "cpu", "--data", str(data)]
    done = subprocess.run([*program, "--out", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("fathom: deepq reads no data")
    assert not list(out.glob("*.json"))


def test_a_preset_that_is_asked_for_keeps_its_sizes() -> None:
    def options(name: str, preset: str | None, **said: Any) -> Mapping[str, Any]:
        return command._spec(name, None, None, preset, "cpu", None, said).options

    tiny = Deepq.configured("tiny", **options("deepq", "tiny"))
    assert (tiny.envs, tiny.batch, tiny.capacity) == (4, 16, 2000)
    assert tiny.game == "pong", "what is learnt is the lesson's"
    assert tiny.adam, "and so is what the preset says nothing of"
    assert Autoenc.configured("tiny", **options("autoenc", "tiny")).batch == 32
    assert options("autoenc", "tiny", batch=7)["batch"] == 7
    assert options("autoenc", None) == options("autoenc", "paper") == Autoenc.lesson.options


def test_runs_are_summed_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = {0: [-120.0, -90.0, -80.0], 1: [-130.0, -99.996], 2: [-120.0, -110.0]}
    runs_come_to(monkeypatch, lambda spec: made(spec, found[spec.seed]))
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
def test_a_signal_is_answered_with_how_to_go_on_if_there_is_something_to_go_on_from(
    kept: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def stop(spec: RunSpec) -> Record:
        if kept:
            (tmp_path / "checkpoints").mkdir()
            (tmp_path / "checkpoints" / f"autoenc-{spec.id}.pt").touch()
        raise main.Stopped(2)

    runs_come_to(monkeypatch, stop)
    assert fathom(monkeypatch, *TINY, "--out", str(tmp_path)) == 130
    advice = ["seed 0: start it again to go on from the last round that was kept"] if kept else []
    assert capsys.readouterr().err.splitlines()[1:] == [*advice, "fathom: interrupted"]


class Clock:
    """A time that passes when it is told to."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


def view_of(
    monkeypatch: pytest.MonkeyPatch, shown: bool, quality: Quality = BLEU, several: bool = False
) -> tuple[View, Progress, io.StringIO, Clock]:
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, width=40)
    monkeypatch.setattr(command, "time", clock)
    monkeypatch.setattr(command, "human", console)
    bar = Progress(console=console, disable=not shown)
    return View(SPEC, quality, bar, several), bar, out, clock


NEWS = {"round": 1, "evaluations": 4, "loss": 0.5, "quality": 12.0, "items_per_s": 2000.0}


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
        "round 1 of at most 4: loss 0.5, quality 12 points, 2000 images/s, 30 s, at most 79 s left",
    ]


def test_of_several_runs_every_line_names_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    view, _, out, clock = view_of(monkeypatch, shown=False, several=True)
    view.hear({"resumed": 3, "evaluations": 4})
    clock.now += 2 * command.SAY_EVERY_S
    view.told(301, 400)
    view.hear(NEWS)
    assert [line.split()[:4] for line in out.getvalue().splitlines()] == [
        ["seed", "0", "goes", "on"],
        ["seed", "0,", "step", "301"],
        ["seed", "0,", "round", "1"],
    ]
    assert out.getvalue().startswith("seed 0 goes on after round 3\n")


def test_below_the_bar_stands_what_it_does_and_what_the_last_round_came_to(monkeypatch: pytest.MonkeyPatch) -> None:
    view, bar, _, clock = view_of(monkeypatch, shown=True)
    (task,) = bar.tasks
    assert (task.description, task.fields["state"]) == ("autoenc, seed 0", "")
    view.hear({"items_per_step": 32})
    view.told(1, 400)
    clock.now += 2
    view.told(101, 400)
    assert task.fields["state"] == "1600 images/s"
    view.hear({"looking": 1})
    assert task.fields["state"] == "looking at held-out data"
    clock.now += 1000  # a long look says nothing of the next round's speed
    view.hear(NEWS)
    last = "last round: loss 0.5, quality 12 points, 2000 images/s"
    assert task.fields["state"] == last
    view.told(102, 400)
    clock.now += 1
    view.told(112, 400)
    assert task.fields["state"] == f"{last}; 320 images/s"


def test_the_bar_of_a_terminal_shows_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(terminal, "human", Console(file=out, width=80, force_terminal=True))
    with terminal.progress_bar() as bar:
        bar.add_task("autoenc, seed 0", state="last round: loss 0.5 [nats]")
    assert "last round: loss 0.5 [nats]" in out.getvalue()


@pytest.mark.parametrize(
    ("quality", "told"), [(32.996, "32.996"), (33.0, "33"), (31.0, "31"), (33.0000001, "33.0000001"), (1e-9, "1e-09")]
)
def test_a_quality_is_told_from_its_target(quality: float, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view, _, out, _ = view_of(monkeypatch, shown=False)
    view.hear({**NEWS, "quality": quality})
    assert f"quality {told} points" in out.getvalue()


def test_without_a_target_it_is_judged_by_its_quality_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    quality = replace(Autoenc.lesson.quality, target=None)
    monkeypatch.setattr(Autoenc, "lesson", replace(Autoenc.lesson, quality=quality))
    runs_come_to(monkeypatch, lambda spec: made(spec, [-120]))
    assert fathom(monkeypatch, *TINY, "--runs", "2", "--out", str(tmp_path), "--json") == 0
    captured = capsys.readouterr()
    assert "no target: judged by its variational bound alone" in captured.err
    assert json.loads(captured.out)["summary"]["reached"] is None
    view, _, out, _ = view_of(monkeypatch, shown=False, quality=quality)
    view.hear(NEWS)
    assert "quality 12 nats" in out.getvalue()


@pytest.mark.parametrize(("count", "expected"), [(0, "cpu"), (2, "cuda:0")])
def test_auto_is_the_first_accelerator_by_its_full_name(
    count: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on "auto" is the same run on "cuda": it has the same id, and goes on where it was."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    assert str(resolve("auto")) == expected
    if count:
        assert resolve("auto") == resolve("cuda") == resolve("cuda:0")
