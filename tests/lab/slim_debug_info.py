# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes debug info small enough to be committed: types and symbols; no lines, no code, and no
call frame information.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Collection
from pathlib import Path

import zstandard

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import SHF_ALLOC, SHT_NOBITS

TOOLS = {"dwz": "dwz", "objcopy": "binutils"}
# Line tables, where variables live, how frames unwind.
DROPPED = (
    *(
        ".debug_line",
        ".debug_line_str",
        ".debug_loclists",
        ".debug_loc",
        ".debug_rnglists",
        ".debug_ranges",
    ),
    *(".debug_frame", ".comment"),
)
# Of a section's size in its header.
_SIZE_OFFSET = 32
_UNIT_NAME = re.compile(r"DW_AT_name +: (?:\(.*?\): )?(.*)")
_UNIT_LENGTH = re.compile(r"Length: +(0x[0-9a-f]+|0)")
# What modules are linked by, and where padding before functions starts: a third of all symbols. On
# riscv64 the compiler's labels, which the linker needs to shorten code, are nearly all.
UNWANTED_SYMBOLS = (
    *(
        "__kstrtab_*",
        "__kstrtabns_*",
        "__ksymtab_*",
        "__pfx_*",
        "__func__.*",
        "__already_done.*",
        "__msg.*",
    ),
    *(".L*", "__efistub_.L*"),
    # Calls at boot and parameters on the command line; keys of locks; instances of BPF's
    # interpreter.
    *(
        "__initcall__*",
        "__setup_*",
        "__param_*",
        "__UNIQUE_ID_*",
        "__key.*",
        "__bpf_prog_run*",
        "_rs.*",
        "CSWTCH.*",
    ),
    # System calls' names for 31-bit programs, and attributes of devices.
    *("__s390_sys_*", "dev_attr_*"),
)


def slim(vmlinux: Path, destination: Path, sources: Collection[str], tools: str = "") -> None:
    """Write what state commands need of a vmlinux, with every address as it is.

    :param sources: the C files whose debug info is wanted.
    :param tools: the prefix of binutils that know the image's machine.
    """
    objcopy = f"{tools}objcopy"
    few, compact = (
        destination.with_name(f"{destination.name}.{suffix}") for suffix in ("few", "compact")
    )
    # Relocations, where vmlinux has kept them, hold on to symbols.
    subprocess.run(
        [objcopy, "--remove-section=.debug_aranges", "--remove-section=.rela*", vmlinux, few],
        check=True,
    )
    keep_units(few, sources)
    # Before the line tables go: it tells types of one name apart by the files that they are from.
    # No limits, as the kernel's debug info is larger than it takes by default. It knows nothing of
    # string offsets and address tables, which is how Clang writes DWARF 5: that stays as it is.
    with ElfFile(few) as elf:
        by_table = elf.section(".debug_str_offsets") is not None
    if by_table:
        shutil.copyfile(few, compact)
    else:
        subprocess.run(["dwz", "-L", "none", "-l", "none", "--odr", few, "-o", compact], check=True)
    unwanted = [f"--strip-symbol={name}" for name in UNWANTED_SYMBOLS] + [
        f"--remove-section={name}" for name in DROPPED
    ]
    subprocess.run([objcopy, "--wildcard", *unwanted, compact, destination], check=True)
    few.unlink()
    compact.unlink()
    blank_image(destination)
    if not by_table:
        blank_strings(destination)


def keep_units(path: Path, sources: Collection[str]) -> None:
    """Leave in .debug_info the compilation units of some sources.

    Without LTO none refers to another one's content.
    """
    command = ["readelf", "--wide", "--debug-dump=info", "--dwarf-depth=1", str(path)]
    listing = subprocess.run(
        command, check=True, capture_output=True, text=True, errors="replace"
    ).stdout
    units = []
    for unit in listing.split("Compilation Unit @ offset ")[1:]:
        name = _UNIT_NAME.search(unit)
        length = _UNIT_LENGTH.search(unit)
        assert length is not None
        if name is not None and name[1] in sources:
            # The length doesn't count itself.
            units.append((int(unit.split(":", 1)[0], 16), int(length[1], 16) + 4))
    with ElfFile(path) as elf:
        data, header, (info, lists) = (
            bytearray(path.read_bytes()),
            elf.header,
            map(elf.section, (".debug_info", ".debug_loclists")),
        )
    assert info is not None
    whole = bytes(data[info.offset : info.offset + info.size])
    kept = b"".join(whole[start : start + length] for start, length in units)
    data[info.offset : info.offset + info.size] = kept.ljust(info.size, b"\0")
    struct.pack_into(
        f"{header.byte_order}Q",
        data,
        header.shoff + info.number * header.shentsize + _SIZE_OFFSET,
        len(kept),
    )
    if lists is not None:
        # Zeros are lists without entries. dwz wants them to be there, and no entry that names a
        # unit that has gone.
        data[lists.offset : lists.offset + lists.size] = bytes(lists.size)
    path.write_bytes(data)


def blank_image(path: Path) -> None:
    """Turn the image's code and data into zeros, which compress to nothing.

    Without them, as `objcopy --only-keep-debug` leaves a file, drgn takes the addresses of per-CPU
    variables for the image's.
    """
    with ElfFile(path) as elf, path.open("r+b") as file:
        for section in elf.sections:
            # What is read of the image itself; the rest of it is in the dump, or nobody's.
            if (
                section.flags & SHF_ALLOC
                and section.type != SHT_NOBITS
                and not section.name.startswith(".notes")
            ):
                file.seek(section.offset)
                file.write(bytes(section.size))


def blank_strings(path: Path) -> None:
    """Turn the names that nothing refers to into zeros; references stay valid."""
    with ElfFile(path) as elf:
        strings, info, order = (
            elf.section(".debug_str"),
            elf.section(".debug_info"),
            elf.header.byte_order,
        )
        assert strings is not None
        assert info is not None
        text, data = elf.read_section(strings), elf.read_section(info)
    # A reference is four bytes anywhere. What only looks like one keeps a name too many.
    named: set[int] = set()
    for shift in range(4):
        named.update(struct.unpack_from(f"{order}{(len(data) - shift) // 4}I", data, shift))
    kept = bytearray(len(text))
    for at in sorted(value for value in named if value < len(text)):
        end = text.index(b"\0", at)
        kept[at:end] = text[at:end]
    with path.open("r+b") as file:
        file.seek(strings.offset)
        file.write(kept)


def compress(path: Path, destination: Path) -> Path:
    """Write FILE.zst, as small as zstd can; matches may be as far apart as the file is long."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        22, window_log=27, enable_ldm=True, threads=-1
    )
    packed = zstandard.ZstdCompressor(compression_params=parameters).compress(path.read_bytes())
    final = destination / f"{path.name}.zst"
    temporary = final.with_name(f".{final.name}")
    temporary.write_bytes(packed)
    return temporary.rename(final)
