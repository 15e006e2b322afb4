# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files with debug info. The user gives them, they are beside a dump, or they are found for a
stripped image by its .gnu_debuglink or its build ID, also in debuginfod's cache.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ET_CORE, ET_REL, Header, NotElfError
from kcovdbg.errors import NoDebugInfoError, TargetError
from kcovdbg.input_file import PathName
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.user_folder import find_debuginfod_cache, find_stranger, is_placed

_ROOT: Final = Path("/usr/lib/debug")


class DebugFile(NamedTuple):
    """A file with debug info that the user gave, or that was found."""

    name: str
    """Its name in messages."""
    path: Path
    """The file, or an unpacked copy of a compressed one."""
    is_kernel: bool
    build_id: str | None
    header: Header
    code: str | None = None
    """Path of the stripped image of the same build, which the user gave as well."""


def list_debug_files(name: str) -> Sequence[str]:
    """Return a file that the user named, or the images and modules in a folder.

    :raises TargetError: when a folder has none.
    """
    folder = Path(name)
    if not folder.is_dir():
        return (name,)
    # Object files of a build have debug info as well, thousands of them.
    paths = (path for path in sorted(folder.rglob("*")) if path.suffix != ".o" and path.is_file())
    found = [str(path) for path in paths if _is_elf(path)]
    if not found:
        raise TargetError(
            f"no debug info in '{name}'", hint="-s takes a vmlinux, a module, or a folder of them"
        )
    return found


def _is_elf(path: Path) -> bool:
    try:
        return dumpfile.identify(path) is dumpfile.FileKind.ELF
    except TargetError:
        # The user did not name the file: it is no error.
        return False


def read_stripped(path: PathName) -> tuple[str, str | None] | None:
    """Return the build ID of an image without debug info, and the name in its .gnu_debuglink;
    None for another file.
    """
    try:
        with ElfFile(path) as image:
            if image.header.type == ET_CORE or image.has_debug_info or image.build_id is None:
                return None
            section = image.section(".gnu_debuglink")
            if section is None:
                return image.build_id, None
            name, _, _ = image.read_section(section).partition(b"\0")
            return image.build_id, os.fsdecode(name)
    except TargetError:
        return None


def find_debug_file(image: Path, build_id: str, link: str | None) -> Path | None:
    """Return the debug file of a stripped image, None when there is none.

    :param image: its path.
    :param link: the name in its .gnu_debuglink.
    """
    for path in _places(image, build_id, link):
        if is_placed(path) and _has_debug_info(path, build_id):
            return path
    return None


def _has_debug_info(path: Path, build_id: str) -> bool:
    try:
        with ElfFile(path) as file:
            return file.has_debug_info and file.build_id == build_id
    except TargetError:
        return False


def _places(image: Path, build_id: str, link: str | None) -> Iterator[Path]:
    if link:
        directory = image.absolute().parent
        for folder in (directory, directory / ".debug", _ROOT / directory.relative_to("/")):
            yield folder / Path(link).name
    yield _ROOT / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
    cache = find_debuginfod_cache()
    if cache is not None and find_stranger(cache / build_id) is None:
        yield cache / build_id / "debuginfo"


def unpack_symbols(symbols: Sequence[str]) -> tuple[list[DebugFile], list[str]]:
    """Unpack and check the files given with -s; return them, and notes for the user."""
    files: list[DebugFile] = []
    images: list[tuple[str, Path, str, str | None]] = []
    notes: list[str] = []
    for name in symbols:
        unpacked = dumpfile.unpack(name)
        notes += unpacked.notes
        stripped = read_stripped(unpacked.path)
        if stripped is None:
            files.append(_check_debug_file(name, unpacked.path))
        else:
            images.append((name, unpacked.path, *stripped))
    for name, path, build_id, link in images:
        found = next((file for file in files if file.build_id == build_id), None)
        if found is None:
            debug_file = find_debug_file(Path(name), build_id, link)
            if debug_file is None:
                # This raises the error of an image without debug info.
                found = _check_debug_file(name, path)
            else:
                found = _check_debug_file(str(debug_file), debug_file)
            files.append(found)
        files[files.index(found)] = found._replace(code=str(path))
        notes.append(
            f"debug info: {found.name}; {name} has none, its code is read for coverage points"
        )
    return files, notes


def _check_debug_file(name: str, path: Path) -> DebugFile:
    try:
        with ElfFile(path, name) as file:
            header = file.header
            if header.type == ET_CORE:
                raise TargetError(
                    f"{name} is a dump, not debug info",
                    hint="give dumps with -c, or both: kcovdbg VMLINUX DUMP",
                )
            if not file.has_debug_info:
                hint = (
                    "build with CONFIG_DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT=y, or install the "
                    "distribution's debug package"
                )
                if header.type != ET_REL:
                    raise NoDebugInfoError(path, name, hint=hint)
                raise TargetError(f"{name} has no debug info (DWARF)", hint=hint)
            return DebugFile(name, path, header.type != ET_REL, file.build_id, header)
    except NotElfError:
        raise TargetError(
            f"{name} is not a vmlinux: not an ELF file",
            hint="vmlinuz and bzImage, which machines boot, have no debug info; vmlinux is in the "
            "build directory",
            wrong_file=name,
        ) from None


def find_kernel_file(files: Iterable[DebugFile]) -> DebugFile | None:
    """Return the kernel's image among files, None when there is none."""
    return next((file for file in files if file.is_kernel), None)


def of_build(files: list[DebugFile], wanted: str | None) -> list[DebugFile]:
    """Leave out the images of other builds, if there is an image of the wanted build.

    :param wanted: the kernel's build ID, None if unknown.
    """
    if not any(file.is_kernel and file.build_id == wanted for file in files):
        return files
    return [file for file in files if not file.is_kernel or file.build_id == wanted]


def check_match(kernel: DebugFile, release: str, wanted: str | None) -> None:
    """Check that an image is of the same build as a kernel.

    :param wanted: the kernel's build ID, None if unknown.
    :raises TargetError: when it is not.
    """
    hint = f"the kernel's release is {release}: give the vmlinux of the same build"
    if wanted is not None and kernel.build_id is not None:
        # Linux kernel commit 0935288c6e00 ("kdump: append kernel build-id string to VMCOREINFO")
        # (in v5.9).
        if wanted != kernel.build_id:
            raise TargetError(
                f"{kernel.name} does not match: its build ID is {kernel.build_id}, the "
                f"kernel's {wanted}",
                hint=hint,
            )
    elif not dumpfile.find_text(kernel.path, f"Linux version {release} ".encode()):
        raise TargetError(f"{kernel.name} does not match: not of release {release}", hint=hint)


def find_vmlinux(directory: Path, release: str, wanted: str | None) -> DebugFile | None:
    """Return the image of a kernel in the directory of a dump, None when there is none."""
    for found in find_images(directory, f"-{release}"):
        try:
            check_match(found, release, wanted)
        except TargetError:
            # The user did not give the image: it is no error.
            continue
        return found
    return None


def find_images(directory: Path, suffix: str = "") -> Iterator[DebugFile]:
    """Yield the images with debug info in the directory of a dump.

    :param suffix: added to ``vmlinux`` for further names.
    """
    for name in dict.fromkeys(
        ("vmlinux", "vmlinux.zst", f"vmlinux{suffix}", f"vmlinux{suffix}.zst", "vmlinux.debug")
    ):
        path = directory / name
        if is_placed(path):
            # The user did not give it, so another kind of file is no error.
            with contextlib.suppress(TargetError):
                yield _check_debug_file(str(path), dumpfile.unpack(path).path)
