# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes traces: as the kernel laid them out with a side file, and as text for other tools. Whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from array import array
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from kcovdbg.abi import record
from kcovdbg.collect.trace_file import FORMAT, TraceHeader, side_path
from kcovdbg.errors import CollectError
from kcovdbg.model.buffer import Buffer


def make_header(
    buffer: Buffer,
    *,
    argv: Sequence[str] = (),
    pid: int | None = None,
    release: str | None = None,
    build_id: str | None = None,
    kaslr_offset: int | None = None,
) -> TraceHeader:
    """Make what the side file of a buffer says.

    :param pid: of the process; the buffer knows the task.
    """
    return TraceHeader(
        mode=buffer.mode,
        word_size=buffer.encoding.word_size if buffer.encoding.record_words == 1 else 8,
        byteorder="big" if buffer.encoding.big_endian else "little",
        release=release,
        build_id=build_id,
        kaslr_offset=kaslr_offset,
        pid=pid if pid is not None else buffer.pid,
        tid=buffer.pid,
        comm=buffer.comm,
        argv=tuple(argv) or None,
        size=buffer.size,
        count=buffer.count if buffer.stored_count is None else buffer.stored_count,
        captured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def trace_bytes(buffer: Buffer) -> bytes:
    """Return a buffer as the kernel laid it out, from the count word to the last record."""
    words = array(buffer.words.typecode, buffer.words)
    encoding = buffer.encoding
    order: Literal["little", "big"] = "big" if encoding.big_endian else "little"
    if order != sys.byteorder:
        words.byteswap()
    count = buffer.count if buffer.stored_count is None else buffer.stored_count
    return count.to_bytes(encoding.word_size, order, signed=False) + words.tobytes()


def write_trace(path: Path | str, buffer: Buffer, header: TraceHeader) -> None:
    """Write a trace file and its side file.

    :raises CollectError: when they can't be written; then neither is there.
    """
    path = Path(path)
    content = {"format": FORMAT, **asdict(header)}
    if header.kaslr_offset is not None:
        content["kaslr_offset"] = f"{header.kaslr_offset:#x}"
    side = json.dumps(content, indent=1) + "\n"
    _write_all({side_path(path): side.encode(), path: trace_bytes(buffer)})


def write_text(path: Path | str, buffer: Buffer, *, call_length: int = 0, is_syzkaller: bool = False) -> None:
    """Write the PCs of a buffer, one per line.

    :param call_length: taken off each PC: 0 leaves what the kernel recorded, as kcovtrace prints it; the length of a call gives
        addresses of calls, which syzkaller's rawcover holds.
    :param is_syzkaller: in syzkaller's way: sorted, each PC once.
    :raises CollectError: when it can't be written.
    """
    pcs: Sequence[int] = [
        pc - call_length
        for word in record.pc_words(buffer.words, buffer.encoding)
        # No call can be before the first addresses: such a word is damage.
        if (pc := record.pc_of_word(word, buffer.encoding)[1]) is not None and pc >= call_length
    ]
    if is_syzkaller:
        pcs = sorted(set(pcs))
    _write_all({Path(path): "".join(f"{pc:#x}\n" for pc in pcs).encode()})


def check_destination(path: Path | str) -> None:
    """See to it that a trace can be written, before it is collected: a long run is for nothing otherwise.

    :raises CollectError: when it can't.
    """
    path = Path(path)
    folder = path.parent
    if not folder.is_dir():
        raise CollectError(f"{path} can't be written: there is no folder {folder}", hint=f"mkdir -p {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CollectError(f"{path} can't be written: {os.strerror(errno.EACCES)}", hint="-o takes a file in a folder of yours")
    _check_is_file(path)


def _check_is_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        # As root, a name such as /dev/null would be taken from everybody.
        raise CollectError(f"{path} can't be written: it is no file", hint="-o takes the name of a file")


def _write_all(contents: dict[Path, bytes]) -> None:
    """Write files that get their names when all of them are complete, or leave everything as it was.

    The last one to get its name is the trace. An older one is moved away first, and back if something fails: whenever this
    ends, no trace stands beside a side file of another.
    """
    written: dict[Path, Path] = {}
    older: dict[Path, Path] = {}
    placed: list[Path] = []
    is_complete = False
    for path in contents:
        _check_is_file(path)
    try:
        for path, content in contents.items():
            temporary = _temporary_of(path)
            with temporary.open("xb") as file:
                written[temporary] = path
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path in reversed(contents):
            backup = _temporary_of(path)
            with contextlib.suppress(FileNotFoundError):
                path.rename(backup)
                older[backup] = path
        for temporary, path in written.items():
            temporary.replace(path)
            placed.append(path)
        is_complete = True
        for backup in older:
            backup.unlink(missing_ok=True)
    except OSError as error:
        place = error.filename if error.filename is not None else next(iter(contents))
        shown = next((str(path) for temporary, path in written.items() if str(temporary) == str(place)), str(place))
        raise CollectError(f"{shown} can't be written: {error.strerror or error}") from error
    finally:
        if not is_complete:
            _put_back(placed, older)
        for temporary in written:
            temporary.unlink(missing_ok=True)


def _temporary_of(path: Path) -> Path:
    return path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}")


def _put_back(placed: Sequence[Path], older: dict[Path, Path]) -> None:
    with contextlib.suppress(OSError):
        for path in placed:
            path.unlink(missing_ok=True)
    # What was moved away last stands beside nothing yet: the trace comes last again.
    for backup, path in reversed(older.items()):
        with contextlib.suppress(OSError):
            backup.replace(path)
