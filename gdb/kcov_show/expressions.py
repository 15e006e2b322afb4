# SPDX-License-Identifier: LGPL-2.1-or-later
"""Expressions of GDB as arguments: ``kcov-show why $t``, ``kcov-show buffer $t->pid``."""

from __future__ import annotations

import re
from typing import Match

import gdb

# Quoted text and the programs of a pipe stay as they are: `$1` in them belongs to the shell.
_PIECE = re.compile(
    r"""(?P<quoted>"(?:[^"\\]|\\.)*"|'[^']*')
    | (?P<pipe>\|.*)
    | (?P<expression>(?<!\S)\$[A-Za-z_]\S*)""",
    re.VERBOSE | re.DOTALL,
)
_ADDRESS_MASK = (1 << 64) - 1


def is_expression(word: str) -> bool:
    """Return whether a word is an expression: it begins with a convenience variable, a register, or
    a call of a function such as ``$kcov(41)``.
    """
    return re.match(r"\$[A-Za-z_]", word) is not None


def replace(line: str) -> str:
    """Return a line with the values of its expressions.

    :raises gdb.GdbError: when one has no value.
    """
    if line.lstrip().startswith("!"):
        # A shell command.
        return line

    def replace_piece(match: Match[str]) -> str:
        if match.lastgroup == "expression":
            return evaluate(match[0])
        return match[0]

    return _PIECE.sub(replace_piece, line)


def evaluate(expression: str) -> str:
    """Return the value of an expression as a command takes it: a pointer in hexadecimal digits,
    another number in decimal digits.

    :raises gdb.GdbError: when the expression has no value.
    """
    try:
        value = gdb.parse_and_eval(expression)
        type_ = value.type.strip_typedefs()
        if type_.code == gdb.TYPE_CODE_VOID:
            raise gdb.GdbError(
                "kcovdbg: '%s' has no value\n  set it: set var %s = ..." % (expression, expression)
            )
        if type_.code == gdb.TYPE_CODE_PTR:
            return "%#x" % (int(value) & _ADDRESS_MASK)
        if type_.code == gdb.TYPE_CODE_ARRAY:
            return str(value.string())
        return str(int(value))
    except (gdb.error, ValueError, TypeError) as error:
        raise gdb.GdbError(
            "kcovdbg: '%s': %s" % (expression, " ".join(str(error).split()))
        ) from None
