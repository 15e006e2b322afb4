# SPDX-License-Identifier: LGPL-2.1-or-later
"""The places that announce remote handles: calls of ``kcov_remote_start()`` and of wrappers that
are not inlined.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from kcovdbg.abi.handle import START
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.symbol_table import demangle
from kcovdbg.model.kcov import amount_text
from kcovdbg.model.location import Frame
from kcovdbg.model.remote import RemoteSite
from kcovdbg.symbols.arch import BranchKind
from kcovdbg.symbols.branches import find_branches, open_code
from kcovdbg.target.struct_layout import read_partly
from kcovdbg.target.target import SourceLines, Target

_KINDS: Final = BranchKind.CALL | BranchKind.JUMP
_SUFFIX: Final = re.compile(r"\..*")


class RemoteCall(NamedTuple):
    """One call, or one jump at the end of a function."""

    back: int
    """The address after it."""
    name: str
    """The function that it calls, without a compiler's suffix."""


class RemoteCalls:
    """The calls in one kernel, with addresses in the running kernel. A kernel without remote
    coverage has none.

    :param elf: the kernel's image.
    :param kaslr_offset: the kernel's KASLR offset.
    """

    def __init__(self, elf: ElfFile, kaslr_offset: int) -> None:
        self._elf = elf
        self._offset = kaslr_offset
        # The functions that announce a handle, by address.
        self._targets = {
            symbol.address + kaslr_offset: _SUFFIX.sub("", symbol.name)
            for symbol in elf.symbols.find_containing(START)
            if symbol.name.startswith(START) and symbol.is_function and symbol.section
        }

    def _find(self, texts: Sequence[tuple[int, bytes | memoryview]]) -> list[RemoteCall]:
        found = find_branches(texts, self._elf.header.machine, _KINDS, self._targets)
        names = map(self._targets.__getitem__, found.target)
        return sorted(set(map(RemoteCall, found.back, names)))

    def of_image(self) -> list[RemoteCall]:
        """Return the calls in the image."""
        return self._find([(start + self._offset, data) for start, data in self._elf.map_code()])

    def of_module(self, start: int, end: int, target: Target) -> tuple[list[RemoteCall], int]:
        """Return the calls in a part of a module's code, and how many of its pages cannot be read.

        :param start: the first address of the part.
        :param end: the address after the last one.
        :param target: the kernel.
        """
        data, gaps = read_partly(target, start, end - start)
        texts: list[tuple[int, bytes]] = []
        first = 0
        for gap, size in (*gaps, (len(data), 0)):
            texts.append((start + first, data[first:gap]))
            first = gap + size
        return self._find(texts), len(gaps)


class RemoteSites(NamedTuple):
    """The sites of a kernel."""

    sites: tuple[RemoteSite, ...]
    """The sites, ordered by file and line."""
    remarks: tuple[str, ...]
    """Lines on code that could not be searched."""


def find_remote_sites(target: Target, lines: SourceLines | None, code: str | None) -> RemoteSites:
    """Return the sites of a kernel's image and of its loaded modules.

    :param code: path of its stripped image, None if the image of ``lines`` has the code.
    :raises CapabilityError: when the kernel's image has no code that can be searched.
    """
    image = open_code(None if lines is None else lines.image, code, target.build_id)
    calls = RemoteCalls(image, target.kaslr_offset)
    found = [_locate(target, lines, call, None) for call in calls.of_image()]
    remarks: list[str] = []
    modules = () if lines is None else lines.code_ranges()
    for name, start, end in modules:
        in_module, missing = calls.of_module(start, end, target)
        found += [_locate(target, lines, call, name) for call in in_module]
        if missing:
            pages = amount_text(missing, "page")
            remarks.append(
                f"module {name}: {pages} of its code could not be read, and not searched"
            )
    sites = [site for site in found if not site.function.startswith(START)]
    return RemoteSites(
        tuple(sorted(sites, key=lambda site: (site.file or "", site.line or 0, site.address))),
        tuple(remarks),
    )


def _locate(
    target: Target, lines: SourceLines | None, call: RemoteCall, module: str | None
) -> RemoteSite:
    """Return the site of a call, which is in the innermost function that is no wrapper."""
    symbol = target.symbol_name(call.back - 1)
    frames = () if lines is None else tuple(lines.frames_at(call.back - 1))
    wrapper = call.name
    place = Frame(None, None, None, None)
    errors: tuple[str, ...] = ("the debug info has no line for it",)
    for frame in frames:
        if not (frame.function or "").startswith(START):
            place = frame
            errors = () if frame.line is not None else ("the line of its call is unknown",)
            break
        wrapper = frame.function or wrapper
    return RemoteSite(
        address=call.back,
        function=demangle(place.function or symbol or "?"),
        symbol=symbol,
        wrapper=wrapper,
        file=place.file,
        line=place.line,
        module=module,
        errors=errors,
    )
