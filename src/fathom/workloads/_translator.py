"""The network of seq2seq, with greedy decoding and beam search."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathom.data._vocabulary import EOS, GO, PAD, UNK
from fathom.workloads.base import Output

CHECK_EVERY = 8  # decoding steps between checks whether all sentences have ended: a check synchronises the device


class EncodedSource(NamedTuple):
    """The encoded source, one row per word; everything that is constant over decoding steps is computed once."""

    values: Tensor
    keys: Tensor
    penalty: Tensor  # added to the scores: 0 for a word, the lowest float for padding

    def map(self, change: Callable[[Tensor], Tensor]) -> EncodedSource:
        return EncodedSource(*map(change, self))


class DecoderState(NamedTuple):
    """The LSTM state of the decoder, per layer."""

    hidden: tuple[Tensor, ...]
    cell: tuple[Tensor, ...]

    def map(self, change: Callable[[Tensor], Tensor]) -> DecoderState:
        return DecoderState(tuple(map(change, self.hidden)), tuple(map(change, self.cell)))


class AdditiveAttention(nn.Module):
    """Additive attention: scores v . tanh(W query + U value), softmax, weighted mean of the values."""

    role = "attention"

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.query = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, memory: EncodedSource) -> Tensor:
        weights = self.weights(query, memory).unsqueeze(1)
        return torch.bmm(weights.to(memory.values.dtype), memory.values).squeeze(1)

    def weights(self, query: Tensor, memory: EncodedSource) -> Tensor:
        score = self.score(torch.tanh(memory.keys + self.query(query).unsqueeze(1))).squeeze(2)
        weights: Tensor = (score + memory.penalty).softmax(1)
        return weights


class Translator(nn.Module):
    """Encoder, attention, decoder.

    The encoder has no biases, so that padding before a sentence leaves its state exactly zero. Sentences of different
    lengths then run in one fused call, and the host need not know their lengths.
    """

    def __init__(
        self,
        words: tuple[int, int],
        embedding: int,
        hidden: int,
        depth: int,
        dropout: float,
        forget_bias: float | None = None,
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.word_dropout = word_dropout
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
                self._set_forget_bias(forget_bias)

    def _set_forget_bias(self, bias: float) -> None:
        """Initialises the bias of the decoder's forget gates; a positive one makes early training remember longer."""
        for cell in self.decoder:
            for name, value in (("bias_ih", bias), ("bias_hh", 0.0)):  # torch adds the two
                cell.get_parameter(name).chunk(4)[1].fill_(value)  # gates are in the order input, forget, cell, output

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits for every target word by teacher forcing; the source must be padded on the left."""
        memory, state = self.encode(source)
        tops: list[Tensor] = []
        contexts: list[Tensor] = []
        for word in self._embed_previous(target).to(memory.keys.dtype).unbind(1):
            state, context = self.step(word, state, memory)
            tops.append(state.hidden[-1])
            contexts.append(context)
        return self.predict(torch.stack(tops, 1), torch.stack(contexts, 1))

    def attention_weights(self, source: Tensor, target: Tensor) -> Tensor:
        """The attention of each decoding step to each source position, by teacher forcing: [B, T, S]."""
        memory, state = self.encode(source)
        weights: list[Tensor] = []
        for word in self._embed_previous(target).to(memory.keys.dtype).unbind(1):
            weights.append(self.attention.weights(state.hidden[-1], memory))
            state, _ = self.step(word, state, memory)
        return torch.stack(weights, 1)

    def _embed_previous(self, target: Tensor) -> Tensor:
        """The embedding of the word before each target word."""
        previous = F.pad(self._drop_words(target[:, :-1]), (1, 0), value=GO)
        embedded: Tensor = self.dropout(self.target_embedding(previous))
        return embedded

    def _drop_words(self, words: Tensor) -> Tensor:
        """In training, some words become UNK, so that a sentence is not known by a single word of it."""
        if not self.training or not self.word_dropout:
            return words
        dropped = torch.rand(words.shape, device=words.device) < self.word_dropout
        return words.masked_fill(dropped & (words > EOS), UNK)

    def encode(self, source: Tensor) -> tuple[EncodedSource, DecoderState]:
        """Encodes the source; each decoder layer starts from the last state of its encoder layer."""
        with _autocast_off(source.device):
            values, (hidden, cell) = self.encoder(self.dropout(self.source_embedding(self._drop_words(source))))
        keys = self.attention.key(values)
        penalty = torch.zeros_like(source, dtype=torch.float32)
        penalty = penalty.masked_fill(source == PAD, torch.finfo(torch.float32).min)
        # [D, B, H], and [D, 1, B, H] from torch 2.11's decomposition in an export; flattening the first does nothing
        layers = (last.flatten(0, -3).unbind(0) for last in (hidden, cell))
        return EncodedSource(values.to(keys.dtype), keys, penalty), DecoderState(*layers)

    def step(self, word: Tensor, state: DecoderState, memory: EncodedSource) -> tuple[DecoderState, Tensor]:
        """One decoding step: attends with the top layer's last state, then advances each layer."""
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

    def next_word(self, word: Tensor, state: DecoderState, memory: EncodedSource) -> tuple[Tensor, DecoderState]:
        """Log probabilities of the next word; those of PAD and GO are -inf."""
        state, context = self.step(self.target_embedding(word), state, memory)
        logits = self.predict(state.hidden[-1], context).float()
        logits[:, :EOS].fill_(-torch.inf)  # assigning would trace a constant tensor, which no exported loop can hold
        return logits.log_softmax(1), state


def _autocast_off(device: torch.device) -> AbstractContextManager[Any]:
    """Fused LSTMs ignore autocast's bf16: cuDNN's would run in fp16, and oneDNN's fails on many CPUs."""
    if not torch.amp.is_autocast_available(device.type):  # the meta device, used for counting costs
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def greedy(model: Translator, source: Tensor, length: int) -> Output:
    """Greedy decoding, until EOS or `length` tokens."""
    if torch.compiler.is_exporting():
        return _greedy_exported(model, source, length)
    memory, state = model.encode(source)
    tokens = source.new_full((len(source), length), PAD)
    word = source.new_full((len(source),), GO)
    total = torch.zeros(len(source), device=source.device)
    ended = torch.zeros_like(word, dtype=torch.bool)
    for position in range(length):
        log_probs, state = model.next_word(word, state, memory)
        log_prob, word = log_probs.max(1)
        total += log_prob.masked_fill(ended, 0)
        tokens[:, position] = word = word.masked_fill(ended, PAD)
        ended |= word == EOS
        if _all_ended(ended, position):
            break
    return _output(tokens, total / (tokens != PAD).sum(1))


def _greedy_exported(model: Translator, source: Tensor, length: int) -> Output:
    """The same as one loop operator: an exported Python loop cannot end early, and has the weights once per step."""
    from torch._higher_order_ops.while_loop import while_loop  # here, as only an export needs it

    memory, start = model.encode(source)
    depth, place = len(start.hidden), torch.arange(length, device=source.device)

    def unfinished(position: Tensor, tokens: Tensor, word: Tensor, ended: Tensor, *_: Tensor) -> Tensor:
        return (position < length) & ~ended.all()

    def step(
        position: Tensor, tokens: Tensor, word: Tensor, ended: Tensor, total: Tensor, *layers: Tensor
    ) -> tuple[Tensor, ...]:
        log_probs, state = model.next_word(word, DecoderState(layers[:depth], layers[depth:]), memory)
        log_prob, word = log_probs.max(1)
        word = word.masked_fill(ended, PAD)
        tokens = torch.where(place == position, word.unsqueeze(1), tokens)
        total = total + log_prob.masked_fill(ended, 0)
        return position + 1, tokens, word, ended | (word == EOS), total, *state.hidden, *state.cell

    words = source.new_full((len(source), length), PAD), source.new_full((len(source),), GO)
    ended, total = torch.zeros_like(words[1], dtype=torch.bool), torch.zeros(len(source), device=source.device)
    layers = (layer.clone() for layer in (*start.hidden, *start.cell))  # a loop may not start from views of one tensor
    carried = (torch.zeros_like(place[0]), *words, ended, total, *layers)
    _, tokens, _, _, total, *_ = while_loop(unfinished, step, carried)  # type: ignore[no-untyped-call]
    return _output(tokens, total / (tokens != PAD).sum(1))


def beam_search(model: Translator, source: Tensor, length: int, width: int) -> Output:
    """Beam search: the best translation, with the `width` best hypotheses kept at each step."""
    memory, state = model.encode(source)
    memory, state = memory.map(_repeat(width)), state.map(_repeat(width))
    beam = Beam(len(source), width, length, source.device)
    for position in range(length):
        log_probs, state = model.next_word(beam.tokens[:, :, position].flatten(), state, memory)
        state = state.map(_select(beam.extend(log_probs, position)))
        if _all_ended(beam.ended, position):
            break
    return _output(beam.tokens[:, 0, 1:], beam.score[:, 0])


class Beam:
    """For each item of a batch, the best hypotheses so far, best first.

    They are ranked by log probability per token, EOS included, so that short ones have no advantage. A finished
    hypothesis stays unchanged as long as it ranks high enough.
    """

    def __init__(self, items: int, width: int, length: int, device: torch.device) -> None:
        self.tokens = torch.full((items, width, 1 + length), PAD, device=device)
        self.tokens[:, :, 0] = GO
        self.total = torch.full((items, width), -torch.inf, device=device)
        self.total[:, 0] = 0  # one empty hypothesis, not `width` copies of it
        self.count = torch.zeros_like(self.total)
        self.ended = torch.zeros_like(self.total, dtype=torch.bool)
        self.first = torch.arange(items, device=device).unsqueeze(1) * width  # the row where an item's beam starts

    @property
    def score(self) -> Tensor:
        return self.total / self.count

    def extend(self, log_probs: Tensor, position: int) -> Tensor:
        """Extends by one word, given the log probabilities of each row's next word; returns the row each came from."""
        words = log_probs.shape[1]
        log_probs = log_probs.view(*self.total.shape, words)
        padding_only = torch.where(torch.arange(words, device=log_probs.device) == PAD, 0.0, -torch.inf)
        total = self.total.unsqueeze(2) + torch.where(self.ended.unsqueeze(2), padding_only, log_probs)
        count = self.count + ~self.ended
        chosen = (total / count.unsqueeze(2)).flatten(1).topk(self.total.shape[1]).indices
        parent, word = chosen // words, chosen % words
        self.total, self.count = total.flatten(1).gather(1, chosen), count.gather(1, parent)
        self.tokens = self.tokens.gather(1, parent.unsqueeze(2).expand_as(self.tokens))
        self.tokens[:, :, position + 1] = word
        self.ended = self.ended.gather(1, parent) | (word == EOS)
        return (self.first + parent).flatten()


def _all_ended(ended: Tensor, position: int) -> bool:
    """Whether to stop. An export and a CUDA graph cannot look at the data: they decode to the full length."""
    if position % CHECK_EVERY != CHECK_EVERY - 1 or torch.compiler.is_exporting():
        return False
    captured = ended.is_cuda and torch.cuda.is_current_stream_capturing()
    return not captured and bool(ended.all())


def _repeat(times: int) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows.repeat_interleave(times, 0)


def _select(numbers: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows.index_select(0, numbers)


def _output(tokens: Tensor, score: Tensor) -> Output:
    return {"tokens": tokens, "lengths": (tokens > EOS).sum(1), "score": score}
