# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a kernel's image is shifted by, and whether a vmlinux is that kernel's: worked out from its memory.

Nothing here knows a debugger: memory is a function that reads it. Debuggers answer from the vmlinux file itself where a target
lacks memory, so that what is believed is compared with the target's own bytes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kcovdbg.errors import KcovdbgError, ReadError
from kcovdbg.target.elf import find_build_id, parse_notes
from kcovdbg.target.image import ElfFile

Read = Callable[[int, int], bytes]

# CONFIG_PHYSICAL_ALIGN is 2 MiB at least, and RANDOMIZE_BASE moves an x86-64 kernel within its 1 GiB (KERNEL_IMAGE_SIZE).
_X86_ALIGNMENT: Final = 2 << 20
_X86_RANGE: Final = 1 << 30
_BANNER: Final = b"Linux version "


class MismatchError(KcovdbgError):
    """The vmlinux isn't the target's."""


def release_of(banner: bytes) -> str | None:
    """Return the release that ``linux_banner`` says, None where the bytes are no banner."""
    words = banner.split(b"\0", 1)[0].split()
    return words[2].decode("utf-8", "backslashreplace") if banner.startswith(_BANNER) and len(words) > 2 else None


def read_banner_of(image: ElfFile) -> bytes | None:
    """Return a vmlinux's own ``linux_banner``, None where it has none."""
    symbol = image.symbol("linux_banner")
    if symbol is None:
        return None
    # Before Linux kernel commit 2df8220cc511 ("kbuild: build init/built-in.a just once") (in v6.2) and in assembly the size may
    # be missing: any banner is longer than this.
    return image.contents(symbol.address, symbol.size or 64)


def check_image(image: ElfFile, offset: int, read: Read, vmcoreinfo: Mapping[str, str]) -> None:
    """Make sure that a vmlinux is the target's, by the build-id and by the kernel's own banner.

    :param offset: what the image is shifted by.
    :param read: reads the target's memory, never the vmlinux file.
    :param vmcoreinfo: of a core, empty where there is none.
    :raises MismatchError: when it isn't.
    :raises ReadError: when nothing of the target says.
    """
    known = False
    theirs = vmcoreinfo.get("BUILD-ID")
    if theirs is not None and image.build_id is not None:
        if theirs.lower() != image.build_id:
            release = vmcoreinfo.get("OSRELEASE", "another kernel")
            raise MismatchError(
                f"{image.path} isn't the target's: the core is of {release}, build-id {theirs}, not {image.build_id}"
            )
        known = True
    banner = image.symbol("linux_banner")
    ours = read_banner_of(image)
    failure: ReadError | None = None
    if banner is not None and ours is not None:
        try:
            found = read(banner.address + offset, len(ours))
        except ReadError as error:
            failure = error
        else:
            if found != ours:
                running = release_of(found)
                said = f"the target runs {running}" if running else "the kernel's banner isn't where it says"
                raise MismatchError(f"{image.path} isn't the target's: {said}")
            known = True
    for section in image.sections:
        # The kernel's .notes stays in memory, as /sys/kernel/notes.
        if section.address and image.build_id and section.name in (".notes", ".note.gnu.build-id"):
            try:
                notes = read(section.address + offset, section.size)
            except ReadError as error:
                failure = failure or error
                continue
            build_id = find_build_id(parse_notes(notes, ">" if image.big_endian else "<"))
            if build_id != image.build_id:
                said = f"the target's build-id is {build_id or 'not where it says'}, not {image.build_id}"
                raise MismatchError(f"{image.path} isn't the target's: {said}")
            known = True
    if not known:
        raise failure or ReadError(f"{image.path} has neither linux_banner nor a build-id to recognise the target by", 0)


def offset_of_idt(image: ElfFile, registers: str, read: Read) -> int | None:
    """Work out an x86-64 kernel's shift from its interrupt descriptor table.

    The table's address is the same in every kernel (CPU_ENTRY_AREA), and it is mapped in user mode too; its first gate holds
    the address of the handler of divide errors.

    :param registers: what QEMU's ``info registers`` says.
    :return: None where this doesn't tell.
    """
    handler = image.symbol("asm_exc_divide_error") or image.symbol("divide_error")
    match = re.search(r"^IDT=\s*([0-9a-f]{16})\s+([0-9a-f]{8})", registers, re.MULTILINE)
    if handler is None or match is None or int(match[2], 16) < 16:
        return None
    try:
        gate = read(int(match[1], 16), 16)
    except ReadError:
        return None
    address = int.from_bytes(gate[0:2] + gate[6:12], "little")
    offset = address - handler.address
    return offset if offset % 4096 == 0 and -(1 << 40) < offset < 1 << 40 else None


def offsets_to_search(image: ElfFile) -> Iterator[int]:
    """Yield the shifts that a kernel of this architecture can have, the likeliest first."""
    yield 0
    if image.machine == "x86_64":
        yield from range(_X86_ALIGNMENT, _X86_RANGE, _X86_ALIGNMENT)


def search_offset(image: ElfFile, read: Read) -> int | None:
    """Look for the kernel's banner at every place where it can be.

    :return: what the image is shifted by, None where it is found nowhere.
    """
    banner = image.symbol("linux_banner")
    ours = read_banner_of(image)
    if banner is None or ours is None:
        return None
    for offset in offsets_to_search(image):
        try:
            # All of it is compared later; this much tells it from other memory.
            if read(banner.address + offset, 32) == ours[:32]:
                return offset
        except ReadError:
            continue
    return None


def user_mode_of_cpus(registers: str) -> list[bool]:
    """Tell of each virtual CPU whether it uses the page tables of user space, by QEMU's ``info registers -a`` on x86-64.

    That is at privilege level 3, and for some instructions on the way in and out, too: with page-table isolation these page
    tables are those with bit 12 of CR3 set (PTI_USER_PGTABLE_BIT).
    """
    levels = re.findall(r"\bCPL=(\d)", registers)
    tables = re.findall(r"\bCR3=([0-9a-f]+)", registers)
    if len(levels) != len(tables):
        return []
    return [level == "3" or bool(int(table, 16) >> 12 & 1) for level, table in zip(levels, tables, strict=True)]
