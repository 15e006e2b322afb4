# SPDX-License-Identifier: LGPL-2.1-or-later
"""Expressions over the PC sets of buffers: ``@a & @b``, ``@a - @b``, ``(@a | @b) ^ 41``.

An operand is the name of a buffer. ``-`` is an operator only between blanks, since paths may contain it. ``&`` binds tighter
than ``|``, ``-`` and ``^``, which are left-associative.
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
    """Return whether a text is an expression, not the name of one buffer."""
    return bool(re.search(r"[&|^()]|\s-\s", text))


def evaluate(text: str, find: Callable[[str], Counts]) -> Counts:
    """Evaluate an expression.

    :param find: returns the counts of a buffer, by its name.
    :return: the PCs of the result, each with the sum of both operands' counts.
    :raises LineError: when the expression is malformed.
    """
    return _Expression(text, find).evaluate()


class _Expression:
    """A recursive descent parser that evaluates one expression."""

    def __init__(self, text: str, find: Callable[[str], Counts]) -> None:
        self._text = text
        self._find = find
        self._tokens: list[tuple[str, bool, int]] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise LineError("unexpected character", text, position)
            kind = match.lastgroup or "name"
            self._tokens.append((match[kind], kind == "operator", match.start(kind)))
            position = match.end()
        self._next = 0

    def evaluate(self) -> Counts:
        found = self._sum()
        if self._next < len(self._tokens):
            raise LineError("missing operator: &, |, - or ^", self._text, self._tokens[self._next][2])
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
            raise LineError("missing buffer name", self._text, len(self._text))
        token, is_operator, column = self._tokens[self._next]
        self._next += 1
        if not is_operator:
            return self._find(token)
        if token != "(":  # noqa: S105 - a token of the expression
            raise LineError("missing buffer name before this", self._text, column)
        found = self._sum()
        if self._operator(frozenset(")")) is None:
            raise LineError("unclosed parenthesis", self._text, column)
        return found


def combine(left: Counts, operator: str, right: Counts) -> Counts:
    """Apply an operator to two sets.

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
