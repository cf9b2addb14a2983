"""The campaign: op calls of the workloads' steps and of random networks, timed one by one until the budget is spent.

Started again on the same file it goes on where it stopped: calls that are there are not timed again, and neither is the
call in which the process before ended. Its text is in a file beside while it is timed.

On a CPU that others share, a core may be half as fast for a second or for minutes, and its ops not in proportion. What
was timed while it was faster or slower than it usually is, is timed again when it is as usual.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil
import torch

from fathom.core.errors import BadOption, EngineError, first_line
from fathom.core.record import moment
from fathom.engine.step_work import StepWorks
from fathom.machine.clock import wait
from fathom.machine.cpu_speed import loop_s
from fathom.machine.devices import ProcessSettings
from fathom.machine.disturbance import Watch
from fathom.machine.host import fingerprint
from fathom.machine.peaks import ceilings
from fathom.measure.calibration import TIMING
from fathom.measure.calibration.layers import products_of, random_layer
from fathom.measure.calibration.networks import deep_network, random_network
from fathom.measure.calibration.op_times import LEFT_OUT, LOOPS, time_call
from fathom.measure.calibration.whole_steps import graph_s, step_s
from fathom.measure.own.model import OwnModel
from fathom.predict.campaign import SUFFIX, Campaign, TimedCall, launches_of, read, source_of, write
from fathom.predict.cold_operands import cold_bytes
from fathom.predict.core_speed import CoreSpeed
from fathom.predict.probe import Probe
from fathom.predict.target import has_kernels
from fathom.trace.step_work import OpWork, StepWork
from fathom.workloads.base import Workload, workload_class

LONGEST_S = {"cpu": 0.2, "cuda": 0.1}  # of a call at the roofline: longer ones would eat the budget
LARGEST = {"cpu": 1.0, "cuda": 8.0}  # factor on the random networks' batches
LARGEST_LAYER = {"cpu": 1.0, "cuda": 5.0}  # cuDNN tries ten algorithms, some of them many times as slow: seconds each
LAYERS = {"cpu": 6, "cuda": 24}  # single layers after each random network: cuDNN has more ways to convolve than a CPU
PROBES, DEEP_PROBES = 24, 6  # random and deep networks of which whole steps are timed, too
PROBE_S = 0.3  # of a step at the device's peak: longer ones are left out
SAVE_S = 15.0  # between two writings of the file
FACTORS = (1.0, 0.5, 2.0)  # of a workload's batch
ALGORITHMS = Workload.algorithms  # of cuDNN, as in the workloads' own runs
MOST_OF_MEMORY = 0.25  # that one call may take
Made = Callable[..., OwnModel]  # a network, on a `device`


@dataclass
class Runner:
    device: torch.device
    out: Path
    budget_s: float
    campaign: Campaign
    on_progress: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    _calls: dict[str, TimedCall] = field(default_factory=dict)
    _saved: float = 0.0

    def __post_init__(self) -> None:
        self._calls = {each.work.spec: each for each in self.campaign.calls}
        self._watch = Watch(self.device)
        self._stop = self.clock() + self.budget_s
        self._timing = self.out.with_name(self.out.name + TIMING)
        if self._timing.exists():
            self.campaign.failed[self._timing.read_text()] = "the process ended in it"
            self._save()  # before another call may end this process

    @property
    def _gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def left_s(self) -> float:
        return self._stop - self.clock()

    def run(self, workloads: Iterable[tuple[str, str]], precisions: tuple[str, ...]) -> Campaign:
        """Probes first, which predictions need most; then workloads and random networks in turn."""
        try:
            with ProcessSettings(self.device, "fp32", ALGORITHMS):
                self._probes()
                for step, source in self._steps(list(workloads), precisions):
                    if self.left_s <= 0:
                        break
                    self.on_progress(source)
                    self._time_all(step, source)
                    self._time_again()
                self._save()
        finally:
            self._timing.unlink(missing_ok=True)
        return self.campaign

    def _steps(self, workloads: list[tuple[str, str]], precisions: tuple[str, ...]) -> Iterator[tuple[StepWork, str]]:
        """Each workload at each batch, phase and precision, a random network after each; then random ones for ever."""
        seed = 0
        for factor in FACTORS:
            for name, preset in workloads:
                workload = workload_class(name).configured(preset)
                for phase in ("train", "infer"):
                    yield from self._of(workload, phase, factor, precisions)
                yield from self._random(seed, precisions)
                seed += 1
        while True:
            yield from self._random(seed, precisions)
            seed += 1

    def _of(
        self, workload: Workload, phase: str, factor: float, precisions: tuple[str, ...]
    ) -> Iterator[tuple[StepWork, str]]:
        steps = StepWorks(workload, phase, gpu=self._gpu)
        updates = workload.updates_per_step if phase == "train" else 1
        items = max(1, round(factor * workload.items_per_step(phase) / updates))
        for precision in precisions:
            step = steps.at(precision, items)
            yield step, source_of(workload.name, step.batch, phase)

    def _random(self, seed: int, precisions: tuple[str, ...]) -> Iterator[tuple[StepWork, str]]:
        """A network in training and inference, and layers in training, whose forward pass is that of inference."""
        largest = LARGEST[self.device.type]
        for phase in ("train", "infer"):
            steps = StepWorks(random_network(seed, largest), phase, gpu=self._gpu)
            for precision in precisions:
                yield steps.at(precision), f"random {seed}"
        layers = LAYERS[self.device.type]
        for each in range(layers * seed, layers * (seed + 1)):
            steps = StepWorks(random_layer(each, LARGEST_LAYER[self.device.type]), "train", gpu=self._gpu)
            for precision in precisions:
                yield products_of(steps.at(precision)), f"layer {each}"

    def _time_all(self, step: StepWork, source: str) -> float:
        """Seconds in ops of one step, as far as they are known."""
        for op in step.ops:
            known = self._calls.get(op.spec)
            if known is not None and source not in known.sources:
                known = self._calls[op.spec] = replace(known, sources=(*known.sources, source))
            if self._is_missing(known) and op.spec not in self.campaign.failed and self._is_wanted(op):
                self._time(op, known.sources if known else (source,))
        if self.clock() - self._saved > SAVE_S:
            self._save()
        known_s = [self._calls[op.spec].seconds if op.spec in self._calls else 0.0 for op in step.ops]
        return sum(count * seconds for count, seconds in zip(step.calls, known_s, strict=True))

    def _time_again(self) -> None:
        """What was timed at another speed of the core, while it has its usual one: calls, then whole steps."""
        # a GPU's kernels do not depend on it
        speed = None if self._gpu else CoreSpeed.usual(each.loop_s for each in self._calls.values())
        if speed is None or not speed.is_usual(loop_s(LOOPS)):
            return
        for each in [call for call in self._calls.values() if not speed.is_usual(call.loop_s)]:
            spec = each.work.spec
            if spec in self.campaign.failed:
                continue
            self._time(each.work, each.sources)
            if self.left_s <= 0 or not speed.is_usual(self._calls[spec].loop_s):
                return
        for probe in [each for each in self.campaign.probes if not speed.is_usual(each.loop_s)]:
            self._whole_step(probe.name, probe.phase)
            if not speed.is_usual(self.campaign.probes[-1].loop_s):
                return

    def _is_missing(self, known: TimedCall | None) -> bool:
        """Also on a GPU where an earlier version timed it, without the loop that tells how fast the host was."""
        return self.left_s > 0 and (known is None or (self._gpu and known.launch_loops is None))

    def _time(self, op: OpWork, sources: tuple[str, ...]) -> None:
        self._timing.write_text(op.spec)
        try:
            found = time_call(op.spec, self.device)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AttributeError) as error:
            self.campaign.failed[op.spec] = first_line(error)[:100] if str(error) else type(error).__name__
            self._check_device(op)
            return
        self._calls[op.spec] = TimedCall(
            work=op, seconds=found.seconds, host_s=found.host_s, loop_s=found.loop_s, sources=sources
        )

    def _check_device(self, op: OpWork) -> None:
        """A kernel that failed may have taken the process's whole use of the device with it."""
        try:
            wait(self.device)
        except RuntimeError as error:
            self._save()
            raise EngineError(f"{op.op} stopped {self.device} ({first_line(error)})") from None

    def _is_wanted(self, op: OpWork) -> bool:
        peak = max(self.campaign.flop_per_s.values())
        roof_s = max((op.flop or 0.0) / peak, (op.bytes or 0.0) / self.campaign.bytes_per_s)
        memory = self.campaign.memory_bytes or 8e9
        small = (op.bytes or 0.0) < MOST_OF_MEMORY * memory
        return small and roof_s <= LONGEST_S[self.device.type] and not op.op.endswith(LEFT_OUT)

    def _probes(self) -> None:
        done = {(each.name, each.phase) for each in self.campaign.probes if self._is_whole(each)}
        names = [*(f"random {seed}" for seed in range(PROBES)), *(f"deep {seed}" for seed in range(DEEP_PROBES))]
        for name in names:
            for phase in ("train", "infer"):
                if (name, phase) not in done:
                    self._whole_step(name, phase)

    def _whole_step(self, name: str, phase: str) -> None:
        if self.left_s <= 0:
            return
        self.on_progress(f"step of {name}, {phase}")
        kind, seed = name.split()
        network: Made = random_network if kind == "random" else deep_network
        made: Made = partial(network, int(seed))
        step = StepWorks(made(), phase, gpu=self._gpu).at("fp32")
        if step.flop <= self.campaign.flop_per_s["fp32"] * PROBE_S:
            self._probe(name, made, step)

    def _is_whole(self, probe: Probe) -> bool:
        """One of an earlier version is measured again."""
        on_gpu = probe.launch_loops is not None and (probe.kernel_calls is not None or probe.phase == "train")
        return probe.cold_bytes is not None and probe.loop_s is not None and (on_gpu or not self._gpu)

    def _probe(self, name: str, made: Made, step: StepWork) -> None:
        ops_s = self._time_all(step, name)
        if self.left_s <= 0:
            return  # some of its calls may not have been timed
        launches = launches_of(self._calls.values())
        before_s = loop_s()
        whole_s = step_s(made(device=str(self.device)), step.phase, self.device)
        after_s = loop_s()
        in_graph = self._gpu and step.phase == "infer"
        found = Probe(
            name=name,
            phase=step.phase,
            calls=dict(Counter(step.ops[index].part for index in step.sequence)),
            ops_s=ops_s,
            step_s=whole_s,
            cold_bytes=cold_bytes(step),
            loop_s=(before_s + after_s) / 2,
            graph_s=graph_s(made(device=str(self.device)), self.device) if in_graph else None,
            kernel_calls=self._kernel_calls(step) if in_graph else None,
            launch_loops=sum(launches.loops(step.ops[index]) for index in step.sequence) if self._gpu else None,
        )
        others = [each for each in self.campaign.probes if (each.name, each.phase) != (found.name, found.phase)]
        self.campaign = replace(self.campaign, probes=[*others, found])

    def _kernel_calls(self, step: StepWork) -> int:
        known = [self._calls.get(step.ops[index].spec) for index in step.sequence]
        return sum(each is not None and has_kernels(each.seconds) for each in known)

    def _save(self) -> None:
        self._watch.look()
        reasons = [*self.campaign.disturbances, *self._watch.disturbance().reasons]
        kinds = {re.sub(r"[0-9.]+", "", reason): reason for reason in reasons}  # the latest of each kind
        self.campaign = replace(self.campaign, calls=list(self._calls.values()), disturbances=list(kinds.values()))
        write(self.out, self.campaign)
        self._saved = self.clock()


def begun(device: torch.device, precisions: tuple[str, ...]) -> Campaign:
    """A new campaign: this device, and its measured ceilings."""
    found = {}
    for name in precisions:
        with ProcessSettings(device, name, ALGORITHMS):  # TF32 is a switch of the process
            found[name] = ceilings(device, name)
    rates = {name: rate for name, (rate, _) in found.items() if rate is not None}
    bandwidth = next(iter(found.values()))[1]
    machine = fingerprint()
    if device.type == "cuda":
        name, memory = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory
    else:
        name, memory = machine.cpu.label, psutil.virtual_memory().total
    return Campaign(
        machine=name,
        device=str(device),
        threads=torch.get_num_threads() if device.type == "cpu" else None,
        torch=str(torch.__version__),
        started=moment(),
        flop_per_s=rates,
        bytes_per_s=bandwidth or 0.0,
        memory_bytes=memory,
    )


def file_name(campaign: Campaign) -> str:
    threads = "" if campaign.threads is None else f"-{campaign.threads}-threads"
    return re.sub(r"[^A-Za-z0-9]+", "-", campaign.machine).strip("-").lower() + threads + SUFFIX


def continued(path: Path, new: Campaign) -> Campaign:
    """What the file has already, if another version of torch did not leave it, and the ceilings that it lacks."""
    if not path.exists():
        return new
    old = read(path)
    if old.torch != new.torch:
        raise BadOption(f"{path} was made with torch {old.torch}, this is {new.torch}; another --out keeps both")
    return replace(old, flop_per_s={**new.flop_per_s, **old.flop_per_s}, bytes_per_s=old.bytes_per_s or new.bytes_per_s)
