"""A user's own model: the same rows as the eight, whatever shape it comes in, and clear words where it will not do."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fathom
from sample_records import GPU, LAPTOP, op_row, profile_of, record_of
from test_cli import document
from torch import nn

import fathom as suite
from fathom.analysis.relatives import nearest_measured
from fathom.analysis.selection import select
from fathom.cli import terminal
from fathom.cli.commands.profile import by_type
from fathom.core.disturbance import Disturbance
from fathom.core.errors import BadOption
from fathom.core.record import OpRow
from fathom.measure.held import Held
from fathom.measure.own import errors as own_errors
from fathom.measure.own import target as own_target
from fathom.trace.profile import from_trace
from fathom.trace.steps import STEP
from fathom.workloads.base import State, workload_class

HIDDEN_FLOP = 2 * 32 * 64 * 128
HEAD_FLOP = 2 * 32 * 128 * 10


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def flop_by_layer(record: suite.Record) -> dict[str, float]:
    assert record.profile is not None
    layers: dict[str, float] = {}
    for row in record.profile.rows:
        if row.type == "MatMul":
            layers[row.layer] = layers.get(row.layer, 0) + (row.flop or 0)
    return layers


def test_training_rows_carry_the_models_own_layers_and_work() -> None:
    record = suite.profile(network(), torch.randn(32, 64), device="cpu")
    # the first layer needs no gradient of its input
    assert flop_by_layer(record) == {"0": 2 * HIDDEN_FLOP, "2": 3 * HEAD_FLOP}
    assert (record.items_per_step, record.parameters) == (32, 64 * 128 + 128 + 128 * 10 + 10)


def test_inference_is_the_forward_pass_alone() -> None:
    record = suite.profile(network(), torch.randn(32, 64), phase="infer", device="cpu")
    assert flop_by_layer(record) == {"0": HIDDEN_FLOP, "2": HEAD_FLOP}
    assert record.profile is not None
    assert {row.phase for row in record.profile.rows} == {"forward"}


class Keyed(nn.Module):
    """Takes named inputs and returns its own loss, as many published models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layer(x)
        return {"loss": nn.functional.cross_entropy(scores, target), "scores": scores}


def test_a_models_own_loss_is_the_one_that_is_trained() -> None:
    record = suite.profile(Keyed(), {"x": torch.randn(8, 4), "target": torch.zeros(8, dtype=torch.long)}, device="cpu")
    assert record.profile is not None
    assert "CrossEntropy" in {row.type for row in record.profile.rows if row.phase == "backward"}


def test_a_given_loss_takes_what_the_model_returns() -> None:
    seen: list[tuple[int, ...]] = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(output.shape))
        return output.square().mean()

    suite.profile(network(), torch.randn(32, 64), loss=loss, device="cpu")
    assert set(seen) == {(32, 10)}


def test_a_trace_we_wrote_reads_back_as_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    record = suite.profile(network(), torch.randn(32, 64), device="cpu", trace_out=path)
    again = from_trace(path)
    assert record.profile is not None
    assert again.profile is not None
    assert sum(row.cpu_s for row in again.profile.rows) == pytest.approx(sum(row.cpu_s for row in record.profile.rows))
    assert again.profile.slowdown is None
    assert STEP in {event["name"] for event in json.loads(path.read_text())["traceEvents"] if "name" in event}


def test_the_command_tells_which_of_the_eight_it_is_like(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine_for_test.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), torch.randn(4, 3, 64, 64)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert fathom(monkeypatch, "profile", "mine_for_test:make", "--device", "cpu", "--out", "kept", "--json") == 0
    told = document(capsys)
    assert told["published"]["workload"] in {"residual", "vgg", "alexnet", "deepq"}
    assert 0 <= told["published"]["distance"] < 0.5
    assert Path(told["record"]).exists()
    assert told["workload"] == "mine_for_test:make"
    assert told["measured"] is None
    assert sum(row["percent"] for row in told["ops"]) == pytest.approx(100)


@pytest.mark.parametrize("taken", [0.0, 0.4])
def test_the_command_says_that_the_run_was_disturbed(
    taken: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    disturbed = record_of(
        "own", profile=profile_of([op_row("MatMul", 1.0)]), disturbance=Disturbance(steal=taken, load_before=0.1)
    )
    monkeypatch.setattr("fathom.cli.commands.profile.profile_target", lambda *given, **more: disturbed)
    arguments = ("profile", "mine:make", "--device", "cpu", "--out")
    said = ["40 % of the CPU time taken by the hypervisor (steal)"] if taken else []
    assert fathom(monkeypatch, *arguments, tmp_path / "json", "--json") == 0
    assert document(capsys)["disturbances"] == said
    assert fathom(monkeypatch, *arguments, tmp_path / "text") == 0
    assert ("Disturbed, so times and shares are unreliable: 40 %" in capsys.readouterr().out) == bool(taken)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("nothing_here:make", "cannot import nothing_here"),
        ("json:nothing", "json has no nothing"),
        ("json:__name__", "json:__name__ is no function, but str"),
        ("textwrap:dedent", r"textwrap:dedent failed: TypeError: dedent\(\) missing 1 required positional argument"),
        ("json", "expected package.module:Name"),
        ("os:getcwd", "must return a model and a batch .* not str"),
    ],
)
def test_what_cannot_be_used_is_told(target: str, expected: str) -> None:
    with pytest.raises(BadOption, match=expected):
        own_target.from_target(target)


FAULTS = {
    "import torch\nraise OSError('no such\\nfile')": r"mine:make failed: OSError: no such \(.*mine.py, line 2\)",
    "def make():\n    return torch": r"mine:make failed: NameError: name 'torch' is not defined \(.*mine.py, line 2\)",
    "import torch\ndef make():\n    return torch.nn.Linear(5, 3), torch.ones(4, 7)": "RuntimeError: .*mat1 and",
}


@pytest.mark.parametrize(("code", "expected"), FAULTS.items(), ids=["when imported", "when called", "when run"])
def test_a_fault_in_a_users_code_is_one_line_that_says_where(
    code: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(code)
    assert fathom(monkeypatch, "profile", "mine:make", "--device", "cpu") == 2
    sys.modules.pop("mine", None)
    told = capsys.readouterr().err
    assert re.search(expected, told), told
    assert told.count("\n") == 1


def test_a_fault_of_our_own_is_not_called_the_users() -> None:
    with pytest.raises(ValueError, match="format code") as caught:
        terminal.seconds("three")  # type: ignore[arg-type]
    assert own_errors.users_fault("mine:make", caught.value) is caught.value


def test_a_file_or_folder_that_cannot_be_written_is_told_before_profiling(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("profiled all the same")

    monkeypatch.setattr("fathom.cli.commands.profile.profile_target", never)
    monkeypatch.setattr("fathom.cli.commands.profile.from_trace", never)
    assert fathom(monkeypatch, "profile", "json:loads", "--trace-out", "/proc/nowhere/trace.json") == 2
    assert capsys.readouterr().err.startswith("fathom: cannot write ")
    for of in (["json:loads"], ["--trace", "there.json"]):
        assert fathom(monkeypatch, "profile", *of, "--out", "/proc/nowhere") == 2
        assert capsys.readouterr().err.startswith("fathom: cannot write to /proc/nowhere")
    both = ["--trace", "there.json", "--trace-out", str(tmp_path / "trace.json")]
    assert fathom(monkeypatch, "profile", *both) == 2
    assert "--trace-out is for a model that is profiled" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def quick(rows: list[OpRow], name: str, place: str = LAPTOP, **changes: Any) -> suite.Record:
    """A record as profile() would make it."""
    return record_of(name, profile=profile_of(rows, **changes), place=place)


def test_models_of_different_names_and_sizes_are_not_averaged() -> None:
    wide = nn.Sequential(nn.Linear(64, 256))
    records = [suite.profile(model, torch.randn(8, 64), device="cpu") for model in (network(), wide)]
    records.append(suite.profile(wide, torch.randn(8, 64), device="cpu", name="mine/wide"))
    assert [record.spec.workload for record in records] == ["Sequential", "Sequential", "mine_wide"]
    assert len({record.spec.id for record in records}) == 3
    groups = {group.workload: group.runs for group in select(records, profiled=True).groups}
    assert {name: len(runs) for name, runs in groups.items()} == {"Sequential": 1, "mine_wide": 1}
    kept = suite.Record.from_json(json.loads(json.dumps(records[2].to_json())))
    assert kept.spec.id == records[2].spec.id


def gpu_trace(path: Path, **more: Any) -> Path:
    """One step with an op that launches a kernel, as a profiler would write it."""
    times = {"ph": "X", "pid": 1, "tid": 1}
    op = times | {"cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 20, "args": {"External id": 1}}
    launch = times | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 12, "dur": 5}
    kernel = {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "gemm", "ts": 20, "dur": 50}
    joined = {"args": {"correlation": 9, "External id": 1}}
    step = times | {"cat": "user_annotation", "name": STEP, "ts": 0, "dur": 100}
    path.write_text(json.dumps({"traceEvents": [step, op, launch | joined, kernel | joined], **more}))
    return path


def test_a_trace_goes_by_its_file_and_its_own_gpu(tmp_path: Path) -> None:
    named = from_trace(gpu_trace(tmp_path / "mine.json", deviceProperties=[{"id": 0, "name": "NVIDIA A10"}]))
    assert (named.spec.workload, named.machine_label, named.device) == ("mine.json", "NVIDIA A10", "cuda")
    nameless = from_trace(gpu_trace(tmp_path / "other.json"))
    assert nameless.machine_label == "the GPU of a trace"
    (tmp_path / "again").mkdir()
    namesake = from_trace(gpu_trace(tmp_path / "again" / "mine.json"))
    assert namesake.spec.workload == "mine.json"
    assert namesake.spec.id != named.spec.id


def test_the_column_adds_up_to_the_typical_step() -> None:
    """One profiled step of three took ten times as long: shares are of the steps that the rows are of."""
    rows = [op_row("MatMul", 0.6, flop=5.0), op_row("LSTM", 0.3), op_row("Copy", 0.05), op_row("Add", 0.0001)]
    table = by_type(profile_of(rows, outside_s=0.0499, step_s=[1.0, 1.0, 10.0]))
    percent = {str(row[0]): row[3] for row in table}
    assert sum(float(value or 0) for value in percent.values()) == pytest.approx(100)
    assert percent["MatMul"] == pytest.approx(60)
    assert percent["outside ops"] == pytest.approx(4.99)
    assert percent["1 smaller type"] == pytest.approx(0.01)
    assert {str(row[0]): row[4] for row in table} == {
        "MatMul": 5.0, "LSTM": None, "Copy": 0.0, "1 smaller type": None, "outside ops": None,
    }  # fmt: skip


def test_fused_ops_are_compared_as_what_they_were_in_2016() -> None:
    language_model = quick([op_row("LSTM", 0.8), op_row("MatMul", 0.1), op_row("Tile", 0.07)], "mine")
    attentive = quick([op_row("Attention", 0.9), op_row("Tile", 0.07)], "mine")
    for model in (language_model, attentive):
        found = suite.nearest(model)
        assert found is not None
        assert (found.workload, found.close) == ("speech", True)
        assert found.distance < 0.02
    with pytest.raises(BadOption, match="no profile to compare"):
        suite.nearest(record_of("mine"))


def test_the_nearest_is_of_the_same_kind_of_device_and_of_the_eight() -> None:
    mine = quick([op_row("LSTM", 1.0)], "mine")
    among = [
        quick([op_row("LSTM", 0.9), op_row("Add", 0.3)], "seq2seq"),
        quick([op_row("MatMul", 1.0)], "speech"),
        quick([op_row("LSTM", 1.0, place=GPU)], "memnet", GPU),
        quick([op_row("LSTM", 1.0)], "another_of_mine"),
    ]
    nearest = suite.nearest(mine, among)
    assert nearest is not None
    assert (nearest.workload, nearest.next_workload, nearest.next_distance) == ("seq2seq", "speech", 1.0)
    found = nearest_measured(mine, among)
    assert found == (nearest, "Laptop CPU, 4 cores")
    assert nearest_measured(mine, among[2:]) is None


def test_the_report_of_a_model_of_ones_own_is_one_call(tmp_path: Path) -> None:
    mine = quick([op_row("MatMul", 1.0)], "mymods:lstm")
    path = suite.write_report([mine], tmp_path / "report.md")
    assert "mymods:lstm" in path.read_text()


def test_peak_memory_of_a_model_by_what_holds_it() -> None:
    module = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    record = suite.profile(module, torch.randn(64, 256), device="cpu")
    assert record.profile is not None
    memory = record.profile.memory
    assert memory is not None
    weights = 4 * sum(weight.numel() for weight in module.parameters())
    assert memory.kinds["parameters"] == weights
    assert sum(memory.kinds.values()) == memory.peak_bytes == max(memory.allocated)
    assert not memory.is_lower_bound
    assert memory.kinds["gradients"] <= weights
    assert record.profile.sources is None, "stacks cost time: only where they are asked for"


def test_stacks_give_the_lines_of_the_model_and_leave_rows_alone() -> None:
    record = suite.profile(Lined(), torch.randn(8, 16), device="cpu", stacks=True)
    assert record.profile is not None
    found = record.profile.sources
    assert found is not None
    total = sum(line.seconds for line in found.lines) + found.other_s + found.unknown_s
    assert total == pytest.approx(sum(row.cpu_s for row in record.profile.rows)), "of the pass without stacks"
    own_line = next(line for line in found.lines if "test_own.py" in line.line)
    assert own_line.line.endswith(": forward")
    assert own_line.backward_s > 0
    assert not any("pytest" in line.line for line in found.lines), "what is around Fathom called no op"


class Lined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()  # type: ignore[no-any-return]


def test_stacks_are_no_option_of_a_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fathom(monkeypatch, "profile", "--trace", tmp_path / "any.json", "--stacks") == 2
    assert "--stacks is for a model" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("kept", [True, False])
def test_gradients_are_counted_once_whether_they_are_kept_between_steps_or_not(kept: bool) -> None:
    weight = nn.Parameter(torch.ones(100))
    weight.grad = torch.zeros(100)
    model = nn.ParameterList([weight])
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    state = State(
        model=model,
        device=torch.device("cpu"),
        source={"inputs": [torch.zeros(50)]},
        batches=iter(()),
        optimizer=optimizer,
        autocast=nullcontext,
    )
    held = Held(state)
    if not kept:
        weight.grad = torch.zeros(100)
    steps_of_adam = 4  # one number beside the two moments
    known = {"parameters": 400, "gradients": 400 * kept, "optimizer state": 800 + steps_of_adam, "batch": 200}
    assert held.bytes() == known


@pytest.mark.parametrize(
    ("options", "preset", "batch", "kept"),
    [({}, "tiny", None, {}), ({"batch": 7}, "tiny", 7, {}), ({"latent": 3}, "tiny", None, {"latent": 3})],
)
def test_a_configured_workload_is_recorded_with_its_configuration(
    options: dict[str, Any], preset: str, batch: int | None, kept: dict[str, Any]
) -> None:
    record = suite.profile(workload_class("autoenc").configured("tiny", **options), device="cpu")
    assert (record.spec.preset, record.spec.batch, record.spec.options) == (preset, batch, kept)
