# SPDX-License-Identifier: LGPL-2.1-or-later
"""The blocks of a kernel's functions, with the edges between them and their lines: what native/blocks.c makes.

A block is code that runs from its first to its last instruction if it starts at all. docs/executed-lines.md has the
definitions, and what is done about each kind of code that is not what it looks like.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum, IntFlag
from typing import Any, Final, NamedTuple

from kcovdbg.compiled_module import column, load_native, zeros
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_386, EM_X86_64
from kcovdbg.elf.symbol_table import SymbolTable
from kcovdbg.errors import CapabilityError
from kcovdbg.symbols.arch import ARCHITECTURES
from kcovdbg.symbols.code_facts import CodeTables, FactReader, KernelTable, LoadedSection
from kcovdbg.symbols.compiled_reader import DwarfReader, core_count, describe_architecture
from kcovdbg.symbols.coverage_points import find_callbacks
from kcovdbg.symbols.table_rows import gather

_SHT_RELA: Final = 4
_SHF_ALLOC: Final = 2
# Static branches of CPU features jump there and back before the kernel replaces them.
_STUBS: Final = ".altinstr_aux"


class FunctionFlag(IntFlag):
    """As in native/blocks.h."""

    VOID = 1
    """Some of its edges are unknown: nothing is inferred from its blocks."""
    NO_RETURN = 2
    ENABLES = 4
    """System calls that enable KCOV go through it."""
    ENDS_TASK = 8
    INSTRUMENTED = 16


class BlockFlag(IntFlag):
    """As in native/blocks.h."""

    ENTRY = 1
    """Control may come from outside of the function, or from an unknown place."""
    EXIT = 2
    """It may leave the function for good."""
    FALLS = 4
    NO_LINES = 8
    """Its instructions are replaced when the kernel runs, or are never reached."""
    CALL = 16
    """It ends in a call."""
    INDIRECT = 32
    """It ends in a jump through a register or memory."""


class _Role(IntEnum):
    """As in native/blocks.h."""

    CALLBACK = 1
    RETURN = 2
    INDIRECT = 3
    BOUNDARY = 4
    NO_RETURN = 5


# Jumps there are returns; __s390_indirect_jump_r14 has the return address.
_RETURN_THUNK: Final = re.compile(r"\w*return_thunk$|__s390_indirect_jump_r14")
# Through a register, or by a trampoline that static calls change.
_INDIRECT_THUNK: Final = re.compile(r"__x86_indirect_\w*thunk_|__s390_indirect_jump_|__SCT__")
# In functions of KCOV recording begins or ends, but for one that only returns a number.
_BOUNDARY: Final = re.compile(r"kcov_(?!common_handle)")
# What a system call that enables or disables KCOV is inside of; functions that the compiler split have suffixes.
_ENABLING: Final = re.compile(
    r"(\w*_)?(do_|compat_)?sys_ioctl|(do_)?vfs_ioctl|ksys_ioctl|x64_sys_call|do_syscall_64|do_int80_\w+|invoke_syscall"
    r"|do_el0_svc\w*|el0_svc\w*|do_trap_ecall_u|__do_syscall|do_debugfs_ioctl|full_proxy_unlocked_ioctl"
)
# A task that ends there does not return to what called it.
_ENDING: Final = frozenset(("do_exit",))


class CodePart(NamedTuple):
    """A part of a function's code: each has one, and a second one if the compiler put its cold code elsewhere."""

    start: int
    end: int
    function: int
    """Number of the function."""


class BlockColumns(NamedTuple):
    """The blocks of all functions of an image."""

    base: int
    """Address that starts count from."""
    part_start: array[int]
    """Of each part, ascending."""
    part_size: array[int]
    part_function: array[int]
    code_end: array[int]
    """Where the bytes of each function's blocks end."""
    code: bytes
    files: tuple[str, ...]
    """The source files, by number."""


class _Functions(NamedTuple):
    parts: list[CodePart]
    names: list[list[bytes]]
    """Of the symbols of each function."""
    starts: array[int]
    """Of all symbols."""


def _list_functions(symbols: SymbolTable, texts: Sequence[LoadedSection]) -> _Functions:
    """Return the functions of an image: code with symbols that overlap is one, and so is a function with its cold part."""
    names, addresses, sizes = symbols.function_columns()
    areas = sorted((text.address, text.address + len(text.data)) for text in texts)
    area_starts = [start for start, _ in areas]
    spans = []
    for index, (start, size) in enumerate(zip(addresses, sizes, strict=True)):
        area = bisect_right(area_starts, start) - 1
        if area >= 0 and start < areas[area][1]:
            spans.append((start, min(start + size, areas[area][1]), index))
    spans.sort()
    joined: list[tuple[int, int, list[int]]] = []
    for start, end, index in spans:
        if joined and start < joined[-1][1]:
            first, before, members = joined[-1]
            members.append(index)
            joined[-1] = (first, max(before, end), members)
        else:
            joined.append((start, end, [index]))
    part_of = {index: number for number, (_, _, members) in enumerate(joined) for index in members}
    by_name: defaultdict[bytes, list[int]] = defaultdict(list)
    for index, name in enumerate(names):
        if index in part_of:
            by_name[name].append(index)
    # Functions of several files share names: their symbols are near that of the cold part.
    whole = list(range(len(joined)))
    for number, (_, _, members) in enumerate(joined):
        for index in members:
            name, cold, _ = names[index].partition(b".cold")
            owners = by_name.get(name) if cold else None
            if owners:
                owner = part_of[min(owners, key=lambda other: abs(other - index))]
                if owner != number:
                    whole[number] = owner
    numbers: dict[int, int] = {}
    parts = []
    names_of: list[list[bytes]] = []
    for number, (start, end, members) in enumerate(joined):
        owner = whole[number]
        while whole[owner] != owner and owner != number:
            owner = whole[owner]
        function = numbers.setdefault(owner, len(numbers))
        if function == len(names_of):
            names_of.append([])
        names_of[function] += [names[index] for index in members]
        parts.append(CodePart(start, end, function))
    return _Functions(parts, names_of, array("Q", sorted({start for start, _, _ in spans})))


def _flags_of(names: Iterable[bytes]) -> int:
    flags = 0
    for name in names:
        plain = name.decode("utf-8", "replace").partition(".")[0]
        if _ENABLING.fullmatch(plain):
            flags |= FunctionFlag.ENABLES
        if plain in _ENDING:
            flags |= FunctionFlag.ENDS_TASK
    return flags


class CodeImage(NamedTuple):
    """What blocks are made from: a linked image, or a module that was linked for this."""

    machine: int
    order: str
    """Byte order, in the notation of the struct module."""
    sections: Sequence[LoadedSection]
    symbols: SymbolTable
    roles: Mapping[int, int]
    """Of functions that calls and jumps lead to, by address."""
    tables: CodeTables
    pointers: Sequence[int]
    """Further addresses of code in data."""


def _roles_of(symbols: SymbolTable) -> dict[int, int]:
    roles: dict[int, int] = {}
    for symbol in symbols.find_containing("return_thunk", "_indirect_", "__SCT__", "kcov_"):
        for role, pattern in ((_Role.RETURN, _RETURN_THUNK), (_Role.INDIRECT, _INDIRECT_THUNK), (_Role.BOUNDARY, _BOUNDARY)):
            if symbol.section and symbol.is_function and pattern.match(symbol.name):
                roles[symbol.address] = role
                break
    roles.update(dict.fromkeys(find_callbacks(symbols), _Role.CALLBACK))
    return roles


def _table_between(elf: ElfFile, symbols: SymbolTable, start: str, end: str, section: str) -> KernelTable | None:
    """Return a table by the symbols around it, or by its section."""
    found = symbols.addresses_of((start, end))
    if start in found and end in found:
        return KernelTable(found[start], elf.read(found[start], found[end] - found[start]))
    named = elf.section(section)
    return None if named is None else KernelTable(named.address, elf.read_section(named))


def read_linked(elf: ElfFile, symbols: SymbolTable) -> CodeImage:
    """Return what the blocks of a linked image are made from.

    :param symbols: its symbols, where another file has them.
    :raises ElfError: when the file is damaged.
    """
    texts = {section.number for section in elf.text_sections()}
    sections = [
        LoadedSection(section.name, section.address, elf.map_section(section), section.number in texts)
        for section in elf.sections
        if section.flags & _SHF_ALLOC and section.size and (section.address or section.number in texts)
    ]
    sections = [section for section in sections if len(section.data)]
    tables = CodeTables(
        _table_between(elf, symbols, "__start___ex_table", "__stop___ex_table", "__ex_table"),
        _table_between(elf, symbols, "__start___bug_table", "__stop___bug_table", "__bug_table"),
        _table_between(elf, symbols, "__start___jump_table", "__stop___jump_table", "__jump_table"),
        _table_between(elf, symbols, "__alt_instructions", "__alt_instructions_end", ".altinstructions"),
    )
    # In images that can be relocated, pointers are addends.
    layout = f"{elf.header.byte_order}QQq"
    pointers = array("Q")
    for section in elf.sections:
        if section.type == _SHT_RELA and section.flags & _SHF_ALLOC:
            data = elf.read_section(section)
            pointers.extend(entry[2] % (1 << 64) for entry in _struct_rows(layout, data))
    machine, order = elf.header.machine, elf.header.byte_order
    return CodeImage(machine, order, sections, symbols, _roles_of(symbols), tables, pointers)


def _struct_rows(layout: str, data: bytes) -> Iterable[tuple[Any, ...]]:
    """Iterate over structures, without the incomplete last one."""
    size = struct.calcsize(layout)
    return struct.iter_unpack(layout, data[: len(data) // size * size])


class SourceRows(NamedTuple):
    """The line table of an image, by address."""

    addresses: array[int]
    files: array[int]
    """Numbers of files; 0xFFFFFFFF for none."""
    lines: array[int]
    names: tuple[str, ...]
    """Of the files."""


def read_rows(reader: DwarfReader) -> SourceRows:
    """Return the line tables of all units, ordered."""
    ffi, lib = load_native()
    numbers: dict[str, int] = {}
    addresses, files, lines = array("Q"), array("I"), array("I")
    sizes = [reader.unit_size(unit) for unit in range(len(reader))]
    parts: list[list[int]] = []
    step = sum(sizes) // (4 * core_count()) + 1
    filled = step
    for unit, size in enumerate(sizes):
        if filled >= step:
            parts.append([])
            filled = 0
        parts[-1].append(unit)
        filled += size
    with ThreadPoolExecutor(core_count()) as pool:
        # C code runs in parallel.
        for found in pool.map(reader.read_rows, parts):
            strings = found.strings
            own = array("I", [0xFFFFFFFF])
            own.extend(numbers.setdefault(text, len(numbers)) for text in strings)
            addresses += found.addresses
            files += gather(found.files, own, 0xFFFFFFFF)
            lines += found.lines
    count = len(addresses)
    given = ffi.new("struct kcovdbg_rows *")
    kept = [column("Q", addresses, count), column("I", files, count), column("I", lines, count)]
    given.addresses, given.files, given.lines, given.count = *kept, count
    ordered = zeros("Q", 2 * count), zeros("I", 2 * count), zeros("I", 2 * count)
    total = lib.kcovdbg_rows_order(given, *(column(of.typecode, of, 2 * count) for of in ordered))  # type: ignore[arg-type]
    if total > 2 * count:
        raise MemoryError
    for values in ordered:
        del values[total:]
    return SourceRows(*ordered, tuple(numbers))


class BlockMaker:
    """Makes the blocks of an image's functions.

    :param image: its code.
    :raises CapabilityError: when the machine is unknown, or a table of the kernel is.
    """

    def __init__(self, image: CodeImage) -> None:
        ffi, lib = load_native()
        if image.machine not in ARCHITECTURES or image.machine == EM_386:
            raise CapabilityError("branches of this machine are unknown")
        architecture = ffi.NULL if image.machine == EM_X86_64 else describe_architecture(image.machine)

        def decode(code: bytes, one: Any) -> None:
            if architecture == ffi.NULL:
                lib.kcovdbg_x86_decode(code, len(code), one)
            else:
                lib.kcovdbg_decode(architecture, code, len(code), one)

        texts = [section for section in image.sections if section.is_text and section.name != _STUBS]
        stubs = [section for section in image.sections if section.name == _STUBS]
        data = [section for section in image.sections if not section.is_text]
        self.functions = _list_functions(image.symbols, texts)
        facts = FactReader(image.sections, image.order, decode).read(image.tables)
        # The pointers that C has must remain valid.
        self._kept: list[Any] = [architecture]
        given = ffi.new("struct kcovdbg_image *")
        given.architecture = architecture
        for name, areas in (("text", texts), ("stub", stubs), ("data", data)):
            pointers = [ffi.from_buffer(area.data) for area in areas]
            rows = [(area.address, pointer, len(area.data)) for area, pointer in zip(areas, pointers, strict=True)]
            array_of = self._keep("struct kcovdbg_area[]", sorted(rows, key=lambda row: row[0]))
            self._kept += [pointers, areas]
            setattr(given, "data" if name == "data" else f"{name}s", array_of)
            setattr(given, f"{name}_count", len(rows))
        given.pointers = self._keep("uint64_t[]", image.pointers)
        given.pointer_count = len(image.pointers)
        given.starts = self._keep("uint64_t[]", self.functions.starts)
        given.start_count = len(self.functions.starts)
        given.parts = self._keep("struct kcovdbg_part[]", self.functions.parts)
        given.part_count, given.function_count = len(self.functions.parts), len(self.functions.names)
        given.function_flags = self._keep("uint8_t[]", bytes(map(_flags_of, self.functions.names)))
        given.facts = self._keep("struct kcovdbg_fact[]", facts)
        given.fact_count = len(facts)
        given.called = self._keep("struct kcovdbg_called[]", sorted(image.roles.items()))
        given.called_count = len(image.roles)
        self._kept.append(given)
        code = lib.kcovdbg_code_new(given)
        if code == ffi.NULL:
            raise MemoryError
        self._code = ffi.gc(code, lib.kcovdbg_code_free)

    def _keep(self, kind: str, values: Any) -> Any:
        ffi, _ = load_native()
        pointer = ffi.new(kind, values if isinstance(values, bytes) else list(values))
        self._kept.append(pointer)
        return pointer

    def encode(self, rows: SourceRows, first: int, end: int) -> tuple[bytes, array[int]]:
        """Return the blocks of functions, by number, and where the bytes of each of them end."""
        ffi, lib = load_native()
        count = len(rows.addresses)
        kept = [column("Q", rows.addresses, count), column("I", rows.files, count), column("I", rows.lines, count)]
        given = ffi.new("struct kcovdbg_rows *")
        given.addresses, given.files, given.lines, given.count = *kept, count
        out = ffi.new("struct kcovdbg_bytes_out *")
        ends = zeros("Q", end - first)
        try:
            if lib.kcovdbg_code_encode(self._code, given, first, end, out, column("Q", ends, end - first)):
                raise MemoryError
            return bytes(ffi.buffer(out.data, out.size)) if out.size else b"", ends
        finally:
            lib.kcovdbg_bytes_free(out)

    def make(self, rows: SourceRows, base: int) -> BlockColumns:
        """Return the blocks of all functions; all cores work.

        :param base: address that starts of parts count from.
        """
        parts = [part for part in self.functions.parts if 0 <= part.start - base < 1 << 32]
        total = len(self.functions.names)
        step = total // (4 * core_count()) + 1
        code, code_end = bytearray(), array("Q")
        with ThreadPoolExecutor(core_count()) as pool:
            spans = [(first, min(first + step, total)) for first in range(0, total, step)]
            for data, ends in pool.map(lambda span: self.encode(rows, *span), spans):
                code_end.extend(len(code) + end for end in ends)
                code += data
        return BlockColumns(
            base,
            array("I", [part.start - base for part in parts]),
            array("I", [part.end - part.start for part in parts]),
            array("I", [part.function for part in parts]),
            code_end,
            bytes(code),
            rows.names,
        )
