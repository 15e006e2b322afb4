# SPDX-License-Identifier: LGPL-2.1-or-later
"""Split the text of a kernel log, from a console, dmesg, journalctl or a report, into lines without
colors and prefixes.

Every reader of logs and reports begins here. A line keeps its given text as well, and maps each
place in the plain text to its place there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.input_file import decode_utf16, unpack_data
from kcovdbg.model.log_record import LogRecord

# Sequences of a terminal: colors, positions, character sets, titles. Programs that show them write
# ESC as ^[, \x1b, #033.
_ESCAPE: Final = re.compile(
    r"(?:\x1b|\^\[|\\x1b|\\033|\\e|#033)(?:\[[0-9;:?]{0,40}[A-Za-z]|[()][0-9A-Z]"
    r"|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\))"
    r"|\x9b[0-9;:?]{0,40}[A-Za-z]"
)
_ESCAPE_STARTS: Final = ("\x1b", "^[", "\\x1b", "\\033", "\\e[", "#033", "\x9b")
# A line may begin with control characters of a serial line, and marks of a quotation or of
# kselftest.
_QUOTED: Final = re.compile(r"[\r\0]*(?:(?:>|#(?= )) ?){0,9}")
# Stamps, of which each program that records or shows a log adds its own in front of the others.
_CLOCK: Final = r"\d\d:\d\d:\d\d"
_SINCE: Final = r"< {0,12}\d{1,12}\.\d{1,9} ?>"
_STAMP: Final = re.compile(
    "|".join(
        (
            # Date and time of syslogd, logread and journalctl, also with -o short-full; of ts, tio,
            # picocom and GitHub's runner; of dmesg --time-format iso; of Android's logcat.
            rf"(?:[A-Z][a-z]{{2}} )?[A-Z][a-z]{{2}} [ \d]\d {_CLOCK}(?:\.\d{{1,9}}| \d{{4}})? ",
            rf"\[?(?:[A-Z][a-z]{{2}} )?\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?:[.,]\d{{1,9}})?"
            r"(?:[+-]\d\d:?\d\d|Z| [A-Z]{3,5}(?= \S{1,64} kernel: ))?\]?:? ",
            rf"\[?{_CLOCK}(?:[.:]\d{{1,6}})?(?:\] ?| )",
            rf"\d\d-\d\d {_CLOCK}\.\d{{3}} {{1,9}}(?:[a-z]\w{{0,31}} {{1,9}})?"
            r"\d{1,10} {1,9}\d{1,10} [A-Z] [\w.-]{0,32} {0,12}: ",
            # The level, on a console, in syslog's protocol, and by dmesg -x.
            r"<\d{1,3}>(?:1 )?|[a-z]{3,10} {0,6}:[a-z]{3,8} {0,6}: ",
            # The time by printk(), dmesg -T, -H, -e and -d, and journalctl -o short-delta.
            rf"\[ {{0,12}}(?P<time>\d{{1,12}}\.\d{{1,9}})(?:,\d{{1,3}})?(?: {_SINCE})?\] ?",
            rf"\[[A-Z][a-z]{{2}} [A-Z][a-z]{{2}} [ \d]\d {_CLOCK} \d{{4}}(?: {_SINCE})?\] ?",
            rf"\[(?:[A-Z][a-z]{{2}} {{0,2}}\d{{1,2}} \d\d:\d\d| {{0,12}}\+\d{{1,12}}\.\d{{1,9}}"
            rf"|{_SINCE})\] ?",
            # The caller, of CONFIG_PRINTK_CALLER; Android's kernels add the CPU. Kernels of phones
            # have the CPU and the task.
            r"\[ {0,12}(?P<caller>[CT]\d{1,10})(?:@C\d{1,6})?\] ?",
            r"\[\d{1,4}: {1,16}[^][]{1,16}: {0,9}\d{1,10}\] ?",
            r"\(\d{1,4}\)\[\d{1,10}:[^][]{1,16}\]",
            # Documentation/ABI/testing/dev-kmsg and netconsole's extended format.
            r"(?:[\w.+~-]{1,64},)?\d{1,5},\d{1,20},\d{1,20},[-c]"
            r"(?:,caller=(?P<sender>[CT]\d{1,10}))?(?:,[\w=/.-]{1,80}){0,4};",
            # Who logged it. journalctl -o short-monotonic often cuts the host off, -o short-unix
            # has seconds in front, -o export and -o verbose name the field.
            r"(?:\d{10}\.\d{6} )?(?:[\w.-]{1,64} )?kernel(?:: ?| - - - )|\s{0,8}MESSAGE=",
        )
    )
)
_MOST_STAMPS: Final = 8
_MOST_BLANKS: Final = 16
# printk() cuts a line off much earlier.
_MAX_LINE: Final = 4096


class LogLine(NamedTuple):
    """A line of a log."""

    text: str
    """The given text."""
    plain: str
    """The text without sequences of a terminal and without its end."""
    columns: Sequence[int]
    """The index in ``text`` of each character of ``plain``, and of its end."""
    start: int
    """Index in ``plain`` of the message, behind level, time and caller."""
    is_stamped: bool
    """Whether the line has a level, a time or a caller."""
    caller: str | None = None
    """Who printed it: ``T41`` for a thread, ``C0`` for a CPU in an interrupt; None where the log
    does not say.
    """
    time: float | None = None
    """Seconds since boot; None where the log does not say."""

    @property
    def message(self) -> str:
        """What the kernel printed."""
        return self.plain[self.start :]

    def original_span(self, start: int, end: int) -> tuple[int, int]:
        """Return where a part of ``plain`` is in ``text``."""
        first = self.columns[start]
        return first, self.columns[end - 1] + 1 if end > start else first


def decode_log(name: str, data: bytes) -> str:
    """Return the text of a log that may be compressed with gzip, xz, lzma or zstd, or be in UTF-16.

    :param name: name of the file, for errors.
    :raises KcovdbgError: when it is compressed and damaged, or larger than the limit.
    """
    return decode_utf16(unpack_data(name, data)).decode("utf-8", "backslashreplace")


def split_log(text: str) -> list[LogLine]:
    """Return the lines of a log."""
    lines = text.split("\n")
    if len(lines) == 1:
        lines = text.split("\r")
    if lines and not lines[-1].strip("\r\0"):
        # The end of the last line.
        del lines[-1]
    return [_read_line(line) for line in lines]


def _read_line(text: str) -> LogLine:
    columns: Sequence[int] = range(len(text) + 1)
    plain = text
    if len(text) <= _MAX_LINE and any(start in text for start in _ESCAPE_STARTS):
        kept: list[int] = []
        end = 0
        for found in _ESCAPE.finditer(text):
            kept.extend(range(end, found.start()))
            end = found.end()
        kept.extend(range(end, len(text)))
        plain = "".join(map(text.__getitem__, kept))
        columns = (*kept, len(text))
    # Programs that show mail and web pages turn blanks into others.
    plain = plain.rstrip("\r\0").replace("\xa0", " ")
    quoted = _QUOTED.match(plain)
    start = first = 0 if quoted is None else quoted.end()
    values: dict[str, str] = {}
    for _ in range(_MOST_STAMPS):
        # A mail's text may be indented.
        stamp = _STAMP.match(plain, start) or _STAMP.match(plain, _skip_blanks(plain, start))
        if stamp is None:
            break
        start = stamp.end()
        values |= {name: value for name, value in stamp.groupdict().items() if value}
    time = float(values["time"]) if "time" in values else None
    caller = values.get("caller", values.get("sender"))
    return LogLine(text, plain, columns, start, start > first, caller, time)


def _skip_blanks(text: str, start: int) -> int:
    end = min(len(text), start + _MOST_BLANKS)
    while start < end and text[start] in " \t":
        start += 1
    return start


def record_lines(records: Iterable[LogRecord]) -> Iterator[LogLine]:
    """Yield the lines of records of printk()'s ring buffer."""
    for record in records:
        for text in record.text.split("\n"):
            columns = range(len(text) + 1)
            yield LogLine(text, text, columns, 0, True, record.caller, record.time / 1e9)


def untangle(lines: Sequence[LogLine]) -> list[tuple[int, list[LogLine]]]:
    """Return the lines of each caller, in its order, with the index of the first one: several CPUs
    print at the same time.

    A line without a caller belongs to the caller of the line before it.
    """
    found: dict[str | None, tuple[int, list[LogLine]]] = {}
    caller: str | None = None
    for index, line in enumerate(lines):
        caller = line.caller or caller
        found.setdefault(caller, (index, []))[1].append(line)
    return list(found.values())


# Bytes of a file that are looked at, and the share of them that may be no text: serial lines have
# noise.
_LOOKED_AT: Final = 64 << 10
_NOISE: Final = 0.05
_NO_TEXT: Final = bytes((*range(8), 11, *range(14, 27), *range(28, 32), 127))
# The lines of a report or of a log's stack that no other text has.
_LOG_LINE: Final = re.compile(
    r"[\w.$]{1,200}\+0x[0-9a-f]{1,8}/0x[0-9a-f]{1,8}(?![\w.])"
    r"|(?:^|\s)(?:Call [Tt]race|[Bb]acktrace(?: \(crc \w{1,8}\))?):\s*$"
    r"|(?:^|\s)(?:BUG: |kernel BUG at |WARNING: .{0,200}(?:at |CPU: )|INFO: (?:task|rcu)"
    r"|Kernel panic - not syncing)"
    r"|^unreferenced object 0x"
    r"|^\s{0,8}#\d{1,3} {1,4}\[[0-9a-f]{8,16}\] \S{1,200} at [0-9a-f]{8,16}"
)


def is_log(data: bytes) -> bool:
    """Return whether a file is a log or a report, by its first bytes, which :func:`decode_log` has
    not decoded yet.
    """
    # Files that were open when a machine crashed, and pstore's, end in zeros.
    start = decode_utf16(data[:_LOOKED_AT]).replace(b"\0", b"")
    noise = len(start) - len(start.translate(None, _NO_TEXT))
    if not start or noise > _NOISE * len(start):
        return False
    lines = split_log(start.decode("utf-8", "replace"))
    if any(_LOG_LINE.search(line.message[:_MAX_LINE]) for line in lines):
        return True
    stamped = sum(line.is_stamped for line in lines)
    return stamped * 2 > len(lines)
