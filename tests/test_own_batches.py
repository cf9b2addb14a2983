"""A user's batch, in whatever container it comes: how it becomes arguments and a target, and stays as it was."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import fathom
from fathom.core.errors import BadOption
from fathom.measure.own.batch import Call, Takes, bind, items_in, on_device, rebuilt, tensors_in

X, Y, MASK = torch.randn(8, 4), torch.randint(0, 3, (8,)), torch.ones(8, 4)
CPU = torch.device("cpu")


class Pair(NamedTuple):
    x: Tensor
    mask: Tensor


class Strange(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Sample:
    image: Tensor
    size: int = 3


class Encoding(collections.UserDict[str, Tensor]):
    """As a tokenizer returns it: a mapping that is no dict, and moves itself."""

    def to(self, device: torch.device) -> Encoding:
        self.data = {name: value.to(device) for name, value in self.data.items()}
        return self


def two(x: Tensor, mask: Tensor | None = None) -> None: ...
def both(x: Tensor, mask: Tensor) -> None: ...
def whole(batch: Any, train: bool = True) -> None: ...
def anything(*args: Any, **kwargs: Any) -> None: ...
def labelled(x: Tensor, labels: Tensor | None = None) -> None: ...
def nothing() -> None: ...
def open_ended(batch: Any, **kwargs: Any) -> None: ...


def called(function: Any, batch: Any, wants_target: bool = False) -> Call:
    return bind(Takes.of(function), batch, wants_target=wants_target)


SAMPLE, STRANGE = Sample(X), Strange(X, MASK)
MAPPING = {"image": X, "size": Y}
CALLS: dict[str, tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = {
    "a tensor": (two, X, (X,), {}),
    "a tuple": (two, (X, MASK), (X, MASK), {}),
    "a list": (two, [X, MASK], (X, MASK), {}),
    "a mapping of its parameters": (two, {"x": X, "mask": MASK}, (), {"x": X, "mask": MASK}),
    "an encoding": (two, Encoding(x=X, mask=MASK), (), {"x": X, "mask": MASK}),
    "a named tuple of its parameters": (two, Pair(X, MASK), (), {"x": X, "mask": MASK}),
    "a named tuple of other names": (both, STRANGE, (X, MASK), {}),
    "a mapping that is passed whole": (whole, MAPPING, (MAPPING,), {}),
    "a mapping beside open keywords": (open_ended, MAPPING, (MAPPING,), {}),
    "a named tuple that is passed whole": (whole, STRANGE, (STRANGE,), {}),
    "a dataclass that is passed whole": (whole, SAMPLE, (SAMPLE,), {}),
    "a mapping to open keywords": (anything, MAPPING, (), MAPPING),
    "a mapping with numbers as names": (whole, {1: X}, ({1: X},), {}),
    "a mapping in a tuple of one": (two, ({"x": X},), ({"x": X},), {}),
    "a number": (two, 5, (5,), {}),
    "no batch": (nothing, None, (), {}),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_batch_becomes_arguments(case: str) -> None:
    function, batch, args, kwargs = CALLS[case]
    call = called(function, batch)
    assert call.args == args or all(mine is theirs for mine, theirs in zip(call.args, args, strict=True))
    assert call.kwargs.keys() == kwargs.keys()
    assert all(call.kwargs[name] is kwargs[name] for name in kwargs)
    assert call.target is None


REFUSED = {
    "too many": (whole, (X, MASK, Y), "forward() takes batch, train; the batch has 3 elements"),
    "unknown name": (two, {"x": X, "segment": Y}, "forward() takes x, mask; the batch has x, segment"),
    "missing name": (both, {"x": X}, "forward() takes x, mask; the batch has x;"),
    "no batch": (both, None, "forward() needs x, mask: give a batch"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_one_line_with_both_sides(case: str) -> None:
    function, batch, expected = REFUSED[case]
    with pytest.raises(BadOption) as caught:
        called(function, batch)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_the_target_is_found_by_name_or_is_the_last_element() -> None:
    for name in ("labels", "label", "target", "targets", "y"):
        call = called(two, {"x": X, name: Y}, wants_target=True)
        assert call.target is Y
        assert call.kwargs.keys() == {"x"}, "forward() has no parameter for it"
    call = called(labelled, {"x": X, "labels": Y}, wants_target=True)
    assert call.kwargs.keys() == {"x", "labels"}, "forward() has one"
    for batch in ((X, Y), [X, Y]):
        call = called(two, batch, wants_target=True)
        assert call.target is Y
        assert call.args == (X,)
    call = called(both, (X, Y), wants_target=True)
    assert call.args == (X, Y), "forward() needs both"
    call = called(two, ({"x": X, "mask": MASK}, Y), wants_target=True)
    assert call.target is Y
    assert call.kwargs.keys() == {"x", "mask"}
    call = called(whole, {"image": X, "labels": Y}, wants_target=True)
    assert call.target is Y
    assert call.args[0].keys() == {"image", "labels"}
    for without in (X, {"x": X}, (X,)):
        with pytest.raises(BadOption, match="the batch has none: a mapping needs one of labels, label"):
            called(two, without, wants_target=True)


def test_a_batch_is_copied_and_keeps_its_containers() -> None:
    encoding, leaf = Encoding(x=X), torch.ones(3, requires_grad=True)
    batch = {"e": encoding, "p": Pair(X, MASK), "s": SAMPLE, "l": [X, (X, None)], "g": leaf, "n": 3}
    moved = on_device(batch, CPU)
    assert [type(each) for each in moved.values()] == [type(each) for each in batch.values()]
    assert type(moved["l"][1]) is tuple
    assert moved["g"].requires_grad
    assert moved["g"].is_leaf
    before = {id(tensor) for tensor in tensors_in(batch)}
    for mine, theirs in zip(tensors_in(moved), tensors_in(batch), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()
    assert {id(tensor) for tensor in tensors_in(batch)} == before
    assert encoding["x"] is X
    assert SAMPLE.image is X
    counts: collections.defaultdict[str, Tensor] = collections.defaultdict(lambda: X)
    assert type(rebuilt(counts, lambda leaf: leaf)) is collections.defaultdict


def test_a_packed_sequence_is_one_input() -> None:
    packed = pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])
    assert isinstance(on_device(packed, CPU), PackedSequence)
    assert called(two, packed).args == (packed,)
    assert items_in(packed) == 2


@pytest.mark.parametrize(
    ("batch", "items"),
    [
        (X, 8),
        ((X, Y), 8),
        ({"n": 3, "x": X}, 8),
        (([torch.randn(3, 9, 9), torch.randn(3, 7, 7)],), 2),  # a list of images of different sizes
        (Pair(X, MASK), 8),
        (SAMPLE, 8),
        (torch.tensor(3.0), None),
        (5, None),
        (None, None),
    ],
)
def test_items_are_counted_or_not_known(batch: Any, items: int | None) -> None:
    assert items_in(batch) == items


class Popping(nn.Module):
    """Takes one mapping, and takes from it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, batch: dict[str, Tensor]) -> Sample:
        x = batch.pop("features")
        batch["more"] = x.add_(1)
        return Sample(self.layer(x))


@pytest.mark.usefixtures("few_steps")
def test_a_model_that_changes_its_batch_leaves_the_users_alone() -> None:
    features = torch.zeros(8, 4)
    batch = Encoding(features=features)
    record = fathom.profile(Popping(), batch, device="cpu")
    assert record.items_per_step == 8
    assert list(batch) == ["features"]
    assert batch["features"] is features
    assert not features.any()


class Several(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.layer, self.output = nn.Linear(4, 3), output

    def forward(self, x: Tensor) -> Any:
        return self.output(self.layer(x))


class Plain:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


OUTPUTS = {
    "a tuple with None": lambda scores: (scores, None, scores.argmax(1)),
    "a mapping": lambda scores: collections.OrderedDict(logits=scores, hidden=None),
    "a dataclass": Sample,
    "a named tuple": lambda scores: Pair(scores, scores.detach()),
    "an object": Plain,
    "its own loss": lambda scores: {"loss": scores.mean()},
    "complex numbers": torch.fft.fft,
}


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("phase", ["train", "infer"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_any_output_is_trained_on_and_inferred(output: str, phase: str) -> None:
    record = fathom.profile(Several(OUTPUTS[output]), X, phase=phase, device="cpu")
    assert record.outcome == "ok"
    assert record.profile is not None
    matrix = [row for row in record.profile.rows if row.op == "aten::addmm"]
    assert sum(row.flop or 0 for row in matrix) == 2 * 8 * 4 * 3
