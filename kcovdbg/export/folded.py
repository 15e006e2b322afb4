# SPDX-License-Identifier: LGPL-2.1-or-later
r"""Folded stacks, flamegraph.pl's input: ``outer;inner 12``, one line per stack with the number of its own records.

The format escapes nothing. A semicolon or a blank in a name is written ``\x3b`` or ``\x20``, as line ends are ``\x0a``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kcovdbg.console.escape import escape


def folded_lines(stacks: Iterable[tuple[Sequence[str], int]]) -> Iterator[str]:
    """Iterate over the lines.

    :param stacks: names of functions, outermost first, and how many records are that stack's own.
    """
    known: dict[str, str] = {}
    for stack, records in stacks:
        yield f"{';'.join([known.get(name) or known.setdefault(name, _frame(name)) for name in stack])} {records}"


def _frame(name: str) -> str:
    return escape(name).replace(";", "\\x3b").replace(" ", "\\x20")
