"""speech: the network against a slow reference, CTC and its decoders against the enumeration of every path."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import real_data
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fathom.core.errors import BadOption, DataError, UnknownName
from fathom.data import timit
from fathom.data.base import Batch
from fathom.engine.base import Engine, clipping
from fathom.engine.engines.eager import Eager
from fathom.workloads import _ctc
from fathom.workloads._deep_speech import CLIP, BidirectionalRecurrent, DeepSpeech, mirrored
from fathom.workloads.base import State
from fathom.workloads.speech import Speech

TINY = Speech.configured("tiny", batch=3, units=12, frames=20, phones=5)


def test_parameter_count_of_the_published_network() -> None:
    with torch.device("meta"):
        model = Speech.configured("paper").model()
    dense1 = 26 * 19 * 2048 + 2048
    square = 2048 * 2048 + 2048  # layers 2, 3 and 5, and the input of layer 4, shared by both directions
    recurrent = 2 * 2048 * 2048
    output = 2048 * 62 + 62
    expected = dense1 + 4 * square + recurrent + output
    assert sum(weight.numel() for weight in model.parameters()) == expected == 26_314_814
    assert [name for name, _ in model.named_children()] == [
        "dense1",
        "dense2",
        "dense3",
        "recurrent4",
        "dense5",
        "output",
    ]


def recurrent_reference(layer: BidirectionalRecurrent, x_TBH: Tensor, frames: list[int]) -> Tensor:
    """Layer 4 an utterance, a direction and a frame at a time, with autograd left to itself."""
    utterances = []
    for column, length in enumerate(frames):
        inputs = layer.input(x_TBH[:length, column])
        directions = []
        for weight, order in zip(layer.recurrent, (range(length), reversed(range(length))), strict=True):
            state, states = torch.zeros_like(inputs[0]), {}
            for time in order:
                state = (inputs[time] + state @ weight).clamp(0, CLIP)
                states[time] = state
            directions.append(torch.stack([states[time] for time in range(length)]))
        utterances.append(directions[0] + directions[1])
    return nn.utils.rnn.pad_sequence(utterances)


def test_recurrent_layer_and_its_gradients_equal_the_slow_reference() -> None:
    torch.manual_seed(0)
    layer = BidirectionalRecurrent(6).double()
    with torch.no_grad():
        layer.recurrent.mul_(1.3)
        layer.input.weight.mul_(20)  # large enough that some units reach the clip
    frames = [9, 1, 5]
    x = torch.randn(9, 3, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(9, 3, 6, dtype=torch.float64) * (
        torch.arange(9)[:, None, None] < torch.tensor(frames)[:, None]
    )
    ours = layer(x, torch.tensor(frames))
    assert (ours == 2 * CLIP).any()
    theirs = recurrent_reference(layer, x, frames)
    inputs = [x, layer.recurrent, layer.input.weight, layer.input.bias]
    torch.testing.assert_close(ours * (weights != 0), theirs * (weights != 0))
    for one, other in zip(
        torch.autograd.grad((ours * weights).sum(), inputs),
        torch.autograd.grad((theirs * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_mirror_reverses_each_utterance_within_its_length_and_is_its_own_inverse() -> None:
    frames = torch.tensor([4, 2, 1])
    table = torch.arange(12).view(4, 3)  # time x utterance
    turned = table.flatten()[mirrored(frames, 4)].view(4, 3)
    assert turned[:, 0].tolist() == [9, 6, 3, 0]
    assert turned[:, 1].tolist() == [4, 1, 7, 10]
    assert turned[:, 2].tolist() == [2, 5, 8, 11]
    assert torch.equal(turned.flatten()[mirrored(frames, 4)], table.flatten())


def test_padding_changes_no_real_frame() -> None:
    torch.manual_seed(1)
    model = TINY.model().eval()
    features, frames = torch.randn(3, 20, 26), torch.tensor([20, 13, 4])
    together = model(features, frames)
    garbage = features.clone()
    for row, length in enumerate(frames.tolist()):
        garbage[row, length:] = float("nan")
        alone = model(features[row : row + 1, :length], frames[row : row + 1])
        torch.testing.assert_close(together[:length, row], alone[:, 0])
    torch.testing.assert_close(model(garbage, frames)[:4], together[:4])
    wider = model(F.pad(features, (0, 0, 0, 7)), frames)
    torch.testing.assert_close(wider[:20], together)


def test_first_layer_sees_nine_frames_on_each_side_and_no_more() -> None:
    model = DeepSpeech(context=9, units=4, dropout=0.0)
    features = torch.randn(1, 30, 26)
    windows = model._in_context(features, torch.tensor([30]))
    assert windows.shape == (30, 1, 494)
    assert torch.equal(windows[15, 0].view(19, 26), features[0, 6:25])
    assert torch.equal(windows[2, 0].view(19, 26)[7:], features[0, :12])
    assert not windows[2, 0].view(19, 26)[:7].any()


def test_weights_are_initialised_to_be_stable() -> None:
    torch.manual_seed(2)
    model = Speech.configured("tiny").model()
    for direction in model.recurrent4.recurrent:
        torch.testing.assert_close(direction @ direction.T, torch.eye(128), atol=1e-5, rtol=0)
    assert model.dense1.weight.std().item() == pytest.approx(math.sqrt(2 / 494), rel=0.05)
    assert not model.dense1.bias.any()
    states = model.recurrent4(torch.randn(2000, 1, 128), torch.tensor([2000]))
    assert states[-500:].norm() < 2 * states[:500].norm(), "states must not grow over two thousand frames"


def test_gradients_reach_every_parameter_and_nothing_flows_through_the_clip() -> None:
    torch.manual_seed(3)
    model = TINY.model()
    TINY.loss(model, TINY.example()).backward()  # type: ignore[no-untyped-call]
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
        assert weight.grad.abs().sum() > 0, name


def path_probabilities(log_probs_TC: Tensor) -> dict[tuple[int, ...], float]:
    """The probability of every label sequence, by walking all C^T paths."""
    table = log_probs_TC.double().exp().tolist()
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(len(table[0])), repeat=len(table)):
        merged = tuple(label for label, _ in itertools.groupby(path) if label != _ctc.BLANK)
        found[merged] += math.prod(row[label] for row, label in zip(table, path, strict=True))
    return found


class Scores(nn.Module):
    """A network that says what it was told to say: T x B x C."""

    def __init__(self, scores_TBC: Tensor) -> None:
        super().__init__()
        self.scores = scores_TBC

    def forward(self, features: Tensor, frames: Tensor) -> Tensor:
        return self.scores


def test_loss_is_the_sum_over_all_paths() -> None:
    torch.manual_seed(4)
    scores = torch.randn(5, 2, 4)
    phones, counts, frames = [[1, 1, 3], [2, 3, 0]], [3, 2], [5, 4]
    batch = {"features": torch.zeros(2, 5, 26), "frames": torch.tensor(frames)}
    batch |= {"phones": torch.tensor(phones), "phone_count": torch.tensor(counts)}
    expected = 0.0
    for row in range(2):
        every = path_probabilities(scores[: frames[row], row].log_softmax(-1))
        expected -= math.log(every[tuple(phones[row][: counts[row]])]) / 2
    assert TINY.loss(Scores(scores), batch).item() == pytest.approx(expected, rel=1e-5)
    assert TINY.loss(Scores(scores.bfloat16()), batch).dtype == torch.float32


def greedy_reference(log_probs_TC: Tensor) -> list[int]:
    return [label for label, _ in itertools.groupby(log_probs_TC.argmax(-1).tolist()) if label != _ctc.BLANK]


def test_what_a_loss_leaves_in_the_gradient_of_padding_reaches_no_weight() -> None:
    log_probs = torch.randn(5, 2, 3).log_softmax(-1).requires_grad_()
    frames = torch.tensor([5, 3])
    spoken = _ctc.no_gradient_of_padding(log_probs, frames)
    assert torch.equal(spoken, log_probs)
    left_behind = torch.ones(5, 2, 3)
    left_behind[3:, 1] = math.nan  # memory that cuDNN does not write to
    (gradient,) = torch.autograd.grad(spoken, log_probs, left_behind)
    expected = torch.ones(5, 2, 3)
    expected[3:, 1] = 0
    assert torch.equal(gradient, expected)


@pytest.mark.gpu
def test_the_loss_on_a_gpu_has_the_gradients_of_the_one_on_a_cpu() -> None:
    torch.manual_seed(6)
    scores = torch.randn(50, 8, 20)
    frames, count = torch.randint(25, 51, (8,)), torch.randint(1, 12, (8,))
    phones = torch.randint(1, 20, (8, 12))
    held = [torch.full((50, 8, 20), math.nan, device="cuda") for _ in range(8)]
    del held  # their memory is given to the loss
    gradients = []
    for device in ("cpu", "cuda"):
        leaf = scores.to(device).detach().requires_grad_()
        loss = _ctc.loss(leaf.log_softmax(-1), phones.to(device), frames.to(device), count.to(device))
        gradients.append(torch.autograd.grad(loss, leaf)[0].cpu())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)


def test_greedy_decoding_equals_the_naive_one() -> None:
    torch.manual_seed(5)
    log_probs, frames = torch.randn(64, 40, 4).log_softmax(-1), torch.randint(1, 41, (64,))
    phones, counts = _ctc.greedy(log_probs, frames)
    assert phones.shape == (64, 40)
    for row in range(64):
        expected = greedy_reference(log_probs[row, : frames[row]])
        assert phones[row, : counts[row]].tolist() == expected
        assert not phones[row, counts[row] :].any()


def test_greedy_decoding_keeps_a_phone_said_twice() -> None:
    said = torch.tensor([[2, 2, 0, 2, 0, 0, 1, 1, 3]])
    phones, counts = _ctc.greedy(F.one_hot(said, 4).float(), torch.tensor([8]))
    assert phones[0].tolist() == [2, 2, 1, 0, 0, 0, 0, 0, 0], "the ninth frame is padding"
    assert counts.tolist() == [3]


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 4.0])
def test_a_wide_beam_finds_the_likeliest_sequence_of_all(sharpness: float) -> None:
    torch.manual_seed(6)
    log_probs, frames = (sharpness * torch.randn(12, 6, 3)).log_softmax(-1), torch.tensor([6, 5, 4, 3, 2, 1] * 2)
    phones, counts, scores = _ctc.beam_search(log_probs, frames, beam=130)  # there are 127 sequences
    for row in range(12):
        every = path_probabilities(log_probs[row, : frames[row]])
        best = max(every, key=lambda sequence: every[sequence])
        assert tuple(phones[row, : counts[row]].tolist()) == best
        assert scores[row].exp().item() == pytest.approx(every[best], rel=1e-4)
        assert not phones[row, counts[row] :].any()


def beam_reference(log_probs_TC: Tensor, beam: int) -> tuple[int, ...]:
    """Prefix beam search as it is usually told: a table of prefixes, with the two ways in which their paths end."""
    kept: dict[tuple[int, ...], tuple[float, float]] = {(): (1.0, 0.0)}
    for row in log_probs_TC.double().exp().tolist():
        table: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for prefix, (blank, phone) in kept.items():
            table[prefix][0] += (blank + phone) * row[_ctc.BLANK]
            for label in range(1, len(row)):
                repeated = bool(prefix) and prefix[-1] == label
                if repeated:
                    table[prefix][1] += phone * row[label]
                table[(*prefix, label)][1] += (blank if repeated else blank + phone) * row[label]
        best = sorted(table.items(), key=lambda entry: -sum(entry[1]))[:beam]
        kept = {prefix: (blank, phone) for prefix, (blank, phone) in best}
    return next(iter(kept))


@pytest.mark.parametrize("beam", [2, 5, 16])
def test_a_narrow_beam_prunes_as_the_textbook_does(beam: int) -> None:
    torch.manual_seed(7)
    log_probs, frames = (2 * torch.randn(10, 30, 5)).log_softmax(-1), torch.randint(20, 31, (10,))
    phones, counts, _ = _ctc.beam_search(log_probs, frames, beam)
    for row in range(10):
        assert tuple(phones[row, : counts[row]].tolist()) == beam_reference(log_probs[row, : frames[row]], beam)


def test_beam_beats_the_best_path_where_many_paths_agree() -> None:
    table = torch.tensor(
        [[[0.6, 0.4], [0.6, 0.4]]]
    ).log()  # best path: nothing (0.36); the phone has 0.64 in three paths
    workload = Speech.configured("tiny", batch=1)
    batch = {"features": torch.zeros(1, 2, 26), "frames": torch.tensor([2])}
    network = Scores(table.transpose(0, 1))
    assert workload.infer(network, batch)["phone_count"].tolist() == [0]
    wide = Speech.configured("tiny", batch=1, beam=4).infer(network, batch)
    assert (wide["phones"].tolist(), wide["phone_count"].tolist()) == ([[1, 0]], [1])


def test_answers_are_phones_by_name() -> None:
    source = TINY.synthetic(0)
    said = [timit.PHONES.index(phone) + 1 for phone in ("sh", "iy", "hh", "ae", "d")]
    output = {"phones": torch.tensor([[*said, 0, 0], [0] * 7]), "phone_count": torch.tensor([5, 0])}
    assert TINY.answers(output, source) == ["sh iy hh ae d", ""]
    source.phones = source.phones[:10]
    assert TINY.answers({"phones": torch.tensor([[1, 61]]), "phone_count": torch.tensor([2])}, source) == ["aa ?"]


def engine_for(
    workload: Speech, source: Any, autocast: Any = nullcontext, seed: int = 0
) -> tuple[Engine, Callable[[int], list[float]]]:
    """The eager engine of a network that learns from a source, and how it takes so many steps."""
    torch.manual_seed(seed)
    device = torch.device("cpu")
    model = workload.model().train()
    state = State(
        model=model,
        device=device,
        source=source,
        batches=workload.feed(source, device, seed),
        optimizer=workload.optimizer(model),
        autocast=autocast,
    )
    clip = clipping(state, workload.clip_norm)
    engine = Eager(state, partial(workload.loss, model), partial(workload.infer, model), clip)
    return engine, lambda steps: [float(engine.update(next(state.batches))) for _ in range(steps)]


def losses_of(workload: Speech, source: Any, steps: int, autocast: Any = nullcontext) -> list[float]:
    return engine_for(workload, source, autocast)[1](steps)


def test_loss_falls_on_synthetic_speech_and_depends_on_the_seed_alone() -> None:
    workload = Speech.configured("tiny")
    losses = losses_of(workload, workload.synthetic(0), 40)
    again = losses_of(workload, workload.synthetic(0), 5)
    assert losses[:5] == again
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_eight_utterances_are_learnt_by_heart() -> None:
    workload = Speech.configured("tiny", units=64, frames=36, phones=4, dropout=0.0)
    source = timit.synthetic(0, workload.sizes, items=8)
    engine, train = engine_for(workload, source)
    losses = train(80)
    batch = source[range(8)]
    expected = workload.answers(batch, source)
    assert len(set(expected)) == 8
    assert losses[-1] < 0.1
    for beam in (1, 4):
        decoding = Speech.configured("tiny", frames=36, beam=beam)
        assert decoding.answers(decoding.infer(engine.state.model, batch), source) == expected


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_bf16_follows_fp32() -> None:
    workload = Speech.configured("tiny", batch=2, units=16, frames=20, dropout=0.0)
    source = workload.synthetic(0)
    exact = losses_of(workload, source, 4)
    rough = losses_of(workload, source, 4, lambda: torch.autocast("cpu", torch.bfloat16))
    assert rough == pytest.approx(exact, rel=0.05)
    assert rough != exact


def test_costs_can_be_counted_on_meta_tensors() -> None:
    with torch.device("meta"):
        model = TINY.model()
    batch: Batch = {name: column.to("meta") for name, column in TINY.example().items()}
    with FlopCounterMode(display=False) as forward:
        scores = TINY.forward(model, batch)
    assert scores.shape == (3, 20, 62)
    units, frames = 12, 3 * 20
    dense = frames * units * (494 + 4 * units + 62)
    recurrent = 2 * (frames - 3) * units * units  # no product at an utterance's first frame
    assert forward.get_total_flops() == 2 * (dense + recurrent)
    with FlopCounterMode(display=False) as backward:
        scores.sum().backward()  # type: ignore[no-untyped-call]
    assert backward.get_total_flops() == 2 * forward.get_total_flops() - 2 * frames * 494 * units


@pytest.mark.parametrize(
    ("option", "value"), [("frames", 0), ("beam", 0), ("context", -1), ("units", 0), ("phones", 0), ("dropout", 1.0)]
)
def test_impossible_options_are_told(option: str, value: float) -> None:
    with pytest.raises(BadOption, match=f"^{option} must be at least"):
        Speech.configured("tiny", **{option: value})
    with pytest.raises(UnknownName, match="did you mean units"):
        Speech.configured("tiny", unit=3)


@pytest.mark.parametrize("frames", [1, 3, 40])
def test_any_size_trains_and_decodes(frames: int) -> None:
    workload = Speech.configured("tiny", batch=2, units=8, frames=frames, phones=3)
    engine, train = engine_for(workload, workload.synthetic(0))
    assert all(math.isfinite(loss) for loss in train(2))
    assert engine.infer(next(engine.state.batches))["phones"].shape == (2, frames)


def test_a_folder_of_something_else_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither TIMIT nor AN4; the folder must contain TIMIT's TRAIN and TEST"):
        Speech.configured("tiny").real(tmp_path)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "changes"),
    [("an4", {}), ("an4-sph-mini", {"frames": 300, "phones": 40}), ("timit-style", {"frames": 300, "phones": 40})],
)
def test_real_and_synthetic_batches_agree(name: str, changes: dict[str, int]) -> None:
    workload = Speech.configured("tiny", batch=2, **changes)
    folder = real_data(name)
    for split in ("train", "test"):
        real, synthetic = workload.real(folder, split)[[0, 1]], workload.example()
        assert {key: (column.shape, column.dtype) for key, column in real.items()} == {
            key: (column.shape, column.dtype) for key, column in synthetic.items()
        }


# the loss


def test_phones_are_packed_as_cudnn_reads_them() -> None:
    """One utterance after the other without padding; what stands behind them is not read."""
    phones = torch.tensor([[5, 6, 0, 0], [7, 0, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]])
    packed = _ctc._end_to_end(phones, torch.tensor([2, 1, 0, 4]))
    assert packed.dtype == torch.int32
    assert packed[:7].tolist() == [5, 6, 7, 1, 2, 3, 4]
    assert len(packed) == phones.numel()
    full = torch.arange(1, 7).reshape(2, 3)
    assert _ctc._end_to_end(full, torch.tensor([3, 3])).tolist() == [1, 2, 3, 4, 5, 6]


def test_on_a_cpu_the_loss_is_torchs_own_over_padded_phones() -> None:
    torch.manual_seed(0)
    log_probs = torch.randn(12, 3, 6).log_softmax(-1)
    phones = torch.tensor([[1, 2, 0], [3, 0, 0], [5, 4, 5]])
    frames, counts = torch.tensor([12, 9, 11]), torch.tensor([2, 1, 3])
    found = _ctc.loss(log_probs, phones, frames, counts)
    assert torch.equal(found, F.ctc_loss(log_probs, phones, frames, counts, blank=0, reduction="sum"))
    alone = [
        F.ctc_loss(log_probs[: frames[i], i], phones[i, : counts[i]], frames[i], counts[i], reduction="sum")
        for i in range(3)
    ]
    assert float(found) == pytest.approx(float(sum(alone)), rel=1e-5)
