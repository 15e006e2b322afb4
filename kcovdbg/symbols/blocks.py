# SPDX-License-Identifier: LGPL-2.1-or-later
"""The blocks of a kernel's functions, with the edges between them and their lines, as
native/blocks.c makes them.

A block is code that runs from its first to its last instruction if it starts at all.
docs/executed-lines.md has the definitions, and explains how each kind of code is handled that is
not what it looks like.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, IntFlag
from itertools import count
from operator import add, attrgetter, sub
from typing import Any, Final, NamedTuple

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.compiled_module import column, load_native, make_room, zeros
from kcovdbg.elf.file import ElfFile, read_relocation_table
from kcovdbg.elf.header import EM_386, EM_X86_64, SHF_ALLOC, SHT_DYNSYM, SHT_RELA
from kcovdbg.elf.placed_module import PlacedModule
from kcovdbg.elf.symbol_table import FunctionColumns, SymbolTable
from kcovdbg.errors import CapabilityError
from kcovdbg.symbols.arch import ARCHITECTURES
from kcovdbg.symbols.branches import core_count, describe_architecture, map_on_cores
from kcovdbg.symbols.code_facts import (
    BUGS,
    TABLES,
    CodeTables,
    FactReader,
    KernelTable,
    LoadedSection,
    TableKind,
    choose_members,
)
from kcovdbg.symbols.coverage_points import find_callbacks
from kcovdbg.symbols.dwarf_reader import DwarfReader, FoundRows

NO_FILE: Final = 0xFFFFFFFF
"""The file of a row at the end of a sequence."""

# Room for line tables whose rows do not ascend.
_CUT_SEQUENCES: Final = 1 << 12
# Static branches of CPU features jump there and back before the kernel replaces them.
_STUBS: Final = ".altinstr_aux"


class FunctionFlag(IntFlag):
    """As in native/blocks.h."""

    VOID = 1
    """Some of its edges are unknown: nothing is inferred from its blocks."""
    NO_RETURN = 2
    """It never returns."""
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
    """Its instructions are never reached, or the kernel replaces them: it is unknown which are
    executed.
    """
    CALL = 16
    """It ends in a call."""
    INDIRECT = 32
    """It ends in a jump through a register or memory."""
    STOPPED = 64
    """The task has stopped at its end, as only a trace can show: no table has this flag."""


class _Role(IntEnum):
    """As in native/blocks.h."""

    CALLBACK = 1
    RETURN = 2
    INDIRECT = 3
    BOUNDARY = 4
    NO_RETURN = 5


# A jump to one of these is a return. %r14 of s390 has the return address.
_RETURN_THUNK: Final = re.compile(r"\w*return_thunk$|__s390_indirect_jump_r14")
# A jump to one of these leads through a register, or by a trampoline that static calls change.
_INDIRECT_THUNK: Final = re.compile(r"__x86_indirect_\w*thunk_|__s390_indirect_jump_|__SCT__")
# Recording begins or ends in functions of KCOV, except for one that only returns a number.
_BOUNDARY: Final = re.compile(r"kcov_(?!common_handle)")
# The functions that a system call is in while it enables or disables KCOV; functions that the
# compiler split have suffixes.
_ENABLING: Final = re.compile(
    r"(\w*_)?(do_|compat_)?sys_ioctl|(do_)?vfs_ioctl|ksys_ioctl|x64_sys_call|do_syscall_64"
    r"|do_int80_\w+|invoke_syscall"
    r"|do_el0_svc\w*|el0_svc\w*|do_trap_ecall_u|__do_syscall|do_debugfs_ioctl"
    r"|full_proxy_unlocked_ioctl"
)
_ENABLING_PARTS: Final = (
    "ioctl",
    "syscall",
    "el0_svc",
    "x64_sys_call",
    "do_int80",
    "do_trap_ecall",
)
# The symbols of bytes in front of a function: room for other code, and the hash of the function's
# type, which is data unless the kernel replaces it. Line tables give them a line.
_PREFIXES: Final = ("__pfx_", "__cfi_")
_FTRACE_START: Final = "__start_mcount_loc"
_FTRACE_END: Final = "__stop_mcount_loc"
_FTRACE_CALLS: Final = "__mcount_loc"
# Functions of the kernel that modules call and that never return: tools/objtool/noreturns.h.
_NEVER_RETURNING: Final = frozenset(
    (
        "__fortify_panic",
        "__kunit_abort",
        "__module_put_and_kthread_exit",
        "__stack_chk_fail",
        "do_exit",
        "do_group_exit",
        "fortify_panic",
        "kthread_complete_and_exit",
        "kthread_exit",
        "kunit_try_catch_throw",
        "make_task_dead",
        "nmi_panic",
        "panic",
        "usercopy_abort",
        "vpanic",
    )
)
# A task ends in these, and does not return to their caller.
_ENDING: Final = frozenset(("do_exit",))


class BlockColumns(NamedTuple):
    """The blocks of all functions of an image."""

    base: int
    """The address from which starts count."""
    part_start: Sequence[int]
    """The start of each part, ascending; 32-bit numbers."""
    part_size: Sequence[int]
    """The size of each part in bytes; 32-bit numbers."""
    part_function: Sequence[int]
    """The number of the function that has each part; 32-bit numbers."""
    code_end: Sequence[int]
    """The end in ``code`` of each function's blocks; 64-bit numbers."""
    code: bytes | memoryview
    files: Sequence[str]
    """The source files, by number."""


class CodeParts(NamedTuple):
    """The parts of all functions, ascending, as columns."""

    starts: array[int]
    ends: array[int]
    functions: array[int]
    """The function of each, by number."""
    symbols: array[int]
    """Addresses of all symbols of functions, ascending."""

    @property
    def function_count(self) -> int:
        """Number of functions."""
        return max(self.functions, default=-1) + 1

    def function_at(self, address: int) -> int | None:
        """Return the number of the function that contains an address, None if none does."""
        index = bisect_right(self.starts, address) - 1
        return self.functions[index] if index >= 0 and address < self.ends[index] else None


def _list_parts(symbols: SymbolTable, texts: Sequence[LoadedSection]) -> CodeParts:
    """Return the parts of all functions. Code whose symbols overlap is one function, and so is a
    function with its cold part. Bytes in front of functions belong to none.

    :param texts: ascending.
    """
    columns = symbols.function_columns
    names, addresses, sizes, _ = columns
    starts, ends, known = array("Q"), array("Q"), array("Q")
    for text in texts:
        limit = text.address + len(text.data)
        reached = text.address
        found = [
            index
            for index in columns.find_between(text.address, limit)
            if sizes[index] and not names[index].startswith(_PREFIXES)
        ]
        own_starts = [addresses[index] for index in found]
        own_ends = map(add, own_starts, [sizes[index] for index in found])
        for start, end in zip(own_starts, own_ends, strict=True):
            if start >= reached:
                reached = end
                starts.append(start)
                ends.append(end)
            elif end > reached:
                reached = ends[-1] = end
        if reached > limit:
            ends[-1] = limit
        known.extend(dict.fromkeys(own_starts))
    owners = list(range(len(starts)))
    for part, owner in _find_owners(columns, starts).items():
        owners[part] = owner
    numbers = dict(zip(dict.fromkeys(owners), count()))
    functions = array("I", map(numbers.__getitem__, owners))
    return CodeParts(starts, ends, functions, known)


def _find_owners(columns: FunctionColumns, starts: Sequence[int]) -> dict[int, int]:
    """Return the part of the function that each cold part belongs to."""
    found = {}
    for cold, owner in columns.find_whole().items():
        part = bisect_right(starts, columns.addresses[cold]) - 1
        if part >= 0:
            found[part] = bisect_right(starts, columns.addresses[owner]) - 1
    # Cold parts have none themselves.
    return {part: owner for part, owner in found.items() if owner >= 0 and owner not in found}


def _find_flags(image: CodeImage, parts: CodeParts) -> bytes:
    """Return the flags of each function, by its name and by debug info."""
    flags = bytearray(parts.function_count)
    for address in image.without_return:
        number = parts.function_at(address)
        if number is not None:
            flags[number] |= FunctionFlag.NO_RETURN
    for symbol in image.symbols.find_containing(*_ENABLING_PARTS, *_ENDING):
        number = parts.function_at(symbol.address) if symbol.is_function else None
        plain = symbol.name.partition(".")[0]
        if number is not None and _ENABLING.fullmatch(plain):
            flags[number] |= FunctionFlag.ENABLES
        if number is not None and plain in _ENDING:
            flags[number] |= FunctionFlag.ENDS_TASK
    return bytes(flags)


class CodeImage(NamedTuple):
    """The input for blocks: a linked image, or a module as if it were one."""

    machine: int
    order: str
    """Byte order, in the notation of the struct module."""
    sections: Sequence[LoadedSection]
    symbols: SymbolTable
    roles: Mapping[int, int]
    """Roles of functions that calls and jumps lead to, by address."""
    tables: CodeTables
    pointers: Sequence[int]
    """Further addresses of code in data."""
    pointer_places: Sequence[int]
    """The place of each pointer."""
    without_return: Sequence[int] = ()
    """Addresses of the functions that never return, by debug info."""


def _roles_of(symbols: SymbolTable) -> dict[int, int]:
    roles: dict[int, int] = {}
    for symbol in symbols.find_containing("return_thunk", "_indirect_", "__SCT__", "kcov_"):
        for role, pattern in (
            (_Role.RETURN, _RETURN_THUNK),
            (_Role.INDIRECT, _INDIRECT_THUNK),
            (_Role.BOUNDARY, _BOUNDARY),
        ):
            # Thunks are no functions by their types.
            if symbol.section and pattern.match(symbol.name):
                roles[symbol.address] = role
                break
    roles.update(dict.fromkeys(find_callbacks(symbols), _Role.CALLBACK))
    return roles


def _leave_out(sections: Iterable[LoadedSection], start: int, end: int) -> list[LoadedSection]:
    """Return sections without some addresses."""
    kept = []
    for section in sections:
        first = max(start - section.address, 0)
        last = max(end - section.address, 0)
        for offset, data in ((0, section.data[:first]), (last, section.data[last:])):
            if len(data):
                kept.append(section._replace(address=section.address + offset, data=data))
    return kept


def _read_table(
    elf: ElfFile, symbols: SymbolTable, reader: DwarfReader | None, kind: TableKind
) -> KernelTable | None:
    """Return a table with the layout of its entries by debug info; None if the image has no such
    table.
    """
    found = symbols.addresses_of(kind.bounds)
    if len(found) == len(kind.bounds):
        start, end = map(found.__getitem__, kind.bounds)
        data = elf.read(start, end - start)
    else:
        section = elf.section(kind.name)
        if section is None:
            return None
        start, data = section.address, elf.read_section(section)
    # If debug info lacks the structure, all units are searched.
    structure = None
    if reader is not None and kind.structure and data:
        structure = reader.structure(kind.structure)
    layout = None if structure is None else choose_members(kind, structure)
    return KernelTable(start, data, layout)


def read_linked(elf: ElfFile, symbols: SymbolTable, reader: DwarfReader | None = None) -> CodeImage:
    """Return the input for the blocks of a linked image.

    :param symbols: its symbols, which another file may have.
    :param reader: the reader of its debug info; None without debug info.
    :raises ElfError: when the file is damaged.
    """
    # The calls of ftrace in functions, often behind the first instruction: nothing jumps there.
    found = symbols.addresses_of((_FTRACE_START, _FTRACE_END))
    ftrace = found.get(_FTRACE_START, 0), found.get(_FTRACE_END, 0)
    calls = elf.section(_FTRACE_CALLS)
    if calls is not None:
        # A module has their addresses in a section.
        ftrace = calls.address, calls.address + calls.size
    texts = {section.number for section in elf.text_sections()}
    sections: list[LoadedSection] = []
    pointers, places = array("Q"), array("Q")
    for section in elf.sections:
        if not section.flags & SHF_ALLOC or section.type == SHT_DYNSYM:
            continue
        if section.type == SHT_RELA:
            # In images that can be relocated, pointers are addends.
            for entry in read_relocation_table(elf, section):
                if not ftrace[0] <= entry.offset < ftrace[1]:
                    pointers.append(entry.addend & WORD_MASK)
                    places.append(entry.offset)
            continue
        is_text = section.number in texts
        if section.size and (section.address or is_text):
            data = elf.map_section(section)
            sections.append(LoadedSection(section.name, section.address, data, is_text))
    tables: dict[str, KernelTable] = {}
    for kind in TABLES:
        table = _read_table(elf, symbols, reader, kind)
        if table is not None:
            tables[kind.name] = table
    sections = _leave_out(sections, *ftrace)
    bugs = tables.get(BUGS.name)
    if bugs is not None:
        # On x86 since v6.19, the code of a warning names its entry, and an entry begins with an
        # offset to code, as tables of switches do.
        sections = _leave_out(sections, bugs.address, bugs.address + len(bugs.data))
    roles = _roles_of(symbols)
    if isinstance(elf, PlacedModule):
        for name in _NEVER_RETURNING & elf.externals.keys():
            roles[elf.externals[name]] = _Role.NO_RETURN
    return CodeImage(
        elf.header.machine,
        elf.header.byte_order,
        sections,
        symbols,
        roles,
        tables,
        pointers,
        places,
        [] if reader is None else reader.functions_without_return(),
    )


class SourceRows(NamedTuple):
    """The line table of an image, by address."""

    columns: Any
    """C's structure."""
    kept: Any
    """The arrays that it points at."""
    names: tuple[str, ...]
    """The names of the files."""


def order_rows(parts: Sequence[FoundRows]) -> SourceRows:
    """Return the rows of all units, ordered."""
    numbers: dict[str, int] = {}
    for found in parts:
        for text in found.strings:
            numbers.setdefault(text, len(numbers))
    ffi, lib = load_native()
    given = ffi.new("struct kcovdbg_unit_rows[]", len(parts))
    kept = []
    for one, found in zip(given, parts, strict=True):
        columns = found.columns
        own = array("I", [NO_FILE])
        # Each file gets one name: include/a.h, by way of a unit's "../include", is ./include/a.h in
        # most units.
        own.extend(numbers.get(f"./{text}", numbers[text]) for text in found.strings)
        kept.append(column("I", own))
        one.addresses, one.files, one.lines = columns.addresses, columns.files, columns.lines
        one.count, one.numbers, one.number_count = columns.count, kept[-1], len(own)
        one.inlined, one.inlined_count = columns.inlined, columns.inlined_count
    room = sum(found.columns.count for found in parts) + _CUT_SEQUENCES
    columns = make_room("Q", room), make_room("I", room), make_room("I", room)
    total = lib.kcovdbg_rows_order(given, len(parts), *columns, room)
    if total > room:
        raise MemoryError
    rows = ffi.new("struct kcovdbg_rows *")
    rows.addresses, rows.files, rows.lines = columns
    rows.count = total
    room = sum(found.columns.inlined_count for found in parts)
    inlined = ffi.new("struct kcovdbg_inlined[]", room)
    rows.inlined = inlined
    total = lib.kcovdbg_inlined_order(given, len(parts), inlined)
    if total > room:
        raise MemoryError
    rows.inlined_count = total
    return SourceRows(rows, (*columns, inlined), tuple(numbers))


class NativeImage:
    """An image for C code: its code and data, and the parts of its functions.

    :param image: the image.
    :param externals: addresses behind its code that stand for functions of other files, ascending.
        These functions have the numbers after the image's own functions.
    :raises CapabilityError: when the machine is unknown.
    """

    def __init__(self, image: CodeImage, externals: Sequence[int] = ()) -> None:
        ffi, _ = load_native()
        if image.machine not in ARCHITECTURES or image.machine == EM_386:
            raise CapabilityError("branches of this machine are unknown")
        architecture = (
            ffi.NULL if image.machine == EM_X86_64 else describe_architecture(image.machine)
        )
        areas: dict[str, list[LoadedSection]] = {"texts": [], "stubs": [], "data": []}
        for section in sorted(image.sections, key=attrgetter("address")):
            name = "data"
            if section.name == _STUBS:
                name = "stubs"
            elif section.is_text:
                name = "texts"
            areas[name].append(section)
        self.parts = _list_parts(image.symbols, areas["texts"])
        for number, address in enumerate(externals, self.parts.function_count):
            self.parts.starts.append(address)
            self.parts.ends.append(address + 1)
            self.parts.functions.append(number)
        # The pointers that C has must remain valid.
        self._kept: list[Any] = [architecture]
        given = self.given = ffi.new("struct kcovdbg_image *")
        given.architecture = architecture
        for name, sections in areas.items():
            rows: list[tuple[int, Any, int]] = []
            for section in sections:
                pointer = ffi.from_buffer(section.data)
                self._kept.append(pointer)
                rows.append((section.address, pointer, len(section.data)))
            setattr(given, name, self.keep("struct kcovdbg_area[]", rows))
            setattr(given, f"{name.removesuffix('s')}_count", len(rows))
        given.pointers = self.keep("uint64_t[]", image.pointers)
        given.pointer_places = self.keep("uint64_t[]", image.pointer_places)
        given.pointer_count = len(image.pointers)
        parts = self.parts
        given.starts = self._keep_array("uint64_t[]", parts.symbols)
        given.start_count = len(parts.symbols)
        # An array with three words for each part.
        words = zeros("Q", 3 * len(parts.starts))
        words[0::3], words[1::3] = parts.starts, parts.ends
        words[2::3] = array("Q", parts.functions)
        given.parts = self._keep_array("struct kcovdbg_part[]", words)
        given.part_count, given.function_count = len(parts.starts), parts.function_count
        given.called = self.keep("struct kcovdbg_called[]", sorted(image.roles.items()))
        given.called_count = len(image.roles)

    def _keep_array(self, kind: str, values: array[int]) -> Any:
        ffi, _ = load_native()
        pointer = ffi.from_buffer(kind, values)
        self._kept += [values, pointer]
        return pointer

    def keep(self, kind: str, values: Any) -> Any:
        """Return an array of C that is kept as long as the image."""
        ffi, _ = load_native()
        pointer = ffi.new(kind, values if isinstance(values, bytes) else list(values))
        self._kept.append(pointer)
        return pointer


class BlockMaker:
    """Makes the blocks of an image's functions.

    :param image: the image.
    :raises CapabilityError: when the machine, or a table of the kernel, is unknown.
    """

    def __init__(self, image: CodeImage) -> None:
        ffi, lib = load_native()
        self._image = NativeImage(image)
        self._parts = self._image.parts
        given = self._image.given

        def decode(code: bytes, one: Any) -> None:
            if given.architecture == ffi.NULL:
                lib.kcovdbg_x86_decode(code, len(code), one)
            else:
                lib.kcovdbg_decode(given.architecture, code, len(code), one)

        facts = FactReader(image.sections, image.order, decode).read(image.tables)
        given.function_flags = self._image.keep("uint8_t[]", _find_flags(image, self._parts))
        given.facts = self._image.keep("struct kcovdbg_fact[]", facts)
        given.fact_count = len(facts)
        code = lib.kcovdbg_code_new(given)
        if code == ffi.NULL:
            raise MemoryError
        self._code = ffi.gc(code, lib.kcovdbg_code_free)

    def encode(self, rows: SourceRows, first: int, end: int) -> tuple[bytes, array[int]]:
        """Return the blocks of some functions, and the end of each function's blocks.

        :param first: number of the first function.
        :param end: the number after the last function.
        """
        ffi, lib = load_native()
        out = ffi.new("struct kcovdbg_bytes_out *")
        ends = zeros("Q", end - first)
        try:
            if lib.kcovdbg_code_encode(
                self._code, rows.columns, first, end, out, column("Q", ends, end - first)
            ):
                raise MemoryError
            return bytes(ffi.buffer(out.data, out.size)) if out.size else b"", ends
        finally:
            lib.kcovdbg_bytes_free(out)

    def make(self, rows: SourceRows, base: int) -> BlockColumns:
        """Return the blocks of all functions; all cores work.

        :param base: the address from which starts of parts count.
        """
        parts = self._parts
        total = parts.function_count
        step = total // (4 * core_count()) + 1
        code, code_end = bytearray(), array("Q")
        spans = [(first, min(first + step, total)) for first in range(0, total, step)]
        for data, ends in map_on_cores(lambda span: self.encode(rows, *span), spans):
            code_end.extend(len(code) + end for end in ends)
            code += data
        return BlockColumns(
            base,
            array("I", [start - base for start in parts.starts]),
            array("I", map(sub, parts.ends, parts.starts)),
            parts.functions,
            code_end,
            bytes(code),
            rows.names,
        )
