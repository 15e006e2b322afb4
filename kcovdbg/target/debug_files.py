# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files with debug info: those below a folder, and of stripped images by .gnu_debuglink, build ID or debuginfod's cache."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ET_CORE
from kcovdbg.errors import TargetError
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.user_folder import find_stranger

_ROOT: Final = Path("/usr/lib/debug")


def list_debug_files(name: str) -> Sequence[str]:
    """Return a file that was named, or of a folder the images and modules below it.

    :raises TargetError: when a folder has none.
    """
    folder = Path(name)
    if not folder.is_dir():
        return (name,)
    # Object files of a build have debug info as well, thousands of them.
    paths = (path for path in sorted(folder.rglob("*")) if path.suffix != ".o" and path.is_file())
    found = [str(path) for path in paths if _is_elf(path)]
    if not found:
        raise TargetError(f"no debug info in '{name}'", hint="-s takes a vmlinux, a module, or a folder of them")
    return found


def _is_elf(path: Path) -> bool:
    try:
        return dumpfile.identify(path) is dumpfile.FileKind.ELF
    except TargetError:
        # Nobody named it: that it cannot be read is no error.
        return False


def read_stripped(path: str | os.PathLike[str]) -> tuple[str, str | None] | None:
    """Return the build ID of an image without debug info, and the name in its .gnu_debuglink; None for any other file."""
    try:
        with ElfFile(path) as image:
            if image.header.type == ET_CORE or image.has_debug_info or image.build_id is None:
                return None
            section = image.section(".gnu_debuglink")
            link = None if section is None else image.read_section(section).split(b"\0", 1)[0].decode(errors="surrogateescape")
            return image.build_id, link
    except TargetError:
        return None


def find_debug_file(image: Path, build_id: str, link: str | None) -> Path | None:
    """Return the debug file of a stripped image, None when there is none.

    :param image: its path.
    :param link: the name in its .gnu_debuglink.
    """
    return next((path for path in _places(image, build_id, link) if path.is_file() and _has_debug_info(path, build_id)), None)


def _has_debug_info(path: Path, build_id: str) -> bool:
    try:
        with ElfFile(path) as file:
            return file.has_debug_info and file.build_id == build_id
    except TargetError:
        return False


def _places(image: Path, build_id: str, link: str | None) -> Iterator[Path]:
    if link:
        directory = image.absolute().parent
        for place in (directory, directory / ".debug", _ROOT / directory.relative_to("/")):
            yield place / Path(link).name
    yield _ROOT / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
    cache = os.environ.get("DEBUGINFOD_CACHE_PATH")
    base = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME") or "/") / ".cache"
    kept = (Path(cache) if cache else Path(base) / "debuginfod_client") / build_id
    if find_stranger(kept) is None:
        yield kept / "debuginfo"
