"""Convolution's backward split into filter gradient and input gradient, as in Fig. 3 of the paper.

Torch computes both in one op. On a GPU the kernels' names mostly tell which gradient they are for. Else the split is
measured: each distinct call is run again on random data, once for either gradient alone, and the op's time is shared in
the ratio of the two.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import torch

from fathom.machine.clock import fastest
from fathom.trace.flops import Call
from fathom.trace.reader import collector_off
from fathom.trace.rows import Breakdown, Occurrence

BACKWARD = "Conv2DBackward"
FILTER, INPUT = "wgrad", "dgrad"  # as cuDNN's kernels say
REPEATS = 3
NAMED = 0.8  # of an op's time in kernels that say which gradient they compute, to go by their names


@collector_off()
def split_convolution_backward(found: Breakdown, device: torch.device | None) -> list[str]:
    """Replaces every convolution backward by its two halves, in place; gives notes on how it was done."""
    alike: dict[str, list[Occurrence]] = defaultdict(list)
    for call in found.occurrences:
        if call.type == BACKWARD:
            alike[_key(call)].append(call)
    parts: dict[int, list[Occurrence]] = {}
    guessed = 0
    for calls in alike.values():
        share = _share_of_filter(calls, device)
        guessed += share is None
        parts |= {id(call): _two(call, 0.5 if share is None else share) for call in calls}
    for piece in found.gpu:
        if id(piece.owner) in parts:
            piece.owner = _half_of(piece.name, parts[id(piece.owner)])
    found.occurrences[:] = [part for call in found.occurrences for part in parts.get(id(call), [call])]
    measured = len(alike) - guessed
    notes = []
    if measured:
        notes.append(f"convolution backward: filter and input gradient of {measured} distinct calls told apart")
    if guessed:
        notes.append(f"convolution backward: {guessed} distinct calls shared half and half between the gradients")
    return notes


def _key(call: Occurrence) -> str:
    return repr((call.args.get("Input Dims"), call.args.get("Input Strides"), call.args.get("Concrete Inputs")))


def _half_of(kernel: str, halves: list[Occurrence]) -> Occurrence:
    """The gradient that a kernel computes by its name, or else the one that takes longer."""
    for word, kind in ((FILTER, "Conv2DBackFilter"), (INPUT, "Conv2DBackInput")):
        if word in kernel:
            halves = [half for half in halves if half.type == kind] or halves
    return max(halves, key=lambda half: half.device_us)


def _two(call: Occurrence, filter_share: float) -> list[Occurrence]:
    """The op as two ops, each with the output mask that its FLOP are counted by."""
    parts = []
    for kind, share, mask in (
        ("Conv2DBackFilter", filter_share, "[False, True, False]"),
        ("Conv2DBackInput", 1 - filter_share, "[True, False, False]"),
    ):
        if share > 0:
            concrete = [*call.args.get("Concrete Inputs", [])[:10], mask]
            args = {**call.args, "Concrete Inputs": concrete}
            kernels = [(name, time * share) for name, time in call.kernels]
            parts.append(
                dataclasses.replace(
                    call,
                    type=kind,
                    op=f"{call.op} ({'filter' if kind.endswith('Filter') else 'input'})",
                    cpu_us=call.cpu_us * share,
                    device_us=call.device_us * share,
                    kernels=kernels,
                    args=args,
                )
            )
    return parts


def _share_of_filter(calls: list[Occurrence], device: torch.device | None) -> float | None:
    """The filter gradient's part of the two, or None where it can neither be read off nor timed."""
    call = calls[0]
    inputs = Call.traced(call.op, call.args)
    mask = inputs.value(10)
    if isinstance(mask, list) and not mask[0]:
        return 1.0
    if isinstance(mask, list) and not mask[1]:
        return 0.0
    named = _share_by_kernel_names(calls)
    if device is None or named is not None:
        return named
    arguments = _arguments(call, inputs, device)
    if arguments is None:
        return None
    backward = torch.ops.aten.convolution_backward
    for_filter = fastest(lambda: backward(*arguments, [False, True, False]), device, REPEATS)
    for_input = fastest(lambda: backward(*arguments, [True, False, False]), device, REPEATS)
    return for_filter / (for_filter + for_input)


def _share_by_kernel_names(calls: list[Occurrence]) -> float | None:
    """cuDNN says wgrad and dgrad in most of its kernels' names; None where it does not for a good part of the time."""
    kernels = [kernel for call in calls for kernel in call.kernels]
    filters = sum(time for name, time in kernels if FILTER in name)
    inputs = sum(time for name, time in kernels if INPUT in name)
    known = filters + inputs
    return filters / known if filters and inputs and known >= NAMED * sum(time for _, time in kernels) else None


def _arguments(call: Occurrence, inputs: Call, device: torch.device) -> list[Any] | None:
    """The call's arguments again, with random numbers in tensors of the same shape and layout."""
    strides = call.args.get("Input Strides", [])
    types = call.args.get("Input type", [])
    kinds = {"float": torch.float32, "c10::BFloat16": torch.bfloat16, "c10::Half": torch.float16}
    tensors = []
    for index in range(3):
        shape = inputs.shape(index)
        if not shape or index >= len(strides) or types[index] not in kinds:
            return None
        tensor = torch.empty_strided(shape, strides[index], dtype=kinds[types[index]], device=device)
        tensors.append(tensor.normal_())
    # arguments 3 to 9: bias sizes, stride, padding, dilation, transposed, output padding, groups
    rest = [inputs.value(index) for index in range(4, 10)]
    return None if any(value is None for value in rest) else [*tensors, None, *rest]
