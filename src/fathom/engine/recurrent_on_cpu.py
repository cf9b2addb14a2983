"""Recurrent layers as torch runs them on a CPU: the inputs of all steps are multiplied at once, states step by step.

On any other device, the meta device among them, torch multiplies each step's input by itself, which is as many small
products more. An LSTM of a CPU is one op of oneDNN's for each layer and direction, which keeps a workspace for the
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# gates of the input, state, weight and bias of the state -> the next state
Cell = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def _gru(gates: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    reset, update, new = gates.unsafe_chunk(3, 1)
    state_reset, state_update, state_new = F.linear(state, weight, bias).unsafe_chunk(3, 1)
    reset, update = state_reset.add_(reset).sigmoid_(), state_update.add_(update).sigmoid_()
    candidate = new.add(state_new.mul_(reset)).tanh_()
    return (state - candidate).mul_(update).add_(candidate)


def _plain(function: Callable[[Tensor], Tensor]) -> Cell:
    return lambda gates, state, weight, bias: function(F.linear(state, weight, bias).add_(gates))


ONEDNN_LSTM = 2  # its number
FLOAT = 4  # bytes
LINE, ALIASED, PAGE = 16, 256, 4096  # oneDNN's: floats of a cache line, a row's length that aliases in it, bytes

CELLS: dict[Any, Cell] = {torch.gru: _gru, torch.rnn_tanh: _plain(torch.tanh), torch.rnn_relu: _plain(torch.relu)}


def recurrent(layer: Any, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """(states, weights, bias, layers, dropout, training, both ways, batch first)"""
    states, weights, bias, layers, dropout, train, two_ways, batch_first = rest
    y = x.transpose(0, 1) if batch_first else x
    ways, parts, last = 2 if two_ways else 1, 4 if bias else 2, list[Tensor]()
    initial = states.unbind(0)
    for number in range(layers):
        first = number * ways
        of_ways = [weights[at * parts : (at + 1) * parts] for at in range(first, first + ways)]
        y, ends = _layer(CELLS[layer], y, initial[first : first + ways], of_ways)
        last += ends
        if dropout and train and number < layers - 1:
            y = F.dropout(y, dropout)
    return y.transpose(0, 1) if batch_first else y, torch.stack(last)


def _layer(
    cell: Cell, x: Tensor, states: Sequence[Tensor], weights: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, list[Tensor]]:
    """The outputs of all steps, and the last state of each direction; the second goes backwards."""
    outputs, ends, kept = list[Tensor](), list[Tensor](), list[Sequence[Tensor]]()
    for way, (of_input, of_state, *biases) in enumerate(weights):
        state, (input_bias, state_bias) = states[way], biases or (None, None)
        gates, found = F.linear(x, of_input, input_bias).unbind(0), list[Tensor]()
        for each in reversed(gates) if way else gates:
            state = cell(each, state, of_state, state_bias)
            found.append(state)
        kept.append(found)  # torch lets go of them when both directions are done
        outputs.append(torch.stack(found[::-1] if way else found))
        ends.append(state)
    return torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0], ends


def lstm(x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(..., bias, layers, dropout, training, both ways, batch first)"""
    bias, layers, dropout, train, two_ways, batch_first = rest
    ways, parts = 2 if two_ways else 1, 4 if bias else 2
    by_time = (
        x.transpose(0, 1) if batch_first else x
    ).contiguous()  # lives until the last states are there, as torch's
    y, initial, ends = by_time, list(zip(*(state.unbind(0) for state in states), strict=True)), list[Sequence[Tensor]]()
    for number in range(layers):
        outputs = list[Tensor]()
        for way in range(ways):
            at = number * ways + way
            output, *last = _direction(y, weights[at * parts : (at + 1) * parts], initial[at], bool(way), rest)
            outputs.append(output)
            ends.append(last)
        y = torch.cat(outputs, -1) if two_ways else outputs[0]
        if dropout and train and number < layers - 1:
            y = F.dropout(y, dropout)
    hidden, cells = (torch.stack(of_all) for of_all in zip(*ends, strict=True))
    return y.transpose(0, 1) if batch_first else y, hidden, cells


def _direction(
    x: Tensor, weights: Sequence[Tensor], states: Sequence[Tensor], backwards: bool, rest: Sequence[Any]
) -> Sequence[Tensor]:
    bias, layers, _, train, two_ways, batch_first = rest
    biases = [] if bias else [torch.zeros_like(matrix) for matrix in weights]  # as large as those, as torch makes them
    how: tuple[Any, ...] = (
        backwards,
        [],
        ONEDNN_LSTM,
        weights[1].shape[1],
        layers,
        bias,
        two_ways,
        batch_first,
        train,
    )
    found: Sequence[Tensor] = torch.ops.aten.mkldnn_rnn_layer(x, *weights, *biases, *states, *how)
    return found[:3]


def lstm_workspace_bytes(steps: int, items: int, width: int, hidden: int) -> int:
    """What oneDNN keeps of one direction of a layer, in pages: gates, states and the gradients of states.

    Rows of matrices that are multiplied are padded: those of states to the wider of input and state.
    """
    state, plain = _row(max(width, hidden)), hidden
    rows = [
        (steps, _row(4 * hidden)),
        (steps, _row(hidden)),
        *[(2 * (steps + 1), state)] * 3,
        *[(2 * (steps + 1), plain)] * 2,
    ]
    return sum(-(-count * items * length * FLOAT // PAGE) * PAGE for count, length in rows)


def _row(length: int) -> int:
    """Floats that a row takes: whole cache lines, and one more where rows would alias."""
    lines = -(-length // LINE) * LINE
    return lines if lines % ALIASED else lines + LINE
