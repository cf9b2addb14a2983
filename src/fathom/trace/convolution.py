"""Splits convolution backward into filter gradient and input gradient, as in Fig. 3 of the paper.

Torch computes both in one op. On a GPU most kernel names say which gradient they compute. Where they do not, the caller
may measure the ratio of the two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec

from fathom.trace.call import NotInTrace, TracedCall
from fathom.trace.calls import OpCall
from fathom.trace.formulas.convolutions import MASK
from fathom.trace.reader import gc_disabled
from fathom.trace.rows import Breakdown

BACKWARD = "Conv2DBackward"
FILTER, INPUT = "wgrad", "dgrad"  # as in the names of cuDNN's kernels
MIN_NAMED_SHARE = 0.8  # of an op's time in kernels named after a gradient, for the names to decide


@gc_disabled()
def split_backward(found: Breakdown, measured: Callable[[TracedCall], float | None] | None = None) -> list[str]:
    """Replaces every convolution backward by its two halves, in place; returns notes on how they were split.

    measured gives the filter gradient's share of a call's time, where kernel names do not.
    """
    distinct: dict[object, list[OpCall]] = defaultdict(list)  # by what the ratio of the gradients' times may depend on
    for call in found.op_calls:
        if call.type == BACKWARD:
            distinct[call.args.key].append(call)
    parts: dict[int, list[OpCall]] = {}
    unknown = 0
    for calls in distinct.values():
        share = _filter_share(calls, measured)
        unknown += share is None
        parts |= {id(call): _halves(call, 0.5 if share is None else share) for call in calls}
    for activity in found.gpu_activities:
        if id(activity.op_call) in parts:
            activity.op_call = _half_of_kernel(activity.name, parts[id(activity.op_call)])
    found.op_calls[:] = [part for call in found.op_calls for part in parts.get(id(call), [call])]
    separated = len(distinct) - unknown
    notes = []
    if separated:
        notes.append(f"convolution backward: filter and input gradient of {separated} distinct calls separated")
    if unknown:
        notes.append(f"convolution backward: {unknown} distinct calls divided equally between the gradients")
    return notes


def _half_of_kernel(kernel: str, halves: list[OpCall]) -> OpCall:
    """The gradient that a kernel's name indicates, else the one that takes longer."""
    for word, kind in ((FILTER, "Conv2DBackFilter"), (INPUT, "Conv2DBackInput")):
        if word in kernel:
            halves = [half for half in halves if half.type == kind] or halves
    return max(halves, key=lambda half: half.device_us)


def _halves(call: OpCall, filter_share: float) -> list[OpCall]:
    """The op call as two, each with the output mask from which its FLOP and bytes are counted."""
    inputs = TracedCall.from_args(call.op, call.args)
    for_input, for_filter, for_bias = _mask(inputs) or (None, None, None)
    parts = []
    for kind, share, mask in (
        ("Conv2DBackFilter", filter_share, [False, for_filter, for_bias]),  # a bias's gradient goes with the filter's
        ("Conv2DBackInput", 1 - filter_share, [for_input, False, False]),
    ):
        if share > 0:
            concrete = [*inputs.concrete[:MASK], str(mask)]  # without a mask none can be read from it
            args = msgspec.structs.replace(call.args, concrete=msgspec.Raw(msgspec.json.encode(concrete)))
            kernels = [(name, time * share) for name, time in call.kernels]
            parts.append(
                msgspec.structs.replace(
                    call,
                    type=kind,
                    op=f"{call.op} ({'filter' if kind.endswith('Filter') else 'input'})",
                    cpu_us=call.cpu_us * share,
                    device_us=call.device_us * share,
                    kernel_us=call.kernel_us * share,
                    kernels=kernels,
                    args=args,
                )
            )
    return parts


def _filter_share(calls: list[OpCall], measured: Callable[[TracedCall], float | None] | None) -> float | None:
    """The filter gradient's share of the time; None if neither kernel names nor a measurement give it."""
    inputs = TracedCall.from_args(calls[0].op, calls[0].args)
    mask = _mask(inputs)
    if mask and not mask[0]:
        return 1.0
    if mask and not mask[1]:
        return 0.0
    named = _filter_share_by_kernel_names(calls)
    return measured(inputs) if named is None and measured is not None else named


def _mask(inputs: TracedCall) -> list[bool] | None:
    """Which gradients are computed: of input, filter and bias; None if the trace does not tell."""
    try:
        return inputs.mask(MASK, 3)
    except NotInTrace:
        return None


def _filter_share_by_kernel_names(calls: list[OpCall]) -> float | None:
    """The share by wgrad and dgrad in kernel names; None if too little of the time is in kernels with such names."""
    kernels = [kernel for call in calls for kernel in call.kernels]
    filters = sum(time for name, time in kernels if FILTER in name)
    inputs = sum(time for name, time in kernels if INPUT in name)
    named = filters + inputs
    enough = named >= MIN_NAMED_SHARE * sum(time for _, time in kernels)
    return filters / named if filters and inputs and enough else None
