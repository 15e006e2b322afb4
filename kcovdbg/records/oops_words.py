# SPDX-License-Identifier: LGPL-2.1-or-later
"""Words that the kernel and its users write for places in code: ``func+0x15/0x40 [mod]``, addresses in any notation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from kcovdbg.abi.address import WORD_MASK


class CodeWord(NamedTuple):
    """One place in code, as somebody wrote it."""

    text: str
    span: tuple[int, int]
    """Start and end of the text in its line."""
    function: str | None = None
    offset: int = 0
    """In the function, in bytes."""
    size: int | None = None
    """Of the function; None where the text has none."""
    module: str | None = None
    """None where the text names none."""
    address: int | None = None
    is_exact: bool = False
    """Whether it is the address of an instruction, not the return address of a call before it."""
    is_oops: bool = False
    """Whether the address is of an oops, which includes the KASLR offset."""


_NAME: Final = r"(?P<function>(?<![\w.$])[A-Za-z_.$][\w.$]*)"
_OFFSET: Final = r"\+(?P<offset>0x[0-9a-fA-F]{1,16}|\d{1,10})(?![0-9a-fA-F])(?:/(?P<size>0x[0-9a-fA-F]{1,16}))?"
# scripts/decode_stacktrace.sh: a build ID may follow the module's name.
_MODULE: Final = r"(?:\s+\[(?P<module>[\w-]+)(?:\s[0-9a-f]+)?\])?"
_PLACE: Final = re.compile(_NAME + _OFFSET + _MODULE)
# Text before the address of an instruction: show_ip() and show_regs() of arch/*/kernel, __warn() of kernel/panic.c.
_EXACT: Final = re.compile(r"(?:\b(?:[RE]?IP|NIP|[Pp][Cc]|epc)\b[^+]*|WARNING: .* at \S+ )$")
_WORD: Final = re.compile(
    r"[\s,?()]*(?:(?:[RE]?IP|NIP|[Pp][Cc]|epc|lr)\s*:\s*)?(?:[0-9a-f]{4}:\s*)?(?:"
    r"(?P<signed>-\d{1,20})"
    r"|(?P<decimal>\d{20})"
    r"|\[<(?:0x)?(?P<bracketed>[0-9a-fA-F]{1,16})>\](?=$|[\s,)])(?!\s+(?:\?\s*)?[A-Za-z_.$][\w.$]*\+)"
    # Short words of letters alone are functions.
    r"|(?P<hexadecimal>0x[0-9a-fA-F]{1,16}|(?=[0-9a-fA-F]*\d|[0-9a-fA-F]{8})[0-9a-fA-F]{1,16})"
    rf"|(?:\[<[0-9a-fA-Fx]+>\]\s+(?:\?\s*)?)?{_NAME}(?:{_OFFSET})?{_MODULE}"
    r")(?=$|[\s,)])[\s,)]*"
)
_ADDRESS: Final = re.compile(r"\[<[0-9a-fA-F]+>\]|0x[0-9a-fA-F]+|[0-9a-fA-F]{8,16}|-?\d{9,20}")
_SEPARATOR: Final = re.compile(r"[\s,]+")
# Characters before a place that say which kind it is.
_BEFORE: Final = 200


def parse_words(text: str) -> Iterator[CodeWord]:
    """Yield the places that a text consists of, or that a line of a log has.

    :raises ValueError: with the first word that is no place.
    """
    at = 0
    end = len(text.rstrip(" ,\t?()"))
    while at < end:
        match = _WORD.match(text, at)
        if match is None or match.end() == at:
            raise ValueError(text[at:].split()[0])
        at = match.end()
        shown = match[0].strip(" ,()?\t")
        if match["function"]:
            is_exact = match["offset"] is None or _names_instruction(text, match.start("function"))
            yield _make_word(match, is_exact=is_exact)
            continue
        kind = match.lastgroup or ""
        value = int(match[kind], 10 if kind in ("signed", "decimal") else 16)
        if not -(1 << 63) <= value <= WORD_MASK:
            raise ValueError(shown)
        is_oops = kind == "bracketed"
        start = text.rindex("[<", 0, match.start(kind)) if is_oops else match.start(kind)
        yield CodeWord(shown, (start, match.end(kind) + 2 * is_oops), address=value & WORD_MASK, is_oops=is_oops)


def find_code_words(line: str) -> list[CodeWord]:
    """Return the functions with offsets in a line of a log, or the addresses of a line that has nothing else."""
    found = [_make_word(match, is_exact=_names_instruction(line, match.start())) for match in _PLACE.finditer(line)]
    words = list(filter(None, _SEPARATOR.split(line)))
    if found or not words or not all(map(_ADDRESS.fullmatch, words)):
        return found
    try:
        return list(parse_words(line))
    except ValueError:
        return []


def _names_instruction(text: str, start: int) -> bool:
    """Return whether the text before a place says that it is an instruction's."""
    return _EXACT.search(text[max(0, start - _BEFORE) : start]) is not None


def _make_word(match: re.Match[str], *, is_exact: bool) -> CodeWord:
    text = match["offset"] or "0"
    offset = int(text, 16 if text.startswith("0x") else 10)
    size = None if match["size"] is None else int(match["size"], 16)
    end = match.end("size" if match["size"] else "offset" if match["offset"] else "function")
    text = match.string[match.start("function") : end] + (f" [{match['module']}]" if match["module"] else "")
    # A function's first instruction is no return address.
    is_exact = is_exact or offset == 0
    return CodeWord(text, (match.start("function"), end), match["function"], offset, size, match["module"], is_exact=is_exact)
