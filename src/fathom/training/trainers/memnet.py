"""How memnet is trained: a network for every task and every start, all at once, as one stack of weights.

One such network is so small that a GPU spends its time waiting for the host; two hundred side by side take hardly
longer. Tasks differ in words, sentences and memories: they are padded to the largest, and what is padding is kept out
of every softmax, so that each network learns as if it were alone.

Letters of shapes: N networks, T tasks, B batch, M sentences in memory, V words but nil, K hops, d dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathom import published
from fathom.core.errors import BadOption
from fathom.core.record import Artifact
from fathom.data import babi
from fathom.data.babi import NIL, Stories
from fathom.data.base import Batch, folder_at
from fathom.engine.session import Session
from fathom.training.trainer import HeldOut, Trainer
from fathom.workloads.base import Output
from fathom.workloads.memnet import Memnet, MemoryNetwork, program_encoding
from fathom.workloads.recipe import Recipe

EVALUATED = 64  # questions of each task at once
SHOWN = (1, 2, 16, 18)  # the tasks whose attention the paper shows in its Fig. 2


class Facts:
    """The stories of several tasks on a device: each distinct sentence once, and stories as pointers to them."""

    def __init__(self, workload: Memnet, tasks: Sequence[Stories], device: torch.device) -> None:
        words = max(len(stories.vocabulary) for stories in tasks) - 1
        memory = max(stories.columns["story"].shape[1] for stories in tasks)
        features = [torch.zeros(1, 2 * words)]  # the first sentence is the empty one, for all tasks
        pointers = []
        for stories in tasks:
            texts = torch.cat([stories.columns["question"].unsqueeze(1), stories.columns["story"]], 1)
            distinct, which = torch.unique(texts.flatten(0, 1), dim=0, return_inverse=True)
            where = torch.where((distinct != NIL).any(1), torch.arange(len(distinct)) + sum(map(len, features)), 0)
            features.append(word_weights(workload, distinct, words))
            pointers.append(F.pad(where[which].view(texts.shape[:2]), (0, memory + 1 - texts.shape[1])))
        self.features = torch.cat(features).to(device)
        self.sentences = torch.cat(pointers).to(device)  # [questions, 1 + M]: the question comes first
        self.answers = torch.cat([stories.columns["answer"] for stories in tasks]).to(device)
        self.most = max(map(len, tasks))  # kept here, as asking the device would make the host wait
        self.counts = torch.tensor([len(stories) for stories in tasks], device=device)
        self.first = self.counts.cumsum(0) - self.counts

    def drawn(self, starts: int, batch: int) -> Tensor:
        """Questions for one step of so many networks a task, drawn with replacement: [N, B]."""
        chance = torch.rand(len(self.counts) * starts, batch, device=self.counts.device)
        counts, first = (each.repeat_interleave(starts).unsqueeze(1) for each in (self.counts, self.first))
        return first + (chance * counts).long()

    def all(self, starts: int) -> tuple[Tensor, Tensor]:
        """All questions of each network's task, and which of them are no padding: [N, most questions] both."""
        number = torch.arange(self.most, device=self.counts.device)
        rows = self.first.unsqueeze(1) + number.minimum(self.counts.unsqueeze(1) - 1)
        there = number < self.counts.unsqueeze(1)
        return rows.repeat_interleave(starts, 0), there.repeat_interleave(starts, 0)


def word_weights(workload: Memnet, sentences: Tensor, words: int) -> Tensor:
    """How much of each word's embedding is in a sentence: [..., S] word numbers to [..., 2 V].

    The position encoding is a line in k/d, so two numbers a word say it for all k: where it begins and how it slopes.
    Embedding many sentences is then one matrix product, and so is its gradient.
    """
    spoken = sentences != NIL
    j = torch.arange(1, sentences.shape[1] + 1).expand(sentences.shape)
    if workload.encoding == "program":
        longest = sentences.shape[1] + 1  # with the time, which is one more word
        slope = 4 * (j - (longest + 1) / 2) / longest
        begin = 1 - slope * (workload.dimension + 1) / (2 * workload.dimension)
    else:
        part = j / spoken.sum(1, keepdim=True).clamp(min=1)
        slope, begin = 2 * (2 * part - 1), 2 * (1 - part)
    weights = torch.zeros(2, len(sentences), words + 1)
    weights[0].scatter_add_(1, sentences, begin * spoken)
    weights[1].scatter_add_(1, sentences, slope * spoken)
    return torch.cat([weights[0, :, NIL + 1 :], weights[1, :, NIL + 1 :]], 1)


class Ensemble(nn.Module):
    """Memory networks side by side, `starts` of them for each task; the maths of each is MemoryNetwork's."""

    ramp: Tensor
    time_weight: Tensor
    memories: Tensor
    no_memory: Tensor
    no_word: Tensor

    def __init__(self, workload: Memnet, tasks: Sequence[Stories]) -> None:
        super().__init__()
        self.workload = workload
        self.sizes: list[tuple[int, int, int]] = []  # of each task: vocabulary, memory, words in a sentence
        for stories in tasks:
            _, memory, words = stories.columns["story"].shape
            self.sizes.append((len(stories.vocabulary), memory, words))
        vocabulary, memories = (torch.tensor([size[i] for size in self.sizes]).unsqueeze(1) for i in (0, 1))
        self.words, memory = int(vocabulary.max()) - 1, int(memories.max())
        width = (workload.hops + 1) * workload.dimension
        # the embeddings of words above those of times; rows beyond a task's own are never read
        table = torch.empty(len(tasks) * workload.starts, self.words + memory, width)
        self.table = nn.Parameter(nn.init.normal_(table, std=0.1))
        ramp = torch.arange(1, workload.dimension + 1) / workload.dimension
        time_weight = torch.ones(len(tasks), 1, workload.dimension)
        if workload.encoding == "program":
            time_weight = torch.stack([program_encoding(size[2], workload.dimension)[-1:] for size in self.sizes])
        padding = {
            "ramp": ramp.repeat(workload.hops + 1),
            "time_weight": time_weight.repeat(1, 1, workload.hops + 1).repeat_interleave(workload.starts, 0),
            "memories": memories.repeat_interleave(workload.starts, 0).unsqueeze(2),
            "no_memory": _barred(torch.arange(memory) >= memories, workload.starts),
            "no_word": _barred(torch.arange(self.words + 1) >= vocabulary, workload.starts),
        }
        for name, value in padding.items():
            self.register_buffer(name, value, persistent=False)

    def forward(self, facts: Facts, rows: Tensor, linear: bool, empty: Tensor | None = None) -> Tensor:
        """Scores of the words [N, B, 1 + V] for the questions in these rows [N, B] of the facts.

        `empty` [N, B, M] says before which sentences an empty memory comes, as random noise.
        """
        pointers = facts.sentences[rows]
        sentences = F.embedding(pointers, facts.features)  # [N, B, 1 + M, 2 V]
        words, times = self.table[:, : self.words], self.table[:, self.words :]
        weights = torch.cat([words, words * self.ramp, times * self.time_weight], 1)
        timed = torch.cat([sentences[:, :, 1:], self._slots(pointers[:, :, 1:] > 0, empty).to(sentences.dtype)], 3)
        d = self.workload.dimension
        memories = torch.bmm(timed.flatten(1, 2), weights).view(*timed.shape[:3], -1, d).flatten(0, 1).unbind(2)
        state = (
            torch.bmm(sentences[:, :, 0], weights[:, : 2 * self.words, :d]).flatten(0, 1).unsqueeze(1)
        )  # [N B, 1, d]
        for read, written in pairwise(memories):
            attention = torch.bmm(state, read.transpose(1, 2))
            if not linear:
                attention = (attention.view(*rows.shape, -1) + self.no_memory).softmax(2).view(attention.shape)
            state = state + torch.bmm(attention, written)
        scores = torch.bmm(state.view(*rows.shape, d), words[:, :, -d:].transpose(1, 2))
        return F.pad(scores, (1, 0)).float() + self.no_word

    def losses(self, facts: Facts, rows: Tensor, scores: Tensor) -> Tensor:
        """Cross entropy in nats of every question: [N, B]."""
        return F.cross_entropy(scores.flatten(0, 1), facts.answers[rows].flatten(), reduction="none").view(rows.shape)

    def network(self, number: int) -> MemoryNetwork:
        """One of the networks by itself."""
        vocabulary, memory, words = self.sizes[number // self.workload.starts]
        w = self.workload
        network = MemoryNetwork(vocabulary, words, memory, w.dimension, w.hops, w.noise, False, w.encoding)
        table = self.table.detach()[number].cpu()
        with torch.no_grad():
            network.sentences.embedding.weight[NIL + 1 :] = table[: vocabulary - 1]
            network.time.weight[:] = table[self.words : self.words + memory]
        return network

    def clip(self, norm: float) -> None:
        """Rescales the gradient of each network whose norm is larger, as if it were alone."""
        gradient = self.table.grad
        assert gradient is not None
        length = torch.linalg.vector_norm(gradient, dim=(1, 2), keepdim=True)
        gradient.mul_((norm / (length + 1e-6)).clamp(max=1))

    def _slots(self, present: Tensor, empty: Tensor | None) -> Tensor:
        """How long ago each sentence was read: [N, B, M, M], at most one 1 in a row, none for an empty memory."""
        slot = torch.arange(present.shape[2], device=present.device)
        slots = slot if empty is None else (slot + empty.cumsum(2)).minimum(self.memories - 1)
        return (slots.unsqueeze(-1) == slot) & present.unsqueeze(-1)


def _barred(padding: Tensor, starts: int) -> Tensor:
    """What is added to scores [N, 1, ...] so that padding has no part in a softmax."""
    return torch.zeros(padding.shape).masked_fill(padding, -math.inf).repeat_interleave(starts, 0).unsqueeze(1)


@dataclass(frozen=True)
class Part:
    """The questions of one bAbI task among those of a stack: which networks answer them, and where they lie."""

    label: str
    number: int | None  # None where the stories are synthetic
    group: int
    rows: slice


class MemnetTrainer(Trainer):
    """Trains all networks together; of each task, the start with the least training loss is evaluated."""

    def __init__(self, session: Session, recipe: Recipe[Any], held_out: HeldOut) -> None:
        workload, state = session.workload, session.state
        assert isinstance(workload, Memnet)
        if workload.averaging:
            raise BadOption("memnet's weights are not averaged: of ten starts, the best by itself counts")
        alone = bool(state.source.per_task) and not workload.joint
        tasks, self.tests = (list(each.per_task) if alone else [each] for each in (state.source, held_out.test))
        self.memnet, self.starts = workload, workload.starts
        self.model = Ensemble(workload, tasks).to(state.device)
        state.model, state.weights = self.model, list(self.model.parameters())
        state.optimizer = workload.optimizer(self.model)
        self.seen, self.unseen = (Facts(workload, each, state.device) for each in (tasks, self.tests))
        self.parts = _parts(held_out.test, workload, synthetic=session.spec.data is None)
        super().__init__(session, recipe, held_out)
        self.linear = True  # the softmax is left out of the hops at first
        self._prepare()

    @property
    def steps_per_evaluation(self) -> int:
        """An epoch is as many questions as the largest task has; all epochs are cut into equal intervals."""
        epochs = self.memnet.linear_epochs + self.memnet.epochs
        steps = epochs * self.seen.most / self.memnet.batch
        return math.ceil(steps / self.recipe.evaluations)

    @property
    def items_per_step(self) -> int:
        """Every network learns from questions of its own."""
        return len(self.model.table) * self.memnet.batch

    @property
    def linear_steps(self) -> int:
        """How many steps are linear start; with fewer evaluations, all phases are shorter alike."""
        share = self.memnet.linear_epochs / (self.memnet.linear_epochs + self.memnet.epochs)
        return round(self.evaluations * self.steps_per_evaluation * share)

    @property
    def parameters(self) -> int:
        width = (self.memnet.hops + 1) * self.memnet.dimension
        return self.starts * width * sum(vocabulary - 1 + memory for vocabulary, memory, _ in self.model.sizes)

    def train(self, on_step: Callable[[int], None]) -> tuple[float, int]:
        """One interval; its loss is that of each task's best start, so that a start that diverges does no harm."""
        batch = self.memnet.batch
        total = torch.zeros(len(self.model.table), device=self.state.device)
        for _ in range(self.steps_per_evaluation):
            if self.linear != (self.steps_done < self.linear_steps):
                self.linear = not self.linear
                self._prepare()
            total += self.session.engine.update(self._batch()) / batch
            if self.schedule is not None:
                self.schedule.step()
            self.steps_done += 1
            on_step(self.steps_done)
        best = _of_tasks(total / self.steps_per_evaluation, self.starts).amin(1)
        return float(best.mean()), self.steps_per_evaluation * self.items_per_step

    def _prepare(self) -> None:
        """The engine for all networks at once; once more when linear start ends, as the network is another one then."""
        norm = self.memnet.clip_norm
        clip = None if norm is None else partial(self.model.clip, norm)
        self.session.prepare(self._losses, self._no_inference, clip)

    def _losses(self, batch: Batch) -> Tensor:
        """The loss of every network, summed over its batch."""
        rows = batch["rows"]
        scores = self.model(self.seen, rows, self.linear, batch.get("empty"))
        return self.model.losses(self.seen, rows, scores).sum(1)

    @staticmethod
    def _no_inference(batch: Batch) -> Output:
        raise NotImplementedError("a training run does not infer")

    def _batch(self) -> Batch:
        """Questions for every network, and before which sentences an empty memory comes, as random noise."""
        rows = self.seen.drawn(self.starts, self.memnet.batch)
        noise = self.memnet.noise
        if not noise:
            return {"rows": rows}
        return {
            "rows": rows,
            "empty": torch.rand(*rows.shape, self.model.no_memory.shape[2], device=rows.device) < noise,
        }

    def validate(self) -> float:
        """Percent of wrong answers to the training questions: all of them are learnt, and none is held out."""
        loss, wrong = self._answered(self.seen)
        _, chosen = self._of_questions(loss).min(1)
        errors = 100 * self._of_questions(wrong.double())
        return float(errors.gather(1, chosen.unsqueeze(1)).mean())

    def _of_questions(self, values: Tensor) -> Tensor:
        """The mean over the training questions of each task, of every start: [tasks, starts]."""
        return _of_tasks(values.sum(1), self.starts) / self.seen.counts.unsqueeze(1)

    def test(self) -> tuple[float, list[Artifact]]:
        errors, chosen, loss = self._tested()
        quality = float(_picked(errors, self.parts, chosen).mean())
        return quality, self.shown(lambda: self._shown(errors, chosen, loss))

    def _tested(self) -> tuple[Tensor, Tensor, Tensor]:
        """Percent of wrong answers of every start [parts, starts], each stack's start chosen, and its training loss."""
        loss, _ = self._answered(self.seen)
        lost = self._of_questions(loss)
        wrong = self._answered(self.unseen)[1]
        wrong = wrong.view(-1, self.starts, wrong.shape[1])
        errors = [100 * wrong[part.group, :, part.rows].double().mean(1) for part in self.parts]
        least, chosen = lost.min(1)
        return torch.stack(errors).cpu(), chosen.cpu(), least.cpu()

    def _answered(self, facts: Facts) -> tuple[Tensor, Tensor]:
        """Loss of every network on every question of its task, and whether its answer is wrong: [N, questions]."""
        rows, there = facts.all(self.starts)
        losses, wrong = [], []
        linear = self.steps_done < self.linear_steps
        with torch.inference_mode(), self.state.autocast():
            for some in torch.split(rows, EVALUATED, 1):
                scores = self.model(facts, some, linear)
                losses.append(self.model.losses(facts, some, scores))
                wrong.append(scores[:, :, NIL + 1 :].argmax(2) + NIL + 1 != facts.answers[some])
        return torch.cat(losses, 1).where(there, 0), torch.cat(wrong, 1) & there

    def _shown(self, errors: Tensor, chosen: Tensor, loss: Tensor) -> list[Artifact]:
        """Every task beside the published error, and where the networks looked for their answers."""
        found = _picked(errors, self.parts, chosen).tolist()
        variant = "PE_LS_RN_joint" if self.memnet.joint else "PE_LS_RN"
        printed = published.babi_error_percent() if self._is_published() else {}
        rows: list[list[object]] = [
            [
                part.label,
                round(error, 1),
                printed[str(part.number)][variant] if part.number and printed else None,
                round(float(loss[part.group]), 4),
                round(float(starts.quantile(0.5)), 1),
                round(float(starts.min()), 1),
            ]
            for part, error, starts in zip(self.parts, found, errors, strict=True)
        ]
        if len(rows) > 1:
            mean = [round(float(errors.quantile(0.5, dim=1).mean()), 1), round(float(errors.amin(1).mean()), 1)]
            theirs = printed["mean_1k"][variant] if printed else None
            rows.append(["mean", round(sum(found) / len(found), 1), theirs, None, *mean])
        columns = ["task", "error (%)", "published (%)", "training loss", "median start (%)", "least (%)"]
        asked, chosen_by = f"the {self.memnet.evaluated_on} questions", "the one with the least training loss counts"
        title = f"Errors on {asked}; of {self.starts} starts {chosen_by}"
        looks = [self._looked(part, int(chosen[part.group])) for part in self.parts if part.number in (*SHOWN, None)]
        return [Artifact(title=title, columns=columns, rows=rows), *looks]

    def _is_published(self) -> bool:
        """Whether the published errors are those of the questions that were learnt."""
        data, memnet = self.session.spec.data, self.memnet
        if data is None:
            return False
        return babi.is_published(folder_at(data, memnet.expects), memnet.subset, memnet.task_number)

    def _looked(self, part: Part, start: int) -> Artifact:
        """A part's first question, and the attention that each hop pays to the sentences of its story."""
        stories, network = self.tests[part.group], self.model.network(part.group * self.starts + start).eval()
        item = {name: column[part.rows.start : part.rows.start + 1] for name, column in stories.columns.items()}

        def text(words: Tensor) -> str:
            return " ".join(stories.vocabulary[word] for word in words.tolist() if word != NIL)

        output = self.memnet.infer(network, item)
        (answer,), right = self.memnet.answers(output, stories), stories.vocabulary[int(item["answer"])]
        verdict = "right" if answer == right else f"it is {right}"
        rows = [
            [text(sentence), *(round(look, 2) for look in looks)]
            for sentence, looks in zip(item["story"][0], output["attention"][0].T.tolist(), strict=True)
            if sentence.any()
        ]
        columns = ["the last sentence first", *(f"hop {hop}" for hop in range(1, self.memnet.hops + 1))]
        title = f"{part.label}: {text(item['question'][0])}? {answer} ({verdict})"
        return Artifact(title=title, columns=columns, rows=rows)


def _parts(held_out: Stories, workload: Memnet, synthetic: bool) -> list[Part]:
    if not held_out.per_task:
        number = None if synthetic else workload.task_number
        label = f"{number} {babi.TASKS[number - 1]}" if number else "synthetic stories"
        return [Part(label, number, 0, slice(0, len(held_out)))]
    parts: list[Part] = []
    begin = 0
    for number, stories in enumerate(held_out.per_task, 1):
        rows = slice(begin, begin + len(stories)) if workload.joint else slice(0, len(stories))
        parts.append(Part(f"{number} {babi.TASKS[number - 1]}", number, 0 if workload.joint else number - 1, rows))
        begin += len(stories)
    return parts


def _of_tasks(values: Tensor, starts: int) -> Tensor:
    """[N] as [T, starts], with what is no number made infinite: such a start is never the best."""
    return values.view(-1, starts).nan_to_num(nan=math.inf, posinf=math.inf)


def _picked(errors: Tensor, parts: Sequence[Part], chosen: Tensor) -> Tensor:
    """The error of each part's chosen start."""
    return errors.gather(1, chosen[[part.group for part in parts]].unsqueeze(1)).squeeze(1)
