"""The network of seq2seq, and the two ways in which it writes: the likeliest word each time, or the best of a beam."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathom.data._vocabulary import EOS, GO, PAD
from fathom.workloads.base import Output

CHECK_EVERY = 8  # decoding steps between two looks at whether all sentences have ended: each look waits for the device


class Memory(NamedTuple):
    """The source as attention sees it, one row a word; what does not change from step to step is made once."""

    values: Tensor
    keys: Tensor
    penalty: Tensor  # added to the scores: 0 for a word, the lowest of numbers for padding

    def each(self, change: Callable[[Tensor], Tensor]) -> Memory:
        return Memory(*map(change, self))


class DecoderState(NamedTuple):
    """What the decoder carries from word to word, layer by layer."""

    hidden: tuple[Tensor, ...]
    cell: tuple[Tensor, ...]

    def each(self, change: Callable[[Tensor], Tensor]) -> DecoderState:
        return DecoderState(tuple(map(change, self.hidden)), tuple(map(change, self.cell)))


class AdditiveAttention(nn.Module):
    """Scores each source word by v . tanh(W query + U value); gives the mean of the values so weighted."""

    role = "attention"

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.query = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, memory: Memory) -> Tensor:
        weights = self.weights(query, memory).unsqueeze(1)
        return torch.bmm(weights.to(memory.values.dtype), memory.values).squeeze(1)

    def weights(self, query: Tensor, memory: Memory) -> Tensor:
        score = self.score(torch.tanh(memory.keys + self.query(query).unsqueeze(1))).squeeze(2)
        weights: Tensor = (score + memory.penalty).softmax(1)
        return weights


class Translator(nn.Module):
    """Encoder, attention, decoder.

    The encoder has no biases, so that padding before a sentence leaves its state at zero, exactly: whole batches of
    sentences of different lengths then go through one fused call, with no lengths for the host to know.
    """

    def __init__(
        self,
        words: tuple[int, int],
        embedding: int,
        hidden: int,
        depth: int,
        dropout: float,
        forget_bias: float | None = None,
    ) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(words[0], embedding, padding_idx=PAD)
        between = dropout if depth > 1 else 0.0
        self.encoder = nn.LSTM(embedding, hidden, depth, bias=False, batch_first=True, dropout=between)
        self.target_embedding = nn.Embedding(words[1], embedding)
        self.attention = AdditiveAttention(hidden)
        inputs = [embedding + hidden] + [hidden] * (depth - 1)
        self.decoder = nn.ModuleList(nn.LSTMCell(width, hidden) for width in inputs)
        self.readout = nn.Linear(2 * hidden, hidden)
        self.projection = nn.Linear(hidden, words[1])
        self.dropout = nn.Dropout(dropout)
        for weight in self.parameters():
            nn.init.uniform_(weight, -0.08, 0.08)
        with torch.no_grad():
            self.source_embedding.weight[PAD].zero_()
            if forget_bias is not None:
                self._remember_at_first(forget_bias)

    def _remember_at_first(self, bias: float) -> None:
        """Opens the forget gates of the decoder, so that early words are not lost before it learns to keep them."""
        for cell in self.decoder:
            for name, value in (("bias_ih", bias), ("bias_hh", 0.0)):  # torch adds the two
                cell.get_parameter(name).chunk(4)[1].fill_(value)  # of input, forget, cell and output

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits for every target word, given the true words before it; the source is padded on the left."""
        memory, state = self.encode(source)
        tops: list[Tensor] = []
        contexts: list[Tensor] = []
        for word in self._before(target).to(memory.keys.dtype).unbind(1):
            state, context = self.step(word, state, memory)
            tops.append(state.hidden[-1])
            contexts.append(context)
        return self.predict(torch.stack(tops, 1), torch.stack(contexts, 1))

    def looks(self, source: Tensor, target: Tensor) -> Tensor:
        """How much attention each step of the writing pays to each word as read, given the true words: [B, T, S]."""
        memory, state = self.encode(source)
        looks: list[Tensor] = []
        for word in self._before(target).to(memory.keys.dtype).unbind(1):
            looks.append(self.attention.weights(state.hidden[-1], memory))
            state, _ = self.step(word, state, memory)
        return torch.stack(looks, 1)

    def _before(self, target: Tensor) -> Tensor:
        """The embedded word before each word of the target."""
        embedded: Tensor = self.dropout(self.target_embedding(F.pad(target[:, :-1], (1, 0), value=GO)))
        return embedded

    def encode(self, source: Tensor) -> tuple[Memory, DecoderState]:
        """Reads the source; the decoder starts from the encoder's last state, layer by layer."""
        with _autocast_off(source.device):
            values, (hidden, cell) = self.encoder(self.dropout(self.source_embedding(source)))
        keys = self.attention.key(values)
        penalty = torch.zeros_like(source, dtype=torch.float32)
        penalty = penalty.masked_fill(source == PAD, torch.finfo(torch.float32).min)
        return Memory(values.to(keys.dtype), keys, penalty), DecoderState(hidden.unbind(0), cell.unbind(0))

    def step(self, word: Tensor, state: DecoderState, memory: Memory) -> tuple[DecoderState, Tensor]:
        """One target word further: attend with the top layer's last state, then advance each layer."""
        context = self.attention(state.hidden[-1], memory)
        after: list[tuple[Tensor, Tensor]] = []
        for layer, *before in zip(self.decoder, state.hidden, state.cell, strict=True):
            below = self.dropout(after[-1][0]) if after else torch.cat([word, context], 1)
            after.append(layer(below, before))
        hidden, cell = zip(*after, strict=True)
        return DecoderState(hidden, cell), context

    def predict(self, top: Tensor, context: Tensor) -> Tensor:
        readout = torch.tanh(self.readout(torch.cat([top, context], -1)))
        logits: Tensor = self.projection(self.dropout(readout))
        return logits

    def next_word(self, word: Tensor, state: DecoderState, memory: Memory) -> tuple[Tensor, DecoderState]:
        """Log probabilities of what follows a word; padding and GO never do."""
        state, context = self.step(self.target_embedding(word), state, memory)
        logits = self.predict(state.hidden[-1], context).float()
        logits[:, :EOS] = -torch.inf
        return logits.log_softmax(1), state


def _autocast_off(device: torch.device) -> AbstractContextManager[Any]:
    """A fused LSTM does not heed autocast's bf16: cuDNN's would run in fp16, and oneDNN's refuses on many CPUs."""
    if not torch.amp.is_autocast_available(device.type):  # the meta device, where costs are counted
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def greedy(model: Translator, source: Tensor, length: int) -> Output:
    """The likeliest word at each step, until EOS or `length` tokens."""
    memory, state = model.encode(source)
    tokens = source.new_full((len(source), length), PAD)
    word = source.new_full((len(source),), GO)
    total = torch.zeros(len(source), device=source.device)
    ended = torch.zeros_like(word, dtype=torch.bool)
    for place in range(length):
        likely, state = model.next_word(word, state, memory)
        gain, word = likely.max(1)
        total += gain.masked_fill(ended, 0)
        tokens[:, place] = word = word.masked_fill(ended, PAD)
        ended |= word == EOS
        if place % CHECK_EVERY == CHECK_EVERY - 1 and bool(ended.all()):
            break
    return _output(tokens, total / (tokens != PAD).sum(1))


def beam_search(model: Translator, source: Tensor, length: int, width: int) -> Output:
    """The best of the translations found by keeping the `width` best beginnings at each step."""
    memory, state = model.encode(source)
    memory, state = memory.each(_repeated(width)), state.each(_repeated(width))
    beam = Beam(len(source), width, length, source.device)
    for place in range(length):
        likely, state = model.next_word(beam.tokens[:, :, place].flatten(), state, memory)
        state = state.each(_selected(beam.extend(likely, place)))
        if place % CHECK_EVERY == CHECK_EVERY - 1 and bool(beam.ended.all()):
            break
    return _output(beam.tokens[:, 0, 1:], beam.score[:, 0])


class Beam:
    """For each item of a batch, the best beginnings of a translation found so far, best first.

    They are ranked by log probability per token, EOS included, so that short ones have no advantage. One that has
    ended stays, unchanged, for as long as it ranks high enough.
    """

    def __init__(self, items: int, width: int, length: int, device: torch.device) -> None:
        self.tokens = torch.full((items, width, 1 + length), PAD, device=device)
        self.tokens[:, :, 0] = GO
        self.total = torch.full((items, width), -torch.inf, device=device)
        self.total[:, 0] = 0  # one beginning, not `width` copies of it
        self.count = torch.zeros_like(self.total)
        self.ended = torch.zeros_like(self.total, dtype=torch.bool)
        self.first = torch.arange(items, device=device).unsqueeze(1) * width  # the row where an item's beam starts

    @property
    def score(self) -> Tensor:
        return self.total / self.count

    def extend(self, likely: Tensor, place: int) -> Tensor:
        """One word further, given the log probabilities of each row's next word; gives the row each came from."""
        words = likely.shape[1]
        likely = likely.view(*self.total.shape, words)
        nothing = torch.where(torch.arange(words, device=likely.device) == PAD, 0.0, -torch.inf)
        total = self.total.unsqueeze(2) + torch.where(self.ended.unsqueeze(2), nothing, likely)
        count = self.count + ~self.ended
        chosen = (total / count.unsqueeze(2)).flatten(1).topk(self.total.shape[1]).indices
        parent, word = chosen // words, chosen % words
        self.total, self.count = total.flatten(1).gather(1, chosen), count.gather(1, parent)
        self.tokens = self.tokens.gather(1, parent.unsqueeze(2).expand_as(self.tokens))
        self.tokens[:, :, place + 1] = word
        self.ended = self.ended.gather(1, parent) | (word == EOS)
        return (self.first + parent).flatten()


def _repeated(times: int) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows.repeat_interleave(times, 0)


def _selected(numbers: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows.index_select(0, numbers)


def _output(tokens: Tensor, score: Tensor) -> Output:
    return {"tokens": tokens, "lengths": (tokens > EOS).sum(1), "score": score}
