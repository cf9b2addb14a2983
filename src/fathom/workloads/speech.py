"""speech: the recurrent network of Deep Speech (Hannun 2014) from cepstra to the phones of TIMIT, trained by CTC.

Harvard's 2016 code fed the output from the third layer, so that the recurrent one was never run, and had no context
window; this is the network of the paper: three dense layers, the first over 9 frames on each side, a bidirectional
recurrent layer, one more dense layer, all of 2048 units whose ReLU is clipped at 20.

Shape letters: B utterances, T frames, F features a frame, H units, C phones and the blank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fathom.core.errors import BadOption, DataError
from fathom.core.record import Artifact
from fathom.data import an4, timit
from fathom.data._audio import FEATURES, Sizes, Utterances
from fathom.data._utterance_batches import by_length, speed_perturbed, time_masked
from fathom.data.base import Batch, once
from fathom.workloads import _ctc
from fathom.workloads.base import Output, State, Workload, phase, warmup_cosine
from fathom.workloads.recipe import Lesson, Quality

if TYPE_CHECKING:
    from jiwer import WordOutput


CLIP = 20.0
OUTPUTS = 1 + len(timit.PHONES)
EVALUATED = 256  # held-out utterances at once
SHOWN = 12  # rows of an artifact
WARM_UP = 0.05  # of all steps of learning, in which the learning rate rises


class _Recurrence(torch.autograd.Function):
    """Both directions of a plain recurrent layer, h_t = min(max(x_t + h_(t-1) W, 0), 20), and their sum.

    cuDNN knows no clipped ReLU, so this is a loop over time, kept to two kernels a frame: one product for both
    directions and one clip. Left to autograd, each frame would also add a gradient as large as W; here the gradient
    of W is a single product over all frames.
    """

    @staticmethod
    def forward(ctx: Any, x_TBH: Tensor, weight_2HH: Tensor, mirror: Tensor) -> Tensor:
        states_2TBH = _both_ways(x_TBH, mirror)
        now, *later = states_2TBH.unbind(1)
        now.clamp_(0, CLIP)
        for after in later:
            now = torch.baddbmm(after, now, weight_2HH, out=after).clamp_(0, CLIP)
        ctx.save_for_backward(states_2TBH, weight_2HH, mirror)
        return _summed(states_2TBH, mirror)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_TBH: Tensor) -> tuple[Tensor, Tensor, None]:
        states_2TBH, weight_2HH, mirror = ctx.saved_tensors
        deltas_2TBH = _both_ways(gradient_TBH.contiguous(), mirror)
        passing = ((states_2TBH > 0) & (states_2TBH < CLIP)).to(deltas_2TBH.dtype)
        back_2HH = weight_2HH.transpose(1, 2)
        (now, *earlier), (open_now, *open_earlier) = deltas_2TBH.unbind(1)[::-1], passing.unbind(1)[::-1]
        now.mul_(open_now)
        for before, opened in zip(earlier, open_earlier, strict=True):
            now = torch.baddbmm(before, now, back_2HH, out=before).mul_(opened)
        entering, leaving = states_2TBH[:, :-1].flatten(1, 2), deltas_2TBH[:, 1:].flatten(1, 2)
        return _summed(deltas_2TBH, mirror), torch.bmm(entering.transpose(1, 2), leaving), None


def _both_ways(x_TBH: Tensor, mirror: Tensor) -> Tensor:
    """The frames in order and, beside them, each utterance's frames from its own last to its first."""
    both = x_TBH.new_empty(2, *x_TBH.shape)
    both[0] = x_TBH
    torch.index_select(x_TBH.flatten(0, 1), 0, mirror, out=both[1].flatten(0, 1))
    return both


def _summed(both_2TBH: Tensor, mirror: Tensor) -> Tensor:
    """The two directions frame by frame: mirroring twice restores the order."""
    return both_2TBH[0] + both_2TBH[1].flatten(0, 1).index_select(0, mirror).view_as(both_2TBH[0])


def mirrored(frames_B: Tensor, width: int) -> Tensor:
    """Row numbers, in a T x B table, that reverse each utterance within its own length and leave padding in place."""
    time = torch.arange(width, device=frames_B.device)[:, None]
    turned = torch.where(time < frames_B, frames_B - 1 - time, time)
    return (turned * len(frames_B) + torch.arange(len(frames_B), device=frames_B.device)).flatten()


class BidirectionalRecurrent(nn.Module):
    """Layer 4: one input matrix for both directions, as the paper writes it, and a recurrent matrix for each."""

    role = "recurrence"

    def __init__(self, units: int) -> None:
        super().__init__()
        self.input = nn.Linear(units, units)
        self.recurrent = nn.Parameter(torch.empty(2, units, units))  # forward in time, backward in time
        for direction in self.recurrent:
            # the paper does not say; an orthogonal matrix keeps lengths and a clipped ReLU never lengthens,
            # so that no gradient can grow on its way back through hundreds of frames
            nn.init.orthogonal_(direction)

    def forward(self, x_TBH: Tensor, frames_B: Tensor) -> Tensor:
        x_TBH = self.input(x_TBH)
        summed: Tensor = _Recurrence.apply(x_TBH, self.recurrent.to(x_TBH.dtype), mirrored(frames_B, len(x_TBH)))  # type: ignore[no-untyped-call]
        return summed


class DeepSpeech(nn.Module):
    """Features and their number of frames to a score for every phone and the blank, at every frame."""

    def __init__(self, context: int, units: int, dropout: float, stride: int = 1) -> None:
        super().__init__()
        self.context, self.dropout, self.stride = context, dropout, stride
        self.dense1 = nn.Linear(FEATURES * (2 * context + 1), units)
        self.dense2 = nn.Linear(units, units)
        self.dense3 = nn.Linear(units, units)
        self.recurrent4 = BidirectionalRecurrent(units)
        self.dense5 = nn.Linear(units, units)
        self.output = nn.Linear(units, OUTPUTS)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def forward(self, features_BTF: Tensor, frames_B: Tensor) -> Tensor:
        """Scores T x B x C; padding has no part in those of real frames, whatever it holds.

        With a stride, T counts the frames that it comes to.
        """
        x = self._in_context(features_BTF, frames_B)
        frames_B = strided(frames_B, self.stride)
        for dense in (self.dense1, self.dense2, self.dense3):
            x = self._clipped(dense(x))
        x = self._clipped(self.dense5(self.recurrent4(x, frames_B)))
        scores: Tensor = self.output(x)
        return scores

    def _in_context(self, features_BTF: Tensor, frames_B: Tensor) -> Tensor:
        """Each frame with its neighbours, T x B x (2 context + 1) F: in a row of frames laid end to end that is
        a window of so many numbers which moves on by F (times the stride), so no gathering is needed."""
        width = features_BTF.shape[1]
        real = torch.arange(width, device=frames_B.device) < frames_B[:, None]
        silent = torch.where(real[..., None], features_BTF, 0)
        rows = F.pad(silent, (0, 0, self.context, self.context)).flatten(1)
        return rows.unfold(1, self.dense1.in_features, FEATURES * self.stride).transpose(0, 1)

    def _clipped(self, x: Tensor) -> Tensor:
        return F.dropout(F.hardtanh(x, 0.0, CLIP), self.dropout, self.training)


def strided(frames_B: Tensor, stride: int) -> Tensor:
    """How many frames are left when only every so many are looked at, the first among them."""
    return frames_B if stride == 1 else (frames_B + stride - 1) // stride


COUNTED = (
    "substitutions, deletions and insertions over all phones said; best path; features scaled speaker by speaker; "
    "looked at after every round, and the first look that reaches the target ends the run"
)

AN4 = Lesson(
    quality=Quality(
        metric="phone error rate",
        unit="%",
        target=15.0,
        better="lower",
        protocol="all test utterances of AN4 that the folder holds (130 in the whole corpus), in the phones of its "
        f"dictionary, A said EY and ONE W AH N; {COUNTED}",
    ),
    rounds=200,
    precision="tf32",
    options={
        "frames": 640,
        "phones": 48,
        "stride": 2,
        "by_speaker": True,
        "by_length": True,
        "speed": 0.15,
        "gap": 12,
        "noise": 0.2,
        "dropout": 0.3,
        "adam": True,
        "learning_rate": 1.5e-4,  # a step of Adam may lengthen what recurs by this times the units
        "clip_norm": 20.0,
    },
)

TIMIT = Lesson(
    quality=Quality(
        metric="phone error rate",
        unit="%",
        # one bidirectional layer of LSTM trained by CTC has 23 to 24 % (Graves 2013); a plain one may be a little worse
        target=25.0,
        better="lower",
        protocol="all that the folder holds of TIMIT's core test set without the SA sentences (24 speakers and 192 "
        "utterances in the whole corpus); 61 phones learnt, folded to 39 classes in scoring and q left out (Lee and "
        f"Hon 1989); {COUNTED}",
    ),
    rounds=80,
    precision=AN4.precision,
    options={**AN4.options, "frames": 780, "phones": 75},
)


@dataclass(frozen=True, kw_only=True)
class Speech(Workload):
    name: ClassVar = "speech"
    year: ClassVar = 2014
    paper: ClassVar = "Hannun et al., Deep Speech: Scaling up end-to-end speech recognition, 2014"
    style: ClassVar = "Recurrent, Full"
    layers: ClassVar = 5
    task: ClassVar = "Supervised"
    dataset: ClassVar = "TIMIT"
    item: ClassVar = "utterance"
    expects: ClassVar = f"{timit.EXPECTS}; or {an4.EXPECTS}"
    presets: ClassVar = {
        # so small a network bears a larger step
        "tiny": {"batch": 8, "units": 128, "frames": 120, "phones": 16, "learning_rate": 1e-3, "clip_norm": 30.0},
        "small": {"batch": 2, "frames": 150, "phones": 24},
        "paper": {"batch": 32},  # the paper gives none; 32 is that of the 2016 suite
    }
    trainer: ClassVar = "guarded"  # a gradient can outgrow its type on the way back through hundreds of frames
    lesson: ClassVar = AN4

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
    speed: float = 0.0  # utterances are speed_perturbed or drawn out by up to this share
    gap: int = 0  # two gaps of up to so many frames are left in each
    noise: float = 0.0  # the spread of what is added to every feature
    adam: bool = False  # in place of Nesterov's gradient
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        floors = {"frames": 1, "phones": 1, "units": 1, "context": 0, "beam": 1, "stride": 1, "gap": 0, "speed": 0}
        for name, least in floors.items():
            if getattr(self, name) < least:
                raise BadOption(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise BadOption(f"dropout must be at least 0 and below 1, not {self.dropout}")

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.frames, self.phones, self.stride * (1 + self.speed))

    @classmethod
    def lesson_from(cls, folder: Path) -> Lesson:
        return AN4 if cls._is_an4(folder) else TIMIT

    def model(self) -> DeepSpeech:
        return DeepSpeech(self.context, self.units, self.dropout, self.stride)

    def synthetic(self, seed: int) -> Utterances:
        return timit.synthetic(seed, self.sizes)

    def real(self, folder: Path, split: str = "train") -> Utterances:
        read = an4.read if self._is_an4(folder) else timit.read
        return read(folder, split, self.sizes, self.by_speaker)

    @classmethod
    def _is_an4(cls, folder: Path) -> bool:
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
        total = F.ctc_loss(log_probs_TBC, batch["phones"], *lengths, blank=_ctc.BLANK, reduction="sum")
        return total / log_probs_TBC.shape[1]

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Nesterov's accelerated gradient, as in the paper; the learning rate and the clipping are ours."""
        decay = self.weight_decay
        if self.adam:
            return AdamW(model.parameters(), self.learning_rate, betas=(0.9, 0.98), weight_decay=decay)
        return SGD(model.parameters(), self.learning_rate, self.momentum, weight_decay=decay, nesterov=True)

    def infer(self, model: nn.Module, batch: Batch) -> Output:
        """The phones heard, padded with 0, and how many."""
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

    def train_step(self, state: State) -> Tensor:
        with phase("data"):
            batch = self._varied(next(state.batches))
        return self.update(state, lambda: self.loss(state.model, batch))

    def _varied(self, batch: Batch) -> Batch:
        """The same utterances as they might have been said another time."""
        if self.speed:
            batch = speed_perturbed(batch, self.speed)
        if self.noise:
            batch = batch | {"features": batch["features"] + self.noise * torch.randn_like(batch["features"])}
        return time_masked(batch, self.gap) if self.gap else batch

    def schedule(self, optimizer: Optimizer, steps: int) -> LambdaLR:
        return warmup_cosine(optimizer, steps, max(1.0, WARM_UP * steps))

    def held_out(self, folder: Path) -> Utterances:
        """Every utterance of AN4's test set or TIMIT's core test set: an error rate of the shorter ones says little."""
        sizes = Sizes(self.frames, self.phones, self.stride)
        read, split = (an4.read, "test") if self._is_an4(folder) else (timit.read, "core")
        found = read(folder, split, sizes, self.by_speaker)
        if too_large := {reason: count for reason, count in found.skipped.items() if reason not in timit.LEFT_OUT}:
            told = ", ".join(f"{count} with {reason}" for reason, count in too_large.items())
            hint = "try a larger --set frames=N or phones=N"
            raise DataError.at(folder, f"test utterances do not fit the network: {told}; {hint}")
        return found

    def evaluate(self, state: State, held_out: Utterances) -> float:
        return 100 * compared(*self._heard(state, held_out)).wer

    def artifacts(self, state: State, held_out: Utterances) -> list[Artifact]:
        """Some utterances as they were said and heard, and the errors that were made most often."""
        said, heard = self._heard(state, held_out)
        some = [list(row) for row in zip(held_out.sentences, said, heard, strict=True)][:SHOWN]
        errors = [[*pair, times] for pair, times in mistaken(said, heard).most_common(SHOWN)]
        return [
            Artifact(title="Test utterances", columns=["sentence", "said", "heard"], rows=some),
            Artifact(title="The commonest errors", columns=["said", "heard", "times"], rows=errors),
        ]

    def _heard(self, state: State, held_out: Utterances) -> tuple[list[str], list[str]]:
        """What was said and what the network makes of it, an utterance a line, in the phones that are scored."""
        said: list[str] = []
        heard: list[str] = []
        for batch in once(held_out, EVALUATED, state.device):
            said += self.answers(batch, held_out)
            heard += self.answers(self.infer(state.model, batch), held_out)
        return [held_out.scored(line) for line in said], [held_out.scored(line) for line in heard]


def compared(said: list[str], heard: list[str]) -> WordOutput:
    """The fewest edits that make the one of the other; its rate is that of all edits to all phones said."""
    import jiwer  # here, as only learning needs it

    return jiwer.process_words(said, heard)


def mistaken(said: list[str], heard: list[str]) -> Counter[tuple[str, str]]:
    """How often one phone was heard as another; a dash stands for nothing."""
    found = compared(said, heard)
    pairs: Counter[tuple[str, str]] = Counter()
    for phones, others, chunks in zip(found.references, found.hypotheses, found.alignments, strict=True):
        for chunk in chunks:
            if chunk.type != "equal":
                ours = phones[chunk.ref_start_idx : chunk.ref_end_idx]
                theirs = others[chunk.hyp_start_idx : chunk.hyp_end_idx]
                pairs.update(zip_longest(ours, theirs, fillvalue="-"))
    return pairs
