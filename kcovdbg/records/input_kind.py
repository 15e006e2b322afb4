# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the kind of a file, of a directory or of the start of a stream, by its content.

Names decide only which members a directory has, and whether a trace has a side file. The first
:data:`LOOKED_AT` bytes of a file decide; they may be compressed with gzip, xz, lzma or zstd, and be
in UTF-16.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.elf.header import MAGIC as ELF_MAGIC
from kcovdbg.errors import CapabilityError, KcovdbgError, TargetError
from kcovdbg.input_file import (
    FrameReader,
    Packing,
    decode_utf16,
    find_packing,
    open_input,
    parse_json,
)
from kcovdbg.records.crash_folder import is_crash_folder, is_workdir
from kcovdbg.records.log_text import is_log
from kcovdbg.records.pc_file import NotATraceError, PcFile, read_pc_file
from kcovdbg.records.side_file import SUFFIX, find_traces, side_path
from kcovdbg.target.dump_file import FileKind, identify, identify_start

LOOKED_AT: Final = 1 << 20
"""Bytes of content that decide."""


class InputKind(Enum):
    """The kinds of inputs that are told apart."""

    DUMP = "a crash dump"
    IMAGE = "a kernel image or a module"
    TABLE = "a location table"
    SCRIPT = "a script of kcovdbg"
    TRACE = "a list of PCs"
    SIDE_FILE = "the side file of a trace"
    LOG = "a kernel log"
    REPORT = "a report of syzkaller"
    CRASH = "a crash directory of syzkaller"
    WORKDIR = "a working directory of syzkaller"
    RECORDING = "a recording of monitor"
    PATCH = "a patch"
    EMPTY = "empty"
    PIPE = "a pipe"
    BINARY = "binary data"
    TEXT = "text"
    """None of the others."""
    OTHER = "a file of another kind"
    """A known kind that no command reads."""


class FoundKind(NamedTuple):
    """The kind of an input."""

    kind: InputKind
    noun: str
    """What it is: ``a kernel log``, ``an lcov file``."""
    hint: str | None = None
    """What to do with it, if no command answers it."""


def _found(kind: InputKind, noun: str | None = None, hint: str | None = None) -> FoundKind:
    return FoundKind(kind, kind.value if noun is None else noun, hint)


def find_path_kind(path: str) -> FoundKind:
    """Return the kind of the file or directory at a path.

    :raises KcovdbgError: when it cannot be read, or is damaged.
    """
    place = Path(path)
    if place.is_dir():
        return _find_folder_kind(place)
    if place.is_fifo():
        return _found(InputKind.PIPE)
    dump = identify(path)
    if dump is not FileKind.OTHER:
        return _of_dump_file(dump)
    if side_path(place).is_file():
        return _found(InputKind.TRACE, "a trace")
    try:
        with open_input(path) as file:
            start = file.read(LOOKED_AT)
            return find_kind(start, BytesIO(start) if len(start) < LOOKED_AT else file)
    except OSError as error:
        raise TargetError(f"could not read {path}: {error.strerror or error}") from None
    except CapabilityError as error:
        raise CapabilityError(f"{path}: {error}", hint=error.hint) from None


def find_kind(start: bytes, file: Any = None) -> FoundKind:
    """Return the kind of a content.

    :param start: its first bytes, as they are.
    :param file: the same content, seekable, where more of it is needed to unpack its start; None
        for ``start`` alone.
    """
    packing = find_packing(start)
    if packing is not None:
        file = BytesIO(start) if file is None else file
        file.seek(0)
        start = _unpack_start(packing, file)
        if not start:
            return _found(
                InputKind.OTHER, f"damaged or empty data of {packing.program}", "copy it again"
            )
        if find_packing(start) is not None:
            return _found(
                InputKind.OTHER, "data compressed twice", f"decompress it: {packing.program} -d"
            )
    dump = identify_start(start[:18])
    if dump is not FileKind.OTHER:
        return _of_dump_file(dump)
    if start.startswith(ELF_MAGIC):
        return _found(InputKind.OTHER, "the start of an ELF file", "copy it again")
    found = _find_text_kind(decode_utf16(start), start)
    if packing is not None and found.kind in (InputKind.SCRIPT, InputKind.TEXT):
        hint = f"decompress it first: {packing.program} -d"
        return _found(InputKind.OTHER, "compressed text", hint)
    return found


def _unpack_start(packing: Packing, file: Any) -> bytes:
    """Return the start of a compressed content, as far as it is whole."""
    reader = FrameReader(packing.start, file, packing.magic)
    start = BytesIO()
    try:
        while start.tell() < LOOKED_AT and (data := reader.read(LOOKED_AT - start.tell())):
            start.write(data)
    except KcovdbgError:
        raise
    except Exception:  # noqa: BLE001, S110 - each module has its own exceptions
        # Reported when all of it is read.
        pass
    return start.getvalue()


def _of_dump_file(kind: FileKind) -> FoundKind:
    if kind.is_dump:
        return _found(InputKind.DUMP)
    return _found(InputKind.IMAGE if kind is FileKind.ELF else InputKind.EMPTY)


# The first line of an executable script.
_INTERPRETER: Final = re.compile(rb"#!([^\n]*)")
_KCOVDBG: Final = re.compile(rb"(^|[\s/])kcovdbg(\s|$)")
_PATCH: Final = re.compile(
    rb"^diff --git [^\n]+"
    rb"|^--- [^\n]+\n\+\+\+ [^\n]+\n@@ -\d{1,9}(,\d{1,9})? \+\d{1,9}(,\d{1,9})? @@",
    re.MULTILINE,
)
# Members of a row of a recording, and of a side file.
_SAMPLE_KEYS: Final = {"time", "tasks", "objects", "shares"}
_SIDE_KEYS: Final = {"format", "mode", "word_size"}
_TABLE_MAGIC: Final = b"KCOVSYM\0"
# In the names of syzkaller's tasks, its mail and the log of its manager.
_SYZKALLER: Final = re.compile(
    rb"syz-executor|\bsyz\.\d{1,9}\.\d|syzbot|^[^\n]{0,100}executing program \d", re.MULTILINE
)
# Kinds that are answered one by one.
_NAMED_ALONE: Final = (
    InputKind.DUMP,
    InputKind.IMAGE,
    InputKind.LOG,
    InputKind.REPORT,
    InputKind.RECORDING,
    InputKind.PATCH,
)
# Files of a directory that are looked at.
_TRIED: Final = 16
# Bytes that are looked at together.
_PIECE: Final = 1 << 16
# The smallest share of lines with an address in a list, even if the list came through a log.
_LIST_SHARE: Final = 0.9


def _find_text_kind(text: bytes, data: bytes) -> FoundKind:
    """Return the kind of a content that is neither a dump nor an image.

    :param text: the content in UTF-8.
    :param data: the content as it was.
    """
    if text.startswith(_TABLE_MAGIC):
        return _found(InputKind.TABLE)
    interpreter = _INTERPRETER.match(data)
    if interpreter is not None:
        if _KCOVDBG.search(interpreter[1].strip()):
            return _found(InputKind.SCRIPT)
        return _found(InputKind.OTHER, "a script of another program", "nothing is run from it")
    if not text.strip():
        return _found(InputKind.EMPTY)
    if text.lstrip()[:1] in (b"{", b"#"):
        known = _find_json_kind(text)
        if known is not None:
            return known
    # A commit's message often quotes an oops.
    if _PATCH.search(text):
        return _found(
            InputKind.PATCH, hint="patch FILE WHAT shows which lines that it adds were executed"
        )
    trace = _read_start(data)
    starts_like_log = is_log(data)
    if isinstance(trace, PcFile):
        if starts_like_log and _is_sparse(trace):
            return _of_log(text)
        return _found(InputKind.TRACE, None if trace.buffer is None else "a buffer of KCOV")
    if starts_like_log or trace.found == "a stack" or _has_late_report(text):
        return _of_log(text)
    if trace.found == InputKind.TEXT.value:
        return _found(InputKind.TEXT)
    if trace.found.endswith(InputKind.BINARY.value):
        return _found(InputKind.BINARY)
    return _found(InputKind.OTHER, trace.found, trace.hint)


def _has_late_report(text: bytes) -> bool:
    """Return whether a report comes after much other text, such as the programs in a log of
    syzkaller.
    """
    pieces = (text[at : at + _PIECE] for at in range(_PIECE, len(text), _PIECE))
    return any(map(is_log, pieces))


def _of_log(text: bytes) -> FoundKind:
    is_of_syzkaller = _SYZKALLER.search(text) is not None
    return _found(InputKind.REPORT if is_of_syzkaller else InputKind.LOG)


def _find_json_kind(text: bytes) -> FoundKind | None:
    """Return the kind of an object of JSON that is not a trace; None for any other text."""
    value: Any = None
    # A recording has an object in each line; a configuration may have comments.
    with contextlib.suppress(ValueError):
        value = parse_json(text.lstrip().partition(b"\n")[0])
    if value is None:
        lines = [line for line in text.split(b"\n") if not line.lstrip().startswith(b"#")]
        with contextlib.suppress(ValueError):
            value = parse_json(b"\n".join(lines))
    if not isinstance(value, dict):
        return None
    if value.keys() >= _SAMPLE_KEYS:
        return _found(InputKind.RECORDING)
    if value.keys() >= _SIDE_KEYS:
        return _found(InputKind.SIDE_FILE)
    if isinstance(value.get("workdir"), str):
        return _found(InputKind.WORKDIR, "a configuration of syzkaller")
    return None


def _read_start(data: bytes) -> PcFile | NotATraceError:
    """Read the start of a list of PCs, or of a buffer. Return an error instead if it is neither."""
    if len(data) >= LOOKED_AT:
        # The last line is cut.
        data = data[: data.rfind(b"\n") + 1] or data
    try:
        return read_pc_file("", data)
    except NotATraceError as error:
        return error


def _is_sparse(trace: PcFile) -> bool:
    return trace.skipped > (1 - _LIST_SHARE) * (trace.skipped + len(trace.words))


def _find_folder_kind(folder: Path) -> FoundKind:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names alone are needed
    except OSError as error:
        raise KcovdbgError(f"could not read '{folder}': {error.strerror or error}") from None
    if is_workdir(folder):
        return _found(InputKind.WORKDIR)
    if is_crash_folder(names):
        return _found(InputKind.CRASH)
    modules = (name.endswith((".ko", ".ko.zst", ".ko.xz", ".ko.gz")) for name in names)
    if "vmlinux" in names or any(modules):
        hint = f"-s {folder} takes debug info from it"
        return _found(InputKind.OTHER, "a directory of kernel images", hint)
    if any(map(_is_trace, _list_traces(folder)[:_TRIED])):
        # Files that are no traces are reported when all are read.
        return _found(InputKind.TRACE, "a directory of traces")
    hint = _find_file_hint(folder, names) or "name a file in it"
    return _found(InputKind.OTHER, "a directory without traces or crashes", hint)


def _find_file_hint(folder: Path, names: Sequence[str]) -> str | None:
    """Return a hint that names a file of a directory, such as a log or an image; None where no file
    has a command of its own.
    """
    for path in sorted(map(folder.joinpath, names))[:_TRIED]:
        with contextlib.suppress(KcovdbgError):
            if path.is_file() and (found := find_path_kind(str(path))).kind in _NAMED_ALONE:
                return f"name a file in it, such as {path}: {found.noun}"
    return None


def _list_traces(folder: Path) -> list[Path]:
    with contextlib.suppress(KcovdbgError, OSError):
        return [path for path in find_traces(folder) if path.suffix != SUFFIX]
    return []


def _is_trace(path: Path) -> bool:
    with contextlib.suppress(KcovdbgError):
        return find_path_kind(str(path)).kind is InputKind.TRACE
    return False
