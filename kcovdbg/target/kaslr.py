# SPDX-License-Identifier: LGPL-2.1-or-later
"""The KASLR offset of a kernel, and whether a vmlinux is that of the kernel, both found in the kernel's memory.

Independent of debuggers: memory is a function that reads it, and never reads the vmlinux file, which debuggers answer from
where a target lacks memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_X86_64, find_build_id, parse_notes
from kcovdbg.errors import ReadError, TargetError

Read = Callable[[int, int], bytes]

X86_ALIGNMENT: Final = 2 << 20
"""The smallest CONFIG_PHYSICAL_ALIGN of x86-64, in bytes: KASLR offsets are multiples of it."""
X86_RANGE: Final = 1 << 30
"""KERNEL_IMAGE_SIZE: KASLR offsets of x86-64 are below it."""
DIVIDE_ERROR: Final = ("asm_exc_divide_error", "divide_error")
"""The handler of gate 0, newest name first; renamed by "x86/entry: Convert Divide Error to IDTENTRY" (in v5.8)."""
IDT_GATE_SIZE: Final = 16
BANNER: Final = b"Linux version "
# Enough to recognize the banner; all of it is compared later.
_BANNER_START: Final = 32


class MismatchError(TargetError):
    """The vmlinux is not that of the target's kernel."""


def find_release(banner: bytes) -> str | None:
    """Return the release in ``linux_banner``, None when the bytes are not a banner."""
    words = banner.split(b"\0", 1)[0].split()
    return words[2].decode("utf-8", "backslashreplace") if banner.startswith(BANNER) and len(words) > 2 else None


def read_banner(image: ElfFile) -> bytes:
    """Return ``linux_banner`` of a vmlinux, empty when it has none."""
    symbol = image.symbols.find("linux_banner")
    # Symbols of assembly have no size; linux_banner is longer than this.
    return b"" if symbol is None else image.read(symbol.address, symbol.size or 64)


def check_image(image: ElfFile, offset: int, read: Read, vmcoreinfo: Mapping[str, str]) -> None:
    """Check that a vmlinux is that of the target's kernel, by build ID and ``linux_banner``.

    :param offset: the KASLR offset.
    :param read: reads the target's memory.
    :param vmcoreinfo: of a core, empty when there is none.
    :raises MismatchError: when it is not.
    :raises ReadError: when the target has neither.
    """
    known = False
    theirs = vmcoreinfo.get("BUILD-ID")
    if theirs is not None and image.build_id is not None:
        if theirs.lower() != image.build_id:
            release = vmcoreinfo.get("OSRELEASE", "unknown")
            raise MismatchError(
                f"{image.name}: not the vmlinux of the core: kernel {release}, build ID {theirs} instead of {image.build_id}"
            )
        known = True
    banner = image.symbols.find("linux_banner")
    ours = read_banner(image)
    failure: ReadError | None = None
    if banner is not None and ours:
        try:
            found = read(banner.address + offset, len(ours))
        except ReadError as error:
            failure = error
        else:
            if found != ours:
                running = find_release(found)
                problem = f"the target runs {running}" if running else "linux_banner is not at its address"
                raise MismatchError(f"{image.name}: not the vmlinux of the target: {problem}")
            known = True
    for section in image.sections:
        # The .notes of the kernel stay in memory, for /sys/kernel/notes.
        if section.address and image.build_id and section.name in (".notes", ".note.gnu.build-id"):
            try:
                notes = read(section.address + offset, section.size)
            except ReadError as error:
                failure = failure or error
                continue
            build_id = find_build_id(parse_notes(notes, image.header.byte_order))
            if build_id != image.build_id:
                problem = (
                    f"build ID {build_id} instead of {image.build_id}" if build_id else "its build ID is not at its address"
                )
                raise MismatchError(f"{image.name}: not the vmlinux of the target: {problem}")
            known = True
    if not known:
        raise failure or ReadError(f"{image.name} has neither linux_banner nor a build ID to compare", 0)


def gate_handler(gate: bytes) -> int:
    """Return the address of the handler in a ``gate_struct`` of x86-64."""
    return int.from_bytes(gate[0:2] + gate[6:12], "little")


def possible_offsets(image: ElfFile) -> Iterator[int]:
    """Yield the KASLR offsets that a kernel of this machine can have, the likeliest first."""
    yield 0
    if image.header.machine == EM_X86_64:
        yield from range(X86_ALIGNMENT, X86_RANGE, X86_ALIGNMENT)


def search_offset(image: ElfFile, read: Read) -> int | None:
    """Search for ``linux_banner`` at every possible KASLR offset.

    :return: the offset, None when there is no banner at any of them.
    """
    banner = image.symbols.find("linux_banner")
    start = read_banner(image)[:_BANNER_START]
    if banner is None or not start:
        return None
    for offset in possible_offsets(image):
        try:
            if read(banner.address + offset, len(start)) == start:
                return offset
        except ReadError:
            continue
    return None


def find_offset(image: ElfFile, read: Read, candidates: Iterable[int] = ()) -> int:
    """Return the KASLR offset of a kernel by its memory alone.

    :param read: reads the target's memory.
    :param candidates: offsets to try first.
    :raises TargetError: when the kernel of the vmlinux is at none that it can have.
    """
    failure: TargetError | None = None
    for offset in dict.fromkeys((*candidates, 0)):
        try:
            check_image(image, offset, read, {})
            return offset
        except (MismatchError, ReadError) as error:
            failure = failure or TargetError(str(error))
    found = search_offset(image, read)
    if found is not None:
        check_image(image, found, read, {})
        return found
    raise TargetError(
        f"could not find the KASLR offset through this stub: {failure}",
        hint="boot the kernel with nokaslr, or use QEMU's stub; in GDB: set kcov kaslr-offset OFFSET",
    )
