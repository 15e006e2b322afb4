# SPDX-License-Identifier: LGPL-2.1-or-later
"""Inputs on which a regular expression may backtrack: each of its repetitions, repeated, with an
end that does not match.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

# The parser of the standard library, which moved with Python 3.11.
parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_REPEATS: Final = frozenset(("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"))
# A repetition with a smaller bound costs a constant.
_LARGE: Final = 256
_CATEGORIES: Final = {"CATEGORY_DIGIT": "0", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a"}
_CHARACTERS: Final = (" ", "\n", "0", "1", "a", "x", ":", "!", "\t")
_ENDS: Final = ("", "\0", "!", "\n\0", " ")


class Attack(NamedTuple):
    """Text of any length on which a pattern may be slow."""

    before: str
    repeated: str
    after: str

    def make(self, size: int) -> str:
        """Return the text in about so many characters."""
        return self.before + self.repeated * (size // len(self.repeated)) + self.after


def find_attacks(pattern: re.Pattern[Any]) -> Sequence[Attack]:
    """Return what may be slow, for each repetition without a bound."""
    text = pattern.pattern
    source = text.decode("latin-1") if isinstance(text, bytes) else text
    tree = parser.parse(
        source, pattern.flags & ~re.UNICODE if isinstance(text, bytes) else pattern.flags
    )
    found: dict[Attack, None] = {}
    for before, near, body in _find_repeats(list(tree), ""):
        pumps = dict.fromkeys((body, before + body, near + body, *_CHARACTERS))
        for repeated in filter(None, pumps):
            for prefix in dict.fromkeys((before, before + body)):
                for after in _ENDS:
                    found[Attack(prefix, repeated, after)] = None
    # A literal alone, over and over, where it is searched for.
    example = _example(list(tree))
    for length in range(1, len(example) + 1):
        found[Attack("", example[:length], "\0")] = None
    return tuple(found)


def _find_repeats(items: Sequence[Any], before: str) -> Iterator[tuple[str, str, str]]:
    """Yield what precedes a repetition: all of it, and the item before it alone; and what is
    repeated, once.
    """
    near = ""
    for operation, argument in items:
        kind = str(operation)
        if kind in _REPEATS:
            _least, most, body = argument
            if int(most) > _LARGE:
                yield before, near, _example(list(body))
            yield from _find_repeats(list(body), before)
        for body in _bodies(kind, argument):
            if kind not in _REPEATS:
                yield from _find_repeats(list(body), before)
        near = _example([(operation, argument)])
        before += near


def _bodies(kind: str, argument: Any) -> Sequence[Any]:
    if kind == "SUBPATTERN":
        return [argument[-1]]
    if kind == "BRANCH":
        return list(argument[1])
    if kind in ("ASSERT", "ASSERT_NOT"):
        return [argument[1]]
    if kind == "ATOMIC_GROUP":
        return [argument]
    return []


def _example(items: Sequence[Any]) -> str:
    """Return a short text that these items match, mostly."""
    found = ""
    for operation, argument in items:
        kind = str(operation)
        if kind == "LITERAL":
            found += chr(argument)
        elif kind == "NOT_LITERAL":
            found += "a" if argument != ord("a") else "b"
        elif kind == "ANY":
            found += "a"
        elif kind == "IN":
            found += _member(argument)
        elif kind in _REPEATS:
            found += _example(list(argument[2])) * min(int(argument[0]), _LARGE)
        elif kind in ("SUBPATTERN", "BRANCH", "ATOMIC_GROUP"):
            found += _example(list(_bodies(kind, argument)[0]))
    return found


def _member(items: Sequence[Any]) -> str:
    """Return a character of a set."""
    names = [(str(operation), argument) for operation, argument in items]
    if names[0][0] == "NEGATE":
        matcher = names[1:]
        return next(
            (one for one in "a0 !~" if not any(_is_member(one, item) for item in matcher)), "a"
        )
    kind, argument = names[0]
    if kind == "LITERAL":
        return chr(argument)
    if kind == "RANGE":
        return chr(argument[0])
    return _CATEGORIES.get(str(argument), "!")


def _is_member(character: str, item: tuple[str, Any]) -> bool:
    kind, argument = item
    if kind == "LITERAL":
        return bool(ord(character) == argument)
    if kind == "RANGE":
        return bool(argument[0] <= ord(character) <= argument[1])
    return _CATEGORIES.get(str(argument)) == character


def measure(run: Callable[[Any], object], text: Any, times: int = 3) -> float:
    """Return the least processor seconds of some runs."""
    least = float("inf")
    for _ in range(times):
        start = time.process_time()
        run(text)
        least = min(least, time.process_time() - start)
    return least
