"""fathom cost as a user types it: the Cookbook's example, one's own model, and one line for every mistake."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fathom

from fathom.cli.commands.cost import size_of
from fathom.core.errors import BadOption
from fathom.engine.live import BLOCK
from fathom.measure.own.cost import cost_of_target, step_of_target

OWN = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(self.layer(x).mean(1))

def make():
    return Block(), (torch.randn(8, 16, 64), torch.zeros(8, dtype=torch.long)), "cross_entropy", "adamw"

def huge():
    return nn.Linear(1_000_000, 1_000_000), torch.empty(2, 1_000_000)

def loads():
    weights = torch.ones(4, 4).numpy()
    model = nn.Linear(4, 4)
    model.weight.data = torch.from_numpy(weights)
    return model, torch.ones(2, 4)

class Peeks(nn.Linear):
    def forward(self, x):
        return super().forward(x) * x.max().item()

def peeks():
    return Peeks(4, 4), torch.ones(2, 4)

def step():
    return lambda: None

def frozen():
    return nn.Linear(4, 4).requires_grad_(False), torch.ones(2, 4)

class Served(nn.Linear):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)

def served():
    return Served(4, 4), torch.ones(2, 4)

def lbfgs():
    model = nn.Linear(4, 4)
    return model, torch.ones(2, 4), None, torch.optim.LBFGS(model.parameters())

def empty():
    return nn.Linear(4, 4), torch.ones(0, 4)

class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.usual, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        if x.max() > 0: return self.other(self.usual(x))
        return self.usual(x)

def chooses():
    return Chooses(), torch.ones(2, 4)

class Waits(nn.Linear):
    def forward(self, x):
        while not (x > 1).all():
            x = super().forward(x)
        return x

def waits():
    return Waits(4, 4), torch.ones(2, 4)

class Draws(nn.Linear):
    def forward(self, x):
        mean = super().forward(x)
        return torch.distributions.Normal(mean, mean.exp()).rsample()

def draws():
    return Draws(4, 4), torch.ones(2, 4)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "costed_model.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "costed_model"


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert fathom(monkeypatch, "cost", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_the_cookbooks_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """ResNet-152 on 14 million images: 3 x 11.3e9 x 14e6, about 5e17, and 140 T a second, are MAC; FLOP are twice."""
    found = shown(monkeypatch, capsys, "resnet-152", "--batch", "2", "--items", "14e6")
    assert found["parameters"] == 60_192_808
    assert found["forward"]["mac"] == 11_282_415_616
    epoch = found["epoch"]
    assert float(f"{epoch['cookbook_mac']:.0e}") == 5e17
    assert epoch["cookbook_mac"] == pytest.approx(3 * 11.3e9 * 14e6, rel=0.01)
    assert 130 < epoch["cookbook_tmac_per_s"] < 140, "5e17 / 3600 s is 139e12"
    assert epoch["flop"] / epoch["cookbook_mac"] == pytest.approx(2, rel=0.01)
    assert epoch["tflop_per_s"] == pytest.approx(2 * epoch["cookbook_tmac_per_s"], rel=0.01)


def test_the_tables_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fathom(monkeypatch, "cost", "sensor_net", "--memory", "1GB", "--items", "1e6") == 0
    printed = capsys.readouterr().out
    assert "2,919,440" in printed
    assert "2.916 MMAC = 5.833 MFLOP" in printed
    assert "Largest batch in 1GB, train, bf16" in printed
    assert "An epoch of 1e+06 readings: 1.6e+13 FLOP" in printed


def test_ones_own_model(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(monkeypatch, capsys, f"{module}:make", "--memory", "1GB")
    assert found["parameters"] == 4 * 64 * 65 + 2 * 64 * 128 + 128 + 64 + 4 * 64 + 650
    # four projections and the scores and sums of attention, two layers of the MLP; then one row an item
    assert found["forward"]["mac"] == 16 * (4 * 64**2 + 2 * 16 * 64 + 2 * 64 * 128) + 640
    assert {row["optimizer"] for row in found["memory"]} >= {"its own (AdamW)"}
    assert all(each["items"] > 1000 for each in found["largest"])


def test_a_model_larger_than_memory_is_counted(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """4 TB of weights: nothing of it is allocated."""
    found = shown(monkeypatch, capsys, f"{module}:huge", "--memory", "80GB")
    assert found["parameters"] == 10**12 + 10**6
    assert {each["items"] for each in found["largest"]} == {0}


def test_a_branch_on_a_value_is_named(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shown(monkeypatch, capsys, f"{module}:chooses")
    line = 1 + OWN.splitlines().index("        if x.max() > 0: return self.other(self.usual(x))")
    assert found["forward"]["mac"] == 16
    (note,) = found["notes"]
    assert note.startswith("data-dependent branch, counted as not taken: ")
    assert note.endswith(f"costed_model.py, line {line}")
    assert fathom(monkeypatch, "predict", f"{module}:chooses", "--on", "H100", "--json") == 0
    assert json.loads(capsys.readouterr().out)["notes"][-1] == note
    assert fathom(monkeypatch, "advise", f"{module}:chooses", "--items", "1e6", "--on", "H100", "--json") == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == [note]
    assert shown(monkeypatch, capsys, "seq2seq", "--preset", "tiny")["notes"] == []  # its decoding loop is no secret


def test_a_loop_that_only_a_value_ends_is_one_line(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fathom.engine.as_on_gpu.MOST_BRANCHES", 20)
    assert fathom(monkeypatch, "cost", f"{module}:waits") == 2
    assert "data-dependent loop: its end depends on a tensor's value" in capsys.readouterr().err


def test_a_sample_of_a_distribution_needs_no_values(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # a compiler may have switched it off
    assert shown(monkeypatch, capsys, f"{module}:draws")["forward"]["mac"] == 16
    with pytest.raises(ValueError, match="constraint"):  # for everybody else they are looked at as before
        torch.distributions.Normal(torch.zeros(1), -torch.ones(1))


SPARSE = """
import torch
from torch import nn

ROWS, WIDTH = 100_000, 64


class Words(nn.Module):
    def __init__(self, kind, sparse=True):
        super().__init__()
        self.table = kind(ROWS, WIDTH, sparse=sparse)

    def forward(self, x):
        return self.table(x)


def made(kind=nn.Embedding, optimizer=None, sparse=True):
    model = Words(kind, sparse)
    return model, torch.zeros(8, 10, dtype=torch.long), None, optimizer and optimizer(model.parameters())


def plain(): return made()
def bags(): return made(nn.EmbeddingBag)
def adam(): return made(optimizer=torch.optim.SparseAdam)
def adagrad(): return made(optimizer=torch.optim.Adagrad)
def dense(): return made(sparse=False)
"""


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(("name", "states"), [("plain", 0), ("bags", 0), ("adam", 2), ("adagrad", 1)])
def test_sparse_gradients_are_those_of_the_rows_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, states: int
) -> None:
    """80 indices into a table of 100,000 rows: neither gradients nor the update are of the whole table."""
    (tmp_path / "sparse_tables.py").write_text(SPARSE)
    monkeypatch.syspath_prepend(str(tmp_path))
    table, rows, row = 100_000 * 64 * 4, 80, 64 * 4 + 8
    found = cost_of_target(f"sparse_tables:{name}")
    own, *others = [each for each in found.memory if each.precision == "fp32"]
    assert own.gradients == pytest.approx(rows * row, rel=0.05)
    assert own.state == pytest.approx(states * table, rel=1e-3)
    assert own.peak < (1 + states) * table + (65 << 20)
    assert [each.state for each in others] == [0, table, 2 * table]
    assert found.training is not None
    assert rows * row < found.training.bytes * 8 < 60 * rows * row
    assert not found.uncounted
    (gradient,) = step_of_target(f"sparse_tables:{name}", "train", "fp32", None, gpu=False).gradients
    assert gradient.size_bytes == rows * row
    dense = cost_of_target("sparse_tables:dense")
    assert dense.memory[0].gradients == table


RAGGED = """
import torch
from torch import nn


class Bags(nn.Module):
    def __init__(self, width=4, ends=False, loss=False):
        super().__init__()
        self.table, self.loss = nn.EmbeddingBag(100, width, include_last_offset=ends), loss

    def forward(self, indices, offsets):
        found = self.table(indices, offsets)
        return {"loss": found.mean()} if self.loss else found


class Last(nn.LSTM):
    def forward(self, packed):
        return super().forward(packed)[1][0][-1]


def bags(**given):
    return Bags(**given), (torch.zeros(30, dtype=torch.long), torch.arange(0, 30, 5))


def ends():
    model = Bags(ends=True)
    return model, (torch.zeros(30, dtype=torch.long), torch.arange(0, 31, 5))


def summed():
    return bags(loss=True)


def time_first():
    class Model(nn.RNN):
        def forward(self, x):
            return super().forward(x)[0][-1]
    return Model(3, 4), (torch.ones(9, 6, 3), torch.zeros(6, dtype=torch.long)), "cross_entropy"


def masked():
    class Model(nn.Linear):
        def forward(self, x, mask):
            return super().forward(mask @ x)
    return Model(3, 4), (torch.ones(6, 9, 3), torch.ones(9, 9))


def packed():
    return Last(3, 4), nn.utils.rnn.pack_sequence([torch.ones(length, 3) for length in (5, 4, 3, 2, 1, 1)])


class Classifier(nn.LSTM):
    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, _ = super().forward(packed)
        return nn.utils.rnn.pad_packed_sequence(output, batch_first=True)[0].sum(1)


def packs():
    return Classifier(3, 4), (torch.ones(6, 5, 3), torch.tensor([5, 4, 3, 2, 1, 1]))


def nested():
    return nn.Linear(3, 4), torch.nested.nested_tensor([torch.ones(5, 3), torch.ones(2, 3)], layout=torch.jagged)
"""


@pytest.fixture
def ragged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "ragged_batches.py").write_text(RAGGED)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "ragged_batches"


@pytest.mark.parametrize("name", ["bags", "ends", "time_first", "masked", "packed"])
def test_an_item_is_a_row_of_the_output_where_it_is_none_of_the_input(ragged: str, name: str) -> None:
    found = cost_of_target(f"{ragged}:{name}")
    assert (found.batch, found.notes) == (6, [])
    assert step_of_target(f"{ragged}:{name}", "infer", "fp32", None, gpu=False).batch == 6


def test_sequences_packed_by_the_model_have_their_full_length(ragged: str) -> None:
    """Five steps of gates, of the input and of the state, in each of six sequences."""
    found = cost_of_target(f"{ragged}:packs", 10**9)
    assert (found.batch, found.forward.mac) == (6, 5 * 4 * 4 * (3 + 4))
    assert found.training is not None
    assert found.training.mac > 2 * found.forward.mac
    assert step_of_target(f"{ragged}:packs", "train", "fp32", 12, gpu=False).batch == 12


def test_other_sizes_of_a_ragged_batch_are_refused(ragged: str) -> None:
    with pytest.raises(BadOption, match="items of its batch have several rows"):
        cost_of_target(f"{ragged}:bags", 10**9)


def test_what_an_item_is_is_told_where_nothing_shows_it(ragged: str) -> None:
    found = cost_of_target(f"{ragged}:summed")
    assert found.batch == 30
    assert found.notes[0].startswith("30 items are the rows of its first tensor")
    with pytest.raises(BadOption, match="nested tensors cannot be counted"):
        cost_of_target(f"{ragged}:nested")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("frozen", "no parameter of Linear requires a gradient"),
        ("served", "the model's own loss depends on no trainable parameter"),
        ("lbfgs", "lbfgs runs the model several times in a step"),
    ],
)
def test_a_model_that_cannot_be_trained_has_its_inference_counted(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    found = shown(monkeypatch, capsys, f"{module}:{name}", "--memory", "1GB", "--items", "10")
    assert (found["parameters"], found["forward"]["mac"], found["training"], found["memory"]) == (20, 16, None, [])
    assert set(found["infer_peak"]) == {"fp32", "bf16"}
    assert {each["phase"] for each in found["largest"]} == {"infer"}
    (note,) = found["notes"]
    assert note.startswith(f"training is not possible: {why}")
    assert fathom(monkeypatch, "cost", f"{module}:{name}", "--items", "10") == 0
    printed = capsys.readouterr()
    assert "Memory of a training step" not in printed.out
    assert "Peak of an inference step" in printed.out


def test_a_model_that_needs_values_while_it_is_made_is_made_for_real(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(monkeypatch, capsys, f"{module}:loads")["parameters"] == 20


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["alexnt"], "no workload 'alexnt'; did you mean alexnet"),
        (["alexnet", "--preset", "papr"], "did you mean paper"),
        (["alexnet", "--set", "shrik=2"], "no option of alexnet"),
        (["alexnet", "--memory", "lots"], "--memory must be a size such as 80GB"),
        (["alexnet", "--items", "0"], "--items must be 1 or more"),
        (["--suite", "cookbok"], "no suite 'cookbok'"),
        (["costed_model:step"], "its cost can be counted of a model and a batch alone"),
        (["costed_model:nothing"], "costed_model has no nothing"),
        (["costed_model:peeks"], "item() cannot be called on meta tensors"),
        (["costed_model:make", "--batch", "3"], "a model of your own brings its own batch"),
        (["costed_model:make", "--preset", "tiny"], "--preset is for the workloads"),
        (["costed_model:empty"], "the batch of costed_model:empty has no items"),
    ],
)
def test_a_mistake_is_one_line(
    module: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    line: str,
) -> None:
    assert fathom(monkeypatch, "cost", *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert line in printed.err
    assert len(printed.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "size"), [("80GB", 80 * 10**9), ("141 GiB", 141 << 30), ("1.5g", 1_500_000_000), ("512", 512)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "GB", "0", "-1GB", "1e9GB", "80XB", "nan", "1.2.3G", "9" * 400, "9999999TB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(BadOption, match="--memory must be a size"):
        size_of(text)


NEEDS_VALUES = """
import torch
from torch import nn

TABLE = torch.linspace(0, 0.1, 3)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = [rate.item() for rate in TABLE]
        self.first, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight

    def forward(self, inputs):
        return self.last(self.first(inputs))


def make():
    model = Tied()
    return model, torch.randn(4, 8), None, torch.optim.AdamW(model.parameters())
"""


def test_weights_of_a_model_that_needs_values_stay_tied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its optimizer has them: it is made on the CPU, and moved to the meta device."""
    (tmp_path / "needs_values.py").write_text(NEEDS_VALUES)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cost_of_target("needs_values:make").parameters == 64


def test_a_module_that_fails_when_it_is_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fails_on_import.py").write_text('raise ValueError("my own mistake")')
    monkeypatch.chdir(tmp_path)
    assert fathom(monkeypatch, "cost", "fails_on_import:make") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: my own mistake" in line


CASTS = """
import torch
from torch import nn


class Block(nn.Linear):
    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return super().forward(x)


class Decorated(nn.Linear):
    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(self, x):
        return super().forward(x)


class Disabled(nn.Linear):
    @torch.autocast("cuda", enabled=False)
    def forward(self, x):
        return super().forward(x)


def block():
    return Block(512, 512), torch.randn(4, 512)


def decorated():
    return Decorated(512, 512), torch.randn(4, 512)


def disabled():
    return Disabled(512, 512), torch.randn(4, 512)
"""


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_autocast_as_a_decorator_counts_as_the_block_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a GPU, where torch disables what it makes while the module is imported."""
    (tmp_path / "casts_itself.py").write_text(CASTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    usual = torch.autocast.__init__
    block, decorated, disabled = (cost_of_target(f"casts_itself:{name}") for name in ("block", "decorated", "disabled"))
    assert replace(decorated, name=block.name) == block
    assert {row.precision for row in decorated.memory} == {"own"}
    assert {row.precision for row in disabled.memory} == {"fp32", "bf16"}
    step = step_of_target("casts_itself:decorated", "train", "fp32", None, gpu=True)
    assert step.precision == "bf16"
    assert torch.autocast.__init__ is usual


ORDINARY = """
import torch
from torch import nn

class Enlarged(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.first, self.last, self.mode = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1), mode
    def forward(self, x):
        return self.last(nn.functional.interpolate(self.first(x), scale_factor=2, mode=self.mode))

def enlarged():
    return Enlarged("bilinear"), torch.randn(2, 3, 64, 64)

def fused():
    model = nn.Linear(64, 10)
    return model, torch.randn(8, 64), None, torch.optim.AdamW(model.parameters(), fused=True)

def adafactor():
    model = nn.Linear(64, 96)
    return model, torch.randn(8, 64), None, torch.optim.Adafactor(model.parameters())

class Reading(torch.optim.Optimizer):
    def __init__(self, weights):
        super().__init__(weights, {})

    @torch.no_grad()
    def step(self, closure=None):
        for weight in (weight for group in self.param_groups for weight in group["params"]):
            norm = weight.grad.norm()
            if norm > 0:
                weight.mul_(1 - 0.1 * int(norm))
            for _ in range((weight.grad > 0).sum().item()):
                weight.sub_(weight.grad, alpha=0.1 / float(norm))

def reading():
    model = nn.Linear(64, 96, bias=False)
    return model, torch.randn(8, 64), None, Reading(model.parameters())

def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), torch.randn(4, 3, 8, 8)

def partly_evaluated():
    model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 8))
    model[2].eval()
    return model, torch.randn(1024, 64)

class KeepsEvaluating(nn.Sequential):
    def train(self, mode=True):
        super().train(mode)
        self[2].eval()
        return self

def keeps_evaluating():
    return KeepsEvaluating(nn.Linear(64, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 8)), torch.randn(1024, 64)

class Fixed(nn.Linear):
    def forward(self, x):
        return super().forward(x).view(4, 2, 4)

def of_four():
    return Fixed(8, 8), torch.randn(4, 8)
"""


@pytest.fixture
def ordinary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "ordinary.py").write_text(ORDINARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "ordinary"


def test_interpolation_is_one_op_in_inference_as_in_training(ordinary: str) -> None:
    steps = [step_of_target(f"{ordinary}:enlarged", phase, "fp32", None, gpu=True) for phase in ("train", "infer")]
    train, infer = ([step.ops[at].op for at in step.sequence if step.ops[at].part == "forward"] for step in steps)
    assert infer == ["aten::convolution", "aten::upsample_bilinear2d", "aten::convolution"]
    assert train[:3] == infer


def test_a_fused_optimizer_and_lazy_layers_are_counted(ordinary: str) -> None:
    fused = step_of_target(f"{ordinary}:fused", "train", "fp32", None, gpu=True)
    assert [op.op for op in fused.ops if op.part == "optimizer"] == ["aten::_foreach_add_", "aten::_fused_adamw_"]
    assert cost_of_target(f"{ordinary}:lazy").parameters == 192 * 10 + 10


def test_an_optimizer_that_reads_values_is_counted(ordinary: str) -> None:
    """Adafactor keeps the sums of rows and of columns, and scales its update by norms that it reads."""
    sheet = cost_of_target(f"{ordinary}:adafactor")
    own = next(row for row in sheet.memory if "Adafactor" in row.optimizer)
    assert own.state == 3 * BLOCK, "rows and columns of the weight, and the bias"
    step = step_of_target(f"{ordinary}:adafactor", "train", "fp32", None, gpu=False)
    updates = Counter(step.ops[at].op for at in step.sequence if step.ops[at].part == "optimizer")
    assert (updates["aten::mm"], updates["aten::rsqrt_"], updates["aten::linalg_vector_norm"]) == (1, 2, 6)
    step = step_of_target(f"{ordinary}:reading", "train", "fp32", None, gpu=False)
    updates = Counter(step.ops[at].op for at in step.sequence if step.ops[at].part == "optimizer")
    assert (updates["aten::mul_"], updates["aten::sub_"]) == (1, 1), "each value that is read counts as 1"


@pytest.mark.parametrize("name", ["partly_evaluated", "keeps_evaluating"])
def test_parts_in_evaluation_mode_stay_so_in_a_simulated_training_step(ordinary: str, name: str) -> None:
    """The dropout layer keeps no mask and no output: 16 MiB of the hidden layer alone."""
    memory = cost_of_target(f"{ordinary}:{name}").memory[0]
    assert memory.activations / 2**20 == pytest.approx(16, rel=0.01)


@pytest.mark.parametrize("name", ["fused", "lazy", "of_four"])
def test_a_plan_for_them_is_made_or_refused_in_lines(
    ordinary: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("advise", f"{ordinary}:{name}", "--items", "1e6", "--on", "h100", "--count", "1", "--batch", "4")
    assert fathom(monkeypatch, *asked) == 0
    assert "Advised" in capsys.readouterr().out
