"""Jobs of several ranks: which are run, and how one of them is measured in a supervised process of its own.

Every rank of a series has the same number of cores, so that one rank and many differ in their number alone.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fathom.core import plugins
from fathom.core.errors import BadOption, FathomError, UnknownName
from fathom.core.events import OnProgress, no_progress
from fathom.core.ranks import OPERATIONS
from fathom.core.record import Record
from fathom.core.spec import OWN, RunSpec
from fathom.core.stopping import unwinding
from fathom.experiments.isolate import HEARTBEAT_TIMEOUT_S, isolated
from fathom.machine.host import usable_cores

TIMEOUT_S = 300.0  # without progress of a rank
SETTINGS = "FATHOM_LAUNCH"  # the environment variable that carries a Launch to the worker, as JSON
MOST_RANKS = 1024  # of one command: each is a process that loads torch
MOST_COMBINATIONS = 1000  # of options, in one command
LAST_PORT = 65_535
PORTS = 100  # from that of the rendezvous on, which the jobs of a series take in turn
_ENDPOINT = re.compile(r"[A-Za-z0-9_.-]{1,253}:[0-9]{1,5}")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a job is started. Of all this, only the number of nodes changes what is measured: it is the spec's."""

    timeout_s: float = TIMEOUT_S
    max_restarts: int = 0
    nodes: int = 1
    rendezvous: str | None = None  # host:port of the first node; needed with several
    folder: str | None = None  # for files of the job, removed by whoever starts it: a job that is ended removes nothing

    def __post_init__(self) -> None:
        if not 1 <= self.timeout_s <= 86_400:
            raise BadOption(f"the timeout must be 1 to 86,400 seconds, not {self.timeout_s:g}")
        if not 0 <= self.max_restarts <= 1000:
            raise BadOption(f"max_restarts must be 0 to 1000, not {self.max_restarts}")
        if not 1 <= self.nodes <= MOST_RANKS:
            raise BadOption(f"nodes must be 1 to {MOST_RANKS}, not {self.nodes}")
        if self.nodes > 1 and not self.rendezvous:
            raise BadOption("several nodes need a rendezvous: --rendezvous HOST:PORT of the first one")
        if self.rendezvous is not None and not _ENDPOINT.fullmatch(self.rendezvous):
            raise BadOption(f"a rendezvous is HOST:PORT, such as node1:29500, not {self.rendezvous!r}")

    @property
    def local(self) -> bool:
        """Whether all nodes are this machine."""
        return self.nodes == 1 or (self.rendezvous or "").startswith(("localhost:", "127."))

    def nth(self, number: int) -> Launch:
        """For the nth job of a series: its rendezvous has a port of its own, as the one before may be closing."""
        if not self.rendezvous:
            return self
        host, _, port = self.rendezvous.rpartition(":")
        nth = int(port) + number % PORTS
        return replace(self, rendezvous=f"{host}:{nth if nth <= LAST_PORT else nth - PORTS}")

    def environment(self) -> dict[str, str]:
        """For the worker that starts the job."""
        return {SETTINGS: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Launch:
        return cls(**json.loads(os.environ.get(SETTINGS, "{}")))


class Jobs:
    """Runs one job after another, each in a worker of its own."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self.done = launch, 0

    def __call__(self, spec: RunSpec, on_progress: OnProgress = no_progress) -> Record:
        launch = self.launch.nth(self.done)
        self.done += 1
        with unwinding(), tempfile.TemporaryDirectory(prefix="fathom-job-") as folder:
            return isolated(
                spec,
                on_progress,
                max(HEARTBEAT_TIMEOUT_S, 2 * launch.timeout_s),  # the job ends itself, and says which rank stopped
                environment=replace(launch, folder=folder).environment(),
            )


def plan(base: RunSpec, names: Sequence[str], counts: Sequence[int]) -> list[RunSpec]:
    """Each workload on each number of ranks, each rank with the cores that the largest job leaves it."""
    check_counts(counts)
    plugins.check("strategies", base.strategy or "")
    slow = max(pair[0] for pair in (base.slow_rank, base.slow_link, (0, 1.0)) if pair)
    if slow >= max(counts):
        raise BadOption(f"no job has the slow rank {slow}: the largest has ranks 0 to {max(counts) - 1}")
    threads = base.threads or max(1, usable_cores() * base.nodes // max(counts))
    whole = replace(base, slow_rank=None, slow_link=None)
    specs = [
        replace(base if slow < count else whole, workload=name, ranks=count, threads=threads)
        for name in names
        for count in counts
    ]
    return list({spec.id: spec for spec in specs}.values())


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the values of options, the last option varying first; one, without options."""
    if (many := math.prod(len(each) for each in values.values())) > MOST_COMBINATIONS:
        raise BadOption(f"{many:,} combinations of options; at most {MOST_COMBINATIONS} are run by one command")
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def check_fit(specs: Sequence[RunSpec]) -> None:
    """Raises where a strategy cannot run a workload with these options on so many ranks; loads torch to find out."""
    from fathom.engine.ranks.base import strategy_class
    from fathom.engine.ranks.session import batch_of, local_spec
    from fathom.workloads.base import workload_class

    for spec in specs:
        chosen = ", ".join(f"{name}={value}" for name, value in spec.strategy_options.items())
        where = f"{spec.workload} on {spec.ranks} rank{'s' * (spec.ranks != 1)} with {chosen or 'no options'}"
        try:
            strategy = strategy_class(spec.strategy or "").configured(spec.strategy_options)
            kind = workload_class(spec.workload)
            local = local_spec(spec, kind.configured(spec.preset, **batch_of(spec)).batch, strategy.divides)
            refusal = strategy.refusal(kind.configured(spec.preset, **batch_of(local)), spec.ranks or 1)
        except FathomError as error:
            raise BadOption(f"{where}: {error}") from None
        if refusal is not None:
            raise BadOption(f"{where}: strategy {strategy.name} {refusal}")


def check_any_fits(specs: Sequence[RunSpec]) -> None:
    """Raises where none of the jobs could run; of several, one that cannot is a failed record beside the others."""
    refusals = []
    for spec in specs:
        try:
            check_fit([spec])
            return
        except BadOption as refusal:
            refusals.append(refusal)
    raise refusals[0]


def collectives(
    counts: Sequence[int], device: str, least_bytes: int, most_bytes: int, operations: Sequence[str], nodes: int = 1
) -> list[RunSpec]:
    """One job for each number of ranks."""
    check_counts(counts)
    if min(counts) < 2:
        raise BadOption("a message needs at least 2 ranks")
    if not 1 <= least_bytes <= most_bytes <= 1 << 34:
        raise BadOption(f"message sizes go from 1 byte to 16 GiB, the least first, not {least_bytes} to {most_bytes}")
    for name in operations:
        if name not in OPERATIONS:
            raise UnknownName.among("operation", name, OPERATIONS)
    options: dict[str, Any] = {"least_bytes": least_bytes, "most_bytes": most_bytes}
    if set(operations) != set(OPERATIONS):
        options["operations"] = sorted(set(operations))
    base = RunSpec(
        workload="collectives",
        kind="collectives",
        source="ranks",
        preset=OWN,
        precision=None,
        seed=None,
        device=device,
        options=options,
        ranks=2,
    )
    threads = max(1, usable_cores() * nodes // max(counts)) if device == "cpu" else None
    return [replace(base, ranks=count, nodes=nodes, threads=threads) for count in dict.fromkeys(counts)]


def check_counts(counts: Sequence[int]) -> None:
    if not counts or min(counts) < 1 or max(counts) > MOST_RANKS:
        raise BadOption(f"ranks are numbers from 1 to {MOST_RANKS}, such as 1,2,4, not {','.join(map(str, counts))}")
