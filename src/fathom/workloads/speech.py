"""speech: the recurrent network of Deep Speech (Hannun 2014) from cepstra to the phones of TIMIT, trained by CTC.

Harvard's 2016 code fed the output from the third layer, so that the recurrent one was never run, and had no context
window; this is the network of the paper: three dense layers, the first over 9 frames on each side, a bidirectional
recurrent layer, one more dense layer, all of 2048 units whose ReLU is clipped at 20.

Shape letters: B utterances, T frames, F features a frame, H units, C phones and the blank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fathom.core.errors import BadOption, DataError
from fathom.core.record import Artifact
from fathom.data import an4, timit
from fathom.data._audio import TOO_SHORT, Sizes, Utterances
from fathom.data._utterance_batches import by_length, speed_perturbed, time_masked
from fathom.data.base import Batch, once, reader_for
from fathom.workloads import _ctc
from fathom.workloads._deep_speech import DeepSpeech, strided
from fathom.workloads.base import Facts, Output, State, Workload
from fathom.workloads.recipe import Recipe, warmup_cosine

if TYPE_CHECKING:
    from jiwer import WordOutput


EVALUATED = 256  # held-out utterances at once
SHOWN = 12  # rows of an artifact
WARM_UP = 0.05  # the share of all training steps with linear warm-up


@dataclass(frozen=True, kw_only=True)
class SpeechRecipe(Recipe["Speech"]):
    """Phone error rate on a corpus of speech."""

    metric: str = "phone error rate"
    unit: str = "%"
    better: Literal["higher", "lower"] = "lower"
    precision: str = "tf32"
    skips_nonfinite_gradients: bool = True  # a gradient can overflow on the way back through hundreds of frames

    def for_run(self, folder: Path | None, options: Mapping[str, Any]) -> SpeechRecipe:
        if folder is not None and reader_for(Speech.name, folder):
            return replace(self, target=None)  # the targets are those of the two corpora
        if folder is None:
            return self
        if Speech.is_an4(folder):
            return self if an4.is_whole(folder) else self.without_target("the whole of AN4")
        if not timit.has_core_test_set(folder):
            return OTHER_PHONES
        return TIMIT if timit.is_whole(folder) else TIMIT.without_target("the whole of TIMIT")

    def schedule(self, workload: Speech, optimizer: Optimizer, steps: int) -> LambdaLR:
        return warmup_cosine(optimizer, steps, max(1.0, WARM_UP * steps))

    def evaluation_data(self, workload: Speech, folder: Path, split: str) -> Utterances:
        """Every utterance of the validation speakers, or of AN4's test set or TIMIT's core test set.

        None is left out for its length, as an error rate of the shorter ones says little; but those are that no network
        can align, so that one of them does not refuse the rest.
        """
        if reader_for(workload.name, folder):
            read_elsewhere: Utterances = super().evaluation_data(workload, folder, split)
            return read_elsewhere
        sizes = Sizes(workload.frames, workload.phones, workload.stride)
        is_an4 = workload.is_an4(folder)
        read = an4.read if is_an4 else timit.read
        if split == "test" and not is_an4 and timit.has_core_test_set(folder):
            split = "core"
        found = read(folder, split, sizes, workload.by_speaker)
        tolerated = *timit.LEFT_OUT, TOO_SHORT
        if too_large := {reason: count for reason, count in found.skipped.items() if reason not in tolerated}:
            counts = ", ".join(f"{count} {reason}" for reason, count in too_large.items())
            hint = "try a larger --set frames=N or phones=N"
            raise DataError.at(folder, f"{split} utterances do not fit the network: {counts}; {hint}")
        return found

    def evaluate(self, workload: Speech, state: State, data: Utterances) -> float:
        references, hypotheses = workload.transcribed(state, data)
        if not any(references):
            raise DataError("no phone of these utterances is scored, so there is no error rate")
        return 100 * compared(references, hypotheses).wer

    def artifacts(self, workload: Speech, state: State, data: Utterances) -> list[Artifact]:
        """Some utterances beside their transcripts, and the most frequent errors."""
        references, hypotheses = workload.transcribed(state, data)
        some = [list(row) for row in zip(data.sentences, references, hypotheses, strict=True)][:SHOWN]
        errors = [[*pair, times] for pair, times in confused(references, hypotheses).most_common(SHOWN)]
        return [
            Artifact(title="Test utterances", columns=["sentence", "reference", "hypothesis"], rows=some),
            Artifact(title="Most frequent errors", columns=["reference", "hypothesis", "times"], rows=errors),
        ]


COUNTED = (
    "substitutions, deletions and insertions over all phones of the references; best path; features scaled speaker by "
    "speaker; a running mean of the weights is evaluated after every epoch on every tenth training speaker, who is not "
    "trained on, and the best of these is tested once"
)

AN4 = SpeechRecipe(
    target=15.0,
    protocol="all test utterances of AN4 that the folder holds (130 in the whole corpus), in the phones of its "
    f"dictionary, A said EY and ONE W AH N; {COUNTED}",
    evaluations=200,
    options={
        "frames": 640,
        "phones": 48,
        "stride": 2,
        "by_speaker": True,
        "by_length": True,
        "speed_perturbation": 0.15,
        "time_mask": 12,
        "noise": 0.2,
        "dropout": 0.3,
        "adam": True,
        "learning_rate": 1.5e-4,  # a step of Adam may lengthen what recurs by this times the units
        "clip_norm": 20.0,
        "averaging": 0.99,
    },
)

TIMIT = SpeechRecipe(
    # one bidirectional layer of LSTM trained by CTC has 23 to 24 % (Graves 2013); a plain one may be a little worse
    target=25.0,
    protocol="all that the folder holds of TIMIT's core test set without the SA sentences (24 speakers and 192 "
    "utterances in the whole corpus); 61 phones learnt, folded to 39 classes in scoring and q left out (Lee and "
    f"Hon 1989); {COUNTED}",
    evaluations=80,
    options={**AN4.options, "frames": 780, "phones": 75},
)

OTHER_PHONES = replace(
    TIMIT,
    target=None,
    protocol="all test utterances of the folder, which holds none of TIMIT's core test set: those of its folder TEST, "
    "or every fourth by name where there is no such folder; TIMIT's 61 phones learnt, folded to 39 classes in scoring "
    f"and q left out (Lee and Hon 1989); {COUNTED}",
)


@dataclass(frozen=True, kw_only=True)
class Speech(Workload):
    name: ClassVar = "speech"
    facts: ClassVar = Facts(
        year=2014,
        paper="Hannun et al., Deep Speech: Scaling up end-to-end speech recognition, 2014",
        style="Recurrent, Full",
        layers=5,
        task="Supervised",
        dataset="TIMIT",
        parameters=26_314_814,
        macs_per_item=3_937_288_192,
        train_flop_per_item=23_320_215_552,
    )
    item: ClassVar = "utterance"
    expects: ClassVar = f"{timit.EXPECTS}; or {an4.EXPECTS}"
    presets: ClassVar = {
        # so small a network bears a larger step
        "tiny": {"batch": 8, "units": 128, "frames": 120, "phones": 16, "learning_rate": 1e-3, "clip_norm": 30.0},
        "small": {"batch": 2, "frames": 150, "phones": 24},
        "paper": {"batch": 32},  # the paper gives none; 32 is that of the 2016 suite
    }
    recipe: ClassVar = AN4
    renamed: ClassVar = {"speed": "speed_perturbation", "gap": "time_mask"}

    frames: int = 780  # utterances are padded to so many frames: the longest of TIMIT lasts 7.8 s
    phones: int = 75  # ... and to so many phones
    units: int = 2048
    context: int = 9  # frames on each side that the first layer sees; the paper tried 5, 7 and 9
    dropout: float = 0.05
    learning_rate: float = 1e-4
    momentum: float = 0.99
    clip_norm: float | None = 100.0
    beam: int = 1  # prefixes kept in decoding; 1 takes the best path
    stride: int = 1  # frames from one look to the next; the paper's faster networks take 2
    # how it learns from few speakers; timing runs do without
    by_speaker: bool = False  # features are scaled by each speaker's own mean and spread, not by those of all
    by_length: bool = False  # a batch has utterances of about one length and no more padding than they need
    speed_perturbation: float = 0.0  # utterances are played faster or slower by up to this share
    time_mask: int = 0  # two stretches of up to so many frames are masked in each
    noise: float = 0.0  # the standard deviation of what is added to every feature
    adam: bool = False  # in place of Nesterov's gradient
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        floors = {"frames": 1, "phones": 1, "units": 1, "context": 0, "beam": 1, "stride": 1, "time_mask": 0}
        floors["speed_perturbation"] = 0
        for name, least in floors.items():
            if getattr(self, name) < least:
                raise BadOption(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise BadOption(f"dropout must be at least 0 and below 1, not {self.dropout}")

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.frames, self.phones, self.stride * (1 + self.speed_perturbation))

    def model(self) -> DeepSpeech:
        return DeepSpeech(self.context, self.units, self.dropout, self.stride)

    def synthetic(self, seed: int) -> Utterances:
        return timit.synthetic(seed, self.sizes)

    def real(self, folder: Path, split: str = "train") -> Utterances:
        read = an4.read if self.is_an4(folder) else timit.read
        return read(folder, split, self.sizes, self.by_speaker)

    @classmethod
    def is_an4(cls, folder: Path) -> bool:
        """Which of its two corpora a folder holds."""
        if an4.is_present(folder):
            return True
        if timit.is_present(folder):
            return False
        raise DataError.at(folder, f"neither TIMIT nor AN4; the folder must contain {cls.expects}")

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        scores_TBC: Tensor = model(batch["features"], batch["frames"])
        return scores_TBC.transpose(0, 1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The negative log probability of the phones, in nats per utterance."""
        scores_TBC: Tensor = model(batch["features"], batch["frames"])
        log_probs_TBC = scores_TBC.float().log_softmax(-1)
        lengths = strided(batch["frames"], self.stride), batch["phone_count"]
        return _ctc.loss(log_probs_TBC, batch["phones"], *lengths) / log_probs_TBC.shape[1]

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Nesterov's accelerated gradient, as in the paper; the learning rate and the clipping are ours."""
        decay = self.weight_decay
        if self.adam:
            return AdamW(model.parameters(), self.learning_rate, betas=(0.9, 0.98), weight_decay=decay)
        return SGD(model.parameters(), self.learning_rate, self.momentum, weight_decay=decay, nesterov=True)

    def infer(self, model: nn.Module, batch: Batch) -> Output:
        """The phones recognised, padded with 0, and how many."""
        log_probs_BTC = self.forward(model, batch).float().log_softmax(-1)
        frames_B = strided(batch["frames"], self.stride)
        if self.beam == 1:
            phones, count = _ctc.greedy(log_probs_BTC, frames_B)
        else:
            phones, count, _ = _ctc.beam_search(log_probs_BTC, frames_B, self.beam)
        return {"phones": phones, "phone_count": count}

    def answers(self, output: Output, source: Any) -> list[str]:
        """Each transcript: 'sh iy hh ae d'."""
        counted = zip(output["phones"].tolist(), output["phone_count"].tolist(), strict=True)
        return [source.transcript(phones[:count]) for phones, count in counted]

    def feed(self, source: Utterances, device: torch.device, seed: int, start: int = 0) -> Iterator[Batch]:
        if self.by_length:
            return by_length(source, self.batch, device, seed, start)
        return super().feed(source, device, seed, start)

    def augment(self, batch: Batch) -> Batch:
        """The same utterances as they might have been spoken another time."""
        if self.speed_perturbation:
            batch = speed_perturbed(batch, self.speed_perturbation)
        if self.noise:
            batch = batch | {"features": batch["features"] + self.noise * torch.randn_like(batch["features"])}
        return time_masked(batch, self.time_mask) if self.time_mask else batch

    def transcribed(self, state: State, data: Utterances) -> tuple[list[str], list[str]]:
        """References and hypotheses, an utterance a line, in the phones that are scored."""
        references: list[str] = []
        hypotheses: list[str] = []
        for batch in once(data, EVALUATED, state.device):
            references += self.answers(batch, data)
            hypotheses += self.answers(self.infer(state.model, batch), data)
        return [data.scored(line) for line in references], [data.scored(line) for line in hypotheses]


def compared(references: list[str], hypotheses: list[str]) -> WordOutput:
    """The fewest edits from the one to the other; the rate is that of all edits to all phones of the references."""
    import jiwer  # here, as only evaluation needs it

    return jiwer.process_words(references, hypotheses)


def confused(references: list[str], hypotheses: list[str]) -> Counter[tuple[str, str]]:
    """How often one phone was recognised as another; a dash stands for none."""
    found = compared(references, hypotheses)
    pairs: Counter[tuple[str, str]] = Counter()
    for phones, others, chunks in zip(found.references, found.hypotheses, found.alignments, strict=True):
        for chunk in chunks:
            if chunk.type != "equal":
                ours = phones[chunk.ref_start_idx : chunk.ref_end_idx]
                theirs = others[chunk.hyp_start_idx : chunk.hyp_end_idx]
                pairs.update(zip_longest(ours, theirs, fillvalue="-"))
    return pairs
