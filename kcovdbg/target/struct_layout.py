# SPDX-License-Identifier: LGPL-2.1-or-later
"""Members of a structure, decoded from one block of memory.

Each read of a target takes time: so a :class:`BlockLayout` reads all wanted members at once.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.errors import MissingSymbolError, MissingTypeError, ReadError
from kcovdbg.target.pointer import strip_tag
from kcovdbg.target.target import Member, Symbol, Target

_CHUNK: Final = 16 << 20
_CODES: Final = {1: "b", 2: "h", 4: "i", 8: "q"}


def find_member(target: Target, type_name: str, paths: Iterable[str]) -> Member | None:
    """Return the first member that the kernel has, None when it has none of them.

    :param paths: newest kernel first.
    """
    for path in paths:
        try:
            return target.member(type_name, path)
        except MissingTypeError:
            continue
    return None


def find_kernel_symbol(target: Target, name: str) -> Symbol | None:
    """Return the symbol with a name, None when the kernel lacks it."""
    try:
        return target.symbol(name)
    except MissingSymbolError:
        return None


def find_stack_size(target: Target) -> int:
    """Return THREAD_SIZE, the size of a kernel stack in bytes.

    :raises MissingSymbolError: when the kernel has neither the type nor the symbols for it.
    """
    try:
        return target.type_size("union thread_union")
    except MissingTypeError:
        # On arm64 nothing uses the type. The first task has a stack of this size: INIT_TASK_DATA of
        # include/asm-generic/vmlinux.lds.h. In older kernels, its symbols have another name.
        has_stack = find_kernel_symbol(target, "__start_init_stack") is not None
        name = "stack" if has_stack else "task"
        start = target.symbol(f"__start_init_{name}").address
        end = target.symbol(f"__end_init_{name}").address
        return end - start


def read_partly(
    target: Target, address: int, size: int, patience: int | None = None
) -> tuple[bytes, list[tuple[int, int]]]:
    """Read a span of which pages may be missing.

    :param patience: the number of missing pages in a row after which the rest counts as missing, as
        a damaged size may be terabytes; None for no limit.
    :return: the bytes, with zeros on missing pages and without a missing rest; and offset and size
        of each missing span.
    """
    data = bytearray()
    missing: list[tuple[int, int]] = []
    missed = 0
    while len(data) < size:
        start = address + len(data)
        whole = min(size - len(data), _CHUNK)
        try:
            data += target.read(start, whole)
            missed = 0
            continue
        except ReadError:
            pass
        end = len(data) + whole
        while len(data) < end:
            start = address + len(data)
            # Memory is present or absent by page.
            piece = min(end - len(data), PAGE_SIZE - start % PAGE_SIZE)
            try:
                data += target.read(start, piece)
                missed = 0
                continue
            except ReadError:
                missed += 1
            missing.append((len(data), piece))
            data += bytes(piece)
            if patience is not None and missed > patience:
                first = missing[-missed][0]
                del missing[-missed:], data[first:]
                missing.append((first, size - first))
                return bytes(data), missing
    return bytes(data), missing


def read_string(target: Target, address: int, limit: int) -> str | None:
    """Read a string.

    :param limit: bytes after which it is cut.
    :return: None when memory before its end is missing.
    """
    data, missing = read_partly(target, address, limit)
    present = data[: missing[0][0]] if missing else data
    text, end, _ = present.partition(b"\0")
    if missing and not end:
        return None
    return text.decode("utf-8", "backslashreplace")


class BlockLayout:
    """The wanted members of a structure, decoded at once.

    :param type_name: the name of the type, such as ``struct task_struct``.
    :param fields: the paths of each member, newest kernel first, by the member's name; or paths
        separated by blanks, each of which is the name as well.
    :raises MissingTypeError: when the debug info lacks the type.
    """

    def __init__(
        self, target: Target, type_name: str, fields: Mapping[str, Sequence[str]] | str
    ) -> None:
        if isinstance(fields, str):
            fields = {path: (path,) for path in fields.split()}
        self.type_name = type_name
        self.size = target.type_size(type_name)
        self.names = tuple(fields)
        self.members = {
            name: find_member(target, type_name, paths) for name, paths in fields.items()
        }
        present = [(name, member) for name, member in self.members.items() if member is not None]
        present.sort(key=lambda item: item[1].offset)
        self.start = present[0][1].offset if present else 0
        end = max((member.offset + member.size for _, member in present), default=self.start)
        self.span = end - self.start
        order = ">" if target.big_endian else "<"
        # One struct.Struct unpacks the whole span. Members that share bytes with the member before
        # them (bit-fields of a unit, unions) are unpacked apart.
        code = order
        position = self.start
        index: dict[str, int] = {}
        # The index of each such member, and its decoder.
        self._apart: list[tuple[int, Callable[[bytes], Any]]] = []
        for name, member in present:
            if member.bit_size is not None or member.offset < position:
                decode = _decode_apart(target, self.start, member)
                self._apart.append((self.names.index(name), decode))
                continue
            code += f"{member.offset - position}x" + _member_code(member)
            index[name] = len(index)
            position = member.offset + member.size
        code += f"{end - position}x"
        self._unpack = struct.Struct(code).unpack
        # The value of a missing member is None, which is appended to the values: index -1.
        indices = [index.get(name, -1) for name in self.names]
        self._pick: Callable[[tuple[Any, ...]], tuple[Any, ...]] = operator.itemgetter(*indices)
        if len(indices) == 1:
            self._pick = lambda values: (values[indices[0]],)
        self._target = target
        # The indexes of pointers, in kernels with tags.
        self._tagged_at = [
            index
            for index, member in enumerate(self.members.values())
            if target.pointer_tag
            and member is not None
            and member.length is None
            and "*" in member.type_name
        ]

    def has(self, name: str) -> bool:
        """Return whether this kernel has a member."""
        return self.members[name] is not None

    def require(self, *optional: str) -> BlockLayout:
        """Return this layout, after a check that the kernel has all members but optional ones.

        :raises MissingTypeError: when a member is missing.
        """
        for name in self.names:
            if name not in optional:
                self.offset(name)
        return self

    def offset(self, name: str) -> int:
        """Return the offset of a member in bytes.

        :raises MissingTypeError: when this kernel lacks the member.
        """
        member = self.members[name]
        if member is None:
            raise MissingTypeError(f"{self.type_name} has no {name} in this kernel")
        return member.offset

    def decode(self, block: bytes) -> tuple[Any, ...]:
        """Return the value of each member in a block, in the order of the names; None for a missing
        member. Pointers have no tags.

        :param block: the span of memory with all members.
        """
        values = self._pick((*self._unpack(block), None))
        if not self._apart and not self._tagged_at:
            return values
        changed = list(values)
        for index, decode in self._apart:
            changed[index] = decode(block)
        for index in self._tagged_at:
            changed[index] = strip_tag(self._target, changed[index])
        return tuple(changed)

    def read(self, target: Target, address: int) -> tuple[Any, ...]:
        """Read the members of the structure at an address.

        :raises ReadError: when a member is unreadable.
        """
        return self.decode(target.read(address + self.start, self.span))

    def read_named(self, target: Target, address: int) -> dict[str, Any]:
        """Read the members as :meth:`read`, and return them by name."""
        return dict(zip(self.names, self.read(target, address), strict=True))

    def read_partly(self, target: Target, address: int) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """Read the members that can be read.

        :return: the value of each member, None for a missing or unreadable one; and the names of
            unreadable members.
        :raises ReadError: when all are unreadable.
        """
        block, missing = read_partly(target, address + self.start, self.span)
        values = self.decode(block)
        if not missing:
            return values, ()
        present = {name: member for name, member in self.members.items() if member is not None}
        lost = tuple(
            name
            for name, member in present.items()
            if any(_overlaps(member, self.start, *gap) for gap in missing)
        )
        if len(lost) == len(present):
            first = address + self.start + missing[0][0]
            raise ReadError(f"could not read {self.type_name} at {address:#x}", first)
        known = zip(self.names, values, strict=True)
        return tuple(None if name in lost else value for name, value in known), lost


def _overlaps(member: Member, start: int, gap: int, size: int) -> bool:
    begin = member.offset - start
    return begin < gap + size and gap < begin + member.size


def _member_code(member: Member) -> str:
    code = _CODES.get(member.size)
    if member.length is not None or code is None:
        return f"{member.size}s"
    return code if member.signed else code.upper()


def _decode_apart(target: Target, start: int, member: Member) -> Callable[[bytes], Any]:
    if member.bit_size is None:
        order = ">" if target.big_endian else "<"
        unpack = struct.Struct(order + _member_code(member)).unpack_from
        return lambda block: unpack(block, member.offset - start)[0]
    bit_size = member.bit_size
    shift = member.bit_offset or 0

    def decode(block: bytes) -> int:
        data = block[member.offset - start :][: member.size]
        value = int.from_bytes(data, target.byte_order) >> shift & (1 << bit_size) - 1
        if member.signed and value >> bit_size - 1:
            value -= 1 << bit_size
        return value

    return decode
