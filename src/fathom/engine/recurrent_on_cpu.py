"""Recurrent layers as torch runs them on a CPU: the inputs of all steps are multiplied at once, states step by step.

On any other device, the meta device among them, torch multiplies each step's input by itself, which is as many small
products more. An LSTM of a CPU is oneDNN's, whose workspace is its own: it is left as torch has it.
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
