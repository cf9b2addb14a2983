"""fathom scale --ranks: jobs of several processes that train together, their options, and the batch file for Slurm."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from fathom.cli.commands import _series
from fathom.cli.commands._options import swept_options_of
from fathom.cli.commands._recipe_options import recipe_options
from fathom.cli.terminal import human
from fathom.core.errors import BadOption
from fathom.core.ranks import strategy_named
from fathom.core.spec import SCALINGS, RunSpec
from fathom.experiments import ranks as jobs
from fathom.experiments.checks import check_device, check_external, present
from fathom.experiments.ranks import MOST_RANKS, TIMEOUT_S, Launch
from fathom.experiments.repeat import run_order
from fathom.experiments.slurm import PORT, write


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command that ranks alone have, as they were typed; None: not given."""

    strategy: str | None
    scaling: str | None
    tune: list[str] | None
    slow_rank: str | None
    slow_link: str | None
    timeout: float | None
    max_restarts: int | None
    nodes: int | None
    rendezvous: str | None
    slurm: Path | None
    device: str | None
    evaluations: int | None

    def given(self) -> dict[str, object]:
        """By the names under which they are typed."""
        return {each.name.replace("_", "-"): getattr(self, each.name) for each in fields(self)}

    def launch(self) -> Launch:
        meeting = self.rendezvous or (f"first-node:{PORT}" if self.slurm else None)
        return Launch(
            timeout_s=TIMEOUT_S if self.timeout is None else self.timeout,
            max_restarts=self.max_restarts or 0,
            nodes=self.nodes or 1,
            rendezvous=meeting,
        )

    def applied(self, base: RunSpec) -> RunSpec:
        """With the largest number of ranks, until the plan says how many."""
        device, nodes = self.device or "cpu", self.launch().nodes
        check_device(device)
        return replace(
            base,
            device=device,
            ranks=MOST_RANKS // nodes * nodes,
            nodes=nodes,
            strategy=strategy_named(self.strategy or "ddp"),
            scaling=self.scaling or SCALINGS[0],
            slow_rank=_slow(self.slow_rank, "--slow-rank"),
            slow_link=_slow(self.slow_link, "--slow-link"),
        )


def measure(
    base: RunSpec, names: Sequence[str], ranks: str, options: Options, runs: int, out: Path, as_json: bool
) -> None:
    """Runs the jobs that are not in the folder yet and prints the answer; with --slurm, writes a batch file instead."""
    launch, ranked = options.launch(), options.applied(base)
    tried = jobs.combinations(swept_options_of(options.tune or [], "--tune"))
    counts = _series.counts_of(ranks, "--ranks")
    specs = _plan([replace(ranked, strategy_options=each) for each in tried], names, counts, options.evaluations)
    check_external(specs)
    (jobs.check_fit if len(tried) > 1 else jobs.check_any_fits)(specs)
    if options.slurm:
        write(options.slurm, sys.argv[1:], launch.nodes)
        human.print(f"batch file: {options.slurm}; submit it with sbatch {options.slurm}")
        return
    if ranked.device != "cpu":
        present(ranked.device)  # not of a batch file: the machine that writes it may have no GPU
    question = "ranks" if options.evaluations is None else "convergence"
    also = "convergence" if len(tried) > 1 and question != "convergence" else ""
    _series.measure(run_order(specs, runs), out, jobs.Jobs(launch), "scale", question, as_json, also)


def _plan(
    bases: Sequence[RunSpec], names: Sequence[str], counts: Sequence[int], evaluations: int | None
) -> list[RunSpec]:
    """The jobs of every combination of options; by the recipe of each workload where evaluations are wanted."""
    found = []
    for base in bases:
        if evaluations is None:
            found += jobs.plan(base, names, counts)
        else:
            found += [spec for name in names for spec in jobs.plan(_trained(base, name, evaluations), [name], counts)]
    return found


def _trained(base: RunSpec, name: str, evaluations: int) -> RunSpec:
    """Training by the workload's recipe, whose own preset is meant where none is chosen."""
    from fathom.training.trainer import recipe_for  # torch

    free = replace(base, workload=name, kind="training", steps=RunSpec.steps, budget_s=None, evaluations=evaluations)
    recipe = recipe_for(free)
    preset = recipe.preset if base.preset == RunSpec.preset else base.preset
    own = {} if base.batch is None else {"batch"}  # what the command says itself
    options = {key: value for key, value in recipe_options(recipe, name, preset).items() if key not in own}
    return replace(free, preset=preset, options={**options, **base.options})


def _slow(text: str | None, option: str) -> tuple[int, float] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,5}):(\d{1,4}(?:\.\d{1,6})?)x?", text)
    if not found:
        raise BadOption(f"{option} takes a rank and a factor such as 1:2x, not {text!r}")
    return int(found[1]), float(found[2])
