"""The memory network: equal to a slow reading of the paper, in its gradients too; and it learns its little world."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import real_data
from torch import Tensor

import fathom
from fathom.core.errors import BadOption, UnknownName
from fathom.data import babi
from fathom.workloads.memnet import Memnet, MemoryNetwork, position_encoding, program_encoding

HOPS, DIMENSION, VOCABULARY, WORDS, MEMORY = 3, 5, 11, 4, 6


def network(linear: bool = False, noise: float = 0.1) -> MemoryNetwork:
    """A small network in double precision, with weights large enough for the softmax to matter."""
    torch.manual_seed(0)
    model = MemoryNetwork(VOCABULARY, WORDS, MEMORY, DIMENSION, HOPS, noise, linear).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5)
    return model.eval()


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Equal but for the position encoding, which is single precision in a network of double precision too."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def batch(items: int = 7) -> tuple[Tensor, Tensor]:
    """Stories of one to all sentences, sentences of one to all words."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(1, VOCABULARY, (items, MEMORY + 1, WORDS), generator=generator)
    length = torch.randint(1, WORDS + 1, (items, MEMORY + 1, 1), generator=generator)
    words[torch.arange(WORDS) >= length] = 0
    told = torch.arange(items).view(-1, 1) % MEMORY
    words[:, 1:][torch.arange(MEMORY) > told] = 0
    return words[:, 1:], words[:, 0]


class Untied:
    """The paper's A, B, C, W, T_A and T_C as matrices of their own, made equal by adjacent tying, and read in loops."""

    def __init__(self, model: MemoryNetwork) -> None:
        table = model.sentences.embedding.weight.detach().chunk(HOPS + 1, 1)
        times = model.time.weight.detach().chunk(HOPS + 1, 1)

        def own(matrix: Tensor) -> Tensor:
            return matrix.clone().requires_grad_()

        self.A, self.C = [own(table[k]) for k in range(HOPS)], [own(table[k + 1]) for k in range(HOPS)]
        self.T_A, self.T_C = [own(times[k]) for k in range(HOPS)], [own(times[k + 1]) for k in range(HOPS)]
        self.B, self.W = own(table[0]), own(table[HOPS])

    def encoded(self, sentence: Tensor, matrix: Tensor) -> Tensor:
        words = [word for word in sentence.tolist() if word != 0]
        J, d = len(words), DIMENSION
        vector = torch.zeros(d, dtype=torch.double)
        for j, word in enumerate(words, 1):
            l_j = [2 * ((1 - j / J) - (k / d) * (1 - 2 * j / J)) for k in range(1, d + 1)]
            vector = vector + torch.tensor(l_j, dtype=torch.double) * matrix[word]
        return vector

    def memory(self, story: Tensor, matrix: Tensor, times: Tensor) -> list[Tensor]:
        return [
            self.encoded(sentence, matrix) + times[i] if sentence.any() else torch.zeros(DIMENSION, dtype=torch.double)
            for i, sentence in enumerate(story)
        ]

    def answer(self, story: Tensor, question: Tensor, linear: bool) -> tuple[Tensor, list[Tensor]]:
        u, attentions = self.encoded(question, self.B), []
        for k in range(HOPS):
            m, c = self.memory(story, self.A[k], self.T_A[k]), self.memory(story, self.C[k], self.T_C[k])
            p = torch.stack([u @ m_i for m_i in m])
            if not linear:
                p = p.exp() / p.exp().sum()
            u = u + sum((p_i * c_i for p_i, c_i in zip(p, c, strict=True)), torch.zeros(DIMENSION))
            attentions.append(p)
        return self.W @ u, attentions


@pytest.mark.parametrize("linear", [False, True])
def test_forward_is_the_papers(linear: bool) -> None:
    """Linear start is the same network with the softmax of the hops taken out, and can be switched on a living one."""
    model = network()
    model.linear = linear
    story, question = batch()
    scores, attentions = model(story, question)
    reference = Untied(model)
    for item in range(len(story)):
        expected, looks = reference.answer(story[item], question[item], linear)
        assert_near(scores[item], expected)
        assert_near(torch.stack([attention[item] for attention in attentions]), torch.stack(looks))


def test_tied_matrices_share_one_gradient() -> None:
    model = network()
    story, question = batch()
    model(story, question)[0].square().sum().backward()
    reference = Untied(model)
    for item in range(len(story)):
        reference.answer(story[item], question[item], linear=False)[0].square().sum().backward()  # type: ignore[no-untyped-call]

    def summed(*matrices: Tensor) -> Tensor:
        return torch.stack([matrix.grad for matrix in matrices if matrix.grad is not None]).sum(0)

    A, B, C, W = reference.A, reference.B, reference.C, reference.W
    tied = [summed(A[0], B), summed(A[1], C[0]), summed(A[2], C[1]), summed(C[2], W)]
    found, times = model.sentences.embedding.weight.grad, model.time.weight.grad
    assert found is not None
    assert times is not None
    for gradient, expected in zip(found.chunk(HOPS + 1, 1), tied, strict=True):
        assert_near(gradient[1:], expected[1:])
    assert (found[0] == 0).all(), "nothing moves nil, as a word or as an answer"
    T_A, T_C = reference.T_A, reference.T_C
    tied = [T_A[0].grad, summed(T_A[1], T_C[0]), summed(T_A[2], T_C[1]), T_C[2].grad]  # type: ignore[list-item]
    assert_near(times, torch.cat(tied, 1))


def test_position_encoding_by_hand() -> None:
    """Two words in two dimensions: the first word is heavier in the first, the second in the second."""
    encoding = position_encoding(words=3, dimension=2)
    assert encoding.shape == (4, 3, 2)
    assert encoding[2, :2].tolist() == [[1.0, 1.0], [1.0, 2.0]]
    assert encoding[1, 0].tolist() == [1.0, 2.0]
    torch.testing.assert_close(encoding[3], torch.tensor([[1.0, 2 / 3], [1.0, 4 / 3], [1.0, 2.0]]))
    assert encoding.isfinite().all()


def test_the_authors_program_encodes_positions_alike_in_all_sentences() -> None:
    """One word and its time in two dimensions by hand; then sentences of two and three words, and an answer."""
    assert program_encoding(words=1, dimension=2).tolist() == [[1.25, 0.75], [0.75, 1.25]]
    torch.manual_seed(0)
    model = MemoryNetwork(VOCABULARY, 3, MEMORY, 2, 1, 0.0, linear=False, encoding="program").eval()
    weights = program_encoding(3, 2)
    table = model.sentences.embedding.weight[:, :2]
    vectors = model.sentences(torch.tensor([[4, 5, 0], [4, 5, 6]]))[:, 0]
    torch.testing.assert_close(vectors[0], table[4] * weights[0] + table[5] * weights[1])
    torch.testing.assert_close(vectors[1], vectors[0] + table[6] * weights[2])
    scores = model(torch.tensor([[[4, 0, 0]]]), torch.tensor([[7, 0, 0]]))[0]
    last, late = model.sentences.embedding.weight[:, 2:], model.time.weight[:, 2:]
    state = table[7] * weights[0] + last[4] * weights[0] + late[0] * weights[3]  # all attention is on the one sentence
    torch.testing.assert_close(scores[0, 1:], last[1:] @ state)


def test_order_of_words_and_of_sentences_matters() -> None:
    model = network()
    story = torch.tensor([[[1, 2, 3, 0], [4, 5, 0, 0], [0] * 4]])
    question = torch.tensor([[6, 7, 0, 0]])
    scores = model(story, question)[0]
    for other in (story[:, [1, 0, 2]], story[..., [1, 0, 2, 3]]):
        assert not torch.allclose(model(other, question)[0], scores)


@pytest.mark.parametrize(
    ("vocabulary", "memory", "dimension", "hops", "expected"),
    [(20, 10, 20, 3, 2_400), (34, 50, 20, 3, 6_720), (175, 50, 50, 3, 45_000), (20, 10, 20, 1, 1_200)],
)
def test_parameters(vocabulary: int, memory: int, dimension: int, hops: int, expected: int) -> None:
    workload = Memnet(batch=1, vocabulary=vocabulary, memory=memory, dimension=dimension, hops=hops)
    found = {name: weight.numel() for name, weight in workload.model().named_parameters()}
    assert found == {
        "sentences.embedding.weight": (hops + 1) * vocabulary * dimension,
        "time.weight": (hops + 1) * memory * dimension,
    }
    assert sum(found.values()) == expected


@pytest.mark.realdata
@pytest.mark.parametrize(("task", "dimension", "expected"), [(1, 20, 2_400), (2, 20, 6_720), (0, 50, 45_000)])
def test_parameters_follow_the_real_vocabulary(task: int, dimension: int, expected: int) -> None:
    workload = Memnet(batch=1, task_number=task, dimension=dimension)
    model = workload.fit(workload.real(real_data("babi"), "validation")).model()
    assert sum(weight.numel() for weight in model.parameters()) == expected


def test_weights_begin_as_published() -> None:
    torch.manual_seed(0)
    model = Memnet(batch=1, vocabulary=500, memory=500).model()
    assert (model.sentences.embedding.weight[0] == 0).all()
    for weight in (model.sentences.embedding.weight.detach()[1:], model.time.weight.detach()):
        assert float(weight.std()) == pytest.approx(0.1, rel=0.02)
        assert float(weight.mean()) == pytest.approx(0, abs=0.002)


def test_noise_keeps_the_order_of_sentences_and_is_off_in_inference() -> None:
    model = network()
    told = torch.ones(2000, MEMORY, dtype=torch.bool)
    assert model.slots(told).tolist() == list(range(MEMORY))
    slots = model.train().slots(told)
    inside = slots < MEMORY - 1
    steps = slots.diff(dim=1)
    assert (slots >= torch.arange(MEMORY)).all()
    assert (steps[inside[:, 1:]] >= 1).all(), "older sentences stay older"
    assert (steps >= 0).all()
    assert int(slots.max()) == MEMORY - 1, "the oldest share the last time where they would fall out of memory"
    assert float((slots[:, 0] == 1).double().mean()) == pytest.approx(0.1, abs=0.02)
    assert network(noise=0).train().slots(told).tolist() == list(range(MEMORY))


def test_noise_is_the_insertion_of_empty_memories() -> None:
    """Moving the times gives what a story with empty sentences in between gives."""
    model = network(noise=0.3)
    story, question = batch(200)
    story[:, MEMORY // 2 :] = 0  # so that there is room for empty ones
    torch.manual_seed(2)
    slots = model.train().slots((story != 0).any(2))
    torch.manual_seed(2)
    noisy = model(story, question)[0]
    spread = torch.zeros_like(story)
    for item in range(len(story)):
        for i in range(MEMORY // 2):
            spread[item, slots[item, i]] = story[item, i]
    fits = slots[:, MEMORY // 2 - 1] < MEMORY - 1
    moved = (slots[:, MEMORY // 2 - 1] > MEMORY // 2 - 1) & fits
    assert moved.sum() > 50
    torch.testing.assert_close(noisy[fits], model.eval()(spread, question)[0][fits])


def test_nil_stays_zero_and_is_never_the_answer() -> None:
    with fathom.load("memnet", preset="tiny", device="cpu") as session:
        session.setup().run(20)
        assert (session.state.model.sentences.embedding.weight[0] == 0).all()  # type: ignore[union-attr,index]
    model = network()
    for weight in model.parameters():
        torch.nn.init.zeros_(weight)  # all words are equally likely, nil the first of them
    story, question = batch()
    assert Memnet(batch=7).infer(model, {"story": story, "question": question})["answer"].tolist() == [1] * 7


def test_inference_gives_answer_probability_and_attention() -> None:
    workload = Memnet(batch=7)
    model = network()
    story, question = batch()
    output = workload.infer(model, {"story": story, "question": question})
    scores = workload.forward(model, {"story": story, "question": question})
    chances = scores.softmax(1)
    assert output["answer"].equal(chances[:, 1:].argmax(1) + 1)
    torch.testing.assert_close(output["probability"].double(), chances.gather(1, output["answer"][:, None])[:, 0])
    assert output["attention"].shape == (7, HOPS, MEMORY)
    torch.testing.assert_close(output["attention"].sum(2), torch.ones(7, HOPS).double())


def test_loss_is_the_sum_over_the_batch() -> None:
    workload = Memnet(batch=32)
    model = workload.model().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert workload.loss(model, workload.example()).item() == pytest.approx(32 * math.log(20))


def test_costs_can_be_counted_without_memory_or_values() -> None:
    """On the meta device any look at a value fails, so this shows too that a step never waits for the device."""
    workload = Memnet(batch=4)
    with torch.device("meta"):
        model = workload.model().train()
    batch = {name: column.to("meta") for name, column in workload.example().items()}
    assert workload.forward(model, batch).shape == (4, 20)
    workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None and weight.grad.is_meta for weight in model.parameters())


@pytest.mark.parametrize("linear_start", [False, True])
def test_learns_where_people_are(linear_start: bool) -> None:
    """Linear start as in the paper: half the learning rate, and the softmax back in the middle of training."""
    options = {"linear_start": linear_start, "learning_rate": 0.005 if linear_start else 0.01}
    with fathom.load("memnet", preset="small", device="cpu", threads=1, **options).setup() as session:
        model = session.state.model
        assert isinstance(model, MemoryNetwork)
        assert model.linear is linear_start
        session.run(300)
        model.linear = False
        session.run(500)
        others = babi.synthetic(99, items=1000)
        found = session.workload.infer(model.eval(), others.columns)
        wrong = float((found["answer"] != others.columns["answer"]).double().mean())
    assert wrong < 0.02


@pytest.mark.realdata
def test_real_answers_are_words_of_the_story() -> None:
    with fathom.load("memnet", preset="tiny", device="cpu", phase="infer", data=str(real_data("babi"))) as session:
        session.setup()
        output = session.run(1)[0]
        assert isinstance(output, dict)
        words = session.workload.answers(output, session.state.source)
        assert len(words) == 16
        assert set(words) <= set(session.state.source.vocabulary[1:])


@pytest.mark.parametrize(
    ("option", "value", "kind", "message"),
    [
        ("task_number", 21, BadOption, "task_number must be 1 to 20, or 0 for all, not 21"),
        ("task_number", -1, BadOption, "task_number must be"),
        ("subset", "en10k", UnknownName, "no subset of bAbI 'en10k'; did you mean en-10k?"),
        ("encoding", "papr", UnknownName, "no encoding of positions 'papr'; did you mean paper?"),
        ("starts", 0, BadOption, "starts must be at least 1, not 0"),
        ("linear_epochs", -1, BadOption, "linear_epochs must be at least 0, not -1"),
        ("noise", 1.0, BadOption, "noise must be a share"),
        ("hops", 0, BadOption, "hops must be at least 1, not 0"),
        ("memory", 0, BadOption, "memory must be at least 1, not 0"),
    ],
)
def test_bad_options(option: str, value: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message.replace("?", r"\?")):
        Memnet.configured("tiny", **{option: value})
