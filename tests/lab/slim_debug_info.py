# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes debug info small enough to be committed: types and symbols; no lines, no code, and nothing that stacks unwind by."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import zstandard

TOOLS = {"dwz": "dwz", "objcopy": "binutils"}
# Line tables, where variables live, how frames unwind.
DROPPED = (
    *(".debug_line", ".debug_line_str", ".debug_loclists", ".debug_loc", ".debug_rnglists", ".debug_ranges"),
    *(".debug_frame", ".comment"),
)
# What is read of the image itself; the rest of it is in the dump, or nobody's.
_KEPT = (b".notes",)
_SHT_NOBITS, _SHF_ALLOC = 8, 2
_HEADER = "16sHHIQQQIHHHHHH"
_SECTION = "IIQQQQIIQQ"
_SIZE_OFFSET = 32
_UNIT_NAME = re.compile(r"DW_AT_name +: (?:\(.*?\): )?(.*)")
_UNIT_LENGTH = re.compile(r"Length: +(0x[0-9a-f]+|0)")
# What modules are linked by, and where padding before functions starts: a third of all symbols. On riscv64 the compiler's
# labels, which the linker needs to shorten code, are nearly all.
UNWANTED_SYMBOLS = (
    *("__kstrtab_*", "__kstrtabns_*", "__ksymtab_*", "__pfx_*", "__func__.*", "__already_done.*", "__msg.*"),
    *(".L*", "__efistub_.L*"),
    # Calls at boot and parameters on the command line; keys of locks; instances of BPF's interpreter.
    *("__initcall__*", "__setup_*", "__param_*", "__UNIQUE_ID_*", "__key.*", "__bpf_prog_run*", "_rs.*", "CSWTCH.*"),
    # System calls' names for 31-bit programs, and attributes of devices.
    *("__s390_sys_*", "dev_attr_*"),
)


def slim(vmlinux: Path, destination: Path, sources: Collection[str], tools: str = "") -> None:
    """Write what state commands ask of a vmlinux; every address in it stays.

    :param sources: the C files whose debug info is wanted.
    :param tools: the prefix of binutils that know the image's machine.
    """
    objcopy = f"{tools}objcopy"
    few, compact = (destination.with_name(f"{destination.name}.{suffix}") for suffix in ("few", "compact"))
    # Relocations, where vmlinux has kept them, hold on to symbols.
    subprocess.run([objcopy, "--remove-section=.debug_aranges", "--remove-section=.rela*", vmlinux, few], check=True)
    keep_units(few, sources)
    # Before the line tables go: it tells types of one name apart by the files that they are from. No limits, as the kernel's
    # debug info is larger than it takes by default.
    # It knows nothing of string offsets and address tables, which is how Clang writes DWARF 5: that stays as it is.
    by_table = any(name == b".debug_str_offsets" for name, *_ in _sections(bytearray(few.read_bytes())))
    if by_table:
        shutil.copyfile(few, compact)
    else:
        subprocess.run(["dwz", "-L", "none", "-l", "none", "--odr", few, "-o", compact], check=True)
    unwanted = [f"--strip-symbol={name}" for name in UNWANTED_SYMBOLS] + [f"--remove-section={name}" for name in DROPPED]
    subprocess.run([objcopy, "--wildcard", *unwanted, compact, destination], check=True)
    few.unlink()
    compact.unlink()
    blank_image(destination)
    if not by_table:
        blank_strings(destination)


def keep_units(path: Path, sources: Collection[str]) -> None:
    """Leave in .debug_info the compilation units of some sources. Without LTO none refers to another one's content."""
    command = ["readelf", "--wide", "--debug-dump=info", "--dwarf-depth=1", str(path)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout
    units = []
    for unit in listing.split("Compilation Unit @ offset ")[1:]:
        name = _UNIT_NAME.search(unit)
        length = _UNIT_LENGTH.search(unit)
        assert length is not None
        if name is not None and name[1] in sources:
            # The length doesn't count itself.
            units.append((int(unit.split(":", 1)[0], 16), int(length[1], 16) + 4))
    data = bytearray(path.read_bytes())
    for index, (section, _, _, _, offset, size) in enumerate(_sections(data)):
        if section == b".debug_info":
            whole = bytes(data[offset : offset + size])
            kept = b"".join(whole[start : start + length] for start, length in units)
            data[offset : offset + size] = kept.ljust(size, b"\0")
            order = _byte_order(data)
            entries = struct.unpack_from(order + _HEADER, data)[6]
            size_at = entries + index * struct.calcsize(order + _SECTION) + _SIZE_OFFSET
            struct.pack_into(f"{order}Q", data, size_at, len(kept))
        elif section == b".debug_loclists":
            # Zeros are lists without entries. dwz wants them to be there, and no entry that names a unit that has gone.
            data[offset : offset + size] = bytes(size)
    path.write_bytes(data)


def _byte_order(data: bytearray) -> str:
    """Return the byte order of an ELF file as struct has it."""
    return ">" if data[5] == 2 else "<"


def _sections(data: bytearray) -> Iterator[tuple[bytes, int, int, int, int, int]]:
    """Yield name, type, flags, address, offset and size of each section."""
    order = _byte_order(data)
    header = struct.unpack_from(order + _HEADER, data)
    start, number, names = header[6], header[12], header[13]
    layout = struct.Struct(order + _SECTION)
    entries = [layout.unpack_from(data, start + index * layout.size) for index in range(number)]
    strings = entries[names][4]
    for name, kind, flags, address, offset, size, *_ in entries:
        yield bytes(data[strings + name : data.index(b"\0", strings + name)]), kind, flags, address, offset, size


def blank_image(path: Path) -> None:
    """Turn the image's code and data into zeros, which compress to nothing.

    Without them, as `objcopy --only-keep-debug` leaves a file, drgn takes the addresses of per-CPU variables for the image's.
    """
    data = bytearray(path.read_bytes())
    for name, kind, flags, _, offset, size in _sections(data):
        if flags & _SHF_ALLOC and kind != _SHT_NOBITS and not name.startswith(_KEPT):
            data[offset : offset + size] = bytes(size)
    path.write_bytes(data)


def blank_strings(path: Path) -> None:
    """Turn the names that nothing refers to into zeros; what they are referred to by stays."""
    data = bytearray(path.read_bytes())
    places = {name: (offset, size) for name, _, _, _, offset, size in _sections(data)}
    offset, size = places[b".debug_str"]
    text = bytes(data[offset : offset + size])
    start, length = places[b".debug_info"]
    # A reference is four bytes anywhere. What only looks like one keeps a name too many.
    named: set[int] = set()
    for shift in range(4):
        words = length - shift & ~3
        named.update(struct.unpack_from(f"{_byte_order(data)}{words // 4}I", data, start + shift))
    kept = bytearray(size)
    for at in sorted(value for value in named if value < size):
        end = text.index(b"\0", at)
        kept[at:end] = text[at:end]
    data[offset : offset + size] = kept
    path.write_bytes(data)


def compress(path: Path, destination: Path) -> Path:
    """Write FILE.zst, as small as zstd can; matches may be as far apart as the file is long."""
    parameters = zstandard.ZstdCompressionParameters.from_level(22, window_log=27, enable_ldm=True, threads=-1)
    packed = zstandard.ZstdCompressor(compression_params=parameters).compress(path.read_bytes())
    final = destination / f"{path.name}.zst"
    temporary = final.with_name(f".{final.name}")
    temporary.write_bytes(packed)
    return temporary.rename(final)
