# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes trace files with their side files, and text for other tools; a file is written completely
or not at all.
"""

from __future__ import annotations

import contextlib
import json
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from kcovdbg.abi import record
from kcovdbg.errors import CollectError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.location import LoadedModule, ModuleMap, is_code_section
from kcovdbg.output_file import PRIVATE, accept, find_output, open_output, write_files
from kcovdbg.records.side_file import FORMAT, SUFFIX, TraceHeader
from kcovdbg.series import table
from kcovdbg.target.local_kernel import running_build_id


def find_loaded_modules(folder: str | Path = "/sys/module") -> tuple[LoadedModule, ...] | None:
    """Return the modules of the running kernel with their addresses; None without CAP_SYSLOG, from
    which the kernel hides addresses.
    """
    try:
        found = tuple(_read_modules(Path(folder)))
    except OSError:
        return None
    # Others read addresses as zeros (kernel/module/sysfs.c, module_sect_read()).
    return found if all(address for module in found for _, address in module.sections) else None


def _read_modules(folder: Path) -> Iterator[LoadedModule]:
    for module in sorted(folder.iterdir()):
        # Built-in code has no size. A module may be unloaded meanwhile.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            size = int((module / "coresize").read_text())
            sections = tuple(
                (section.name, int(section.read_text(), 16))
                for section in sorted((module / "sections").iterdir())
                if is_code_section(section.name)
            )
            yield LoadedModule(
                module.name, running_build_id(module / "notes/.note.gnu.build-id"), size, sections
            )


def make_header(
    buffer: Buffer,
    *,
    argv: Sequence[str] = (),
    pid: int | None = None,
    release: str | None = None,
    build_id: str | None = None,
    kaslr_offset: int | None = None,
    modules: Sequence[LoadedModule] | None = None,
) -> TraceHeader:
    """Return the content of a buffer's side file.

    :param pid: process ID; the buffer has the thread ID.
    :param modules: the loaded modules; the side file names those with records. None if they are
        unknown, as without the KASLR offset.
    """
    # The kernel's mode may not determine the format of the records: it can depend on a flag.
    mode = buffer.mode
    if mode is not None and table.codec_of_trace(mode) != buffer.encoding.codec:
        mode = table.mode_of_codec(buffer.encoding.codec) or mode
    if kaslr_offset is None:
        modules = None
    elif modules is not None:
        words = set(buffer.pc_words)
        pcs = record.pcs_of_words(words, buffer.encoding).values()
        module_map = ModuleMap(module.shift(-kaslr_offset) for module in modules)
        recorded = {found[0].name for pc in pcs if (found := module_map.find(pc)) is not None}
        modules = tuple(module for module in modules if module.name in recorded)
    return TraceHeader(
        mode=mode,
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
        modules=modules,
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


def write_trace(
    path: Path | str, buffer: Buffer, header: TraceHeader, *, check: Callable[[], None] = accept
) -> bool:
    """Write a trace file and its side file.

    :param check: see :func:`kcovdbg.output_file.open_output`.
    :return: whether there is a side file; a device or a pipe has none.
    :raises CollectError: when either could not be written; then neither exists.
    """
    path = Path(path)
    content = {"format": FORMAT, **asdict(header)}
    if header.kaslr_offset is not None:
        content["kaslr_offset"] = f"{header.kaslr_offset:#x}"
    if header.modules is None:
        del content["modules"]
    else:
        content["modules"] = [
            module._asdict()
            | {"sections": {name: f"{address:#x}" for name, address in module.sections}}
            for module in header.modules
        ]
    side = json.dumps(content, indent=1) + "\n"
    with _explained():
        if not find_output(path).is_replaceable:
            with open_output(path, check=check) as stream:
                stream.write(trace_bytes(buffer))
            return False
        write_files(
            path, {SUFFIX: side.encode(), "": trace_bytes(buffer)}, mode=PRIVATE, check=check
        )
    return True


def write_text_file(
    path: Path | str, content: bytes, *, check: Callable[[], None] = accept
) -> None:
    """Write a file.

    :param check: see :func:`kcovdbg.output_file.open_output`.
    :raises CollectError: when it could not be written.
    """
    with _explained(), open_output(path, mode=PRIVATE, check=check) as stream:
        stream.write(content)


def text_bytes(buffer: Buffer, *, call_length: int = 0, is_syzkaller: bool = False) -> bytes:
    """Return the PCs of a buffer as text, one per line.

    :param call_length: subtracted from each PC: 0 writes PCs as recorded, like kcovtrace; the
        length of a call writes addresses of calls, like syzkaller's rawcover.
    :param is_syzkaller: whether to sort PCs and write each once, like syzkaller.
    """
    found = record.pcs_in_order(buffer.pc_words, buffer.encoding)
    # A call cannot lie below address 0: such a word is damage.
    pcs: Sequence[int] = [pc - call_length for pc in found if pc and pc >= call_length]
    if is_syzkaller:
        pcs = sorted(set(pcs))
    return "".join(f"{pc:#x}\n" for pc in pcs).encode()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn errors of the file into errors of the collector."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CollectError(
            f"{error.filename}: could not be written: {error.strerror or error}"
        ) from error
