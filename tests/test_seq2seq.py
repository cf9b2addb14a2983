"""seq2seq: its size, its arithmetic against a slow reference, its masks, and its decoding against enumeration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import real_data
from torch import Tensor

from fathom.core.errors import BadOption
from fathom.data._vocabulary import EOS, GO, PAD, UNK
from fathom.engine.session import load
from fathom.workloads import _translator
from fathom.workloads._translator import CHECK_EVERY, Translator, beam_search, greedy
from fathom.workloads.seq2seq import Seq2Seq

Score = tuple[float, list[int]]  # log probability per token, tokens with EOS


def tiny(**changes: Any) -> Seq2Seq:
    return Seq2Seq.configured("tiny", **{"embedding": 12, "hidden": 16, "batch": 4, **changes})


def expressive(workload: Seq2Seq, seed: int = 0, spread: float = 1.0) -> Translator:
    """A network with weights large enough that words, attention and state all matter to what it says."""
    torch.manual_seed(seed)
    model = workload.model().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.uniform_(-spread, spread)
        model.source_embedding.weight[PAD].zero_()
    return model


def sentences(rows: list[list[int]], width: int) -> Tensor:
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


@pytest.mark.parametrize("preset", ["small", "paper"])
def test_parameter_count(preset: str) -> None:
    words, width = 40_000, 256
    gates = 4 * width
    expected = (
        2 * words * width  # embeddings
        + 3 * gates * (width + width)  # encoder, no biases
        + gates * (2 * width + width)  # decoder: its first layer reads a word and the context
        + 2 * gates * (width + width)
        + 3 * 2 * gates  # the decoder's biases
        + (width * width)
        + (width * width + width)
        + width  # attention: key, query, score
        + (2 * width * width + width)  # readout
        + (width * words + words)  # projection
    )
    with torch.device("meta"):
        model = Seq2Seq.configured(preset).model()
    assert sum(weight.numel() for weight in model.parameters()) == expected == 34_436_928


def test_weights_start_as_in_the_paper() -> None:
    torch.manual_seed(0)
    model = Seq2Seq.configured("tiny").model()
    for name, weight in model.named_parameters():
        assert float(weight.detach().abs().max()) <= 0.08, name
        if weight.numel() > 1000:
            assert float(weight.detach().std()) == pytest.approx(0.16 / 12**0.5, rel=0.05), name
    assert not model.source_embedding.weight[PAD].any()


def test_forget_gates_may_start_open_and_nothing_else_changes() -> None:
    models = []
    for bias in (None, 1.0):
        torch.manual_seed(0)
        models.append(Seq2Seq.configured("tiny", forget_bias=bias).model())
    drawn, opened = (dict(model.named_parameters()) for model in models)
    changed = {name for name, weight in opened.items() if not torch.equal(weight, drawn[name])}
    assert changed == {f"decoder.{layer}.bias_{side}" for layer in range(3) for side in ("ih", "hh")}
    for layer in range(3):
        total = opened[f"decoder.{layer}.bias_ih"] + opened[f"decoder.{layer}.bias_hh"]
        assert (total[64:128] == 1).all(), "of 64 units: input gates, forget gates, cells, output gates"
        assert total[:64].abs().max() <= 0.16
        assert total[128:].abs().max() <= 0.16


def test_a_closed_forget_gate_forgets_and_an_open_one_does_not() -> None:
    """By what the cell does, not by where its bias lies."""
    kept = []
    for bias in (-100.0, 100.0):
        (cell, *_) = Seq2Seq.configured("tiny", forget_bias=bias).model().decoder
        state = torch.zeros(1, 64), torch.full((1, 64), 5.0)
        kept.append(float(cell(torch.zeros(1, 128), state)[1].detach().mean()))
    assert kept == pytest.approx([0, 5], abs=0.2)


def test_source_is_reversed_and_padding_comes_first() -> None:
    source = sentences([[4, 5, 6], [7], [4, 5, 6, 7, 8]], 5)
    backward = [[PAD, PAD, 6, 5, 4], [PAD, PAD, PAD, PAD, 7], [8, 7, 6, 5, 4]]
    forward = [[PAD, PAD, 4, 5, 6], [PAD, PAD, PAD, PAD, 7], [4, 5, 6, 7, 8]]
    assert tiny().arranged(source).tolist() == backward
    assert tiny(reverse_source=False).arranged(source).tolist() == forward


def lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    size = len(cell)
    enter, keep, new, show = (gates[at * size : (at + 1) * size] for at in range(4))
    cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return show.sigmoid() * cell.tanh(), cell


def slow_logits(weights: dict[str, Tensor], source: list[int], target: list[int], depth: int) -> Tensor:
    """One sentence, one word, one layer and one source position at a time, straight from the papers' equations."""
    size = weights["attention.query.weight"].shape[0]
    hidden, cell = ([torch.zeros(size, dtype=torch.double) for _ in range(depth)] for _ in range(2))
    read = []
    for number in reversed(source):
        below = weights["source_embedding.weight"][number]
        for at in range(depth):
            into, again = weights[f"encoder.weight_ih_l{at}"], weights[f"encoder.weight_hh_l{at}"]
            hidden[at], cell[at] = lstm_step(into @ below + again @ hidden[at], cell[at])
            below = hidden[at]
        read.append(below)
    rows = []
    for number in [GO, *target[:-1]]:
        query = weights["attention.query.weight"] @ hidden[-1] + weights["attention.query.bias"]
        energy = [(query + weights["attention.key.weight"] @ value).tanh() for value in read]
        scores = [(weights["attention.score.weight"][0] * each).sum().exp() for each in energy]
        context = sum((score / sum(scores) * value for score, value in zip(scores, read, strict=True)), torch.zeros(()))
        below = torch.cat([weights["target_embedding.weight"][number], context])
        for at in range(depth):
            into, again = weights[f"decoder.{at}.weight_ih"], weights[f"decoder.{at}.weight_hh"]
            bias = weights[f"decoder.{at}.bias_ih"] + weights[f"decoder.{at}.bias_hh"]
            hidden[at], cell[at] = lstm_step(into @ below + again @ hidden[at] + bias, cell[at])
            below = hidden[at]
        readout = (weights["readout.weight"] @ torch.cat([below, context]) + weights["readout.bias"]).tanh()
        rows.append(weights["projection.weight"] @ readout + weights["projection.bias"])
    return torch.stack(rows)


def test_logits_and_loss_agree_with_a_slow_reference() -> None:
    workload = tiny()
    model = expressive(workload)
    sources = [[9, 4, 17], [5], [30, 31, 32, 33, 34, 35, 36, 37]]
    targets = [[8, 9, EOS], [4, 5, 6, EOS], [4, 5, 6, 7, 8, 9, 10, 11, 12, EOS]]
    batch = {"source": sentences(sources, 8), "target": sentences(targets, 10)}
    logits = workload.forward(model, batch)
    assert logits.shape == (3, 10, 200)
    weights = {name: weight.detach().double() for name, weight in model.named_parameters()}
    loss = torch.zeros((), dtype=torch.double)
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        expected = slow_logits(weights, source, target, depth=3)
        torch.testing.assert_close(logits[row, : len(target)].double(), expected, atol=1e-5, rtol=1e-5)
        loss -= expected.log_softmax(1)[range(len(target)), target].sum()
    tokens = sum(map(len, targets))
    assert float(workload.loss(model, batch).detach()) == pytest.approx(float(loss) / tokens, rel=1e-5)


@pytest.mark.parametrize("reverse", [True, False])
def test_padding_changes_nothing(reverse: bool) -> None:
    workload = tiny(reverse_source=reverse)
    model = expressive(workload)
    target = sentences([[8, 9, EOS]], 3)
    alone = workload.forward(model, {"source": sentences([[9, 4, 17]], 3), "target": target})
    together = workload.forward(
        model,
        {
            "source": sentences([[9, 4, 17], [4, 5, 6, 7, 8, 9, 10]], 9),
            "target": sentences([[8, 9, EOS], [7] * 6 + [EOS]], 7),
        },
    )
    torch.testing.assert_close(together[0, :3], alone[0], atol=1e-5, rtol=1e-5)
    memory, _ = model.encode(workload.arranged(sentences([[9, 4, 17]], 9)))
    assert not memory.values[0, :6].any(), "the encoder's state stays at zero until the first word"


def test_the_order_of_the_source_matters() -> None:
    batch = {"source": sentences([[9, 4, 17]], 8), "target": sentences([[8, 9, EOS]], 10)}
    model = expressive(tiny())
    forward, backward = (tiny(reverse_source=reverse).forward(model, batch) for reverse in (False, True))
    assert float((forward - backward).detach().abs().max()) > 0.01


def small_model(words: int = 7, seed: int = 0) -> tuple[Seq2Seq, Translator]:
    workload = tiny(source_vocabulary=words, target_vocabulary=words, depth=2, target_length=4)
    return workload, expressive(workload, seed, spread=1.2)


def continuation(workload: Seq2Seq, model: Translator, source: Tensor) -> Callable[[list[int]], Tensor]:
    """Log probabilities of the next word by teacher forcing: another road to them than decoding takes."""

    def following(words: list[int]) -> Tensor:
        batch = {"source": source, "target": torch.tensor([[*words, PAD]])}
        with torch.no_grad():
            last = workload.forward(model, batch)[0, -1]
        return last.index_fill(0, torch.tensor([PAD, GO]), -torch.inf).log_softmax(0)

    return following


def enumerated(following: Callable[[list[int]], Tensor], words: int, length: int) -> list[Score]:
    """Every translation that ends within the length or is cut there."""
    found: list[Score] = []

    def grow(prefix: list[int], total: float) -> None:
        if len(prefix) == length or prefix[-1:] == [EOS]:
            found.append((total / len(prefix), prefix))
            return
        likely = following(prefix).tolist()
        for word in range(EOS, words):
            grow([*prefix, word], total + likely[word])

    grow([], 0.0)
    return sorted(found, reverse=True)


def slow_beam(following: Callable[[list[int]], Tensor], words: int, length: int, width: int) -> Score:
    beam: list[Score] = [(0.0, [])]
    for _ in range(length):
        candidates = [entry for entry in beam if entry[1][-1:] == [EOS]]
        for score, prefix in beam:
            if prefix[-1:] == [EOS]:
                continue
            likely = following(prefix).tolist()
            total = score * len(prefix)
            candidates += [((total + likely[w]) / (len(prefix) + 1), [*prefix, w]) for w in range(EOS, words)]
        beam = sorted(candidates, reverse=True)[:width]
    return beam[0]


def found(output: dict[str, Tensor], row: int) -> Score:
    tokens = output["tokens"][row].tolist()
    words = [token for token in tokens if token != PAD]
    assert tokens == words + [PAD] * (len(tokens) - len(words)), "padding is at the end alone"
    assert int(output["lengths"][row]) == len([word for word in words if word != EOS])
    return float(output["score"][row]), words


SOURCES = sentences([[4, 5, 6], [6], [5, 4], [4, 4, 4, 5, 6]], 5)


@torch.no_grad()
def test_a_wide_beam_finds_the_best_of_all_translations() -> None:
    improved = 0
    for seed in range(3):
        workload, model = small_model(seed=seed)
        wide = beam_search(model, workload.arranged(SOURCES), length=4, width=5 * 4**3)
        simple = greedy(model, workload.arranged(SOURCES), length=4)
        for row in range(len(SOURCES)):
            best = enumerated(continuation(workload, model, SOURCES[row : row + 1]), words=7, length=4)
            assert len(best) == 1 + 4 + 16 + 64 + 256
            score, tokens = found(wide, row)
            assert tokens == best[0][1]
            assert score == pytest.approx(best[0][0], abs=1e-4)
            improved += found(simple, row)[1] != tokens
    assert improved > 0, "searching must be worth something here, or the test shows nothing"


@torch.no_grad()
@pytest.mark.parametrize("width", [2, 3, 5])
def test_a_narrow_beam_agrees_with_a_slow_one(width: int) -> None:
    for seed in range(4):
        workload, model = small_model(seed=seed)
        output = beam_search(model, workload.arranged(SOURCES), length=4, width=width)
        for row in range(len(SOURCES)):
            following = continuation(workload, model, SOURCES[row : row + 1])
            expected = slow_beam(following, words=7, length=4, width=width)
            score, tokens = found(output, row)
            assert tokens == expected[1]
            assert score == pytest.approx(expected[0], abs=1e-4)


@torch.no_grad()
def test_greedy_is_a_beam_of_one() -> None:
    for seed in range(6):
        workload, model = small_model(words=30, seed=seed)
        source = torch.randint(4, 30, (8, 6), generator=torch.Generator().manual_seed(seed))
        one, simple = beam_search(model, source, 12, 1), greedy(model, source, 12)
        assert (one["tokens"] == simple["tokens"]).all()
        torch.testing.assert_close(one["score"], simple["score"], atol=1e-5, rtol=1e-5)
        assert workload.infer(model, {"source": source.flip(1)})["tokens"].shape == (8, workload.target_length)


@torch.no_grad()
@pytest.mark.parametrize("width", [1, 3])
def test_decoding_stops_soon_after_all_have_ended(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, model = small_model()
    model.projection.bias[EOS] = 100.0
    steps = 0
    advance = Translator.step

    def counted(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        return advance(*arguments)

    monkeypatch.setattr(Translator, "step", counted)
    workload = dataclasses.replace(workload, target_length=50, beam=width)
    output = workload.infer(model, {"source": SOURCES})
    assert steps == CHECK_EVERY
    assert output["tokens"].shape == (4, 50)
    assert output["tokens"].tolist() == [[EOS] + [PAD] * 49] * 4
    assert output["lengths"].tolist() == [0] * 4


@torch.no_grad()
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("bias", [0.0, 1.0, 100.0])
def test_decoding_to_the_full_length_gives_what_stopping_gives(
    width: int, bias: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA graph cannot stop when all sentences have ended."""
    workload, model = small_model()
    model.projection.bias[EOS] = bias
    workload = dataclasses.replace(workload, target_length=50, beam=width)
    stopped = workload.infer(model, {"source": SOURCES})
    monkeypatch.setattr(_translator, "_all_ended", lambda ended, position: False)
    whole = workload.infer(model, {"source": SOURCES})
    assert all(torch.equal(stopped[name], whole[name]) for name in stopped)


def test_it_learns_pairs_by_heart_and_says_them() -> None:
    workload = tiny(batch=8, hidden=48, embedding=32, depth=1)
    text = workload.synthetic(0)
    torch.manual_seed(0)
    model, batch = workload.model(), text[range(8)]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(320):
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for beam in (1, 3):
        with torch.inference_mode():
            output = dataclasses.replace(workload, beam=beam).infer(model.eval(), batch)
        assert (output["tokens"] == batch["target"]).all()
        expected = [text.target_vocabulary.decode(n for n in row if n > EOS) for row in batch["target"].tolist()]
        assert workload.answers(output, text) == expected
        assert float(output["score"].mean()) == pytest.approx(-float(loss.detach()), abs=0.05)


def test_gradients_reach_every_parameter() -> None:
    workload = tiny()
    torch.manual_seed(0)
    model = workload.model()
    workload.loss(model, workload.example()).backward()  # type: ignore[no-untyped-call]
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
        assert weight.grad.any(), name
    assert model.source_embedding.weight.grad is not None
    assert not model.source_embedding.weight.grad[PAD].any(), "padding stays at zero"


@pytest.mark.parametrize("beam", [1, 2])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 products says so at length
def test_bf16_stays_close_to_fp32(beam: int) -> None:
    workload = tiny(beam=beam)
    torch.manual_seed(0)
    model, batch = workload.model(), workload.example()
    exact = workload.loss(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = workload.loss(model, batch)
        values = model.encode(batch["source"])[0].values
        with torch.inference_mode():
            output = workload.infer(model, batch)
    assert rounded.dtype == torch.float32
    assert values.dtype == torch.bfloat16, "attention does run in bf16"
    assert float(rounded.detach()) == pytest.approx(float(exact.detach()), abs=0.02)
    assert output["score"].dtype == torch.float32
    assert torch.isfinite(output["score"]).all()
    rounded.backward()  # type: ignore[no-untyped-call]


def test_runs_on_the_meta_device() -> None:
    workload = tiny()
    batch = {name: column.to("meta") for name, column in workload.example().items()}
    with torch.device("meta"):
        model = workload.model()
    logits = workload.forward(model, batch)
    assert logits.shape == (4, workload.target_length, workload.target_vocabulary)
    logits.sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None for weight in model.parameters())


def test_dropout_acts_in_training_alone() -> None:
    workload = tiny(dropout=0.5)
    model, batch = expressive(workload), workload.example()
    assert (workload.forward(model, batch) == workload.forward(model, batch)).all()
    model.train()
    assert (workload.forward(model, batch) != workload.forward(model, batch)).any()


def test_words_are_hidden_in_training_alone_and_never_an_end_or_padding() -> None:
    workload = tiny(word_dropout=0.5)
    model, batch = expressive(workload), workload.example()
    words = torch.cat([batch["target"], torch.zeros_like(batch["target"])], 1)
    assert model._drop_words(words) is words
    model.train()
    shown = model._drop_words(words)
    hidden = shown != words
    assert (shown[hidden] == UNK).all()
    assert (words[hidden] > EOS).all()
    assert 0.3 < hidden.sum() / (words > EOS).sum() < 0.7


def test_loss_falls_and_repeats_with_its_seed() -> None:
    sessions = [load("seq2seq", preset="tiny", device="cpu", seed=seed).setup() for seed in (1, 1, 2)]
    runs = [torch.tensor(session.run(steps=20)).tolist() for session in sessions]
    assert runs[0] == runs[1] != runs[2]
    assert all(sum(run[-5:]) < 0.9 * sum(run[:5]) for run in runs)


@pytest.mark.parametrize(
    ("option", "value"), [("beam", 0), ("target_vocabulary", 4), ("target_length", 1), ("dropout", 1.0), ("depth", 0)]
)
def test_impossible_options_are_refused(option: str, value: float) -> None:
    with pytest.raises(BadOption, match=f"option {option} of seq2seq must be at least"):
        Seq2Seq.configured("tiny", **{option: value})


def test_real_and_synthetic_batches_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("train", "test"):
        (tmp_path / f"{name}.en").write_text("a b c.\nb a\n" * 3, encoding="utf-8")
        (tmp_path / f"{name}.fr").write_text("x y z.\ny x\n" * 3, encoding="utf-8")
    workload = tiny(batch=3)
    real = workload.real(tmp_path)
    made, given = workload.synthetic(0)[[0, 1, 2]], real[[0, 1, 2]]
    assert {name: (column.shape, column.dtype) for name, column in made.items()} == {
        "source": ((3, workload.source_length), torch.int64),
        "target": ((3, workload.target_length), torch.int64),
    }
    assert all((given[name].shape, given[name].dtype) == (made[name].shape, made[name].dtype) for name in made)
    fitted = workload.fit(real)
    assert (fitted.source_vocabulary, fitted.target_vocabulary) == (8, 8)
    assert workload.fit(workload.synthetic(0)) == workload
    session = load("seq2seq", preset="tiny", phase="infer", device="cpu", data=str(tmp_path), batch=3).setup()
    (output,) = session.run(steps=1)
    assert isinstance(output, dict)
    said = session.workload.answers(output, session.state.source)
    assert len(said) == 3
    assert set("".join(said)) <= set("xyz. <unk>")


@pytest.mark.realdata
def test_trains_on_real_multi30k(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = real_data("multi30k")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"target_language": "de", "source_vocabulary": 2000, "target_vocabulary": 1500, "lowercase": True}
    options |= {"source_length": 24, "target_length": 24}
    session = load("seq2seq", preset="tiny", device="cpu", data=str(folder), **options).setup()
    losses = torch.tensor(session.run(steps=20))
    assert (session.workload.source_vocabulary, session.workload.target_vocabulary) == (2000, 1500)  # type: ignore[attr-defined]
    assert float(losses[0]) == pytest.approx(math.log(1500), abs=0.1), "a fresh network knows nothing"
    assert float(losses[-3:].mean()) < float(losses[0]) - 0.3
