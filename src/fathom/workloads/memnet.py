"""memnet: the end-to-end memory network of Sukhbaatar et al. (2015), answering bAbI's questions about stories.

Harvard's 2016 code read and wrote its memory through one embedding and trained with Adam; this is the network of the
paper: three hops with adjacent weight tying, position and temporal encoding, linear start and random noise.

Letters of shapes: B batch, M sentences in memory, S words in a sentence, K hops, d dimension, V words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fathom import published
from fathom.core.errors import BadOption, UnknownName
from fathom.data import babi
from fathom.data.babi import NIL
from fathom.data.base import Batch, once
from fathom.workloads.base import Facts, Output, State, Workload
from fathom.workloads.recipe import Recipe

AT_ONCE = 500  # questions of an evaluation
EVALUATED_ON = {  # which questions -> how a protocol speaks of them
    "test": "the test questions",
    "valid": "the validation questions (the last tenth of the training questions, which are not trained on)",
}
ALL = "all training questions are learnt; "  # the authors' program holds a tenth of them out even for its last word
BY_LOSS = (
    "of several starts the one with the least training loss counts; the length of training is fixed, the curve is of "
    "the training questions, and the last weights are tested once"
)
ENCODINGS = ("paper", "program")  # of positions: as printed, or as in the authors' program


class Sentences(nn.Module):
    """Sentences as vectors: their words' embeddings, weighted by position and summed.

    Adjacent tying makes hop k read through embedding k and write through embedding k + 1, so K hops have K + 1
    embeddings in all. They lie side by side in one table, and each word is looked up once for all of them.
    """

    position: Tensor

    def __init__(self, vocabulary: int, words: int, dimension: int, embeddings: int, encoding: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embeddings * dimension, padding_idx=NIL)
        position = position_encoding(words, dimension)
        if encoding == "program":
            position = program_encoding(words, dimension)[:words].expand(position.shape)
        self.register_buffer("position", position, persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        """[..., S] word numbers to [..., K + 1, d] vectors."""
        weights = self.position[(words != NIL).sum(-1)].unsqueeze(-2)  # [..., S, 1, d]
        embedded = self.embedding(words).unflatten(-1, (-1, weights.shape[-1]))  # [..., S, K + 1, d]
        vectors: Tensor = (embedded * weights).sum(-3)
        return vectors


def position_encoding(words: int, dimension: int) -> Tensor:
    """Twice the paper's l_kj = (1 - j/J) - (k/d)(1 - 2j/J), for sentences of J = 0..S words: [S + 1, S, d].

    The two is not in the paper but in its authors' program: a word then weighs one on average, as in a bag of words.
    It matters: without it, tasks 4 and 18 stay near 20 and 40 % errors, where the paper reports 3 and 11 %.
    """
    j = torch.arange(1, words + 1).view(1, -1, 1)
    k = torch.arange(1, dimension + 1).view(1, 1, -1)
    part = j / torch.arange(words + 1).clamp(min=1).view(-1, 1, 1)  # a sentence of no words has no j that matters
    return 2 * ((1 - part) - k / dimension * (1 - 2 * part))


def program_encoding(words: int, dimension: int) -> Tensor:
    """The authors' program: every sentence is as long as the longest, its time being one word more: [S + 1, d]."""
    j = torch.arange(1, words + 2).view(-1, 1)
    k = torch.arange(1, dimension + 1)
    return 1 + 4 * (k - (dimension + 1) / 2) * (j - (words + 2) / 2) / (dimension * (words + 1))


class Hop(nn.Module):
    """One look at the memory: the state attends to what was read and takes up what was written."""

    role = "memory"

    def forward(self, state: Tensor, read: Tensor, written: Tensor, linear: bool) -> tuple[Tensor, Tensor]:
        match = torch.bmm(read, state.unsqueeze(2)).squeeze(2)  # [B, M]
        attention = match if linear else match.softmax(1)
        return state + torch.bmm(attention.unsqueeze(1), written).squeeze(1), attention


class Answer(nn.Module):
    """A score for every word by the last embedding; that of nil is zero, and so is its score."""

    def forward(self, state: Tensor, embedding: Tensor) -> Tensor:
        return F.pad(F.linear(state, embedding[NIL + 1 :]), (1, 0))


class MemoryNetwork(nn.Module):
    """Position-encoded sentences with the time they were told, read in several hops.

    `linear` takes the softmax out of the hops: linear start trains so at first, then sets it to False and goes on.
    """

    time_weight: Tensor | None

    def __init__(
        self,
        vocabulary: int,
        words: int,
        memory: int,
        dimension: int,
        hops: int,
        noise: float,
        linear: bool,
        encoding: str = "paper",
    ) -> None:
        super().__init__()
        self.dimension, self.noise, self.linear = dimension, noise, linear
        self.sentences = Sentences(vocabulary, words, dimension, hops + 1, encoding)
        time_weight = program_encoding(words, dimension)[words] if encoding == "program" else None
        self.register_buffer("time_weight", time_weight, persistent=False)
        self.time = nn.Embedding(memory, (hops + 1) * dimension)
        self.hops = nn.ModuleList(Hop() for _ in range(hops))
        self.answer = Answer()
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.1)
        with torch.no_grad():
            self.sentences.embedding.weight[NIL] = 0

    def forward(self, story: Tensor, question: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Scores of the words [B, V], and the attention of each hop [B, M]."""
        told = (story != NIL).any(2)
        # the question is one more sentence, so that everything is embedded in one go
        vectors = self.sentences(torch.cat([question.unsqueeze(1), story], 1))
        times = self.time(self.slots(told)).unflatten(-1, (-1, self.dimension))
        if self.time_weight is not None:
            times = times * self.time_weight
        memories = vectors[:, 1:] + times * told[..., None, None]  # [B, M, K + 1, d]; an empty memory is zero
        state = vectors[:, 0, 0]
        attentions = []
        for k, hop in enumerate(self.hops):
            state, attention = hop(state, memories[:, :, k], memories[:, :, k + 1], self.linear)
            attentions.append(attention)
        return self.answer(state, self.sentences.embedding.weight[:, -self.dimension :]), attentions

    def slots(self, told: Tensor) -> Tensor:
        """How long ago each sentence was told.

        In training, one time in ten an empty memory comes before a sentence (random noise): this and all older ones
        then seem older by one. Attention does not depend on where a sentence lies, so its time alone is moved.
        """
        slots = torch.arange(told.shape[1], device=told.device)
        if not self.training or self.noise == 0:
            return slots
        empty = torch.rand(told.shape, device=told.device) < self.noise
        return (slots + empty.cumsum(1)).clamp(max=self.time.num_embeddings - 1)


@dataclass(frozen=True, kw_only=True)
class MemnetRecipe(Recipe["Memnet"]):
    """Wrong answers to bAbI's questions, by many networks that are trained at once."""

    unit: str = "%"
    better: Literal["higher", "lower"] = "lower"
    validated_on: Literal["validation", "train"] = "train"
    trainer: str | None = "memnet"

    def for_run(self, folder: Path | None, options: Mapping[str, Any]) -> MemnetRecipe:
        """A task alone is held to its own published error; what options are chosen by, to nothing."""
        recipe = super().for_run(folder, options)
        assert isinstance(recipe, MemnetRecipe)
        if folder is None:  # synthetic stories are of no task, and none of them is held out
            return recipe
        asked = Memnet.configured(recipe.preset, **{**recipe.options, **options})
        if asked.joint and asked.task_number:
            raise BadOption(f"joint is one network for all tasks: leave task_number={asked.task_number} out")
        if asked.task_number:
            recipe = recipe.of_task(asked.task_number)
        if not babi.is_published(folder, asked.subset, asked.task_number):
            recipe = recipe.without_target("bAbI's 1,000 English questions a task")
        return recipe.in_validation() if asked.evaluated_on == "valid" else recipe

    def of_task(self, number: int) -> MemnetRecipe:
        """Of one task by itself."""
        told = f"{EVALUATED_ON['test']} of task {number} alone, {babi.TASKS[number - 1]}"
        return replace(
            self,
            metric="error",
            target=published.babi_error_percent()[str(number)]["PE_LS_RN"],
            protocol=f"the share of wrong answers to {told}; {ALL}{BY_LOSS}",
        )

    def in_validation(self) -> MemnetRecipe:
        """The same on the questions that options are chosen by: no paper says how many of those would be good."""
        protocol = self.protocol.replace(EVALUATED_ON["test"], EVALUATED_ON["valid"]).replace(ALL, "")
        metric = f"{self.metric}, in validation"
        return replace(self, metric=metric, target=None, protocol=protocol, split="validation")

    def schedule(self, workload: Memnet, optimizer: Optimizer, steps: int) -> LambdaLR:
        """Constant during linear start, then halved again and again; over fewer steps all of it goes faster."""
        epoch, linear, halving = (
            steps / (workload.linear_epochs + workload.epochs),
            workload.linear_epochs,
            workload.halving,
        )
        return LambdaLR(optimizer, lambda step: 0.5 ** max(0, (step / epoch - linear) // halving))

    def evaluate(self, workload: Memnet, state: State, data: babi.Stories) -> float:
        """Percent of wrong answers of one network by itself; the trainer of memnet evaluates its many together."""
        batches = once(data, AT_ONCE, state.device)
        wrong = sum(int((workload.infer(state.model, each)["answer"] != each["answer"]).sum()) for each in batches)
        return 100 * wrong / len(data)


@dataclass(frozen=True, kw_only=True)
class Memnet(Workload):
    name: ClassVar = "memnet"
    facts: ClassVar = Facts(
        year=2015,
        paper="Sukhbaatar, Szlam, Weston and Fergus, End-To-End Memory Networks, NIPS 2015",
        style="Memory Network",
        layers=3,
        task="Supervised",
        dataset="bAbI",
        parameters=2_400,
        macs_per_item=1_580,
        train_flop_per_item=9_480,
    )
    item: ClassVar = "question"
    expects: ClassVar = babi.EXPECTS
    sweeps_threads: ClassVar = True
    presets: ClassVar = {"tiny": {"batch": 16}, "small": {"batch": 32}, "paper": {"batch": 32}}

    recipe: ClassVar = MemnetRecipe(
        metric="mean error",
        target=13.9,
        protocol=f"the share of wrong answers to {EVALUATED_ON['test']}, a mean over the tasks; {ALL}each task has "
        f"networks of its own, and {BY_LOSS}",
        evaluations=24,  # one in five epochs
        options={"task_number": 0, "learning_rate": 0.005, "encoding": "program"},
        variants={
            "joint": MemnetRecipe(
                metric="mean error, one network for all tasks",
                target=12.4,
                protocol=f"the share of wrong answers to {EVALUATED_ON['test']}, a mean over the tasks, of one "
                f"network that learns all; {ALL}{BY_LOSS}",
                evaluations=18,  # one in five epochs
                options={
                    "task_number": 0,
                    "dimension": 50,
                    "learning_rate": 0.005,
                    "encoding": "program",
                    "linear_epochs": 30,
                    "epochs": 60,
                    "halving": 15,
                },
            )
        },
    )

    renamed: ClassVar = {"judged_on": "evaluated_on"}
    clip_norm: float | None = 40.0
    dimension: int = 20  # the paper takes 50 where one network learns all tasks
    hops: int = 3
    noise: float = 0.1
    encoding: str = "paper"  # or program: positions as in the authors' program, which learns tasks 2 and 19 better
    linear_start: bool = False  # begin without the softmax in the hops
    learning_rate: float = 0.01  # the paper halves it every 25 epochs, and begins a linear start with 0.005
    task_number: int = 1  # 0 is all twenty
    subset: str = "en"
    capacity: int = 50  # the most recent sentences that a story keeps
    evaluated_on: str = "test"  # or valid, the tenth of the training questions held out to choose options by
    joint: bool = False  # the next five are of learning alone: one network for all tasks instead of one for each
    starts: int = 10  # networks that learn the same from other weights; the one with the least training loss counts
    linear_epochs: int = 20  # without the softmax in the hops; these three are the authors' program's
    epochs: int = 100  # with it
    halving: int = 25  # of these, after which the learning rate is halved, again and again
    vocabulary: int = 20  # these three follow the data; as they stand, they are those of task 1
    words: int = 6
    memory: int = 10

    def __post_init__(self) -> None:
        if self.subset not in babi.SUBSETS:
            raise UnknownName.among("subset of bAbI", self.subset, babi.SUBSETS)
        if self.encoding not in ENCODINGS:
            raise UnknownName.among("encoding of positions", self.encoding, ENCODINGS)
        if self.evaluated_on not in EVALUATED_ON:
            raise UnknownName.among("questions to evaluate on", self.evaluated_on, EVALUATED_ON)
        if not 0 <= self.task_number <= len(babi.TASKS):
            raise BadOption(f"task_number must be 1 to {len(babi.TASKS)}, or 0 for all, not {self.task_number}")
        if not 0 <= self.noise < 1:
            raise BadOption(f"noise must be a share from 0 up to 1, not {self.noise}")
        if self.linear_epochs < 0:
            raise BadOption(f"linear_epochs must be at least 0, not {self.linear_epochs}")
        sizes = ("dimension", "hops", "capacity", "vocabulary", "words", "memory", "starts", "epochs", "halving")
        for option in sizes:
            if getattr(self, option) < 1:
                raise BadOption(f"{option} must be at least 1, not {getattr(self, option)}")

    def model(self) -> MemoryNetwork:
        return MemoryNetwork(
            self.vocabulary,
            self.words,
            self.memory,
            self.dimension,
            self.hops,
            self.noise,
            self.linear_start,
            self.encoding,
        )

    def synthetic(self, seed: int) -> babi.Stories:
        return babi.synthetic(seed, memory=self.memory, words=self.words)

    def real(self, folder: Path, split: str = "train") -> babi.Stories:
        """All training questions, unless some of them are evaluated on."""
        if split == "train" and self.evaluated_on == "valid":
            split = "train_subset"
        return babi.read(folder, split, task=self.task_number, subset=self.subset, capacity=self.capacity)

    def fit(self, source: babi.Stories) -> Self:
        _, memory, words = source.columns["story"].shape
        return replace(self, vocabulary=len(source.vocabulary), words=words, memory=memory)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        scores: Tensor = model(batch["story"], batch["question"])[0]
        return scores

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy in nats, summed over the batch: the paper's learning rate and clipping count on the sum."""
        return F.cross_entropy(self.forward(model, batch).float(), batch["answer"], reduction="sum")

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=self.learning_rate)

    def infer(self, model: nn.Module, batch: Batch) -> Output:
        """The likeliest word, its probability, and where each hop looked: [B, K, M], the last sentence first."""
        scores, attentions = model(batch["story"], batch["question"])
        probability, answer = scores.float().softmax(1)[:, NIL + 1 :].max(1)
        return {"answer": answer + NIL + 1, "probability": probability, "attention": torch.stack(attentions, 1)}

    def answers(self, output: Output, source: Any) -> list[str]:
        return [source.vocabulary[number] for number in output["answer"].tolist()]
