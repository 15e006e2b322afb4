# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the words in a text that name places in code: ``func+0x15/0x40 [mod]``, and addresses in any
notation.

Most places in a log are return addresses. After the names of some registers, and in some banners,
they are addresses of instructions: :mod:`.report_table` lists these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.records.log_text import LogLine
from kcovdbg.records.report_table import EXACT_BEFORE, EXACT_FOLLOWS, REGISTER_ADDRESS


class CodeWord(NamedTuple):
    """One place in code, as somebody wrote it."""

    text: str
    span: tuple[int, int]
    """Start and end of the text in the line as it was given."""
    function: str | None = None
    offset: int = 0
    """Bytes from the start of the function."""
    size: int | None = None
    """The size of the function; None where the text has none."""
    module: str | None = None
    """None where the text names none."""
    address: int | None = None
    is_exact: bool = False
    """Whether it names an instruction itself, not the return address of a call before it."""
    is_oops: bool = False
    """Whether the address is from an oops, so that it includes the KASLR offset."""
    is_torn: bool = False
    """Whether another CPU's message cut it off, so that offset and size may be incomplete."""
    is_located: bool = False
    """Whether its source line follows it in the text."""
    is_at_end: bool = False
    """Whether nothing follows it in its line."""
    said_line: int | None = None
    """The number of the source line that the text before it names, or None."""
    is_sure: bool = True
    """False if other text may look like this, as ``UTC+2`` or a user program's address does."""


_NAME: Final = r"(?P<function>(?<![\w.$])[A-Za-z_.$][\w.$]{0,511})"
_OFFSET: Final = (
    r"\+(?P<offset>0x[0-9a-fA-F]{1,16}|\d{1,10})(?![0-9a-fA-F])(?:/(?P<size>0x[0-9a-fA-F]{1,16}))?"
)
_PLACE: Final = re.compile(_NAME + _OFFSET)
# The module behind a function. scripts/decode_stacktrace.sh adds a build ID to its name, others its
# address or its size; perf writes its file.
_MODULE: Final = re.compile(
    r"\s{1,4}\[(?P<plain>[\w.-]{1,64})(?:@(?:0x)?[0-9a-f]{1,16})?(?:\+(?:0x)?[0-9a-f]{1,16})?"
    r"(?:\s[0-9a-f]{1,64})?\]"
    r"|\s{1,4}\(\[(?P<perf>[\w.-]{1,64})\]\)"
    r"|\s{1,4}\([^()\s]{0,300}/(?P<file>[\w-]{1,64})\.ko(?:\.\w{1,4})?\)"
)
# Names of the kernel's image in perf, bcc and SystemTap: [kernel], [kernel.kallsyms],
# [guest.kernel.kallsyms].
_IMAGE: Final = re.compile(r"(?:guest\.)?kernel(?:\.|$)|vmlinux$")
_WORD: Final = re.compile(
    r"[\s,?()]*(?:(?:[RE]?IP|NIP|[Pp][Cc]|epc|ERA|era|lr)\s*:\s*)?(?:[0-9a-f]{4}:\s*)?(?:"
    r"(?P<signed>-\d{1,20})"
    r"|(?P<decimal>\d{20})"
    r"|\[<(?:0x)?(?P<bracketed>[0-9a-fA-F]{1,16})>\](?=$|[\s,)])(?!\s+"
    r"(?:\?\s*)?[A-Za-z_.$][\w.$]*\+)"
    # Short words of letters alone are functions.
    r"|(?P<hexadecimal>0x[0-9a-fA-F]{1,16}|(?=[0-9a-fA-F]*\d|[0-9a-fA-F]{8})[0-9a-fA-F]{1,16})"
    rf"|(?:\[<[0-9a-fA-Fx]+>\]\s+(?:\?\s*)?)?{_NAME}(?:{_OFFSET})?"
    rf"(?P<module>\s+\[[^][]{{1,120}}\])?"
    r")(?=$|[\s,)])[\s,)]*"
)
_ADDRESS: Final = re.compile(r"\[<[0-9a-fA-F]+>\]|0x[0-9a-fA-F]+|[0-9a-fA-F]{8,16}|-?\d{9,20}")
_SEPARATOR: Final = re.compile(r"[\s,]+")
# In front of addresses alone: of a stack without names.
_TRACE: Final = re.compile(r"\s{0,8}(?:Call [Tt]race:|\?)?\s{0,8}")
# Frames with addresses, by crash, by GDB and sanitizers, and by perf.
_FRAMES: Final = (
    re.compile(
        r"\s{0,8}#\d{1,4}\s{1,4}\[[0-9a-f]{8,16}\]\s[\w.$+]{1,512} at (?P<address>[0-9a-f]{8,16})"
        r"(?!\w)"
    ),
    re.compile(
        r"\s{0,8}#(?P<number>\d{1,4})\s{1,4}(?P<address>0x[0-9a-f]{8,16}) in [\w.$:<> ]{1,512}\("
    ),
    re.compile(
        r"\s{1,40}(?P<address>[0-9a-f]{8,16}) (?:\[unknown\]|[\w.$]{1,512}"
        r"(?:\+0x[0-9a-f]{1,8})?) \("
    ),
)
# The source line behind a place: of CONFIG_KALLSYMS_LINEINFO, syzkaller, or GDB.
_LOCATED: Final = re.compile(
    r"(?:\s{1,4}\[[^][]{1,120}\])?\s{1,4}\(?[\w./+@-]{1,400}\.(?:[chSsyl]|rs|cc|cpp|inc):\d"
)
_GDB_LOCATED: Final = re.compile(r" at [\w./+@-]{1,400}:\d{1,7}$")
# What may follow a place. Anything else belongs to another message.
_AFTER: Final = re.compile(r"$|[\s,)\]>:;(}'\"|=]|<-|[.-](?!\w)")
# Behind an exception's program counter in a stack of arm64 since v6.13 (dump_backtrace_entry()).
_COUNTER: Final = re.compile(r"(?:\s\[[^][]{1,120}\])? \(PF?K?\)\s*$")
# The message of another CPU, without a space in between.
_MESSAGE: Final = re.compile(r"<\d>|\[\s{0,12}\d{1,12}\.\d")
# A place that is cut off before its numbers.
_TORN: Final = re.compile(r"(?<![\w.$])[A-Za-z_.$][\w.$]{1,511}\+0x(?![0-9a-fA-F])")
# What may be between an address and its function.
_VALUES: Final = re.compile(r"[\s0-9a-fx\[\]<>(?:]*")
# A file and a line in front of a place, as WARN() has them: on machines whose WARN() is a call, the
# place is a return address.
_SAID: Final = re.compile(r"[^\s:]{1,400}:(\d{1,7}) (?:at )?$")
# Kernels until v4.6 that print a place in this way have called a function for it.
_CALLED: Final = "()"
# Characters before a place that say which kind it is.
_BEFORE: Final = 200
# printk() cuts a line off much earlier.
_MAX_LINE: Final = 4096


def parse_words(text: str) -> Iterator[CodeWord]:
    """Yield the places that a text consists of.

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
        first, last = match.span(kind)
        is_oops = kind == "bracketed"
        if is_oops:
            first, last = text.rindex("[<", 0, first), last + 2
        yield CodeWord(shown, (first, last), address=value & WORD_MASK, is_oops=is_oops)


def find_code_words(text: str) -> list[CodeWord]:
    """Return the functions with offsets in a line of a log, or the addresses of a line that has
    nothing else.

    :param text: a line without its prefix.
    """
    if len(text) > _MAX_LINE:
        return []
    found = list(_find_places(text))
    taken = [word.span for word in found]
    # A frame with an offset needs no address.
    frames = () if found else tuple(_find_frames(text))
    for word in (*_find_registers(text), *frames, *_find_addresses(text)):
        # An address in front of its function is the same place.
        is_named = any(_VALUES.fullmatch(text, word.span[1], start) for start, _ in taken)
        if not is_named and not any(
            start < word.span[1] and word.span[0] < end for start, end in taken
        ):
            found.append(word)
            taken.append(word.span)
    return sorted(found, key=lambda word: word.span)


def find_log_words(lines: Sequence[LogLine]) -> list[list[CodeWord]]:
    """Return the places in each line of a log, with spans in the lines as they were given."""
    found = [find_code_words(line.message) for line in lines]
    # printk() writes a size behind each offset: where one is missing at the end of a line, the rest
    # was lost.
    has_sizes = has_functions = False
    for word in chain.from_iterable(found):
        has_sizes = has_sizes or word.size is not None
        has_functions = has_functions or word.function is not None
    # For each caller, whether the place in its next line is the address of an instruction.
    is_exact: dict[str | None, bool] = {}
    placed: list[list[CodeWord]] = []
    for line, words in zip(lines, found, strict=True):
        follows = is_exact.get(line.caller, False)
        is_exact[line.caller] = EXACT_FOLLOWS.match(line.message) is not None
        # An address in a plain list was recorded; an address in a log is of the running kernel.
        is_log = line.is_stamped or has_functions
        of_line = []
        for word in words:
            in_line = _place_in_line(line, word, has_sizes=has_sizes, is_exact=follows)
            is_oops = word.is_oops or (is_log and word.address is not None)
            of_line.append(in_line._replace(is_oops=is_oops))
        placed.append(of_line)
    return placed


def _place_in_line(line: LogLine, word: CodeWord, *, has_sizes: bool, is_exact: bool) -> CodeWord:
    start, end = word.span
    is_cut = (
        has_sizes
        and line.is_stamped
        and word.function is not None
        and word.size is None
        and word.is_at_end
    )
    return word._replace(
        span=line.original_span(line.start + start, line.start + end),
        is_exact=word.is_exact or is_exact,
        is_torn=word.is_torn or is_cut,
        is_sure=word.size is not None
        or ("+0x" in word.text and not (has_sizes and line.is_stamped)),
    )


def _find_places(text: str) -> Iterator[CodeWord]:
    end = 0
    for match in _PLACE.finditer(text):
        if match.start() < end:
            # In the brackets of the module before.
            continue
        end = match.end()
        word = _make_word(match, is_exact=_names_instruction(text, match.start()))
        # A return address may be behind the function's last call.
        is_cut = text[end : end + 1] == "/" if word.size is None else word.offset > word.size
        said = _SAID.search(text[max(0, match.start() - _BEFORE) : match.start()])
        yield word._replace(
            is_exact=(word.is_exact and not text.startswith(_CALLED, end))
            or _COUNTER.match(text, end) is not None,
            said_line=None if said is None else int(said[1]),
            is_torn=is_cut
            or _AFTER.match(text, end) is None
            or _MESSAGE.match(text, end) is not None,
            is_located=_LOCATED.match(text, end) is not None,
            is_at_end=not text[end:].strip(),
        )
        module = _MODULE.match(text, end)
        end = end if module is None else module.end()
    torn = _TORN.search(text, end)
    if torn is not None:
        yield CodeWord(
            torn[0], torn.span(), torn[0].partition("+")[0], is_torn=True, is_at_end=True
        )


def _names_instruction(text: str, start: int) -> bool:
    """Return whether the text before a place says that it is an instruction's."""
    return EXACT_BEFORE.search(text[max(0, start - _BEFORE) : start]) is not None


def _find_registers(text: str) -> Iterator[CodeWord]:
    for match in REGISTER_ADDRESS.finditer(text):
        group = "exact" if match["exact"] else "link"
        value = int(match[group], 16)
        if value:
            found = CodeWord(match[group], match.span(group), address=value, is_oops=True)
            yield found._replace(is_exact=group == "exact")


def _find_frames(text: str) -> Iterator[CodeWord]:
    for pattern in _FRAMES:
        match = pattern.match(text)
        if match is not None:
            address, span = match["address"], match.span("address")
            found = CodeWord(address, span, address=int(address, 16), is_oops=True)
            yield found._replace(
                is_exact=match.groupdict().get("number") == "0",
                is_located=_GDB_LOCATED.search(text[-500:]) is not None,
            )
            return


def _find_addresses(text: str) -> list[CodeWord]:
    """Return the addresses of a line that has nothing else."""
    start = _TRACE.match(text)
    at = 0 if start is None else start.end()
    words = list(filter(None, _SEPARATOR.split(text[at:])))
    if not words or not all(map(_ADDRESS.fullmatch, words)):
        return []
    try:
        return [
            word._replace(span=(word.span[0] + at, word.span[1] + at))
            for word in parse_words(text[at:])
        ]
    except ValueError:
        return []


def _make_word(match: re.Match[str], *, is_exact: bool) -> CodeWord:
    digits = match["offset"] or "0"
    offset = int(digits, 16 if digits.startswith("0x") else 10)
    size = None
    last = "offset" if match["offset"] else "function"
    if match["size"]:
        size = int(match["size"], 16)
        last = "size"
    end = match.end(last)
    found = _MODULE.match(match.string, end)
    module = None
    if found is not None:
        module = found["plain"] or found["perf"] or found["file"]
    span = match.start("function"), end
    text = match.string[slice(*span)]
    if module is not None and _IMAGE.match(module):
        module = None
    if module:
        text += f" [{module}]"
    word = CodeWord(text, span, match["function"], offset, size, module)
    # A function's first instruction is no return address.
    return word._replace(is_exact=is_exact or offset == 0)
