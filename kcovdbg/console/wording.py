# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers, records, places, tasks and references in words.

Each kind of thing is worded here, once, for tables, HTML, GDB and the full-screen views, which add
layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.handle import decode_handle
from kcovdbg.abi.record import Comparison, RecordKind, Values
from kcovdbg.console.grid import remark_line
from kcovdbg.console.renderable import Fragment, Line, Lines
from kcovdbg.console.text import escape
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.device import DeviceSession
from kcovdbg.model.kcov import Reference, name_kcov, name_task
from kcovdbg.model.location import Frame, LocatedRecord, Location
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.task import Role, Syscall, Task

COARSE: Final = "the traces differ too much for a full alignment"
"""A remark on an alignment that was cut short."""
NO_ADDRESS: Final = "no address"
"""A record whose word cannot be an address, such as zero."""
APPROXIMATE: Final = "(approximate)"
"""After the function of a record of a tail call, which was in one of the functions that it calls.
"""
_SMALL: Final = 4096
"""Arguments of system calls below this, of either sign, are written in decimal."""
KIND_SIGNS: Final = {
    RecordKind.ENTRY: "→",
    RecordKind.EXIT: "←",
    RecordKind.EDGE: "~",
    RecordKind.ARGUMENT: "→",
    RecordKind.RETURN: "←",
}
"""Signs of records that are more than a PC: a function's entry and exit, an edge."""


def buffer_title(buffer: Buffer) -> str:
    """Return one line that names a buffer and says how much it holds."""
    parts = [buffer.name]
    if buffer.pid is not None:
        parts.append(name_task(buffer))
    if buffer.kcov:
        parts.append(name_kcov(buffer.kcov))
    if buffer.mode is not None:
        parts.append(buffer.mode)
    most = "" if buffer.capacity is None else f" of {buffer.capacity}"
    if buffer.encoding.codec.is_variable:
        parts.append(f"{buffer.count} records in {len(buffer.words)}{most} words")
    else:
        parts.append(f"{buffer.count}{most} records")
        if buffer.bits_set is not None:
            parts.append(f"{buffer.bits_set} bits of its bitmap")
    if buffer.full:
        parts.append("FULL")
    return ", ".join(parts)


def buffer_heading(buffer: Buffer, *, is_text: bool) -> tuple[Lines, tuple[str, ...]]:
    """Return the title of a buffer and its remarks. A remark that the records do not fit the kernel
    is a part of the title, because it makes all that follows doubtful.

    :param is_text: whether titles are shown; otherwise that remark is one of the others.
    """
    lines: list[Line] = [(("header", buffer_title(buffer)),)]
    remarks = list(buffer.remarks)
    if is_text and buffer.fit is not None and buffer.fit.is_low:
        lines.append(remark_line(buffer.fit.remark))
        remarks = [remark for remark in remarks if remark != buffer.fit.remark]
    return Lines(lines), tuple(remarks)


def syscall_text(call: Syscall) -> str:
    """Return a system call with its arguments: ``read(3, 0x7f4388f9f000, 512)``."""
    name = call.name or f"32-bit call {call.number}"
    return f"{name}({', '.join(map(_argument_text, call.args))})"


def _argument_text(value: int) -> str:
    for bits in (32, 64):
        if (1 << bits) - _SMALL <= value < 1 << bits:
            # AT_FDCWD, -1.
            return str(value - (1 << bits))
    if value < _SMALL:
        return str(value)
    return f"{value:#x}"


def place_text(frame: Frame) -> str:
    """Return a frame's place: ``fs/namei.c:2417``; empty if it is unknown."""
    if frame.file is not None and frame.line:
        return f"{frame.file}:{frame.line}"
    return frame.file or ""


def frame_fragments(frame: Frame) -> Sequence[Fragment]:
    """Return a frame's function and place in their styles."""
    return ("symbol", frame.function or "?"), ("", "  "), ("path", place_text(frame))


def span_text(frames: Iterable[Frame], limit: int | None = None) -> str:
    """Return the lines of frames in one file: ``fs/open.c:920-961``, or ``fs/open.c:920,922,…``.

    :param limit: how many lines to list; None for the first and the last.
    """
    frames = tuple(frames)
    lines = sorted({frame.line for frame in frames if frame.line})
    file = frames[0].file or ""
    if not file or not lines:
        return file
    if limit is not None:
        listed = list(map(str, lines[:limit]))
        if len(lines) > limit:
            listed.append("…")
        return f"{file}:{','.join(listed)}"
    if len(lines) == 1:
        return f"{file}:{lines[0]}"
    return f"{file}:{lines[0]}-{lines[-1]}"


def function_text(location: Location) -> str:
    """Return a location's innermost and outermost functions: ``get_file ← do_dentry_open``."""
    if not location.frames:
        return location.remark or "?"
    text = inlined_text(location.frames[0].function or "?", location.frames[-1].function or "?")
    if location.approximate:
        text += f" {APPROXIMATE}"
    return text


def inlined_text(inner: str, outer: str) -> str:
    """Return a function, and the function that it was inlined into if that is another one."""
    if inner == outer:
        return inner
    return f"{inner} ← {outer}"


class RecordText(NamedTuple):
    """A record in words."""

    function: str
    """The function, or the content of a record without an address."""
    place: str = ""
    """File and line, or why there is none."""
    sign: str = ""
    operands: str = ""
    """The operands of a comparison, or the values of an argument or result."""
    has_address: bool = True


UNREADABLE: Final = RecordText("unreadable: the page is missing", has_address=False)
"""A record that could not be read."""


def record_text(row: LocatedRecord, *, big_endian: bool = False) -> RecordText:
    """Return a record in words.

    :param big_endian: the byte order of its operands.
    """
    found = row.record
    comparison, operands = found.comparison, ""
    if comparison is not None:
        first = format_operand(comparison.arg1, comparison, big_endian)
        second = format_operand(comparison.arg2, comparison, big_endian)
        constant = ", constant" if comparison.const else ""
        operands = f"{8 * comparison.size} bits{constant}: {first}, {second}"
    elif found.values is not None:
        operands = values_text(found.values)
    sign = KIND_SIGNS.get(found.kind, "")
    return RecordText(record_function(row), record_place(row), sign, operands, found.has_address)


def record_function(row: LocatedRecord) -> str:
    """Return a record's function; its address if the function is unknown; the content of a record
    without an address.
    """
    found = row.record
    if found.partial is not None:
        return found.partial.function
    if found.pc is None:
        if not found.word:
            return f"{NO_ADDRESS}: not written"
        return f"{NO_ADDRESS}: {found.word:#x}"
    if row.location is None or not row.location.frames:
        return f"{row.address:#x}"
    return function_text(row.location)


def record_place(row: LocatedRecord) -> str:
    """Return a record's file and line, or why it has none."""
    if row.record.partial is not None:
        return row.record.partial.place
    if row.location is None:
        return ""
    if not row.location.frames:
        return row.location.remark or ""
    return place_text(row.location.innermost)


def short_comparison_text(comparison: Comparison) -> str:
    """Return a comparison's operands in little room: ``const 32: 0x7fff 3``."""
    first = _short_number(comparison.arg1, comparison.size)
    second = _short_number(comparison.arg2, comparison.size)
    constant = "const " if comparison.const else ""
    return f"{constant}{8 * comparison.size}: {first} {second}"


def _short_number(word: int, size: int) -> str:
    value = record.signed_value(word, size)
    if -1000 < value < 1000:
        return str(value)
    return f"{value:#x}"


def format_operand(value: int, comparison: Comparison, big_endian: bool = False) -> str:
    """Return an operand in hexadecimal, as a signed number, and as characters where it consists of
    some.
    """
    text = hex(value)
    signed = record.signed_value(value, comparison.size)
    if not 0 <= signed < 10:
        text += f" ({signed})"
    characters = record.operand_text(value, comparison.size, big_endian)
    if characters is None:
        return text
    return f'{text} "{characters}"'


_IMPOSSIBLE_COUNT: Final = 10**10


def count_text(
    count: int | None, capacity: int | None, full: bool | None, *, is_whole: bool = False
) -> str | None:
    """Return how full a buffer is: ``11/65535``, ``FULL 65535/65535``; None if its count is
    unknown.

    :param is_whole: whether to write out a count that no buffer can have; otherwise it is left out:
        ``FULL …/65535``.
    """
    if count is None:
        return None
    # No buffer has so many records: something else was written there.
    shown = str(count) if is_whole or count < _IMPOSSIBLE_COUNT else "…"
    text = shown if capacity is None else f"{shown}/{capacity}"
    if full:
        return f"FULL {text}"
    return text


def stack_frame_line(number: int, frame: StackFrame, mark: str = " ", style: str = "") -> Line:
    """Return the line of one frame of a kernel stack.

    :param mark: a character before it.
    """
    place = f"  {frame.file}:{frame.line}" if frame.file else ""
    inline = " (inlined)" if frame.is_inline else ""
    return (
        (style, escape(f"  {mark} #{number:<3} {frame.function or hex(frame.pc)}{inline}")),
        ("path", escape(place)),
    )


def _role_text(role: Role | None) -> str:
    if role is None:
        return "?"
    return "-" if role is Role.NONE else role.value


def role_text(task: Task) -> str:
    """Return what collects into a task: ``local``, ``softirq-section over local``, ``remote
    owner``.
    """
    role = _role_text(task.role)
    if task.beneath is not None and task.beneath is not Role.NONE:
        role += f" over {task.beneath.value}"
    if not task.owns_remote:
        return role
    if role == "-":
        return "remote owner"
    return f"{role}, remote owner"


def device_session_text(session: DeviceSession) -> str:
    """Return a device's session in a task as text: the device, its role and the number of words."""
    text = f"{session.device}: {_role_text(session.role)}"
    if session.count is not None:
        full = "FULL " if session.full else ""
        text += f" {full}{session.count} words"
    if session.enabled is False:
        text += ", disabled"
    return text


def values_text(values: Values) -> str:
    """Return an argument or a returned value: ``#0 = 0x5 (5)``, ``return {0x10 (16), ?}``."""
    name = "return" if values.argument is None else f"#{values.argument} ="
    words = [
        _value_text(value, values.size if len(values.values) == 1 else 8) for value in values.values
    ]
    if len(words) == 1:
        return f"{name} {words[0]}"
    return f"{name} {{{', '.join(words)}}}"


def _value_text(value: int | None, size: int) -> str:
    if value is None:
        return "?"
    signed = record.signed_value(value, size) if 0 < size <= 8 else value
    if 0 <= signed < 10:
        return hex(value)
    return f"{value:#x} ({signed})"


def reference_text(reference: Reference, *, owner: int | None = None) -> str:
    """Return a reference to an object in a word or two: ``fd 41/3``, ``task 41``, ``usb:1``.

    :param owner: the task whose id goes without saying: ``fd 3``, ``task``.
    """
    pid = "?" if reference.pid is None else str(reference.pid)
    is_owner = owner is not None and reference.pid == owner
    if reference.kind == "remote":
        return str(decode_handle(reference.handle or 0))
    if reference.kind == "fd":
        if reference.fd is None:
            return f"file {reference.file or 0:#x}"
        if is_owner:
            return f"fd {reference.fd}"
        return f"fd {pid}/{reference.fd}"
    if reference.kind == "saved" and reference.pid is None:
        return f"saved on CPU {reference.cpu}"
    if is_owner:
        return reference.kind
    return f"{reference.kind} {pid}"
