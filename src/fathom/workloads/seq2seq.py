"""seq2seq: translation with LSTMs (Sutskever, Vinyals and Le, 2014) and attention, at the sizes of the 2016 suite.

Three LSTM layers read the reversed source, three write the target, and additive attention (Bahdanau, Cho and Bengio,
2015) feeds what was read into every step of the writing: seven layers. The 2016 code learnt with a sampled softmax of
512 words; here, as in the papers, the softmax is over all of them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fathom.core.errors import BadOption, UnknownName
from fathom.core.record import Artifact
from fathom.data import corpora, wmt
from fathom.data._vocabulary import PAD
from fathom.data.base import Batch, once, reader_for
from fathom.workloads._translator import Translator, beam_search, greedy
from fathom.workloads.base import Facts, Output, State, Workload
from fathom.workloads.recipe import Recipe, warmup_cosine

EVALUATED = 1000  # sentences at once
VALIDATED = 1014  # sentences of validation text, at most: Multi30k's
MULTI30K = 29_000  # training pairs: other texts are trained on for as many pairs in all
LEAST_EPOCHS = 4  # of a text that is larger
INTERVAL = 100_000  # pairs between two evaluations, at most
SHORTEST_INTERVAL = 20_000  # ... and at least: to translate the validation text takes as long as to learn from a few
SMALL_TEXT = 100_000  # pairs
LARGE_TEXT = {"dropout": 0.3, "word_dropout": 0.1}
LARGEST_TEXT = {"dropout": 0.2, "word_dropout": 0.0}
LONGER = 1.75  # subwords in a word, at most, in the longest sentences that are learnt
LONGEST = 80  # subwords
SHORT_ENOUGH = 0.99  # of the pairs; where fewer are, it is told
SHOWN = 8  # of the translations, in the report
FIFTHS = ("first", "second", "third", "fourth", "last")
SOLVERS = ("sgd", "adam")
TOKENIZERS = {  # sacrebleu's, of languages by their codes of two and of three letters; else 13a
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "wuu"), "zh"),
    **dict.fromkeys(("ja", "jpn", "th", "tha", "lo", "lao", "my", "mya", "bur", "km", "khm"), "char"),
}


@dataclass(frozen=True, kw_only=True)
class TranslationRecipe(Recipe["Seq2Seq"]):
    """BLEU on parallel text; the sizes follow from the text."""

    def for_run(self, folder: Path | None, options: Mapping[str, Any]) -> TranslationRecipe:
        if folder is None:
            return self
        if reader_for(Seq2Seq.name, folder):
            return replace(self, target=None)  # no target is known, nor how large the text is
        source, target = _direction(corpora.languages(folder), self.options, options)
        text = corpora.sizes(folder, source, target)
        sizes = [_subwords(words, letters) for words, letters in zip(text.words, text.letters, strict=True)]
        if not options.get("subwords", self.options.get("subwords")):
            return self._for_text(text, source, target, options)
        asked = [
            options.get(f"{side}_vocabulary", size) for side, size in zip(("source", "target"), sizes, strict=True)
        ]
        lowercase = options.get("lowercase", False)
        lengths = wmt.subword_lengths(folder, (source, target), (asked[0], asked[1]), lowercase)
        return self._for_text(text, source, target, options, lengths)

    def _for_text(
        self,
        text: corpora.TextSizes,
        source: str,
        target: str,
        options: Mapping[str, Any],
        subwords: NDArray[np.int64] | None = None,
    ) -> TranslationRecipe:
        """Vocabularies, lengths, dropouts and the number of evaluations for so much text; the target is Multi30k's.

        `subwords` has the lengths of a sample of its pairs, which words of many subwords make long.
        """
        longest = [LONGER * words for words in text.long_sentence]
        if subwords is not None:
            longest = np.maximum(longest, np.quantile(subwords, 0.995, axis=0, method="higher")).tolist()
        longest = [min(LONGEST, -(-round(length) // 4) * 4) for length in longest]
        taken = {
            "source_language": source,
            "target_language": target,
            "source_vocabulary": _subwords(text.words[0], text.letters[0]),
            "target_vocabulary": _subwords(text.words[1], text.letters[1]),
            "source_length": longest[0],
            "target_length": longest[1] + 4,  # EOS, and a translation may be a little longer
        }
        if text.count >= SMALL_TEXT:  # more text needs less of what keeps a network from learning it by heart
            taken |= LARGE_TEXT if text.count < 5 * SMALL_TEXT else LARGEST_TEXT
        else:
            taken |= {name: self.options[name] for name in LARGE_TEXT}
        known = (source, target) == ("en", "de") and text.is_multi30k and text.count == MULTI30K
        interval = max(SHORTEST_INTERVAL, min(text.count, INTERVAL))
        seen = max(self.evaluations * MULTI30K, LEAST_EPOCHS * text.count)
        found = replace(
            self,
            target=self.target if known else None,
            options={**self.options, **taken},
            items_per_evaluation=interval,
            evaluations=round(seen / interval),
        )
        changed = {**taken, **{name: options[name] for name in taken if name in options}}
        settings = ", ".join(f"{name} {value}" for name, value in changed.items() if not name.endswith("language"))
        told = f"{source} to {target}, {text.count:,} training pairs: {settings}"
        if subwords is not None:
            short = (subwords <= [changed["source_length"], changed["target_length"] - 1]).all(1).mean()
            told += f"; {100 * (1 - short):.0f} % of the pairs are longer and left out" if short < SHORT_ENOUGH else ""
        aimless = "" if known else "; no target: that of 33 BLEU is for Multi30k from English to German"
        return replace(found, taken=f"{told}; validation: {text.validation}, test: {text.test}{aimless}")

    def evaluation_data(self, workload: Seq2Seq, folder: Path, split: str) -> wmt.ParallelText:
        """All of the test text; of a long validation text the first part, as every interval translates it."""
        text: wmt.ParallelText = super().evaluation_data(workload, folder, split)
        return text if split == "test" else text.subset(range(min(len(text), VALIDATED)))

    def schedule(self, workload: Seq2Seq, optimizer: Optimizer, steps: int) -> LambdaLR:
        return warmup_cosine(optimizer, steps, workload.warmup + 1)

    def evaluate(self, workload: Seq2Seq, state: State, data: wmt.ParallelText) -> float:
        return bleu(workload.translated(state, data, workload.beam), _references(data), workload.target_language)[0]

    def artifacts(self, workload: Seq2Seq, state: State, data: wmt.ParallelText) -> list[Artifact]:
        """What beam search adds, the first translations beside the references, and where the decoder attends."""
        simple, searched = (workload.translated(state, data, beam) for beam in (1, workload.beam))
        order = "from the last word to the first" if workload.reverse_source else "from the first word to the last"
        found = {"greedy": simple, f"beam of {workload.beam}": searched}
        scores = {name: bleu(lines, _references(data), workload.target_language) for name, lines in found.items()}
        rows = [[name, order, *score] for name, score in scores.items()]
        columns = ["decoding", "source is read", "BLEU", "sacrebleu's signature"]
        beside = zip(data.texts(), searched, strict=True)
        shown = [[source, line, reference] for (source, reference), line in beside][:SHOWN]
        attention = zip(FIFTHS, workload.attention_by_fifth(state, data).tolist(), strict=True)
        return [
            Artifact(title="BLEU by greedy decoding and by beam search", columns=columns, rows=rows),
            Artifact(title="Translations of the test set", columns=["source", "translation", "reference"], rows=shown),
            Artifact(
                title="Mean attention to each fifth of the source, while each fifth of the target is written",
                columns=["written", *(f"{fifth} fifth" for fifth in FIFTHS)],
                rows=[[f"{fifth} fifth", *map(_share, row)] for fifth, row in attention],
            ),
        ]


@dataclass(frozen=True, kw_only=True)
class Seq2Seq(Workload):
    name: ClassVar = "seq2seq"
    facts: ClassVar = Facts(
        year=2014,
        paper="Sutskever, Vinyals and Le, Sequence to Sequence Learning with Neural Networks, NIPS 2014",
        style="Recurrent",
        layers=7,
        task="Supervised",
        dataset="WMT-15",
        parameters=34_436_928,
        macs_per_item=339_814_400,
        train_flop_per_item=2_037_313_536,
    )
    item: ClassVar = "sentence pair"
    expects: ClassVar = corpora.EXPECTS
    sweeps_threads: ClassVar = True
    presets: ClassVar = {
        "tiny": {
            "batch": 16,
            "source_vocabulary": 200,
            "target_vocabulary": 200,
            "subwords": False,  # bytes alone are more than 200
            "embedding": 64,
            "hidden": 64,
            "source_length": 8,
            "target_length": 10,
        },
        "small": {"batch": 8, "source_length": 20, "target_length": 25},
        "paper": {"batch": 128},
    }

    recipe: ClassVar = TranslationRecipe(
        metric="BLEU",
        unit="points",
        target=33.0,
        better="higher",
        protocol="sacrebleu of the whole test set against its raw text, letters in their case, translated by beam "
        "search; a running mean of the weights is evaluated in the same way on the validation text, or its first 1,014 "
        "pairs, after every epoch (20,000 pairs at least, 100,000 at most), and the best of these is tested once",
        evaluations=64,
        trainer="seq2seq",  # batches of similar length, and a mean of the weights is evaluated
        precision="tf32",  # the step is bound by launches: bf16 would add its casts to them
        engine="cudagraph",
        options={
            "source_language": "en",
            "target_language": "de",
            "subwords": True,
            "source_vocabulary": 6000,
            "target_vocabulary": 6000,
            "source_length": 44,
            "hidden": 512,
            "dropout": 0.5,
            "word_dropout": 0.2,  # without it, what is learnt after some 40 epochs no longer holds for other text
            "forget_bias": 1.0,
            "solver": "adam",
            "learning_rate": 0.001,
            "warmup": 500,
            "clip_norm": 1.0,
            "label_smoothing": 0.15,
            "averaging": 0.999,
            "beam": 5,
            "reverse_source": True,  # named, so that reports name it beside runs without
        },
    )

    source_vocabulary: int = 40_000  # at most, special words included; the data may have fewer
    target_vocabulary: int = 40_000
    source_length: int = 40  # words, the suite's largest bucket
    target_length: int = 50  # words and EOS
    source_language: str = "en"
    target_language: str = "fr"
    lowercase: bool = False
    subwords: bool = False  # byte-pair encoding of the raw text in place of words; real data alone
    reverse_source: bool = True  # the paper's trick: the first words read and the first words written come close
    embedding: int = 256
    hidden: int = 256
    depth: int = 3  # LSTM layers on either side
    dropout: float = 0.0
    word_dropout: float = 0.0  # the share of words that are not shown in training, on either side
    forget_bias: float | None = None  # of the decoder's cells at the start; None draws it as the paper does all weights
    beam: int = 1  # 1 decodes greedily
    solver: str = "sgd"  # or adam
    learning_rate: float = 0.7
    clip_norm: float | None = 5.0
    weight_decay: float = 0.0
    label_smoothing: float = 0.0  # the share of a target word's weight that goes to all words alike
    warmup: int = 0  # steps of learning until the rate is whole; from there it falls to zero along a cosine

    def __post_init__(self) -> None:
        least = {"source_vocabulary": 5, "target_vocabulary": 5, "source_length": 1, "target_length": 2}
        least |= {"embedding": 1, "hidden": 1, "depth": 1, "beam": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise BadOption(f"option {name} of {self.name} must be at least {value}, not {getattr(self, name)}")
        for name in ("dropout", "word_dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                value = getattr(self, name)
                raise BadOption(f"option {name} of {self.name} must be at least 0 and less than 1, not {value}")
        if self.solver not in SOLVERS:
            raise UnknownName.among("solver", self.solver, SOLVERS)

    def model(self) -> Translator:
        words = self.source_vocabulary, self.target_vocabulary
        regularised = self.dropout, self.forget_bias, self.word_dropout
        return Translator(words, self.embedding, self.hidden, self.depth, *regularised)

    def sides(self) -> tuple[wmt.Side, wmt.Side]:
        source = wmt.Side(self.source_language, self.source_vocabulary, self.source_length)
        return source, wmt.Side(self.target_language, self.target_vocabulary, self.target_length)

    def synthetic(self, seed: int) -> wmt.ParallelText:
        return wmt.synthetic(seed, *self.sides())

    def real(self, folder: Path, split: str = "train") -> wmt.ParallelText:
        read = wmt.read_subwords if self.subwords else wmt.read
        return read(folder, split, *self.sides(), lowercase=self.lowercase)

    def fit(self, source: wmt.ParallelText) -> Self:
        """No more words than the text has."""
        sizes = len(source.source_vocabulary), len(source.target_vocabulary)
        return dataclasses.replace(self, source_vocabulary=sizes[0], target_vocabulary=sizes[1])

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(self.arranged(batch["source"]), batch["target"])
        return logits

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy in nats per target token, EOS included; padding does not count."""
        logits, target = self.forward(model, batch).flatten(0, 1).float(), batch["target"].flatten()
        return F.cross_entropy(logits, target, ignore_index=PAD, label_smoothing=self.label_smoothing)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The paper's gradient descent, or Adam, which gets farther with little text."""
        weights, rate, decay = list(model.parameters()), self.learning_rate, self.weight_decay
        if self.solver == "sgd":
            return SGD(weights, lr=rate, weight_decay=decay)
        return AdamW(weights, lr=rate, weight_decay=decay, fused=weights[0].is_cuda)

    def infer(self, model: nn.Module, batch: Batch) -> Output:
        """Translations: their tokens, their lengths in words, and their log probability per token."""
        translator, source = cast(Translator, model), self.arranged(batch["source"])
        if self.beam == 1:
            return greedy(translator, source, self.target_length)
        return beam_search(translator, source, self.target_length, self.beam)

    def answers(self, output: Output, source: wmt.ParallelText) -> list[str]:
        rows = zip(output["tokens"].tolist(), output["lengths"].tolist(), strict=True)
        return [source.target_vocabulary.decode(tokens[:length]) for tokens, length in rows]

    def translated(self, state: State, text: wmt.ParallelText, beam: int) -> list[str]:
        """Every sentence of a text in the other language."""
        workload = dataclasses.replace(self, beam=beam)
        outputs = (workload.infer(state.model, batch) for batch in once(text, EVALUATED, state.device))
        return [sentence for output in outputs for sentence in self.answers(output, text)]

    def attention_by_fifth(self, state: State, text: wmt.ParallelText) -> Tensor:
        """Mean attention to each fifth of the sources (across), in their own order, over each of the targets (down)."""
        translator, parts = cast(Translator, state.model), len(FIFTHS)
        total, words = torch.zeros(parts, parts), torch.zeros(parts, 1)
        for batch in once(text, EVALUATED, state.device):
            looks = translator.attention_weights(self.arranged(batch["source"]), batch["target"]).float()
            written, read = _parts(batch["target"], parts), self.arranged(_parts(batch["source"], parts))
            down, across = (F.one_hot(side, parts + 1)[:, :, 1:].float() for side in (written, read))
            total += torch.einsum("btp,bts,bsq->pq", down, looks, across).cpu()
            words += down.sum((0, 1)).unsqueeze(1).cpu()
        return total / words

    def arranged(self, source: Tensor) -> Tensor:
        """The source as the encoder reads it: padding first, then the words, from the last to the first."""
        return source.flip(1) if self.reverse_source else _right_aligned(source)


def _share(value: float) -> float | None:
    """None where no sentence has words in that fifth."""
    return None if math.isnan(value) else round(value, 2)


def _direction(found: Sequence[str], usual: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[str, str]:
    """From which language to which: as asked; what is not asked is the recipe's own language, or else the first."""
    source, target = asked.get("source_language"), asked.get("target_language")
    pair = usual["source_language"], usual["target_language"]

    def other(first: str, second: str, taken: str | None) -> str:
        """The first of these that has text and is not the pair's other language."""
        return next((code for code in (first, second, *found) if code in found and code != taken), first)

    source = source or other(pair[0], pair[1], target)
    return source, target or other(pair[1], pair[0], source)


def _subwords(words: int, letters: int) -> int:
    """A vocabulary that a text of so many words can fill with subwords that are seen often enough to be learnt.

    Every letter is one of them, of which Chinese has thousands, as is every byte; there is room for as many more.
    """
    least = 2 * (letters + 256)
    return 1000 * max(2, min(32, max(-(-least // 1000), round(words / 60_000))))


def bleu(translations: Sequence[str], references: Sequence[str], language: str = "") -> tuple[float, str]:
    """BLEU of a whole text in points, and sacrebleu's words for how it was counted.

    A language without spaces between words is counted by characters, or by sacrebleu's rules for it.
    """
    from sacrebleu.metrics.bleu import BLEU  # here, as only learning needs it

    code = re.split("[_-]", language.lower())[0]  # without script and country
    metric = BLEU(tokenize=TOKENIZERS.get(code, "13a"))
    score = metric.corpus_score(translations, [references]).score
    return score, str(metric.get_signature())


def _references(text: wmt.ParallelText) -> list[str]:
    return [reference for _, reference in text.texts()]


def _parts(sentences: Tensor, parts: int) -> Tensor:
    """For every word which part of its sentence it belongs to, from 1 on; padding stays what it is."""
    there = sentences != PAD
    place = torch.arange(sentences.shape[1], device=sentences.device)
    return torch.where(there, parts * place // there.sum(1, keepdim=True).clamp(min=1) + 1, PAD)


def _right_aligned(source: Tensor) -> Tensor:
    """Sentences padded on the right, moved to the right end of their rows; no length leaves the device."""
    padding = (source == PAD).sum(1, keepdim=True)
    place = torch.arange(source.shape[1], device=source.device)
    return source.gather(1, (place - padding) % source.shape[1])
