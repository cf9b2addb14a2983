"""Command-line options that were renamed: the old word works for one more release, with a one-line hint.

A command lists its own, from old to new, as a constant beside its function `command`:

    RENAMED = {"--rounds": "--evaluations"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def with_new_names(arguments: Sequence[str], renamed: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The arguments of a command with every old option replaced, and a hint for each that was.

    What follows a lone -- is no option.
    """
    current: list[str] = []
    hints: dict[str, None] = {}
    for index, argument in enumerate(arguments):
        if argument == "--":
            return [*current, *arguments[index:]], list(hints)
        option, equals, value = argument.partition("=")
        if option in renamed:
            hints[f"{option} is now {renamed[option]}; the old name will be removed in the next release"] = None
            option = renamed[option]
        current.append(f"{option}{equals}{value}")
    return current, list(hints)
