# SPDX-License-Identifier: LGPL-2.1-or-later
"""ORC, the tables by which x86-64 kernels unwind their stacks.

They are the sections ``.orc_unwind_ip`` and ``.orc_unwind`` of the image and of modules.
"""

from __future__ import annotations

import enum
import struct
from bisect import bisect_right
from collections import Counter
from functools import cached_property
from typing import Final, NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.section import SHF_EXECINSTR
from kcovdbg.errors import MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.target.lists import Links, follow_list
from kcovdbg.target.pointer import check_pointer, read_pointer
from kcovdbg.target.protocol import Target
from kcovdbg.target.struct_layout import BlockLayout

_ENTRY: Final = struct.Struct("<hhH")
_ADDRESS_SIZE: Final = 4
# Entries looked at for the format: most are of calls.
_SAMPLE: Final = 4096
_MAX_MODULES: Final = 1 << 12
_MAX_ENTRIES: Final = 1 << 24
_MODULE: Final = "struct module"


class OrcType(enum.IntEnum):
    """What an entry's frame is; ORC_TYPE_* of arch/x86/include/asm/orc_types.h."""

    UNDEFINED = 0
    END_OF_STACK = 1
    CALL = 2
    REGS = 3
    REGS_PARTIAL = 4


class OrcEntry(NamedTuple):
    """How to find the frame before one."""

    sp_offset: int
    bp_offset: int
    sp_register: int
    """ORC_REG_*."""
    bp_register: int
    type: OrcType
    is_signal: bool
    """Whether the frame before was interrupted: its address is not a return address."""


class _Format(enum.Enum):
    """The bits of an entry above its registers."""

    WITHOUT_SIGNAL = enum.auto()
    """Two bits of type, then the end of the stack."""
    WITH_END = enum.auto()
    """Since Linux kernel commit ffb1b4a41016 ("x86/unwind/orc: Add 'signal' field to ORC metadata") (in v6.3)."""
    WITH_TYPES = enum.auto()
    """Since Linux kernel commit fb799447ae29 ("x86,objtool: Split UNWIND_HINT_EMPTY in two") (in v6.4)."""


class _Table:
    """Sorted addresses of code, each with an entry for what follows it.

    :param start: the address that the table of addresses has in the kernel.
    :param addresses: each relative to its own place.
    """

    def __init__(self, start: int, addresses: bytes | memoryview, entries: bytes | memoryview) -> None:
        self._start = start
        self._count = min(len(addresses) // _ADDRESS_SIZE, len(entries) // _ENTRY.size)
        self._addresses = struct.Struct("<i")
        self._data = addresses
        self._entries = entries

    def is_about(self, start: int, end: int) -> bool:
        """Return whether its first and last entry are in a range of code. Zeros would be about the table itself."""
        if not self._count:
            return False
        first, last = self._address(0), self._address(self._count - 1)
        return first != self._start and start <= first <= last <= end

    def _address(self, index: int) -> int:
        place = index * _ADDRESS_SIZE
        return self._start + place + int(self._addresses.unpack_from(self._data, place)[0])

    @cached_property
    def format(self) -> _Format:
        """How bits are laid out: the tables do not say, and releases tell little of stable kernels."""
        count = min(self._count, _SAMPLE)
        step = max(self._count // count, 1) if count else 1
        bits = Counter(self._bits(index * step) for index in range(count))
        types = Counter[int]()
        for value, number in bits.items():
            types[value & 7] += number
        if types and types.most_common(1)[0][0] == OrcType.CALL:
            return _Format.WITH_TYPES
        return _Format.WITH_END if any(value & 8 for value in bits) else _Format.WITHOUT_SIGNAL

    def _bits(self, index: int) -> int:
        return int(_ENTRY.unpack_from(self._entries, index * _ENTRY.size)[2]) >> 8

    def find(self, address: int) -> OrcEntry | None:
        """Return the entry of an instruction, None when there is none."""
        # Of several with one address the last one counts: those before end a section.
        index = bisect_right(range(self._count), address, key=self._address) - 1
        if index < 0:
            return None
        sp_offset, bp_offset, word = _ENTRY.unpack_from(self._entries, index * _ENTRY.size)
        bits = word >> 8
        if self.format is _Format.WITH_TYPES:
            number, signal = bits & 7, bits >> 3 & 1
            if number > OrcType.REGS_PARTIAL:
                return None
            kind = OrcType(number)
        else:
            has_end = self.format is _Format.WITH_END
            is_end = bits >> (3 if has_end else 2) & 1
            # Before, what could not be unwound was UNDEFINED as the base of the stack pointer.
            kind = OrcType.END_OF_STACK if is_end else OrcType(min((bits & 3) + OrcType.CALL, OrcType.REGS_PARTIAL))
            if not word & 15:
                kind = OrcType.END_OF_STACK if is_end else OrcType.UNDEFINED
            signal = bits >> 2 & 1 if has_end else kind in (OrcType.REGS, OrcType.REGS_PARTIAL)
        return OrcEntry(sp_offset, bp_offset, word & 15, word >> 4 & 15, kind, bool(signal))


class OrcTables:
    """The tables of a kernel and its modules.

    :param target: the kernel.
    :param image: its image.
    :raises MissingSymbolError: when the kernel has none.
    :raises ReadError: when only the kernel's memory has them, and it cannot be read.
    """

    def __init__(self, target: Target, image: ElfFile) -> None:
        self._target = target
        addresses, entries = image.section(".orc_unwind_ip"), image.section(".orc_unwind")
        if target.machine != "x86_64" or addresses is None or entries is None or not addresses.size:
            raise MissingSymbolError("the kernel has no ORC tables")
        code = [section for section in image.sections if section.flags & SHF_EXECINSTR]
        self._start = min((section.address for section in code), default=0) + target.kaslr_offset
        self._end = max((section.address + section.size for section in code), default=0) + target.kaslr_offset
        start = addresses.address + target.kaslr_offset
        table = _Table(start, image.map_section(addresses), image.map_section(entries))
        if not table.is_about(self._start, self._end):
            # A file of debug info alone has not their contents, or zeros.
            spans = ((section.address + target.kaslr_offset, section.size) for section in (addresses, entries))
            table = _Table(start, *(target.read(*span) for span in spans))
        if not table.is_about(self._start, self._end):
            raise MissingSymbolError("the ORC tables of the kernel are damaged")
        self._image = table

    def find(self, address: int) -> OrcEntry | None:
        """Return the entry of an instruction, None when there is none.

        :raises ReadError: when the tables of its module cannot be read.
        """
        if self._start <= address < self._end:
            return self._image.find(address)
        for start, end, table in self._modules:
            if start <= address < end:
                return table.find(address)
        return None

    @cached_property
    def _modules(self) -> list[tuple[int, int, _Table]]:
        """The code of each module that can be read, and its table."""
        found: list[tuple[int, int, _Table]] = []
        try:
            head = self._target.symbol("modules").address
            layout = BlockLayout(
                self._target,
                _MODULE,
                {
                    "next": ("list.next",),
                    "prev": ("list.prev",),
                    # Since Linux kernel commit ac3b43283923 ("module: replace module_layout with module_memory") (in v6.4).
                    "memory": ("mem",),
                    "base": ("core_layout.base",),
                    "size": ("core_layout.text_size",),
                    "count": ("arch.num_orcs",),
                    "addresses": ("arch.orc_unwind_ip",),
                    "entries": ("arch.orc_unwind",),
                },
            )
            for name in ("next", "prev", "count", "addresses", "entries"):
                layout.offset(name)
            memory = None
            if layout.has("memory"):
                memory = BlockLayout(self._target, "struct module_memory", {"base": ("base",), "size": ("size",)})
        except (MissingSymbolError, MissingTypeError):
            return found

        def read(link: int) -> tuple[tuple[int, int, int, int, int], Links]:
            module = link - layout.offset("next")
            check_pointer(self._target, module, _MODULE)
            following, before, _, base, size, count, addresses, entries = layout.read(self._target, module)
            if memory is not None:
                # Code is the first kind of memory.
                base, size = memory.read(self._target, module + layout.offset("memory"))
            return (base or 0, size or 0, count, addresses, entries), Links(following, before)

        try:
            ends = Links(read_pointer(self._target, head), read_pointer(self._target, head + self._target.word_size))
        except ReadError:
            return found
        for base, size, count, addresses, entries in follow_list(head, ends, read, _MAX_MODULES, moving=self._target.live):
            try:
                if not 0 < count <= _MAX_ENTRIES:
                    continue
                check_pointer(self._target, addresses, ".orc_unwind_ip", 1)
                check_pointer(self._target, entries, ".orc_unwind", 1)
                data = self._target.read(addresses, count * _ADDRESS_SIZE), self._target.read(entries, count * _ENTRY.size)
            except ReadError:
                continue
            found.append((base, base + size, _Table(addresses, *data)))
        return found
