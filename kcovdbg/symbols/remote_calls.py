# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls of ``kcov_remote_start()`` and of wrappers that are not inlined, in the kernel's image and in loaded modules."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.abi.remote_start import START
from kcovdbg.elf.file import ElfFile, open_image
from kcovdbg.elf.header import EM_386, EM_X86_64
from kcovdbg.errors import CapabilityError, ReadError, TargetError
from kcovdbg.symbols.coverage_points import SCANNERS, can_find_points

# A chunk is small beside the reach of the low half of a displacement: the high half has two values at most for each target.
_CHUNK: Final = 1 << 15
# A call or a jump across the end of a chunk is found in the next one.
_OVERLAP: Final = 8
_SUFFIX: Final = re.compile(r"\..*")


class RemoteCall(NamedTuple):
    """One call, or one jump at the end of a function."""

    back: int
    """The address after it."""
    name: str
    """The function that it calls, without a compiler's suffix."""


class CodeRange(NamedTuple):
    """Code of a loaded module."""

    module: str
    start: int
    end: int


def find_branches(
    text: bytes, address: int, machine: int, big_endian: bool, targets: Collection[int]
) -> Iterator[tuple[int, int]]:
    """Yield the calls and jumps to some addresses, each as the address after it and its target.

    :param text: code.
    :param address: of its start.
    """
    for start in range(0, len(text), _CHUNK):
        first = max(start - _OVERLAP, 0)
        chunk = text[first : start + _CHUNK]
        at = address + first
        if machine in (EM_X86_64, EM_386):
            found = _branches_x86(chunk, at, targets)
        else:
            code = SCANNERS[machine](chunk, at, big_endian)
            found = (
                (back, target)
                for branches in (code.calls, code.jumps)
                for back, target in zip(branches.back, branches.target, strict=True)
                if target in targets
            )
        # What lies in the overlap whole was found in the chunk before.
        yield from (branch for branch in found if not start or branch[0] > address + start)


def _branches_x86(chunk: bytes, address: int, targets: Iterable[int]) -> Iterator[tuple[int, int]]:
    for target in targets:
        halves = {
            (target - end & 0xFFFFFFFF) >> 16 for end in (address, address + len(chunk)) if -(1 << 31) <= target - end < 1 << 31
        }
        if not halves:
            continue
        high = b"|".join(re.escape(half.to_bytes(2, "little")) for half in halves)
        # call rel32 and jmp rel32.
        for match in re.finditer(rb"[\xe8\xe9](?=..(?:%b))" % high, chunk, re.DOTALL):
            end = match.end() + 4
            if address + end + int.from_bytes(chunk[match.end() : end], "little", signed=True) == target:
                yield address + end, target


class RemoteCalls:
    """The calls in one kernel.

    :param image: path of the kernel's image; None when there is none.
    :param build_id: the build ID that it must have, hexadecimal; None for any.
    :param kaslr_offset: of the kernel.
    :param code: path of the stripped image, when the first one is its file of debug info.
    """

    def __init__(
        self,
        image: str | os.PathLike[str] | None,
        build_id: str | None,
        kaslr_offset: int,
        *,
        code: str | os.PathLike[str] | None = None,
    ) -> None:
        self._path = image
        self._code = code
        self._build_id = build_id
        self._offset = kaslr_offset

    @cached_property
    def _elf(self) -> ElfFile:
        """The image.

        :raises CapabilityError: when it has no code that can be searched.
        """
        if self._path is None:
            raise CapabilityError("no kernel image is given", hint="-s VMLINUX")
        try:
            elf = open_image(self._path, self._code)
            if self._build_id is not None and elf.build_id != self._build_id:
                raise CapabilityError(f"{self._path} is the image of another build")
            if not elf.text_sections():
                raise CapabilityError(f"{self._path} has no code", hint="name the vmlinux that it was split from: -s VMLINUX")
            if not elf.symbols:
                raise CapabilityError(f"{self._path} has no symbols", hint="name the vmlinux with debug info: -s VMLINUX")
            if elf.is_relocatable or not can_find_points(elf.header.machine):
                raise CapabilityError(f"calls are not recognized on {elf.header.machine_name}")
        except TargetError as error:
            raise CapabilityError(str(error)) from None
        return elf

    @cached_property
    def _targets(self) -> Mapping[int, str]:
        """The functions that announce a handle, with addresses as in the image."""
        return {
            symbol.address: _SUFFIX.sub("", symbol.name)
            for symbol in self._elf.symbols
            if symbol.name.startswith(START) and symbol.is_function and symbol.section
        }

    @cached_property
    def of_image(self) -> tuple[RemoteCall, ...]:
        """The calls in the image, with addresses of the running kernel; none on a kernel without remote coverage.

        :raises CapabilityError: when it has no code that can be searched.
        """
        elf, found = self._elf, []
        for section in elf.text_sections():
            header = elf.header
            branches = find_branches(
                elf.read_section(section), section.address, header.machine, header.big_endian, self._targets
            )
            found += [RemoteCall(back + self._offset, self._targets[target]) for back, target in branches]
        return tuple(sorted(set(found)))

    def of_module(self, code: CodeRange, read: Callable[[int, int], bytes]) -> tuple[tuple[RemoteCall, ...], int]:
        """Return the calls in the code of a module, and how many pages of it cannot be read.

        :param read: reads the kernel's memory.
        """
        targets = {address + self._offset: name for address, name in self._targets.items()}
        header = self._elf.header
        found: list[RemoteCall] = []
        missing = 0
        text, start = b"", code.start
        for page in (*range(code.start, code.end, PAGE_SIZE), None):
            try:
                part = b"" if page is None else read(page, min(PAGE_SIZE, code.end - page))
            except ReadError:
                part = b""
                missing += 1
            if not part:
                branches = find_branches(text, start, header.machine, header.big_endian, targets)
                found += [RemoteCall(back, targets[target]) for back, target in branches]
                text, start = b"", 0 if page is None else page + PAGE_SIZE
            text += part
        return tuple(sorted(found)), missing

    def symbol_of(self, address: int) -> str | None:
        """Return the name of the function of the image that an address of the running kernel is in."""
        symbol = self._elf.symbols.find_at(address - self._offset)
        return None if symbol is None else symbol.name
