"""The time of a step's ops as a tree: module, op, kernel. What is too small to be seen is put together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from fathom.analysis.selection import plain_scale
from fathom.core.formatting import number, seconds
from fathom.core.record import OpRow, Profile
from fathom.trace.taxonomy import short_name

LEAST = 0.001  # of all op time: smaller nodes are merged with their siblings
NODES = 1500  # at most


@dataclass
class Node:
    """A module, an op or a kernel; seconds are of a step and include those of the children."""

    name: str
    kind: str  # all, module, op, kernel, or rest for several together
    seconds: float = 0.0
    calls: float = 0.0
    flop: float | None = 0.0  # None: not known of at least one op
    children: dict[str, Node] = field(default_factory=dict)

    def child(self, name: str, kind: str) -> Node:
        """A module and an op of one name are two nodes."""
        return self.children.setdefault(f"{kind} {name}", Node(name, kind))

    def add(self, seconds: float, calls: float, flop: float | None) -> None:
        self.seconds += seconds
        self.calls += calls
        self.flop = None if flop is None or self.flop is None else self.flop + flop

    def described(self, step_s: float) -> str:
        """The numbers, in words."""
        parts = [f"{seconds(self.seconds)} per step", f"{100 * self.seconds / step_s:.3g} % of the step"]
        if self.calls:
            parts.append(f"{number(self.calls)} {'call' if self.calls == 1 else 'calls'}")
        if self.flop and self.kind != "kernel":
            parts.append(f"{number(self.flop / 1e9)} GFLOP")
        return ", ".join(parts)


def tree(profile: Profile, name: str) -> Node:
    """Its children add up to it at every level, but for kernels of an op that has none."""
    scale = plain_scale(profile)
    root = Node(name, "all")
    kernels = _kernels(profile)
    for index, row in enumerate(profile.rows):
        spent = profile.seconds(row) * scale
        path = [root]
        for part in _modules(row):
            path.append(path[-1].child(part, "module"))
        path.append(path[-1].child(row.op, "op"))
        for node in path:
            node.add(spent, row.calls if node is path[-1] else 0.0, row.flop)
        for kernel, calls, time in kernels.get(index, []):
            path[-1].child(short_name(kernel), "kernel").add(time * scale, calls, None)
    return root


def pruned(root: Node) -> list[tuple[list[str], Node]]:
    """Every node that is large enough, with its path from the root; parents first, children in order of execution."""
    least = LEAST
    while True:
        found = list(_walk(root, [root.name], least * root.seconds))
        if len(found) <= NODES:
            return found
        least *= 2


def _walk(node: Node, path: list[str], least: float) -> list[tuple[list[str], Node]]:
    found = [(path, node)]
    large = [child for child in node.children.values() if child.seconds >= least]
    small = [child for child in node.children.values() if child.seconds < least]
    if small and large:
        rest = Node(f"({len(small)} smaller)", "rest")
        for child in small:
            rest.add(child.seconds, child.calls, child.flop)
        large.append(rest)
    names: dict[str, int] = {}
    for child in large:
        names[child.name] = names.get(child.name, 0) + 1
        label = child.name if names[child.name] == 1 else f"{child.name} ({child.kind})"
        found += _walk(child, [*path, label], least)
    return found


def _modules(row: OpRow) -> list[str]:
    """The parts of the module's path; an op in no module is under its role."""
    return row.layer.split(".") if row.layer else [f"({row.role or row.phase})"]


def _kernels(profile: Profile) -> dict[int, list[tuple[str, float, float]]]:
    """Row -> its kernels with calls and seconds."""
    found: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
    held = profile.row_kernels
    if held is not None:
        for row, kernel, calls, time in zip(held.rows, held.kernels, held.calls, held.seconds, strict=True):
            found[row].append((held.names[kernel], calls, time))
    return found
