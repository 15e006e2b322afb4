# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sets of PCs put together: ``@a & @b``, ``@a - @b``, ``(@a | @b) ^ 41``.

A name of a buffer is one operand. ``-`` is an operator where blanks are around it: paths hold it too. Operators of one level
are read from left to right; ``&`` binds closer than the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kcovdbg.errors import LineError

Counts: TypeAlias = Mapping[int, int]
"""PC -> records."""

_TOKEN: Final = re.compile(r"\s*(?:(?P<operator>[&|^()]|-(?=\s))|(?P<name>[^\s&|^()]+))")
_ADDITIVE: Final = frozenset("|-^")


def is_expression(text: str) -> bool:
    """Tell whether this is more than the name of one buffer."""
    return bool(re.search(r"[&|^()]|\s-\s", text))


def evaluate(text: str, find: Callable[[str], Counts]) -> Counts:
    """Compute an expression.

    :param find: from the name of a buffer to what it holds.
    :return: the PCs of the result with their counts: of both sides together where both have it.
    :raises LineError: when the expression can't be understood.
    """
    return _Expression(text, find).evaluate()


class _Expression:
    """A parser by recursive descent over one line."""

    def __init__(self, text: str, find: Callable[[str], Counts]) -> None:
        self._text = text
        self._find = find
        self._tokens: list[tuple[str, bool, int]] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise LineError("this can't be understood", text, position)
            kind = match.lastgroup or "name"
            self._tokens.append((match[kind], kind == "operator", match.start(kind)))
            position = match.end()
        self._next = 0

    def evaluate(self) -> Counts:
        found = self._sum()
        if self._next < len(self._tokens):
            raise LineError("an operator is missing: & | - or ^", self._text, self._tokens[self._next][2])
        return found

    def _operator(self, among: frozenset[str]) -> str | None:
        if self._next < len(self._tokens):
            token, is_operator, _ = self._tokens[self._next]
            if is_operator and token in among:
                self._next += 1
                return token
        return None

    def _sum(self) -> Counts:
        left = self._product()
        while operator := self._operator(_ADDITIVE):
            left = combine(left, operator, self._product())
        return left

    def _product(self) -> Counts:
        left = self._operand()
        while self._operator(frozenset("&")):
            left = combine(left, "&", self._operand())
        return left

    def _operand(self) -> Counts:
        if self._next == len(self._tokens):
            raise LineError("a buffer's name is missing", self._text, len(self._text))
        token, is_operator, column = self._tokens[self._next]
        self._next += 1
        if not is_operator:
            return self._find(token)
        if token != "(":  # noqa: S105 - a token of the expression
            raise LineError("a buffer's name is missing before this", self._text, column)
        found = self._sum()
        if self._operator(frozenset(")")) is None:
            raise LineError("this parenthesis isn't closed", self._text, column)
        return found


def combine(left: Counts, operator: str, right: Counts) -> Counts:
    """Put two sets together.

    :param operator: ``&``, ``|``, ``-`` or ``^``.
    """
    if operator == "&":
        pcs = left.keys() & right.keys()
    elif operator == "|":
        pcs = left.keys() | right.keys()
    elif operator == "-":
        pcs = left.keys() - right.keys()
    else:
        pcs = left.keys() ^ right.keys()
    return {pc: left.get(pc, 0) + right.get(pc, 0) for pc in pcs}
