"""Everything a trace tells beyond its op rows, as a record keeps it."""

from __future__ import annotations

from fathom.core.depth import TraceDepth
from fathom.trace.collectives import collectives
from fathom.trace.columns import Columns
from fathom.trace.critical import critical_path
from fathom.trace.launches import copies, launches
from fathom.trace.occupation import kinds, split
from fathom.trace.reader import gc_disabled
from fathom.trace.rows import Breakdown
from fathom.trace.streams import streams


@gc_disabled()
def trace_depth(found: Breakdown, rank: int | None = None, world_size: int | None = None) -> TraceDepth:
    """Of one rank; without GPU activities only the critical path, which is then the host's."""
    columns = Columns.of(found.gpu_activities)
    path = critical_path(found, columns)
    if not found.gpu_activities:
        return TraceDepth(rank=rank, world_size=world_size, path=path)
    whole, steps = split(columns, found.steps)
    return TraceDepth(
        rank=rank,
        world_size=world_size,
        whole=whole,
        steps=steps,
        kinds=kinds(columns),
        collectives=collectives(found, columns),
        streams=streams(columns, found.steps),
        launches=launches(columns),
        copies=copies(found.gpu_activities),
        path=path,
    )
