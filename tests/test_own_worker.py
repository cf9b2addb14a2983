"""`fathom profile` runs a user's code in a process of its own: whatever it does, there is one line and nobody left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import fathom
from killing import alive, ended, environment, outlived
from test_cli import document

from fathom.core.errors import BadOption
from fathom.core.store import Store
from fathom.measure.own.target import profile_target

MODULE = r"""
import ctypes, os, subprocess, sys, torch
from torch import nn

x = torch.randn(8, 4)

class Base(BaseException): pass

class Mute(Exception):
    def __str__(self): raise ValueError("no text")

class Doing(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.layer, self.act = nn.Linear(4, 3), act
    def forward(self, x):
        self.act()
        return self.layer(x)

def raising(error):
    def act():
        raise error
    return lambda: (Doing(act), x)

leaves = lambda: (Doing(lambda: sys.exit(3)), x)
leaves_at_once = lambda: sys.exit("bye")
own_kind = raising(Base("odd"))
generator_exit = raising(GeneratorExit())
mute = raising(Mute())
coloured = raising(ValueError("\x1b[31mred\x1b]0;title\x07\x07 " + 5000 * "x"))
interrupted = raising(KeyboardInterrupt())
wrong_shape = lambda: (nn.Linear(5, 3), x)
sparse = lambda: (nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3)), torch.zeros(8, dtype=torch.long))
number = lambda: 5
not_a_model = lambda: (5, x)
crashes = lambda: (Doing(lambda: ctypes.string_at(0)), x)
gone = lambda: (Doing(lambda: os._exit(7)), x)

def complete():
    model = nn.Linear(4, 3)
    return model, (x, torch.zeros(8, dtype=torch.long)), nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters())

def step():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def one():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    return one

def squares(output, target): return output.square().mean()
def rmsprop(model): return torch.optim.RMSprop(model.parameters(), lr=1e-6)

def nan():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return nn.Linear(4, 3), x * float("nan")

def waits():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open("started", "w"):  # a pipe: the test reads it
        pass
    import threading
    threading.Event().wait()
"""


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "users_code.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "users_code", raising=False)
    yield
    sys.modules.pop("users_code", None)


FAULTS = {
    "leaves": r"called sys.exit\(3\) \(.*users_code.py, line 25\)$",
    "leaves_at_once": r"called sys.exit\(bye\) \(.*users_code.py, line 26\)$",
    "own_kind": r"failed: Base: odd \(.*users_code.py, line 22\)$",
    "generator_exit": r"failed: GeneratorExit \(.*users_code.py, line 22\)$",
    "mute": r"failed: Mute: its text cannot be shown \(.*users_code.py, line 22\)$",
    "coloured": r"failed: ValueError: red x{200,300}… \(.*users_code.py, line 22\)$",
    "interrupted": r"failed: KeyboardInterrupt \(.*users_code.py, line 22\)$",
    "wrong_shape": "failed: RuntimeError: (addmm: )?mat1 and mat2 shapes cannot be multiplied",
    "number": r"must return a model and a batch \(then a loss, then an optimizer\), a step .* not int$",
    "not_a_model": "must return a model and a batch .* not a tuple of int, Tensor$",
}


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_users_code_is_one_line_that_names_it(fault: str) -> None:
    with pytest.raises(BadOption, match=f"^users_code:{fault} {FAULTS[fault]}") as caught:
        profile_target(f"users_code:{fault}", device="cpu")
    assert str(caught.value).isprintable()


@pytest.mark.usefixtures("few_steps")
def test_what_torch_refuses_of_the_users_choice_is_one_line() -> None:
    with pytest.raises(
        BadOption, match="users_code:sparse failed: RuntimeError: Adam does not support sparse gradients"
    ):
        profile_target("users_code:sparse", device="cpu", optimizer="adam")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    return fathom(monkeypatch, "profile", "--device", "cpu", "--out", "kept", *arguments)


CRASHES = {
    "crashes": r"users_code:crashes ended its process: the worker was killed by SIGSEGV \(.*users_code.py, line 36\)",
    "gone": "users_code:gone ended its process: the worker exited with code 7 and left no record",
}


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_is_one_line(
    crash: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, f"users_code:{crash}") == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert re.search(CRASHES[crash], told), told
    assert not list(tmp_path.glob("kept/*"))


def test_the_time_limit_ends_it_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    os.mkfifo("started")
    reader = os.open("started", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run(monkeypatch, "users_code:waits", "--timeout", "8") == 2
        assert "was not profiled within 8 s and was ended; --timeout gives it longer" in capsys.readouterr().err
        assert outlived(alive(os.environ["FATHOM_MARK"])) == []
    finally:
        os.close(reader)
        ended(os.environ["FATHOM_MARK"])


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGINT, 130, "fathom: interrupted"), (signal.SIGTERM, 143, "fathom: ended by SIGTERM")],
)
def test_a_signal_ends_it_at_once_with_all_that_it_started(number: signal.Signals, code: int, line: str) -> None:
    os.mkfifo("started")
    own = environment()
    command = [sys.executable, "-m", "fathom", "profile", "users_code:waits"]
    process = subprocess.Popen(command, env=own, stderr=subprocess.PIPE, text=True)
    try:
        Path("started").read_text()  # until the user's code runs
        process.send_signal(number)
        assert process.communicate(timeout=60)[1] == f"{line}\n"
        assert process.returncode == code
        assert outlived(alive(own["FATHOM_MARK"])) == []
    finally:
        ended(own["FATHOM_MARK"])
        process.wait()


def test_a_loss_of_nan_is_told_and_no_process_outlives_the_profile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    assert run(monkeypatch, "users_code:nan", "--json") == 0
    printed = capsys.readouterr()
    assert "users_code:nan: the loss is nan in the warm-up" in " ".join(printed.err.split())
    assert outlived(alive(os.environ["FATHOM_MARK"])) == []
    (record,) = Store("kept").records()
    assert record.notes
    assert record.sections.wall_s is not None


def test_options_reach_the_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--loss", "users_code:squares", "--optimizer", "users_code:rmsprop", "--threads", "1"]
    trace = ["--precision", "bf16", "--trace-out", "there.json", "--json"]
    assert run(monkeypatch, "users_code:wrong_shape_is_not_this", *options) == 2
    assert "users_code has no wrong_shape_is_not_this" in capsys.readouterr().err
    assert run(monkeypatch, "users_code:step", "--threads", "1", "--json") == 0
    assert document(capsys)["workload"] == "users_code:step"
    assert run(monkeypatch, "users_code:complete", *options, *trace) == 0
    assert document(capsys)["workload"] == "users_code:complete"
    records = {record.spec.workload: record for record in Store("kept").records()}
    assert records["users_code:step"].spec.source == "step"
    record = records["users_code:complete"]
    assert (record.spec.precision, record.spec.threads, record.items_per_step) == ("bf16", 1, 8)
    assert "Optimizer.step#RMSprop.step" in Path("there.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--timeout", "0"], "--timeout must be some seconds, not 0"),
        (["--timeout", "nan"], "--timeout must be some seconds, not nan"),
        (["--threads", "0"], "threads must be at least 1"),
        (["--precision", "fp8"], "no precision 'fp8'"),
        (["--phase", "trian"], "no phase 'trian'; did you mean train?"),
        (["--device", "gpu"], "no device 'gpu'"),
    ],
)
def test_wrong_settings_are_refused_before_a_process_is_started(
    arguments: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fathom.experiments.own.in_worker", lambda *_, **__: pytest.fail("started a process"))
    assert fathom(monkeypatch, "profile", "users_code:step", *arguments) == 2
    assert expected in capsys.readouterr().err


def test_options_of_a_model_do_not_go_with_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fathom(monkeypatch, "profile", "--trace", "there.json", "--optimizer", "adam") == 2
    assert "--optimizer is for a model that is profiled" in capsys.readouterr().err
