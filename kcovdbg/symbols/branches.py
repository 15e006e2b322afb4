# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds calls and jumps in the code of a kernel's image, by C code and on all cores.

The headers in native/ document the C functions.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from kcovdbg.compiled_module import column, copy_array, load_native
from kcovdbg.elf.file import ElfFile, open_image
from kcovdbg.errors import CapabilityError, TargetError
from kcovdbg.symbols.arch import ARCHITECTURES, BranchKind

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Bytes of text for a thread, in whole instructions.
_SEARCHED_BYTES: Final = 1 << 20


class BranchColumns(NamedTuple):
    """Calls or jumps as columns, as there are hundreds of thousands."""

    back: array[int]
    """The address after each branch."""
    target: array[int]


def open_code(
    image: str | os.PathLike[str] | None, code: str | os.PathLike[str] | None, build_id: str | None
) -> ElfFile:
    """Open a kernel's image to search its code.

    :param image: its path; None when there is none.
    :param code: path of the stripped image, when the first one is its file of debug info.
    :param build_id: the build ID that it must have, hexadecimal; None for any.
    :raises CapabilityError: when it has no code that can be searched.
    """
    if image is None:
        raise CapabilityError("no kernel image is given", hint="-s VMLINUX")
    try:
        elf = open_image(image, code)
        if build_id is not None and elf.build_id != build_id:
            raise CapabilityError(
                "the kernel image is of another build", hint="give the vmlinux of the same build"
            )
        if not elf.text_sections():
            raise CapabilityError(
                "the kernel image has no code",
                hint="name the vmlinux that it was split from: -s VMLINUX",
            )
        if not elf.symbols:
            raise CapabilityError(
                "the kernel image has no symbols",
                hint="name the vmlinux with debug info: -s VMLINUX",
            )
        if elf.is_relocatable or elf.header.machine not in ARCHITECTURES:
            raise CapabilityError(f"calls are not recognized on {elf.header.machine_name}")
    except TargetError as error:
        raise CapabilityError(str(error)) from None
    return elf


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def map_on_cores(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Begin to call a function for each item, in a thread for each core; C code runs in parallel.

    :return: an iterator over the results, in order. It raises the exception of a call.
    """
    # The module imports logging, and most commands begin no threads.
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(core_count())
    results = pool.map(function, items)
    # This does not wait: the threads end after the last item.
    pool.shutdown(wait=False)
    return results


@cache
def describe_architecture(machine: int) -> Any:
    """Return C's description of an architecture, which keeps its arrays alive."""
    ffi, _ = load_native()
    described = ARCHITECTURES[machine]
    forms = ffi.new(
        "struct kcovdbg_form[]",
        [
            (
                form.mask,
                form.value,
                form.kind,
                form.length,
                form.before,
                len(form.pieces),
                form.pieces,
            )
            for form in described.forms
        ],
    )
    given = (
        forms,
        len(forms),
        described.step,
        described.is_big_endian,
        described.is_from_end,
        described.has_arm64_switches,
    )
    pointer = ffi.new("struct kcovdbg_architecture *", given)
    # The destructor keeps the forms.
    return ffi.gc(pointer, lambda _pointer, _forms=forms: None)


class BranchSearch(NamedTuple):
    """The branches to search for."""

    kinds: BranchKind
    targets: Collection[int] | None = None
    """The wanted targets; None for any. Branches through registers or memory are found in any case,
    with the target 0.
    """


def find_branches(
    texts: Sequence[tuple[int, bytes | memoryview]],
    machine: int,
    kinds: BranchKind,
    targets: Collection[int] | None = None,
) -> BranchColumns:
    """Return the branches of some kinds in texts that lead to targets; all cores search.

    :param texts: addresses and contents.
    :param machine: a key of :data:`~kcovdbg.symbols.arch.ARCHITECTURES`.
    :param targets: see :class:`BranchSearch`.
    """
    (found,) = search_branches(texts, machine, [BranchSearch(kinds, targets)])
    return found


def _make_targets(addresses: Collection[int]) -> Any:
    """Return a set of addresses for C."""
    ffi, lib = load_native()
    wanted = array("Q", addresses)
    targets = lib.kcovdbg_targets_new(column("Q", wanted), len(wanted))
    if targets == ffi.NULL:
        raise MemoryError
    return ffi.gc(targets, lib.kcovdbg_targets_free)


def _describe_searches(searches: Sequence[BranchSearch]) -> list[tuple[BranchKind, Any]]:
    """Return the first members of the C structure of each search, which keep the targets alive."""
    ffi, _ = load_native()
    # Searches may share their targets.
    made = {id(None): ffi.NULL}
    for search in searches:
        if search.targets is not None and id(search.targets) not in made:
            made[id(search.targets)] = _make_targets(search.targets)
    return [(search.kinds, made[id(search.targets)]) for search in searches]


def search_branches(
    texts: Sequence[tuple[int, bytes | memoryview]],
    machine: int,
    searches: Sequence[BranchSearch],
) -> list[BranchColumns]:
    """Return the branches that each search finds; the texts are read once, by all cores.

    :param texts: addresses and contents.
    :param machine: a key of :data:`~kcovdbg.symbols.arch.ARCHITECTURES`.
    """
    ffi, lib = load_native()
    architecture = describe_architecture(machine)
    number = len(searches)
    given = _describe_searches(searches)

    def find(part: tuple[int, Any, int]) -> list[BranchColumns]:
        address, text, first = part
        own = ffi.new("struct kcovdbg_search[]", given)
        try:
            stop = first + _SEARCHED_BYTES
            if lib.kcovdbg_branches(
                architecture, text, len(text), address, first, stop, own, number
            ):
                raise MemoryError
            return [
                BranchColumns(
                    copy_array("Q", one.backs, one.count), copy_array("Q", one.led, one.count)
                )
                for one in own
            ]
        finally:
            lib.kcovdbg_searches_free(own, number)

    parts = [
        (address, ffi.from_buffer(text), first)
        for address, text in texts
        for first in range(0, len(text), _SEARCHED_BYTES)
    ]
    if len(parts) == 1:
        return find(parts[0])
    found = [BranchColumns(array("Q"), array("Q")) for _ in searches]
    for pieces in map_on_cores(find, parts):
        for whole, piece in zip(found, pieces, strict=True):
            whole.back.extend(piece.back)
            whole.target.extend(piece.target)
    return found
