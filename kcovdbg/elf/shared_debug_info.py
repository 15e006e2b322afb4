# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file that ``dwz -m`` moved debug info of several images to, and that an image refers to."""

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

# dwz's own section: a name and a build ID. DWARF 5 has one with a version and a flag in front.
_LINK: Final = ".gnu_debugaltlink"
_SUPPLEMENT: Final = ".debug_sup"
_SUPPLEMENT_HEADER: Final = 3
_SYSTEM: Final = Path("/usr/lib/debug")
SHARED_HINT: Final = "dwz -m wrote it: put it where it was, or beside the image"
"""The hint of an error where the file is missing."""


class SharedLink(NamedTuple):
    """An image's link to the file that it shares debug info with."""

    name: str
    """As the image has it: a path, absolute or relative to the image."""
    build_id: str
    """Hexadecimal."""


def find_shared_link(elf: ElfFile) -> SharedLink | None:
    """Return which file an image shares debug info with, None where it has all of its own.

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
    """Return the path of the file that an image shares debug info with; None where there is none
    with that build ID.

    The command line does not name it: see :func:`is_placed`.
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
    """Return the files that have the contents of an image: itself, and the file that it shares
    debug info with, if there is one. A file that is no image, or damaged, is all of its contents.
    """
    shared = None
    with suppress(ElfError), ElfFile(image) as elf:
        link = find_shared_link(elf)
        if link is not None:
            shared = find_shared_file(elf, link)
    return (image,) if shared is None else (image, shared)


def _candidates(images: Iterable[Path], link: SharedLink) -> Iterator[Path]:
    # An image may be read by a descriptor, or be unpacked elsewhere: then its name, or its link,
    # leads to where it was.
    folders: list[Path] = []
    for image in images:
        folders += (image.parent, Path(os.path.realpath(image)).parent)
    for folder in dict.fromkeys(folders):
        yield folder / link.name
        yield folder / Path(link.name).name
        yield folder / ".dwz" / Path(link.name).name
    yield _SYSTEM / ".build-id" / link.build_id[:2] / f"{link.build_id[2:]}.debug"
    yield _SYSTEM / ".dwz" / Path(link.name).name
