"""What is refused before a worker starts: one line from the parent, exit code 2, and no torch loaded to say so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import fathom
from sample_records import record_of, sections_of

from fathom.core.errors import BadOption, DeviceError
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import checks, interleave
from fathom.experiments.checks import check, check_device

INTERLEAVED = ["compare", "threads=1", "threads=2", "autoenc", "--interleave"]
MISTAKES = [
    (["run", "autoen"], "no workload 'autoen'; did you mean autoenc?"),
    (["run", "autoenc", "--preset", "tny"], "no preset 'tny'; did you mean tiny?"),
    (["run", "autoenc", "--phase", "training"], "no phase 'training'; did you mean train?"),
    (["run", "autoenc", "--precision", "fp16"], "no precision 'fp16'"),
    (["run", "autoenc", "--device", "gpu"], "no device 'gpu'; there may be: auto, cpu, cuda"),
    (["run", "autoenc", "--device", "cpu", "--precision", "tf32"], "precision tf32 needs an NVIDIA GPU, not cpu"),
    (["run", "autoenc", "--engine", "cudagraf"], "no engine 'cudagraf'; did you mean cudagraph?"),
    (["run", "autoenc", "--steps", "0"], "steps must be at least 1, not 0"),
    (["run", "autoenc", "--threads", "-1"], "threads must be at least 1, not -1"),
    (["run", "autoenc", "--set", "latents=3"], "no option of autoenc 'latents'; did you mean latent?"),
    (["run", "autoenc", "--set", "latent=word"], "option latent of autoenc must be int, not 'word'"),
    (["compare", "threads=1", "set.latent=word", "autoenc", "--interleave"], "B: option latent of autoenc must be int"),
    (["run", "autoenc", "--warmup", "-1"], "warmup must be at least 0, not -1"),
    (["study", "autoen"], "no workload 'autoen'; did you mean autoenc?"),
    (["study", "autoenc", "--preset", "tny"], "no preset 'tny'; did you mean tiny?"),
    (["study", "autoenc", "--device", "gpu"], "no device 'gpu'"),
    (["study", "autoenc", "--engine", "cudagraf"], "no engine 'cudagraf'"),
    (["scale", "autoen"], "no workload 'autoen'; did you mean autoenc?"),
    (["scale", "autoenc", "--preset", "tny"], "no preset 'tny'; did you mean tiny?"),
    (["scale", "autoenc", "--engine", "cudagraf"], "no engine 'cudagraf'"),
    (["scale", "autoenc", "--cores", "0"], "cannot run on 0"),
    (["scale", "autoenc", "--cores", "100000"], "cannot run on 100000"),
    (["scale", "autoenc", "--cores", "two"], "--cores takes core counts such as 1,2,4, not 'two'"),
    (["scale", "autoenc", "--steps", "-5"], "steps must be at least 1, not -5"),
    (["repeat", "autoen"], "no workload 'autoen'; did you mean autoenc?"),
    (["repeat", "autoenc", "--preset", "tny"], "no preset 'tny'; did you mean tiny?"),
    (["repeat", "autoenc", "--phase", "training"], "no phase 'training'; did you mean train?"),
    (["repeat", "autoenc", "--device", "cpu", "--device", "cuda:x"], "no device 'cuda:x'"),
    (["repeat", "autoenc", "--engine", "cudagraf"], "no engine 'cudagraf'"),
    ([*INTERLEAVED, "--preset", "tny"], "no preset 'tny'; did you mean tiny?"),
    ([*INTERLEAVED, "--engine", "cudagraf"], "no engine 'cudagraf'"),
    (["compare", "engine=cudagraf", "threads=2", "autoenc", "--interleave"], "A: no engine 'cudagraf'"),
    (["compare", "threads=1", "device=gpu", "autoenc", "--interleave"], "B: no device 'gpu'"),
    (["compare", "threads=1", "threads=0", "autoenc", "--interleave"], "B: threads must be at least 1, not 0"),
    (["run", "autoenc", "--steps", "9" * 20], f"steps must be 1 to 10,000,000, not {'9' * 20}"),
    (["run", "autoenc", "--steps", "9" * 4000], "steps must be 1 to 10,000,000, not a number of 4000 digits"),
    (["run", "autoenc", "--steps", "9" * 5000], "Invalid value for '--steps'"),
    (["run", "autoenc", "--warmup", "1" + "0" * 9], "warmup must be 0 to 10,000,000, not 1000000000"),
    (["run", "autoenc", "--batch", "1" + "0" * 12], "batch must be 1 to 1,000,000,000, not 1000000000000"),
    (["run", "autoenc", "--threads", "70000"], "threads must be 1 to 65,536, not 70000"),
    (["run", "autoenc", "--seed", "-1"], "seed must be at least 0, not -1"),
    (["run", "autoenc", "--set", "latent=NaN"], "option latent of autoenc must be int, not nan"),
    (["run", "autoenc", "--set", "learning_rate=NaN"], "learning_rate of autoenc must be a finite number, not nan"),
    (["run", "autoenc", "--set", "latent=" + "9" * 20], f"must be at most 1,099,511,627,776, not {'9' * 20}"),
    (["run", "x" * 5000], f"no workload '{'x' * 80}... (5000 characters)'"),
    (["scale", "autoenc", "--budget", "1e300"], "a budget must be at most 2,592,000 seconds (30 days), not 1e+300"),
    (["scale", "autoenc", "--preset", "tny", "--cores", "0"], "no preset 'tny'; did you mean tiny?"),
    (["scale", "--preset", "tny"], "no preset 'tny'; did you mean tiny?"),
    (["study", "--preset", "tny", "--device", "gpu"], "no preset 'tny'; did you mean tiny?"),
    (["scale", "autoenc", "--runs", "1" + "0" * 12], "less than or equal to 100000"),
    (["repeat", "autoenc", "--runs", "1" + "0" * 12], "less than or equal to 100000"),
    (["repeat", "autoenc", "--warmup-runs", "1" + "0" * 12], "less than or equal to 100000"),
    ([*INTERLEAVED, "--runs", "1" + "0" * 12], "less than or equal to 100000"),
    (["learn", "autoenc", "--runs", "1" + "0" * 12], "less than or equal to 100000"),
]
PROGRAM = """
import contextlib, io, json, sys
from fathom.cli.main import main
found = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["fathom", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try: main()
        except SystemExit as end: code = end.code
    found.append([code, out.getvalue(), err.getvalue(), "torch" in sys.modules])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[list[object]]:
    """All of them from one process: code, output, errors, and whether torch was loaded by then."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([arguments for arguments, _ in MISTAKES])]
    folder = tmp_path_factory.mktemp("empty")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert list(folder.iterdir()) == []
    found: list[list[object]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("index", range(len(MISTAKES)), ids=[" ".join(arguments)[:80] for arguments, _ in MISTAKES])
def test_a_wrong_name_or_number_is_refused_without_torch(index: int, answers: list[list[object]]) -> None:
    code, out, err, torch_was_loaded = answers[index]
    assert (code, out, torch_was_loaded) == (2, "", False)
    assert isinstance(err, str)
    assert err.startswith("fathom: ")
    assert MISTAKES[index][1] in err
    assert err.count("\n") == 1


def test_threads_are_limited_by_the_cores_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few more than cores are measured on purpose."""
    monkeypatch.setattr(checks, "usable_cores", lambda: 2)
    check(RunSpec(workload="autoenc", threads=128))
    with pytest.raises(BadOption, match="^threads must be 1 to 128 on 2 cores, not 9999$"):
        check(RunSpec(workload="autoenc", threads=9999))


@pytest.mark.parametrize("name", ["auto", "cpu", "cpu:0", "cuda", "cuda:1", "mps", "xpu:0"])
def test_names_that_may_be_devices_are_left_to_the_machine(name: str) -> None:
    check_device(name)


@pytest.mark.parametrize("name", ["", "gpu", "auto:0", "cuda:", "cuda:x", "cuda:-1", ":0"])
def test_names_that_can_be_no_device_are_refused(name: str) -> None:
    with pytest.raises(DeviceError, match="no device"):
        check_device(name)


def test_a_package_that_extends_torch_may_bring_its_own_kind_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "entry_points", lambda group: ["torch_npu"] if group == "torch.backends" else [])
    check_device("npu:0")


@pytest.mark.usefixtures("on_the_laptop")
@pytest.mark.parametrize(
    "command",
    [
        ["run", "autoenc"],
        ["study", "autoenc", "--device", "cpu"],
        ["scale", "autoenc", "--cores", "1"],
        ["repeat", "autoenc", "--runs", "1", "--warmup-runs", "0", "--device", "cpu"],
        ["compare", "threads=1", "threads=2", "autoenc", "--interleave", "--runs", "1", "--device", "cpu"],
    ],
    ids=lambda command: command[0],
)
def test_the_engine_that_is_asked_for_is_that_of_every_run(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the store has them: nothing runs here."""

    def run(spec: RunSpec, *_: object, **__: object) -> Record:
        return replace(record_of(spec.workload), spec=spec, sections=sections_of(10.0))

    def run_all(specs: Sequence[RunSpec], store: Store, job: str, *_: object) -> None:
        for spec in specs:
            store.add(run(spec))

    for name in ("study", "repeat", "_series"):
        monkeypatch.setattr(f"fathom.cli.commands.{name}.run_all", run_all)
    monkeypatch.setattr("fathom.cli.commands.repeat.refusal", lambda spec: None)  # the engine may need a GPU
    monkeypatch.setattr("fathom.cli.commands.run.isolated", run)
    monkeypatch.setattr(interleave, "isolated", run)
    monkeypatch.setattr(interleave.Side, "check", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    assert fathom(monkeypatch, *command, "--engine", "cudagraph", "--preset", "tiny", "--out", out) == 0
    records = [
        record for folder in (out, out / "a", out / "b") if folder.is_dir() for record in Store(folder).records()
    ]
    assert records
    assert {record.spec.engine for record in records} == {"cudagraph"}
