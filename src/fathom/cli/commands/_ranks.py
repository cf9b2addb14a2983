"""fathom profile --trace FOLDER: the traces of all ranks of one run, side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fathom.analysis.finding import Cell
from fathom.analysis.ranks import CollectiveRanks, RankGroup, Spread, rank_group
from fathom.cli.terminal import count, human, print_json, print_table, skipped
from fathom.core.store import Store
from fathom.trace.ranks import from_traces, processes_for

MOST_STEPS = 20  # shown; --json has all


def report_ranks(folder: Path, out: Path, as_json: bool) -> None:
    """Keeps one record for each rank and prints what they have in common."""
    store = Store(out)
    store.check_writable()
    records = from_traces(folder, skipped, processes_for(folder))
    paths = [store.add(record) for record in records]
    group = rank_group(records)
    if as_json:
        print_json({"records": [str(path) for path in paths], **asdict(group)})
        return
    if group.times:
        _print_times(group, folder)
    if group.collectives:
        _print_collectives(group)
    _print_computation(group)
    for note in group.notes:
        human.print(f"· {note}", highlight=False)
    human.print(f"records: {count(len(paths), 'file')} in {out}", soft_wrap=True)


def _print_times(group: RankGroup, folder: Path) -> None:
    rows: list[list[Cell]] = [
        [
            str(each.rank),
            each.steps,
            1e3 * each.span_s,
            1e3 * each.computation_s,
            1e3 * each.communication_s,
            1e3 * each.exposed_communication_s,
            1e3 * each.waited_s,
            1e3 * each.idle_s,
            None if each.overlap is None else 100 * each.overlap,
        ]
        for each in group.times
    ]
    names = ["span", "computation", "communication", "exposed", "waited", "idle"]
    columns = ["rank", "steps", *(f"{name} (ms)" for name in names), "overlap (%)"]
    print_table(f"{count(len(group.ranks), 'rank')} of {folder.name}: GPU time over all steps", columns, rows)
    for name, spread in (("computation", group.computation), ("exposed communication", group.exposed)):
        if spread is not None:
            human.print(f"{name}: {_shown(spread)}", highlight=False)


def _shown(spread: Spread) -> str:
    imbalance = "" if spread.imbalance is None else f"; the largest is {100 * spread.imbalance:.3g} % above the median"
    return (
        f"{1e3 * spread.low:.4g} ms (rank {spread.low_rank}) to {1e3 * spread.high:.4g} ms (rank {spread.high_rank}), "
        f"median {1e3 * spread.median:.4g} ms{imbalance}"
    )


def _print_collectives(group: RankGroup) -> None:
    columns = [
        "collective",
        "group",
        "ranks",
        "calls",
        "least (ms)",
        "median (ms)",
        "most (ms)",
        "last to arrive",
        "waited",
    ]
    print_table("Collectives across ranks", columns, [_collective(each) for each in group.collectives])


def _collective(each: CollectiveRanks) -> list[Cell]:
    times: list[Cell] = [1e3 * value for value in (each.seconds.low, each.seconds.median, each.seconds.high)]
    straggler = each.straggler
    last = None if straggler is None else f"rank {straggler}, {each.last[straggler]} of {each.calls} calls"
    most = max(each.waited_s, key=lambda rank: each.waited_s[rank])
    waited = f"rank {most}: {1e3 * each.waited_s[most]:.4g} ms" if each.calls else None
    return [each.name, each.group, len(each.ranks), each.calls + each.unmatched, *times, last, waited]


def _print_computation(group: RankGroup) -> None:
    if len(group.computation_per_step) < 2:
        return
    rows: list[list[Cell]] = [
        [str(step), 1e3 * each.low, each.low_rank, 1e3 * each.median, 1e3 * each.high, each.high_rank]
        for step, each in enumerate(group.computation_per_step[:MOST_STEPS])
    ]
    columns = ["step", "least (ms)", "rank", "median (ms)", "most (ms)", "rank"]
    print_table("Computation of each step across ranks", columns, rows)
