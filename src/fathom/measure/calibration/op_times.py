"""The time of one op call on a device, and of the host that makes it.

The call is repeated on the same tensors: operands are in the caches that they fit in, as they are in a step whose op
before has just written them. The median counts, as of a step. A fixed loop right before and after tells how fast the
core was.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from fathom.engine.call_specs import decode
from fathom.machine.clock import wait
from fathom.machine.cpu_speed import loop_s

BUDGET_S = 0.02  # of repeats, for each call
LEAST, MOST = 3, 100  # repeats; more in place would bring numbers to infinity or to zero
BLOCKED_S = 0.5e-3  # that a GPU is kept busy at least while calls are queued behind
CLOCK_HZ = 2e9  # of a GPU, about: how long it is kept busy need not be exact
LOOPS = 4  # half a millisecond beside calls that take one or two
WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "item", "equal")  # the host waits in them for values
UNSAFE = ("_cudnn_rnn_backward",)  # reads what the forward pass kept, in a form of the library's own
LEFT_OUT = (*WAITING, *UNSAFE)


@dataclass(frozen=True)
class OpTime:
    seconds: float  # on a CPU of the op, on a GPU of its kernels
    host_s: float | None = None  # on a GPU, what the host needs to launch it
    loop_s: float | None = None  # a fixed loop on the host's core, the mean of before and after


def time_call(spec: str, device: torch.device, budget_s: float = BUDGET_S) -> OpTime:
    """Raises what torch raises for a call that cannot be made on this device."""
    func, args, kwargs = decode(spec, device)
    with torch.no_grad():
        func(*args, **kwargs)
        wait(device)
        if device.type == "cuda":
            return on_gpu(func, args, kwargs, device, budget_s)
        before_s = loop_s(LOOPS)
        seconds = statistics.median(_on_cpu(func, args, kwargs, budget_s))
        return OpTime(seconds, loop_s=(before_s + loop_s(LOOPS)) / 2)


def _on_cpu(func: Any, args: list[Any], kwargs: Any, budget_s: float) -> list[float]:
    found: list[float] = []
    stop = time.perf_counter() + budget_s
    while len(found) < LEAST or (time.perf_counter() < stop and len(found) < MOST):
        begun = time.perf_counter()
        func(*args, **kwargs)
        found.append(time.perf_counter() - begun)
        if found[-1] > 10 * budget_s:
            break
    return found


def on_gpu(func: Any, args: list[Any], kwargs: Any, device: torch.device, budget_s: float = BUDGET_S) -> OpTime:
    """Calls are queued while the GPU is kept busy, so that their kernels then run without waiting for the host."""
    begun = time.perf_counter()
    func(*args, **kwargs)
    queued_s = time.perf_counter() - begun
    wait(device)
    whole_s = time.perf_counter() - begun
    calls = max(LEAST, min(MOST, int(budget_s / 4 / max(whole_s, 1e-6))))
    busy_s = BLOCKED_S + 2 * calls * min(queued_s, 1e-3)
    device_times, host_times = [], []
    for _ in range(LEAST):
        around_s = loop_s(LOOPS)
        before, after = (torch.Event(device, enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(busy_s * CLOCK_HZ))  # type: ignore[no-untyped-call]
        before.record()
        begun = time.perf_counter()
        for _ in range(calls):
            func(*args, **kwargs)
        host_s = (time.perf_counter() - begun) / calls
        after.record()
        wait(device)
        device_times.append(before.elapsed_time(after) / 1000 / calls)
        host_times.append((host_s, (around_s + loop_s(LOOPS)) / 2))
    return OpTime(min(device_times), *min(host_times, key=lambda pair: pair[0] / pair[1]))
