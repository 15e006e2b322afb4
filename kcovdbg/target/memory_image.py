# SPDX-License-Identifier: LGPL-2.1-or-later
"""Formats of memory images that kcovdbg cannot read, recognized by their first bytes. Each has a
hint how to get a dump that kcovdbg can read.
"""

from __future__ import annotations

import os
import re
import struct
from typing import BinaryIO, Final, NamedTuple


class MemoryImage(NamedTuple):
    """A format of memory images that kcovdbg cannot read."""

    noun: str
    hint: str
    """How to get a dump that it can read."""


_GUEST_DUMP: Final = "virsh dump --memory-only, or QMP's dump-guest-memory"
_TAKE_ANOTHER: Final = f"take an ELF core: of a guest by {_GUEST_DUMP}; of a machine by kdump"
_LIBVIRT: Final = MemoryImage(
    "a guest that libvirt saved",
    "virsh restore --paused FILE, then virsh dump --memory-only DOMAIN CORE",
)
_VMWARE: Final = MemoryImage(
    "a suspended guest or a snapshot of VMware",
    "vmss2core -N FILE.vmss FILE.vmem writes an ELF core",
)
_WINDOWS: Final = MemoryImage(
    "a dump in Windows' format", "dump-guest-memory without -w writes an ELF core of a guest"
)
_S390: Final = MemoryImage("a stand-alone dump of s390", "zgetdump -f elf FILE > CORE")
_XEN: Final = MemoryImage(
    "a guest that Xen saved", "xl restore -p FILE, then xl dump-core DOMAIN CORE"
)
RAW: Final = MemoryImage("raw memory", f"it has no addresses; {_TAKE_ANOTHER}")
# The magic numbers are in: migration.h, qcow2.h and win_dump_defs.h of QEMU; qemu_saveimage.h of
# libvirt; lime.h of LiME; image.rs of AVML; vmware.py of Volatility; zdump of s390-tools; the
# specification of Xen's stream; dump.h of LKCD; libewf.
_MAGICS: Final = (
    (
        b"QEVM",
        MemoryImage(
            "a migration stream of QEMU (savevm, migrate)",
            f"start it paused, qemu -S -incoming 'exec:cat FILE', and dump that guest: "
            f"{_GUEST_DUMP}",
        ),
    ),
    (b"LibvirtQemudSave", _LIBVIRT),
    (b"LibvirtQemudPart", _LIBVIRT),
    (
        b"QFI\xfb",
        MemoryImage(
            "a disk in QEMU's qcow2 format",
            f"load its snapshot, qemu -loadvm NAME, and dump that guest: {_GUEST_DUMP}",
        ),
    ),
    (b"EMiL", MemoryImage("memory in LiME's format", _TAKE_ANOTHER)),
    (b"AVML", MemoryImage("memory in AVML's format", _TAKE_ANOTHER)),
    (b"\xd0\xbe\xd2\xbe", _VMWARE),
    (b"\xd1\xba\xd1\xba", _VMWARE),
    (b"\xd2\xbe\xd2\xbe", _VMWARE),
    (b"\xd3\xbe\xd3\xbe", _VMWARE),
    (b"PAGEDUMP", _WINDOWS),
    (b"PAGEDU64", _WINDOWS),
    (b"MDMP", _WINDOWS),
    (
        b"\x7fVirtualBox SavedState",
        MemoryImage(
            "a guest that VirtualBox saved", "VBoxManage debugvm VM dumpvmcore --filename CORE"
        ),
    ),
    (struct.pack(">Q", 0xA8190173618F23FD), _S390),
    (struct.pack(">Q", 0xA8190173618F23FE), _S390),
    (struct.pack("<Q", 0xA8190173618F23ED), MemoryImage("a dump in LKCD's format", _TAKE_ANOTHER)),
    (struct.pack(">Q", 0xA8190173618F23ED), MemoryImage("a dump in LKCD's format", _TAKE_ANOTHER)),
    (b"LinuxGuestRecord", _XEN),
    (b"Xen saved domain", _XEN),
    (b"\xff" * 8 + b"XENF", _XEN),
    (
        b"EVF\x09\x0d\x0a\xff\x00",
        MemoryImage(
            "an image in the Expert Witness format", "ewfexport -f raw FILE, if it is an ELF core"
        ),
    ),
)
_PAGE: Final = 4096
# The memory of a PC starts with interrupt vectors. Most of them lead into the segment of the BIOS.
_VECTORS: Final = 64
_BIOS: Final = 0xF000
_LEAST: Final = 1 << 20
# Limit for the bytes of a file that are searched for the kernel's banner.
_MOST: Final = 1 << 30
_PIECE: Final = 1 << 20
_BANNER: Final = re.compile(rb"Linux version \d{1,2}\.\d{1,3}\.")
# Offset and signature of bzImage and of Image: kernel files have the banner as well.
_KERNELS: Final = ((0x202, b"HdrS"), (0x38, b"ARM\x64"), (0x30, b"RISCV"))


def find_memory_image(start: bytes) -> MemoryImage | None:
    """Return the format of a memory image by its first bytes, None for any other file."""
    for magic, image in _MAGICS:
        if start.startswith(magic):
            return image
    return RAW if _has_vectors(start) else None


def _has_vectors(start: bytes) -> bool:
    if len(start) < _PAGE:
        return False
    segments = [segment for _, segment in struct.iter_unpack("<HH", start[: 4 * _VECTORS])]
    return segments.count(_BIOS) * 2 > _VECTORS


def is_raw_memory(file: BinaryIO) -> bool:
    """Return whether a file may be a kernel's memory without a header: it consists of whole pages,
    and has the kernel's banner.

    :param file: a file in no other known format; its position is changed.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = file.read(_PAGE)
    is_kernel_file = any(start[at:].startswith(mark) for at, mark in _KERNELS)
    if is_kernel_file or size < _LEAST or size % _PAGE:
        return False
    before = b""
    while file.tell() < _MOST and (data := file.read(_PIECE)):
        if _BANNER.search(before + data):
            return True
        before = data[-64:]
    return False
