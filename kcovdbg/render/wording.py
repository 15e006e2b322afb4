# SPDX-License-Identifier: LGPL-2.1-or-later
"""Frames, locations and buffers in a few words: ``fs/namei.c:2417``, ``do_filp_open ← do_sys_openat2``."""

from __future__ import annotations

from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import Frame, Location


def title(buffer: Buffer) -> str:
    """Say in one line which buffer this is and how much it holds."""
    parts = [buffer.name]
    if buffer.pid is not None:
        parts.append(f"task {buffer.pid}" + (f" ({buffer.comm})" if buffer.comm else ""))
    if buffer.kcov:
        parts.append(f"kcov {buffer.kcov:#x}")
    if buffer.mode is not None:
        parts.append(buffer.mode)
    records = f"{buffer.count} records" if buffer.capacity is None else f"{buffer.count} of {buffer.capacity} records"
    if not buffer.encoding.has_count:
        records = f"{buffer.count} of {buffer.capacity} bits"
    elif buffer.bits_set is not None:
        records += f", {buffer.bits_set} bits of its bitmap"
    parts.append(records)
    if buffer.full:
        parts.append("FULL")
    return ", ".join(parts)


def frame_text(frame: Frame) -> str:
    """Name a frame's place: ``fs/namei.c:2417``."""
    if frame.file is None:
        return ""
    return frame.file if frame.line is None else f"{frame.file}:{frame.line}"


def function_text(location: Location) -> str:
    """Name a location: the innermost function, and after it what it was inlined into."""
    if not location.frames:
        return location.remark or "?"
    inner, outer = location.frames[0].function or "?", location.frames[-1].function or "?"
    return inner if len(location.frames) == 1 or inner == outer else f"{inner} ← {outer}"
