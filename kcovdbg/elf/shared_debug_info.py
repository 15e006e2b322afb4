# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds the file to which ``dwz -m`` moved debug info that several images share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ElfError
from kcovdbg.input_file import PathName
from kcovdbg.user_folder import is_placed

# dwz's section has a name and a build ID. The section of DWARF 5 has a version and a flag before
# them.
_LINK: Final = ".gnu_debugaltlink"
_SUPPLEMENT: Final = ".debug_sup"
_SUPPLEMENT_HEADER: Final = 3
_SYSTEM: Final = Path("/usr/lib/debug")
SHARED_HINT: Final = "dwz -m wrote it: put it where it was, or beside the image"
"""The hint of an error if the file is missing."""


class SharedLink(NamedTuple):
    """An image's link to the file of shared debug info."""

    name: str
    """The path in the image, absolute or relative to the image."""
    build_id: str
    """Hexadecimal."""


def find_shared_link(elf: ElfFile) -> SharedLink | None:
    """Return an image's link to shared debug info, None if it has all of its debug info.

    :raises ElfError: when the section is damaged.
    """
    section = elf.section(_LINK)
    if section is not None:
        name, _, build_id = elf.read_section(section).partition(b"\0")
        return SharedLink(os.fsdecode(name), build_id.hex())
    section = elf.section(_SUPPLEMENT)
    data = b"" if section is None else elf.read_section(section)
    # The file of shared debug info itself has the flag 1.
    if len(data) <= _SUPPLEMENT_HEADER or data[2]:
        return None
    name, _, rest = data[_SUPPLEMENT_HEADER:].partition(b"\0")
    return SharedLink(os.fsdecode(name), rest[1:].hex())


def find_shared_file(elf: ElfFile, link: SharedLink) -> Path | None:
    """Return the path of an image's file of shared debug info, None if no file has its build ID.

    As the user did not name the file, :func:`is_placed` decides whether it is read.
    """
    for path in _candidates((elf.path, Path(elf.name)), link):
        if not is_placed(path):
            continue
        try:
            with ElfFile(path) as shared:
                if shared.build_id == link.build_id:
                    return path
        except ElfError:
            continue
    return None


def list_contents(image: PathName) -> Sequence[PathName]:
    """Return an image and its file of shared debug info, if it has one. A file that is no image, or
    is damaged, is returned alone.
    """
    shared = None
    with suppress(ElfError), ElfFile(image) as elf:
        link = find_shared_link(elf)
        if link is not None:
            shared = find_shared_file(elf, link)
    return (image,) if shared is None else (image, shared)


def _candidates(images: Iterable[Path], link: SharedLink) -> Iterator[Path]:
    # An image may be read by a descriptor, or be unpacked elsewhere. Its name or its link then
    # leads to its folder.
    folders: list[Path] = []
    for image in images:
        folders += (image.parent, Path(os.path.realpath(image)).parent)
    for folder in dict.fromkeys(folders):
        yield folder / link.name
        yield folder / Path(link.name).name
        yield folder / ".dwz" / Path(link.name).name
    yield _SYSTEM / ".build-id" / link.build_id[:2] / f"{link.build_id[2:]}.debug"
    yield _SYSTEM / ".dwz" / Path(link.name).name
