# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel in memory: types, symbols and bytes as plain data, for tests of everything above a
target.

It fails as the others do, with :class:`ReadError`, :class:`MissingTypeError` and
:class:`MissingSymbolError`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kcovdbg.errors import CapabilityError, MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.model.memory import StackFrame, VmallocArea
from kcovdbg.target.connection import MachineState
from kcovdbg.target.target import Member, PageRange, SlabObject, SourceLines, Symbol, Target, Vma
from kcovdbg.target.watchpoints import Watchpoints

Key = TypeVar("Key")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Structure:
    """A ``struct`` or ``union``.

    :param size: in bytes.
    :param members: by name; a member whose type is a :class:`Structure` of the target is looked
        into by dotted paths.
    :param anonymous: (offset in bytes, type name) of each member without a name.
    """

    size: int
    members: Mapping[str, Member]
    anonymous: Sequence[tuple[int, str]] = ()


@dataclass
class MemoryTarget(Target):
    """A :class:`~kcovdbg.target.Target` with all answers given in advance.

    Everything may be changed between two reads, as a live kernel's memory does.
    """

    types: dict[str, Structure] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Of types that are neither structures nor enumerations."""
    symbols: dict[str, Symbol] = field(default_factory=dict)
    variables: dict[str, int | None] = field(default_factory=dict)
    """The array length of variables."""
    per_cpu_addresses: dict[str, dict[int, int]] = field(default_factory=dict)
    """For each per-CPU variable the address of each CPU's instance."""
    segments: dict[int, bytearray] = field(default_factory=dict)
    """Memory, by start address.

    A read that goes from one into the next works as long as they touch.
    """
    holes: list[tuple[int, int]] = field(default_factory=list)
    """Spans (start, end) inside of segments that can't be read."""
    cpu_numbers: Sequence[int] = (0,)
    pages: Sequence[PageRange] = ()
    """The array of ``struct page``."""
    page_size: int = 4096
    name: str = "memory"
    live: bool = False
    machine_state: MachineState | None = None
    word_size: int = 8
    big_endian: bool = False
    kernel_range: tuple[int, int] = (0xFF00_0000_0000_0000, 0xFFFF_FFFF_FFFF_FFFF)
    pointer_tag: int = 0
    kaslr_offset: int = 0
    release: str = "6.12.0"
    machine: str = "x86_64"
    build_id: str | None = None
    memory_problem: str | None = None
    notes: Sequence[str] = ()
    damage: Sequence[str] = ()
    lines: SourceLines | None = None
    vmas: MemoryVmas | None = None
    vmalloc: MemoryVmalloc | None = None
    slab: MemorySlab | None = None
    stacks: MemoryStacks | None = None
    watchpoints: Watchpoints | None = None
    reads: list[tuple[int, int]] = field(default_factory=list)
    """Address and size of each read, failed reads included."""
    _starts: list[int] = field(default_factory=list, init=False, repr=False)
    """The keys of ``segments``, sorted."""
    _newest: int | None = field(default=None, init=False, repr=False)

    def has_name(self, name: str) -> bool:
        return name in self.symbols or any(
            name in enumerators for enumerators in self.enums.values()
        )

    def state(self) -> MachineState | None:
        return self.machine_state

    def is_gone(self) -> bool:
        return self.machine_state is MachineState.GONE

    def read(self, address: int, size: int) -> bytes:
        """Read from the segments.

        :raises ReadError: when any of it is in no segment, or in a hole.
        """
        self.reads.append((address, size))
        for start, end in self.holes:
            if start < address + size and address < end:
                raise ReadError(f"can't read {size} bytes at {address:#x}", max(start, address))
        data = bytearray()
        starts = self._sorted_starts()
        while True:
            position = address + len(data)
            index = bisect.bisect_right(starts, position) - 1
            offset = position - starts[index] if index >= 0 else 0
            if index < 0 or offset >= len(self.segments[starts[index]]):
                if len(data) == size:
                    return bytes(data)
                raise ReadError(f"can't read {size} bytes at {address:#x}", position)
            data += self.segments[starts[index]][offset : offset + size - len(data)]
            if len(data) == size:
                return bytes(data)

    def _sorted_starts(self) -> list[int]:
        """Return the sorted starts of the segments; a new or missing segment changes their number
        or the newest key.
        """
        newest = next(reversed(self.segments), None)
        if newest != self._newest or len(self._starts) != len(self.segments):
            self._starts, self._newest = sorted(self.segments), newest
        return self._starts

    def write(self, address: int, data: bytes) -> None:
        """Change memory; outside of all segments, a new segment is made."""
        for start, segment in self.segments.items():
            if start <= address < start + len(segment):
                if address + len(data) > start + len(segment):
                    raise ValueError(f"{address:#x} and {len(data)} bytes go beyond their segment")
                segment[address - start : address - start + len(data)] = data
                return
        self.segments[address] = bytearray(data)

    def put(self, address: int, type_name: str, values: Mapping[str, int | bytes]) -> None:
        """Write members of a structure; the structure becomes a segment of zeros first where there
        is none.

        :param values: by path; integers are encoded as the member's type says.
        """
        if not any(
            start <= address < start + len(segment) for start, segment in self.segments.items()
        ):
            self.segments[address] = bytearray(self.type_size(type_name))
        order = "big" if self.big_endian else "little"
        for path, value in values.items():
            member = self.member(type_name, path)
            if isinstance(value, bytes):
                self.write(address + member.offset, value.ljust(member.size, b"\0")[: member.size])
                continue
            if member.bit_size is not None:
                mask = (1 << member.bit_size) - 1
                shift = member.bit_offset or 0
                unit = int.from_bytes(self.read(address + member.offset, member.size), order)  # type: ignore[arg-type]
                value = unit & ~(mask << shift) | (value & mask) << shift
            encoded = (value & (1 << 8 * member.size) - 1).to_bytes(member.size, order)  # type: ignore[arg-type]
            self.write(address + member.offset, encoded)

    def symbol(self, name: str) -> Symbol:
        return _find_symbol(self.symbols, name, "symbol")

    def symbol_name(self, address: int) -> str | None:
        for symbol in self.symbols.values():
            if symbol.address <= address < symbol.address + max(symbol.size, 1):
                return symbol.name
        return None

    def type_size(self, type_name: str) -> int:
        if type_name in self.types:
            return self.types[type_name].size
        if type_name in self.sizes:
            return self.sizes[type_name]
        if type_name in self.enums:
            return 4
        raise MissingTypeError(f"the debug info has no {type_name}")

    def member(self, type_name: str, path: str) -> Member:
        """Find a member, in anonymous members too."""
        first, _, rest = path.partition(".")
        found = self._find(type_name, first)
        if found is None:
            raise MissingTypeError(f"{type_name} has no member {path}")
        if not rest:
            return found
        try:
            inner = self.member(found.type_name, rest)
        except MissingTypeError:
            raise MissingTypeError(f"{type_name} has no member {path}") from None
        return inner._replace(offset=found.offset + inner.offset)

    def member_names(self, type_name: str) -> Sequence[str]:
        """Name the members of a structure, those of anonymous ones included."""
        structure = _find_type(self.types, type_name)
        names = list(structure.members)
        for _, inner in structure.anonymous:
            names += self.member_names(inner)
        return tuple(names)

    def enumerators(self, type_name: str) -> Mapping[str, int]:
        return _find_type(self.enums, type_name)

    def array_length(self, name: str) -> int | None:
        return _find_symbol(self.variables, name, "variable")

    def cpus(self) -> Sequence[int]:
        return self.cpu_numbers

    def page_ranges(self) -> Iterator[PageRange]:
        return iter(self.pages)

    def per_cpu(self, name: str, cpu: int) -> int:
        return _find_symbol(
            _find_symbol(self.per_cpu_addresses, name, "per-CPU variable"), cpu, f"CPU with {name}:"
        )

    def _find(self, type_name: str, name: str) -> Member | None:
        structure = _find_type(self.types, type_name)
        if name in structure.members:
            return structure.members[name]
        for offset, inner in structure.anonymous:
            found = self._find(inner, name)
            if found is not None:
                return found._replace(offset=offset + found.offset)
        return None


def _find_symbol(table: Mapping[Key, Found], name: Key, what: str) -> Found:
    if name not in table:
        raise MissingSymbolError(f"the kernel has no {what} {name}")
    return table[name]


def _find_type(table: Mapping[str, Found], name: str) -> Found:
    if name not in table:
        raise MissingTypeError(f"the debug info has no {name}")
    return table[name]


class MemoryVmas:
    """Mappings by ``struct mm_struct *``; an mm without any can't be read."""

    def __init__(self, by_mm: Mapping[int, Sequence[Vma]]) -> None:
        self._by_mm = by_mm

    def for_each_vma(self, mm: int) -> Iterator[Vma]:
        if mm not in self._by_mm:
            raise ReadError(f"the mappings of mm {mm:#x} can't be read", mm)
        yield from self._by_mm[mm]


class MemoryVmalloc:
    """Vmalloc areas."""

    def __init__(self, areas: Iterable[VmallocArea]) -> None:
        self._areas = tuple(areas)

    def for_each_vmalloc_area(self) -> Iterator[VmallocArea]:
        yield from self._areas


class MemorySlab:
    """Slab objects by the size of the requests that they serve."""

    def __init__(
        self, by_size: Mapping[int, Sequence[SlabObject]], files: Sequence[int] = ()
    ) -> None:
        self._by_size = by_size
        self._files = files

    def for_each_file(self) -> Iterator[int]:
        yield from self._files

    def for_each_slab_object(self, size: int) -> Iterator[SlabObject]:
        """Yield the objects of the smallest caches that the size fits in."""
        fitting = [room for room in self._by_size if room >= size]
        if fitting:
            yield from self._by_size[min(fitting)]


class MemoryStacks:
    """Stacks by ``struct task_struct *``; another task's can't be unwound."""

    def __init__(
        self, by_task: Mapping[int, Sequence[StackFrame]], crashed: int | None = None
    ) -> None:
        self._by_task = by_task
        self._crashed = crashed

    def stack_trace(self, task: int) -> Sequence[StackFrame]:
        if task not in self._by_task:
            raise CapabilityError(f"the stack of task {task:#x} can't be unwound")
        return self._by_task[task]

    def crashed_task(self) -> int | None:
        return self._crashed
