"""Parallel actors: a workload that plays, with 1, 2, 4, ... threads of emulators, for frames per second over actors.

An actor is a thread that plays its share of the games; the network chooses the actions of all games in one pass. Weak
scaling gives every actor as many games as the preset has, strong scaling divides the same games among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fathom.core.errors import BadOption
from fathom.core.spec import ACTORS, FRAME_SKIP, GAMES, SCALINGS, RunSpec
from fathom.experiments.checks import facts_of

SKIPPED = 4  # written down in every spec: frames per second count those of the emulator
MOST_ACTORS = 1024


def plan(base: RunSpec, names: Sequence[str], counts: Sequence[int], scaling: str) -> list[RunSpec]:
    """Each workload with each number of actors."""
    if not counts or min(counts) < 1 or max(counts) > MOST_ACTORS:
        raise BadOption(f"--actors takes numbers from 1 to {MOST_ACTORS}, not {','.join(map(str, counts))}")
    specs = []
    for name in names:
        games = _games(name, base.preset)
        most = games * -(-max(counts) // games)  # in whole multiples: there are updates between so many actions
        for count in counts:
            envs = games * count if scaling == SCALINGS[0] else most
            options = {**base.options, GAMES: envs, ACTORS: count, FRAME_SKIP: SKIPPED}
            specs.append(replace(base, workload=name, options=options))
    return list({spec.id: spec for spec in specs}.values())


def _games(name: str, preset: str) -> int:
    """How many a preset plays at once."""
    facts: dict[str, Any] = facts_of(name) or {}
    if not {GAMES, ACTORS, FRAME_SKIP} <= {*facts.get("options", {})}:
        raise BadOption(f"{name} has no actors: --actors is for a workload that plays, such as deepq")
    return int(facts["presets"][preset][GAMES])
