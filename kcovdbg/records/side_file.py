# SPDX-License-Identifier: LGPL-2.1-or-later
"""Side files, which describe trace files, and the trace files of a directory.

A trace file is a buffer as the kernel laid it out. The side file of ``NAME.kcov`` is
``NAME.kcov.json``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kcovdbg.abi.address import is_word
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import find_number, parse_json, parse_number, read_input
from kcovdbg.model.location import LoadedModule
from kcovdbg.records.pc_locations import is_pattern

FORMAT: Final = 1
SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The content of a side file; a key that is missing or of the wrong type is None."""

    mode: str | None = None
    """Name without prefix: ``TRACE_PC``."""
    word_size: int | None = None
    """Size of the kernel's word in bytes."""
    byteorder: str | None = None
    """``little`` or ``big``."""
    release: str | None = None
    build_id: str | None = None
    kaslr_offset: int | None = None
    pid: int | None = None
    tid: int | None = None
    comm: str | None = None
    argv: tuple[str, ...] | None = None
    size: int | None = None
    """Size of the buffer in words of the kernel."""
    count: int | None = None
    """Number of records."""
    captured_at: str | None = None
    modules: tuple[LoadedModule, ...] | None = None
    """The loaded modules that records are in."""

    @property
    def recorded_modules(self) -> tuple[LoadedModule, ...]:
        """The loaded modules, with addresses as KCOV records them; none where that is unknown."""
        if self.kaslr_offset is None:
            return ()
        return tuple(module.shift(-self.kaslr_offset) for module in self.modules or ())


def side_path(path: Path) -> Path:
    """Return the path of a trace file's side file."""
    return path.with_name(path.name + SUFFIX)


def find_traces(path: Path | str) -> list[Path]:
    """Return the trace files in a directory, or those that match a pattern, by name.

    Hidden files and side files are left out.

    :param path: path of a directory; with a pattern as its last component (``runs/a*.kcov``); or
        path of a file, which is returned alone.
    :raises KcovdbgError: when a directory holds no trace file, or none matches.
    """
    path = Path(path)
    if path.is_dir():
        found = set(path.iterdir())
    elif not path.exists() and is_pattern(path.name):
        found = set(path.parent.glob(path.name))
    else:
        return [path]
    traces = []
    for entry in found:
        is_side_file = entry.suffix == SUFFIX and entry.with_suffix("") in found
        if entry.is_file() and not entry.name.startswith(".") and not is_side_file:
            traces.append(entry)
    if not traces:
        raise KcovdbgError(f"no trace files: '{path}'", hint="collect -o FILE writes one")
    return sorted(traces)


# One file per program and call, of syz-execprog's -coverfile and of vock: cov_prog1.0, cov_prog1.1,
# cov_prog1.extra.
_CALL_FILE: Final = re.compile(r"(.*prog\d+)\.(?:\d+|extra)")


def group_runs(paths: Iterable[Path]) -> list[list[Path]]:
    """Group the files of one program's calls; every other file is one run."""
    runs: dict[str, list[Path]] = {}
    for path in paths:
        match = _CALL_FILE.fullmatch(path.name)
        runs.setdefault(path.name if match is None else match[1], []).append(path)
    return list(runs.values())


def read_header(path: Path, folder: Path | None = None) -> TraceHeader | None:
    """Return the content of a trace file's side file; None if there is no side file.

    :param folder: a directory that it must be in once links are followed.
    :raises KcovdbgError: when the side file could not be read or is malformed.
    """
    side = side_path(path)
    if not side.exists():
        # For a symlink, look next to its target.
        side = side_path(Path(os.path.realpath(path)))
    try:
        text = read_input(side, folder=folder).decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise KcovdbgError(f"{side}: could not be read: {error}") from error
    try:
        content = parse_json(text)
    except ValueError as error:
        raise KcovdbgError(
            f"{side}: invalid JSON: {error}", hint="remove it to read the trace as raw words"
        ) from error
    if not isinstance(content, dict):
        raise KcovdbgError(f"{side}: not a JSON object")
    if content.get("format") != FORMAT:
        raise KcovdbgError(
            f"{side}: unknown format {content.get('format')!r}, expected {FORMAT}",
            hint="a newer kcovdbg may have written it",
        )
    return _parse_header(content)


def _parse_header(content: dict[str, Any]) -> TraceHeader:
    def number(key: str) -> int | None:
        # Addresses are hexadecimal strings, as in everything that kcovdbg prints.
        value = find_number(content.get(key))
        return value if value is not None and is_word(value) else None

    def string(key: str) -> str | None:
        value = content.get(key)
        return value if isinstance(value, str) else None

    argv = content.get("argv")
    mode = string("mode")
    members: dict[str, Any] = {
        key: string(key) for key in ("byteorder", "release", "build_id", "comm", "captured_at")
    }
    members |= {
        key: number(key) for key in ("word_size", "kaslr_offset", "pid", "tid", "size", "count")
    }
    return TraceHeader(
        mode=None if mode is None else mode.upper().removeprefix("KCOV_").removeprefix("MODE_"),
        argv=tuple(str(word) for word in argv) if isinstance(argv, list) else None,
        modules=_parse_modules(content.get("modules")),
        **members,
    )


def _parse_modules(content: Any) -> tuple[LoadedModule, ...] | None:
    """Return the modules in a side file, without malformed ones; None if it has no list of them."""
    if not isinstance(content, list):
        return None
    found: list[LoadedModule] = []
    for module in content:
        try:
            build_id = module["build_id"]
            sections = module["sections"].items()
            known = []
            for section, text in sections:
                address = parse_number(text, 16)
                if address is not None and is_word(address):
                    known.append((str(section), address))
            name, size = str(module["name"]), find_number(module["size"])
        except (AttributeError, KeyError, TypeError):
            continue
        if size is not None and is_word(size) and len(known) == len(sections):
            build_id = build_id and str(build_id).lower()
            found.append(LoadedModule(name, build_id, size, tuple(known)))
    return tuple(found)
