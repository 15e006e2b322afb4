# SPDX-License-Identifier: LGPL-2.1-or-later
"""Proof that an address can be in a coverage buffer: the code before it calls the sanitizer's
callback.

The instruction before each recorded PC is decoded, in the kernel's image or in the memory of a
module: so no points have to be found in advance. After a call of another function, a PC can only be
the record of a tail call: the function, or one that it jumps to, must have a jump to a callback. An
indirect call may lead to such a function if the image has any.

Running kernels patch their code (static calls, alternatives, paravirt calls, retpolines): if the
image has no call of a callback there, the memory decides. A PC whose code cannot be read is never
called wrong.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK, address_of, page_align_down
from kcovdbg.abi.record import Codec
from kcovdbg.compiled_module import load_native
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_AARCH64, EM_RISCV, EM_X86_64
from kcovdbg.elf.symbol_table import ElfSymbol
from kcovdbg.errors import CapabilityError, ReadError, TargetError
from kcovdbg.symbols.arch import THUNKS, BranchKind
from kcovdbg.symbols.branches import find_branches, open_code
from kcovdbg.symbols.coverage_points import PointKind, find_callbacks, recorded_kinds
from kcovdbg.target.target import SourceLines

# Modules of x86-64, arm64 and riscv64 are within 2 GiB of the kernel's text.
_REACH: Final = 1 << 31
_FAR: Final = 1 << 40
# Marks an indirect jump (through a register or memory): no function is at this address.
_ANYWHERE: Final = 0
# The longest call: auipc with jalr.
_BEFORE: Final = 8
_CALLS: Final = BranchKind.CALL | BranchKind.INDIRECT_CALL
_JUMPS: Final = BranchKind.JUMP | BranchKind.INDIRECT_JUMP


class _Pages(dict[int, bytes]):
    """Code, read a page at a time.

    :param read: returns the bytes at an address, fewer at the end of memory; may raise ReadError.
    """

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, page: int) -> bytes:
        data = b""
        with suppress(ReadError):
            data = self._read(page, PAGE_SIZE)
        self[page] = data
        return data

    def before(self, address: int) -> bytes | None:
        """Return the bytes before an address, None when they cannot be read."""
        start = address - _BEFORE
        page = page_align_down(start)
        data = self[page]
        if page + PAGE_SIZE < address:
            data += self[page + PAGE_SIZE] if len(data) == PAGE_SIZE else b""
        code = data[start - page : start - page + _BEFORE]
        return code if len(code) == _BEFORE else None


class _Image:
    """The code of a kernel's image, and its functions that may return to their caller by way of a
    callback.

    :param elf: the image.
    """

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self._machine = elf.header.machine
        self._texts = elf.map_code()
        self._starts = [start for start, _ in self._texts]
        self.low = self._starts[0]
        self.high = max(section.address + section.size for section in elf.sections)
        # The greatest distance of a module from it.
        self.reach = _REACH if self._machine in (EM_X86_64, EM_AARCH64, EM_RISCV) else 1 << 64
        self._may_follow: dict[int, bool] = {}

    def _text_at(self, address: int) -> tuple[int, bytes | memoryview] | None:
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address - self._starts[index] >= len(self._texts[index][1]):
            return None
        return self._texts[index]

    def has_code(self, address: int) -> bool:
        """Return whether an address as linked is in code."""
        return self._text_at(address) is not None

    def code_before(self, pc: int) -> bytes | None:
        """Return the bytes before an address, None if they are not code. Before the start of a
        section are zeros.
        """
        found = self._text_at(pc - 1)
        if found is None:
            return None
        start, text = found
        return bytes(text[max(pc - _BEFORE - start, 0) : pc - start]).rjust(_BEFORE, b"\0")

    def calls(self, codes: Mapping[int, bytes]) -> Mapping[int, list[int]]:
        """Return for each address the targets of the calls that may end there. These are several if
        bytes of other instructions look like a call.

        :param codes: the bytes before each address.
        """
        pcs = list(codes)
        # All bytes are searched as one text, at an address from which no call leads to _ANYWHERE.
        found = find_branches([(_FAR, b"".join(codes.values()))], self._machine, _CALLS)
        calls: dict[int, list[int]] = {pc: [] for pc in pcs}
        for back, target in zip(*found, strict=True):
            index, rest = divmod(back - _FAR, _BEFORE)
            if not rest:
                pc = pcs[index - 1]
                calls[pc].append(target if target == _ANYWHERE else target - back + pc & WORD_MASK)
        return calls

    @cached_property
    def callbacks(self) -> Mapping[int, PointKind]:
        """The callbacks' addresses, each with the kind of point that calls it."""
        return find_callbacks(self.elf.symbols)

    def name_of(self, address: int) -> str:
        """Return an address as a symbol and an offset."""
        symbol = self.elf.symbols.find_at(address)
        return f"{address:#x}" if symbol is None else f"{symbol.name}+{address - symbol.address:#x}"

    @cached_property
    def has_tail_calls(self) -> bool:
        """Whether any function has a jump to a callback."""
        return bool(
            find_branches(self._texts, self._machine, BranchKind.JUMP, self.callbacks.keys()).back
        )

    def may_follow(self, target: int) -> bool:
        """Return whether a call of an address may return by way of a callback."""
        found = self._may_follow.get(target)
        if found is None:
            found = self._may_follow[target] = self._search(target)
        return found

    def _search(self, start: int) -> bool:
        """Follow all jumps of a function. Code that may lead anywhere may lead to a callback, if
        any function ends in a jump to one.
        """
        seen: set[int] = set()
        todo = [start]
        while todo:
            function = self._function(todo.pop())
            if function is None or function.name.startswith(THUNKS):
                if self.has_tail_calls:
                    return True
                continue
            if function.address in seen:
                continue
            seen.add(function.address)
            for target in self._jumps_of(function):
                if target in self.callbacks or self._may_follow.get(target):
                    return True
                todo.append(target)
        self._may_follow.update(dict.fromkeys(seen, False))
        return False

    def _function(self, address: int) -> ElfSymbol | None:
        """Return the symbol of the function that contains an address, None for code without a
        symbol, and for :data:`_ANYWHERE`.

        Data may be at that address: on x86-64, per-CPU data starts at 0.
        """
        return self.elf.symbols.find_at(address) if self.has_code(address) else None

    def _jumps_of(self, function: ElfSymbol) -> Iterator[int]:
        """Yield the targets of a function's jumps to other code, and :data:`_ANYWHERE`."""
        start, size = function.address, function.size
        code = [(start, self.elf.read(start, size))]
        for target in find_branches(code, self._machine, _JUMPS).target:
            if target == _ANYWHERE or (
                not start <= target < start + size and self.has_code(target)
            ):
                yield target
        for target in find_branches(code, self._machine, BranchKind.SHORT_JUMP).target:
            # Bytes that look like a short jump into the middle of a neighbor are something else.
            found = None if start <= target < start + size else self._function(target)
            if found is not None and found.address == target:
                yield target


@dataclass
class CodeProof:
    """The code of one kernel: a :class:`~kcovdbg.model.state.PointProof`."""

    image: str | os.PathLike[str] | None
    """Path of the kernel's image; None when there is none."""
    build_id: str | None
    """The build ID that it must have, hexadecimal; None for any."""
    kaslr_offset: int
    modules: SourceLines | None
    """The loaded modules; None when the target does not know them."""
    code: str | os.PathLike[str] | None = None
    """Path of the stripped image, when ``image`` is its file of debug info."""

    @cached_property
    def _opened(self) -> _Image | str:
        # A missing native module is an error of its own, not one of the image.
        load_native()
        try:
            image = _Image(open_code(self.image, self.code, self.build_id))
            return image if image.callbacks else "the kernel image has no symbols of callbacks"
        except (CapabilityError, TargetError) as error:
            return str(error)

    def problem(self) -> str | None:
        """Return why no record can be judged, None when records can be."""
        return self._opened if isinstance(self._opened, str) else None

    def judge(
        self, pcs: Collection[int], codec: Codec, read: Callable[[int, int], bytes]
    ) -> tuple[Mapping[int, str], Collection[int]]:
        """Return the PCs that no callback can have recorded, each with the problem, and among them
        the PCs that callbacks for comparisons record.

        PCs whose code cannot be read are not judged.

        :param pcs: as recorded.
        :param codec: the format of their records.
        :param read: reads the kernel's memory.
        """
        image = self._opened
        if isinstance(image, str):
            return {}, frozenset()
        wanted = recorded_kinds(codec)
        memory = _Pages(read)
        wrong: dict[int, str] = {}
        comparisons: set[int] = set()
        codes: dict[int, bytes] = {}
        for pc in pcs:
            before = image.code_before(pc)
            if before is not None:
                codes[pc] = before
        calls = image.calls(codes)
        for pc in pcs:
            targets = calls.get(pc, [])
            address = address_of(pc, self.kaslr_offset)
            problem = None
            if pc in codes:
                problem = self._explain(image, pc, targets, wanted)
                # The kernel may have patched a call into the code, or another call.
                patched = None if problem is None else memory.before(address)
                if patched is None:
                    problem = None
                elif patched != codes[pc]:
                    problem = self._explain(image, pc, image.calls({pc: patched})[pc], wanted)
            elif image.low <= pc < image.high:
                problem = f"{image.name_of(pc)} is not code"
            elif not pc or abs(pc - image.low) >= image.reach:
                problem = "it is not an address of code"
            elif self.modules is not None and self.modules.name_at(address - 1) is not None:
                code = memory.before(address)
                if code is not None:
                    targets = image.calls({pc: code})[pc]
                    problem = self._explain(image, pc, targets, wanted)
            if problem is not None:
                wrong[pc] = problem
                if PointKind.CMP in map(image.callbacks.get, targets):
                    comparisons.add(pc)
        return wrong, comparisons

    def _explain(
        self, image: _Image, pc: int, targets: Iterable[int], wanted: Collection[PointKind]
    ) -> str | None:
        """Return why an address cannot be recorded, None when it can.

        :param targets: the targets of the calls that end there.
        """
        problem = "no call ends there"
        for target in targets:
            if target == _ANYWHERE:
                if image.has_tail_calls:
                    return None
                problem = "the call before it leads to no callback"
                continue
            kind = image.callbacks.get(target)
            if kind in wanted:
                return None
            if kind is not None:
                problem = (
                    f"the call before it is of kind {kind.name.lower()}, which this mode does not "
                    f"record"
                )
            elif not image.has_code(target):
                if not image.low <= target < image.high and not image.has_code(pc - 1):
                    # Another function of the module, whose end is unknown.
                    return None
            elif image.may_follow(target):
                return None
            else:
                problem = f"the call before it is one of {image.name_of(target)}"
        return problem if not image.has_code(pc - 1) else f"{image.name_of(pc)}: {problem}"
