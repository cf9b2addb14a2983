"""What to do about a profiled model: at most three actions, each with its evidence and the most that it can gain.

A rule looks at one record and names a part of the step that a known change removes or shortens. The gain is an upper
bound, in percent of the step: all that is spent there, less what it would take at a measured ceiling if one is known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from fathom.analysis.limits import data_share
from fathom.analysis.outside_lines import OutsideLine, longest, outside_lines
from fathom.analysis.overview import exposed_communication, products, type_shares
from fathom.analysis.selection import on_gpu, plain_scale, plain_step_s, starved
from fathom.core.record import OpRow, Profile, Record
from fathom.core.spec import SEPARATOR
from fathom.trace.host import DATA, OPS, OUTSIDE, WAITING
from fathom.trace.outside import TORCH
from fathom.trace.waits import is_wait

MOST = 3
NAMED = 3  # functions of an action
LEAST_GAIN = 0.03  # of the step: below it an action is not worth a line
FUSABLE = {"A", "C"}  # classes whose ops a compiler joins with their neighbours: elementwise, reductions
HAVE_FUSED = {"ApplyAdam", "ApplyAdamW", "ApplySGD", "ApplyAdagrad"}  # optimizers of torch that have fused=True
COPIES = ("Copy", "Cast")  # ... and what moves values in between
FROM_HOST = "HtoD"  # in the names of copies
PRODUCTS = ("MatMul", "BatchMatMul")
TENSOR_CORE_TYPES = ("BFloat16", "Half")
ALIGNED = 8  # elements of two bytes: what tensor cores read at once; other sizes run on slower kernels
PADDED = 64  # the multiple that libraries' fastest kernels take
SLOW = 0.5  # of the measured rate of a product, below which its size is to blame
GRAPHS = "CUDA graphs, as by torch.compile(mode='reduce-overhead')"
COMPILED = ("Torch-Compiled Region", "CompiledFunction")  # what torch calls its own compiled code
LAYOUT = ("nchwtonhwc", "nhwctonchw", "batched_transpose", "transpose_readwrite")  # kernels that change the layout


@dataclass(frozen=True)
class Action:
    """Something to do, why, and what it can gain at most."""

    gain: float  # of the step, at most
    what: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.evidence}: {self.what} (at most {100 * self.gain:.0f} % of the step)"


@dataclass(frozen=True)
class View:
    """What rules look at."""

    record: Record
    profile: Profile
    step_s: float
    shares: dict[str, float]  # op type -> part of the unprofiled step

    @property
    def on_gpu(self) -> bool:
        return on_gpu(self.profile)

    @property
    def idle(self) -> float:
        """The part of the unprofiled step in which no kernel ran."""
        return max(0.0, 1 - self.profile.op_s / self.step_s)

    @property
    def uses_graphs(self) -> bool:
        gpu = self.profile.gpu
        return gpu is not None and any("GraphLaunch" in call.name for call in gpu.api)

    @property
    def compiled(self) -> bool:
        return "compile" in self.record.spec.engine.split(SEPARATOR)

    @property
    def compiled_in_part(self) -> bool:
        """A module may have been compiled by its owner, as a whole or in part, which the engine does not tell."""
        return any(row.op.startswith(COMPILED) for row in self.profile.rows)

    def starved(self, what: str) -> float:
        """The part of the idle time in which a GPU waited for a host that was doing this."""
        return starved(self.profile, what)

    @cached_property
    def python(self) -> list[OutsideLine]:
        """The user's functions that take most of the step outside ops; with a GPU, while it waits for them.

        Without unprofiled steps it is not known how much of that was recording their calls.
        """
        lines = outside_lines(self.profile) if self.profile.unprofiled_s is not None else []
        own = sorted((line for line in lines if line.is_users), key=lambda line: -line.own_s)
        return [line for line in own[:NAMED] if line.own_s >= LEAST_GAIN * self.step_s]

    @property
    def in_python(self) -> float:
        """The part of the step in these functions, without torch's own time in them."""
        return sum(line.own_s for line in self.python) / self.step_s

    def share(self, rows: Iterable[OpRow]) -> float:
        scale = plain_scale(self.profile)
        return sum(self.profile.seconds(row) for row in rows) * scale / self.step_s


def actions(record: Record) -> list[Action]:
    """The most promising first."""
    return list(actions_by_rule(record).values())[:MOST]


def actions_by_rule(record: Record) -> dict[str, Action]:
    """All of them, by the name of the rule that found each; the most promising first."""
    profile = record.profile
    if profile is None or plain_step_s(profile) <= 0:
        return {}
    view = View(record, profile, plain_step_s(profile), type_shares(profile))
    found = {rule.__name__: action for rule in RULES if (action := rule(view)) is not None}
    worth = {name: action for name, action in found.items() if action.gain >= LEAST_GAIN}
    return dict(sorted(worth.items(), key=lambda each: -each[1].gain))


def launching(view: View) -> Action | None:
    """The GPU waits for kernels that the host, busy in ops or between them, has not launched yet."""
    in_ops, outside = view.starved(OPS), view.starved(OUTSIDE)
    late = f"{100 * in_ops:.0f} % of that while the host is in ops and {100 * outside:.0f} % while it is outside ops"
    what = "less Python between graph launches" if view.uses_graphs else GRAPHS
    evidence = f"{100 * view.idle:.0f} % of the step the GPU is idle, {late}"
    gain = view.idle * (in_ops + outside) - view.in_python
    return Action(gain, f"{what}, or larger batches", evidence)


def python(view: View) -> Action | None:
    """Python code of the user's own between ops: no setting makes it faster."""
    if not view.python:
        return None
    parts = [f"{100 * line.own_s / view.step_s:.0f} % in {line.line}{_mostly(line)}" for line in view.python]
    what = "is waiting for Python code between ops" if view.on_gpu else "is Python code between ops"
    evidence = f"{100 * view.in_python:.0f} % of the step {what}: {', '.join(parts)}"
    return Action(view.in_python, "vectorise it, or move it out of the step (done once, or in data workers)", evidence)


def _mostly(line: OutsideLine) -> str:
    """What a function called, if that is most of its time."""
    below = [name for name, seconds in longest(line.callees, 1) if seconds > line.own_s / 2 and name != TORCH]
    return f" (mostly {below[0]})" if below else ""


def waiting(view: View) -> Action | None:
    """The host waits for the GPU, and then the GPU for the host."""
    gpu = view.profile.gpu
    calls = [call for call in gpu.api if is_wait(call.name)] if gpu else []
    count = sum(call.calls for call in calls)
    if count <= 1:  # one is that of the measured step's end
        return None
    share = view.starved(WAITING)
    name = max(calls, key=lambda call: call.cpu_s).name
    evidence = f"{count:.3g} host synchronisations a step, most of their time in {name}{_caller(view.profile)}"
    what = "keep values on the GPU (.item(), .cpu(), printing and boolean masks wait for it)"
    return Action(view.idle * share, what, evidence)


def _caller(profile: Profile) -> str:
    """The op and the source line of the longest wait, where the trace has them."""
    longest = profile.sources.waits[0] if profile.sources and profile.sources.waits else None
    named = [name for name in (longest.op, longest.line) if name] if longest else []
    return f"; the longest is of {' at '.join(named)}" if named else ""


def low_precision(view: View) -> Action | None:
    """Products in fp32 leave tensor cores unused."""
    if not view.on_gpu or view.record.spec.precision == "tf32":
        return None
    share = view.share([row for row in products(view.profile) if row.dtypes.split()[:1] == ["float"]])
    evidence = f"{100 * share:.0f} % of the step is matrix products and convolutions in float32"
    return Action(share, "bf16 autocast, or TF32 (torch.set_float32_matmul_precision('high'))", evidence)


def alignment(view: View) -> Action | None:
    """Products of a size that tensor cores do not read well, such as a vocabulary of 50257 words."""
    ceiling = view.profile.ceiling_flop_per_s
    slow = [
        row
        for row in view.profile.rows
        if ceiling
        and row.flop
        and row.type in PRODUCTS
        and row.dtypes.removeprefix("c10::").startswith(TENSOR_CORE_TYPES)
        if row.flop / view.profile.rate_seconds(row) < SLOW * ceiling and _unaligned(row.shapes)
    ]
    if not slow or not ceiling:
        return None
    spent_s = sum(map(view.profile.seconds, slow))
    sizes = sorted({size for row in slow for size in _unaligned(row.shapes)}, reverse=True)
    rate = sum(row.flop or 0.0 for row in slow) / sum(map(view.profile.rate_seconds, slow)) / ceiling
    padded = -(-sizes[0] // PADDED) * PADDED
    evidence = (
        f"{100 * view.share(slow):.0f} % of the step is matrix products with a side of {sizes[0]}, no multiple of "
        f"{ALIGNED}, at {100 * rate:.0f} % of the measured rate of a product"
    )
    gain = view.share(slow) * (1 - sum(row.flop or 0.0 for row in slow) / ceiling / spent_s)
    return Action(gain, f"pad it, to {padded} say (torch.compile pads by itself)", evidence)


def _unaligned(shapes: str) -> list[int]:
    """Sides of the two matrices that are large and no multiple of what tensor cores read at once."""
    found = [[int(size) for size in re.findall(r"\d+", shape)] for shape in re.findall(r"\[([^]]*)\]", shapes)]
    matrices = [shape for shape in found if len(shape) > 1][:2]
    if len(matrices) == 2 and len(matrices[1]) == 2:  # by one matrix all rows are multiplied together
        matrices[0] = [math.prod(matrices[0][:-1]), matrices[0][-1]]
    return [size for shape in matrices for size in shape[-2:] if size > PADDED and size % ALIGNED]


def data(view: View) -> Action | None:
    """The step waits for its batch. That of a user's module is one batch in memory, which no loader prepares."""
    if view.record.spec.source == "model":
        return None
    if view.on_gpu:
        share = view.idle * view.starved(DATA)
        evidence = f"{100 * share:.0f} % of the step the GPU waits for data"
    else:
        share = data_share(view.profile) if view.profile.data_s else 0.0
        evidence = f"{100 * share:.0f} % of the step is preparing data"
    return Action(share, "more loader workers, prefetching, or a cheaper preparation", evidence)


def communication(view: View) -> Action | None:
    """Communication that no computation hides."""
    share = exposed_communication(view.profile)
    depth = view.profile.depth
    if share is None or depth is None or not depth.collectives:
        return None
    longest = max(depth.collectives, key=lambda each: sum(each.seconds)).name
    evidence = f"{100 * share:.0f} % of the step is communication that no computation hides, most of it {longest}"
    what = "overlap it (larger or fewer buckets, FSDP prefetch), balance the ranks that others wait for, or send less"
    return Action(share, what, evidence)


def copies(view: View) -> Action | None:
    """Copies from the host, which pinned memory hides."""
    gpu = view.profile.gpu
    if gpu is None or view.profile.kernels is None:
        return None
    from_host = sum(kernel.device_s for kernel in view.profile.kernels if FROM_HOST in kernel.name) / view.step_s
    evidence = f"{100 * from_host:.0f} % of the step is copies from host to device"
    return Action(from_host, "pinned memory with non_blocking=True, and copies a step ahead on a stream", evidence)


def attention(view: View) -> Action | None:
    """Attention written out: scores and softmax go through memory."""
    softmax = [row for row in view.profile.rows if row.type == "Softmax" and _is_square(row.shapes)]
    if not softmax:
        return None
    layers = {row.layer for row in softmax}
    fused = {row.layer for row in view.profile.rows if "scaled_dot_product" in row.op}
    if layers <= fused:  # these are the products of a kernel that writes them out: a CPU's, with dropout or a gradient
        return None
    layers -= fused
    softmax = [row for row in softmax if row.layer in layers]
    scores = [row for row in view.profile.rows if row.op.endswith(("bmm", "matmul")) and row.layer in layers]
    share = view.share([*softmax, *scores])
    evidence = f"{100 * share:.0f} % of the step is attention as separate products and softmax"
    return Action(share, "torch.nn.functional.scaled_dot_product_attention", evidence)


def _is_square(shapes: str) -> bool:
    """Whether the last two of at least three dimensions are equal: scores of a sequence against itself."""
    sizes = shapes.strip("[]").split("]")[0].split(", ")
    return len(sizes) >= 3 and sizes[-1] == sizes[-2] and sizes[-1] not in ("", "1")


def fusion(view: View) -> Action | None:
    """Chains of ops that compute little, each through memory."""
    if view.compiled:
        return None
    from_host = {kernel.op for kernel in view.profile.kernels if FROM_HOST in kernel.name}
    copies_here = [row for row in view.profile.rows if row.type in COPIES and row.op not in from_host]
    rows = [row for row in view.profile.rows if row.group in FUSABLE] + copies_here
    rows = [row for row in rows if row.phase in ("forward", "backward")]
    share = view.share(rows)
    calls = sum(row.calls for row in rows)
    evidence = (
        f"{100 * share:.0f} % of the step is {calls:.0f} elementwise, reduction and copy ops, each through memory"
    )
    what = "these in torch.compile, too" if view.compiled_in_part else "torch.compile"
    return Action(share, f"{what}, which joins them into few kernels", evidence)


def optimizer(view: View) -> Action | None:
    """An update of many small kernels."""
    rows = [row for row in view.profile.rows if row.phase == "optimizer"]
    calls = sum(row.calls for row in rows)
    if any("_fused_" in row.op for row in rows) or calls < 10 or not HAVE_FUSED & {row.type for row in rows}:
        return None
    share = view.share(rows)
    evidence = f"{100 * share:.0f} % of the step is the optimizer's update, in {calls:.0f} ops"
    return Action(share, "the optimizer's fused=True", evidence)


def layout(view: View) -> Action | None:
    """Convolutions that change the memory layout on their way."""
    if not any(row.group == "D" for row in view.profile.rows):
        return None
    kernels = [kernel for kernel in view.profile.kernels if any(word in kernel.name.lower() for word in LAYOUT)]
    share = sum(kernel.device_s for kernel in kernels) / view.step_s
    evidence = f"{100 * share:.0f} % of the step is kernels that change the memory layout around convolutions"
    return Action(share, "model and images in memory_format=torch.channels_last", evidence)


def outside_ops(view: View) -> Action | None:
    """On a CPU, Python and the framework between ops."""
    if view.on_gpu or view.profile.unprofiled_s is None or not view.profile.rows:
        return None
    share, beside = 1 - sum(view.shares.values()), ""
    if view.profile.data_s and view.record.spec.source != "model":  # see data()
        data_ops = view.share(row for row in view.profile.rows if row.phase == "data")
        share -= max(0.0, data_share(view.profile) - data_ops)
        beside = " and the preparation of data"
    if view.python:
        share -= view.in_python
        beside += " and the Python functions named"
    evidence = f"{100 * share:.0f} % of the step is outside ops{beside}, in Python and torch's own code"
    what = "a larger batch" if view.compiled or view.compiled_in_part else "torch.compile, or a larger batch"
    return Action(share, f"{what}: the time per op stays the same", evidence)


RULES: tuple[Callable[[View], Action | None], ...] = (
    launching,
    python,
    waiting,
    low_precision,
    alignment,
    data,
    communication,
    copies,
    attention,
    fusion,
    optimizer,
    layout,
    outside_ops,
)
