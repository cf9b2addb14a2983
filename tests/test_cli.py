"""The command line as scripts and people meet it: keys, exit codes, one line for every mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom

import fathom as suite
from fathom import __version__
from fathom.cli.commands import learn, run
from fathom.experiments import worker

README = (Path(__file__).parents[1] / "README.md").read_text()


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    """What was printed on stdout, which must be one JSON document and nothing else."""
    return json.loads(capsys.readouterr().out)


def test_nothing_asked_is_answered_with_help_and_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fathom(monkeypatch) == 2
    printed = capsys.readouterr()
    assert "Usage: " in printed.out + printed.err
    assert "fathom: " not in printed.err


def test_it_says_which_version_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fathom(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"fathom {__version__}\n"


PUBLIC = {  # what callers may rely on: a name that goes breaks their programs, one that comes is a promise
    "BadOption", "CappingError", "DataError", "Dataset", "DeviceError", "DoesNotFit", "Engine", "EngineError", "Facts",
    "FathomError", "Finding", "Governor", "Meter", "MissingExtra", "NotPermitted", "NotRestored", "NotSupported",
    "OutOfRange", "Reader", "Recipe", "Record", "Refused", "RunSpec", "Session", "State", "Step", "Store",
    "UnknownName", "Workload", "frame", "load", "nearest", "op_frame", "profile", "write_report",
}  # fmt: skip


def test_public_names_are_those_promised_and_found_by_tab() -> None:
    assert set(suite.__all__) == PUBLIC
    assert set(dir(suite)) >= PUBLIC
    assert set(re.findall(r"\bfathom\.(\w+)\(", README)) <= PUBLIC
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        suite.lod  # noqa: B018


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_what_its_module_defines(name: str) -> None:
    thing = getattr(suite, name)
    assert getattr(sys.modules[thing.__module__], thing.__name__) is thing
    assert thing.__name__ == {"write_report": "write"}.get(name, name)


def test_help_imports_nothing_that_takes_a_second() -> None:
    program = (
        "import sys; sys.argv = ['fathom', '--help']\n"
        "from fathom.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'scipy', 'plotly'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout


def test_list_gives_the_published_parameter_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fathom(monkeypatch, "list", "--json") == 0
    rows = {row["name"]: row for row in document(capsys)}
    assert all(set(row) == {"name", "year", "layers", "style", "task", "dataset", "params"} for row in rows.values())
    published = {
        "alexnet": 60_965_224,
        "vgg": 143_667_240,
        "residual": 21_797_672,
        "autoenc": 815_824,
        "deepq": 1_686_180,
    }
    assert {name: rows[name]["params"] for name in published} == published
    assert (rows["memnet"]["style"], rows["memnet"]["year"]) == ("Memory Network", 2015)


def test_show_adds_presets_and_costs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fathom(monkeypatch, "show", "vgg", "--json") == 0
    facts = document(capsys)
    assert {"presets", "macs_per_item", "train_flop_per_item", "paper", "parameters"} <= set(facts)
    assert facts["macs_per_item"] == 19_632_062_464  # 19.6 G in the Cookbook's table
    first_layer = 64 * 27 * 224 * 224  # needs no input gradient
    assert facts["train_flop_per_item"] == 2 * (3 * facts["macs_per_item"] - first_layer)


def test_show_gives_the_recipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fathom(monkeypatch, "show", "memnet", "--json") == 0
    recipe = document(capsys)["recipe"]
    assert {"metric", "unit", "target", "better", "protocol", "split"} <= set(recipe)
    assert {"evaluations", "options", "preset", "precision", "engine"} <= set(recipe)
    assert recipe["variants"]["joint"]["target"] == 12.4
    assert fathom(monkeypatch, "show", "memnet") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "the target is a mean error of 13.9 % or lower" in shown
    assert "recipe with joint" in shown
    assert "encoding=program" in shown


def test_run_keeps_a_record_and_tells_scripts_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["run", "autoenc", "--preset", "tiny", "--device", "cpu", "--steps", "4", "--warmup", "1"]
    assert fathom(monkeypatch, *arguments, "--out", str(tmp_path), "--json") == 0
    told = document(capsys)
    assert {"record", "outcome", "device", "step_s", "losses", "items_per_step"} <= set(told)
    assert (told["outcome"], told["device"], told["items_per_step"]) == ("ok", "cpu", 32)
    assert (len(told["step_s"]), len(told["losses"])) == (4, 5)
    kept = json.loads(Path(told["record"]).read_text())
    assert kept["step_s"] == told["step_s"]
    assert kept["sections"]["wall_s"] > kept["sections"]["main_s"] > kept["sections"]["run_s"] > 0


@pytest.mark.parametrize("question", ["breakdown", "similarity"])
def test_what_the_paper_prints_is_answered_from_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], question: str
) -> None:
    assert fathom(monkeypatch, "analyse", question, "--published", "--json") == 0
    finding = document(capsys)
    assert finding["question"] == question
    assert "2016" in finding["summary"]
    if question == "breakdown":
        (table,) = finding["tables"]
        speech = next(dict(zip(table["columns"], row, strict=True)) for row in table["rows"] if row[0] == "speech")
        assert speech["MatMul (%)"] == 89


def test_a_loss_that_is_not_finite_is_a_failed_run_with_a_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["run", "autoenc", "--preset", "tiny", "--device", "cpu", "--set", "learning_rate=1e30"]
    assert fathom(monkeypatch, *arguments, "--out", str(tmp_path), "--json") == 1
    told = document(capsys)
    assert told["outcome"] == "failed"
    assert "the loss is nan" in told["reason"]
    assert Path(told["record"]).exists()


MISTAKES = [
    (["run", "autoen"], "no workload 'autoen'; did you mean autoenc?"),
    (["show", "alexnt"], "no workload 'alexnt'; did you mean alexnet?"),
    (["rnu", "autoenc"], "Did you mean 'run'?"),
    (["run", "autoenc", "--prset", "tiny"], "no option '--prset'; did you mean --preset?"),
    (["run", "autoenc", "--preset", "tny"], "no preset 'tny'; did you mean tiny?"),
    (["run", "autoenc", "--phase", "training"], "no phase 'training'; did you mean train?"),
    (["run", "autoenc", "--precision", "fp16"], "no precision 'fp16'; did you mean"),
    (["run", "autoenc", "--batch", "0"], "batch must be at least 1, not 0"),
    (["run", "autoenc", "--batch", "many"], "--batch"),
    (["run", "autoenc", "--set", "latent"], "--set takes name=value, not 'latent'"),
    (["run", "autoenc", "--set", "latents=3"], "no option of autoenc 'latents'; did you mean latent?"),
    (["run", "autoenc", "--set", "latent=word"], "option latent of autoenc must be int, not 'word'"),
    (["run", "autoenc", "--data", "nowhere"], "no such folder; it must contain MNIST's idx files"),
    (["run", "autoenc", "--device", "cuda:9"], "device 'cuda:9' is not on this machine; there are: cpu"),
    (["run", "autoenc", "--device", "gpu"], "no device 'gpu'; there may be: auto, cpu, cuda"),
    (["run", "autoenc", "--device", "cpu", "--precision", "tf32"], "precision tf32 needs an NVIDIA GPU"),
    (["run", "autoenc", "--device", "cpu", "--batch", "1000000000"], "try a smaller --batch"),
    (["learn", "autoenc", "--data", "nowhere"], "no such folder; it must contain MNIST's idx files"),
    (["learn", "autoenc", "--preset", "tny"], "no preset 'tny'; did you mean tiny?"),
    (["learn", "deepq", "--set", "envs=3"], "envs of deepq must be a multiple of"),
    (["run", "autoenc", "--seed", "99999999999999999999"], "seed must be below 4611686018427387904"),
    (["scale", "autoenc", "--budget", "nan"], "a budget must be some seconds, not nan"),
    (["scale", "autoenc", "--budget", "0"], "a budget must be some seconds, not 0.0"),
    (
        ["report", "results/neoverse-n1", "--format", "md", "--out", "q.txt"],
        "--format md does not match",
    ),
    (
        ["report", "results/neoverse-n1", "--format", "html", "--out", "q.md"],
        "--format html does not match",
    ),
    (["report", "results/neoverse-n1", "--out", "q.pdf"], "a report is written as .html, .htm, .md, not as q.pdf"),
    (["run", "os:path", "--out", "records"], "posixpath must define exactly one Workload os:path: it defines 0"),
    (["analyse", "breakdown", "tests"], "no records in tests; make some with fathom study"),
    (["run", "autoenc", "--out", "/proc/nowhere"], "cannot write to /proc/nowhere"),
    (["study", "autoenc", "--report", "/proc/nowhere/report.html"], "cannot write /proc/nowhere/report.html"),
    (["analyse", "skew", "--published"], "the paper prints no numbers for skew"),
    (["scale", "autoenc", "--cores", ""], "--cores takes values separated by commas, not ''"),
    (["engines", "autoenc", "--engines", ""], "--engines takes values separated by commas, not ''"),
    (["energy", "autoenc", "--batches", ","], "--batches takes values separated by commas, not ','"),
    (["energy", "autoenc", "--power-caps", ""], "--power-caps takes values separated by commas, not ''"),
    (["frameworks", "fcn5", "--threads", ""], "--threads takes values separated by commas, not ''"),
    (["frameworks", "fcn5", "--frameworks", ""], "--frameworks takes values separated by commas, not ''"),
    (["feed", "alexnet", "--workers", ""], "--workers takes whole numbers such as 0,1,2, not ''"),
]
WRITING = ("run", "learn", "scale", "study", "engines", "energy", "frameworks", "feed")


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker does, done here: it refuses with the same error, without the seconds that a process takes to start.

    One mistake still crosses from a real worker, below.
    """
    for command in (run, learn):
        monkeypatch.setattr(
            command, "isolated", lambda spec, *_, **__: worker._run(spec, lambda *_: None, lambda _: None)
        )


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("arguments", "expected"), MISTAKES, ids=[" ".join(mistake) for mistake, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    expected: str,
) -> None:
    if arguments[0] in WRITING and "--out" not in arguments:
        arguments = [*arguments, "--out", str(tmp_path)]
    assert fathom(monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("fathom: ")
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_that_a_worker_finds_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["run", "autoenc", "--device", "cpu", "--batch", "1000000000", "--out", str(tmp_path)]
    assert fathom(monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "try a smaller --batch" in printed.err
    assert list(tmp_path.iterdir()) == []
