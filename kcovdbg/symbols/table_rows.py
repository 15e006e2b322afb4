# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes, checks and searches the columns of a location table in C code, and numbers locations.

A kernel has a million locations: so their chains of frames are arrays.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from kcovdbg.compiled_module import column, copy_array, load_native, zeros
from kcovdbg.errors import KcovdbgError
from kcovdbg.limits import MEMORY, over_limit
from kcovdbg.model.location import Frame, FrameColumns

INVERTED: Final = bytes(not flag for flag in range(256))
"""Translates bytes that are flags into their opposites."""


class LocationError(KcovdbgError):
    """Numbered locations are damaged."""


class LocationArrays(NamedTuple):
    """Locations, counted from 0."""

    text: bytes
    """The strings, each with a terminating zero; they are numbered from 1."""
    frames: array[int]
    """Function, file, line and column of each frame. The first two are numbers of strings; 0 is
    unknown.
    """
    chain_ends: array[int]
    """Index after the last frame of each location."""
    chain_frames: array[int]
    """Numbers of frames, innermost first."""

    def strings(self) -> list[str]:
        """Return the strings."""
        return self.text.decode("utf-8", "replace").split("\0")[:-1]


def check_status(status: int) -> None:
    """Raise the error for the status that a function of native/locations.h or native/dwarf.h
    returned.

    :raises LimitError: when the locations take more memory than there is, or than any kernel needs.
    :raises LocationError: when the locations are damaged.
    """
    if status == -1:
        raise over_limit(MEMORY, "the locations in its debug info")
    if status < 0:
        raise LocationError("numbers out of range")


class Locations:
    """A growing set of locations, kept in C."""

    def __init__(self) -> None:
        ffi, lib = load_native()
        self.pointer = lib.kcovdbg_locations_new()
        if self.pointer == ffi.NULL:
            raise MemoryError
        self.pointer = ffi.gc(self.pointer, lib.kcovdbg_locations_free)

    def _describe(self) -> Any:
        """Return C's structure, which is valid until a location is added."""
        ffi, lib = load_native()
        found = ffi.new("struct kcovdbg_location_arrays *")
        lib.kcovdbg_locations_arrays(self.pointer, found)
        return found

    def arrays(self) -> LocationArrays:
        """Return a copy of the locations."""
        found = self._describe()
        return LocationArrays(
            self.text(),
            copy_array("I", found.frames, 4 * found.frame_count),
            copy_array("I", found.chain_ends, found.chain_count),
            copy_array("I", found.chain_frames, found.chain_frame_count),
        )

    @property
    def probes(self) -> int:
        """The number of occupied slots that searches in hash tables met: few for each location."""
        return int(self._describe().probes)

    def text(self) -> bytes:
        """Return :attr:`LocationArrays.text`."""
        ffi, _ = load_native()
        found = self._describe()
        return bytes(ffi.buffer(found.text, found.text_size)) if found.text_size else b""

    def add_all(self, more: Locations) -> array[int]:
        """Add the locations of another set as new ones, as :meth:`add` does."""
        return self._add(more._describe(), are_new=True)

    def add(self, more: LocationArrays, *, are_new: bool = False) -> array[int]:
        """Add locations; return the number of each of them in this set.

        :param are_new: whether to add them without a search for equal ones: of the locations of
            different units, one in a thousand has an equal one.
        :raises LocationError: when the locations are damaged.
        """
        ffi, _ = load_native()
        given = ffi.new("struct kcovdbg_location_arrays *")
        text = ffi.from_buffer(more.text)
        if len(more.frames) % 4:
            raise LocationError("numbers out of range")
        pointers = [column("I", numbers, len(numbers)) for numbers in more[1:]]
        given.text, given.text_size = text, len(more.text)
        given.frames, given.frame_count = pointers[0], len(more.frames) // 4
        given.chain_ends, given.chain_count = pointers[1], len(more.chain_ends)
        given.chain_frames, given.chain_frame_count = pointers[2], len(more.chain_frames)
        return self._add(given, are_new=are_new)

    def _add(self, given: Any, *, are_new: bool) -> array[int]:
        _, lib = load_native()
        numbers = zeros("I", given.chain_count)
        check_status(
            lib.kcovdbg_locations_add(
                self.pointer, given, are_new, column("I", numbers, len(numbers))
            )
        )
        return numbers

    def number(self, texts: Sequence[str]) -> array[int]:
        """Return the numbers of strings; add the missing ones.

        :raises ValueError: when a string contains a zero.
        """
        ffi, lib = load_native()
        # With a terminating zero for each.
        data = "\0".join((*texts, "")).encode("utf-8", "replace")
        numbers = zeros("I", len(texts))
        status = lib.kcovdbg_locations_strings(
            self.pointer, ffi.from_buffer(data), len(data), column("I", numbers), len(numbers)
        )
        if status == -2:
            raise ValueError("a string contains a zero")
        check_status(status)
        return numbers

    def common(self, groups: Iterable[Sequence[int]]) -> list[int]:
        """Return for each group the location that its members share: the whole one, or only the
        outermost function, or none.
        """
        _, lib = load_native()
        numbers = zeros("I", 1)
        common = column("I", numbers, 1)
        found = []
        for group in groups:
            check_status(lib.kcovdbg_locations_common(self.pointer, group, len(group), common))
            found.append(numbers[0])
        return found

    def add_frames(self, chains: Iterable[Iterable[Frame]]) -> array[int]:
        """Add locations as chains of frames, innermost first; return the number of each of them in
        this set.
        """
        strings: dict[str, int] = {}
        frames, ends, numbers = array("I"), array("I"), array("I")

        def string(text: str | None) -> int:
            # Zeros separate strings.
            return (
                0 if text is None else strings.setdefault(text.replace("\0", ""), len(strings) + 1)
            )

        for chain in chains:
            for name, file, line, position in chain:
                numbers.append(len(numbers))
                frames.extend((string(name), string(file), line or 0, position or 0))
            ends.append(len(numbers))
        text = "".join(f"{string}\0" for string in strings).encode("utf-8", "replace")
        return self.add(LocationArrays(text, frames, ends, numbers))


BUCKET_SHIFT: Final = 8
"""The number of an offset's low bits. The higher bits select a few PCs, of which one is searched.
"""


ARRAYS: Final[dict[str, tuple[Literal["B", "H", "I", "Q"], str]]] = {
    # From the table's base.
    "offset": ("I", "point_count"),
    # From the lowest bit: kind (3 bits), length of the chain (13), index of its first frame in
    # "chain_frame".
    "chain": ("Q", "point_count"),
    # The index of the first row of each bucket, and the number of rows.
    "bucket": ("I", "bucket_count"),
    "chain_frame": ("I", "chain_frame_count"),
    # Indexes of strings, counted from 1; 0 stands for None in all four.
    "frame_function": ("I", "frame_count"),
    "frame_file": ("I", "frame_count"),
    "frame_line": ("I", "frame_count"),
    "frame_column": ("H", "frame_count"),
    # Separated by zero bytes.
    "string": ("B", "string_size"),
    # Start and end as offsets, name.
    "range": ("I", "range_size"),
    "function_start": ("I", "function_count"),
    "function_size": ("I", "function_count"),
    "function_name": ("I", "function_count"),
    "function_alias": ("I", "function_count"),
    "function_unit": ("I", "function_count"),
    # The definitions of functions, by file and line: strings, and lines.
    "definition_file": ("I", "definition_count"),
    "definition_line": ("I", "definition_count"),
    "definition_name": ("I", "definition_count"),
    # The parts of functions with blocks, ascending: their starts as offsets. Empty if the image has
    # no blocks.
    "part_start": ("I", "part_count"),
    "part_size": ("I", "part_count"),
    "part_function": ("I", "part_count"),
    # The end of each function's blocks, which are checked when they are read.
    "block_end": ("Q", "block_function_count"),
    "block": ("B", "block_size"),
    # Strings.
    "block_file": ("I", "block_file_count"),
}
"""The arrays of a table, in the order of its directory: the type of the items, and the member of
struct kcovdbg_table that has their number."""


class MergedPoints(NamedTuple):
    """The PCs of a table, ascending, and the kind of each."""

    pcs: array[int]
    kinds: bytes


def merge_kinds(columns: Sequence[tuple[Iterable[int], int]]) -> MergedPoints:
    """Return the points of all kinds in one column.

    :param columns: the PCs of each kind, ascending, and the kind, a number of 3 bits.
    """
    ffi, lib = load_native()
    arrays = [(array("Q", pcs), kind) for pcs, kind in columns]
    pointers = [column("Q", pcs, len(pcs)) for pcs, _ in arrays]
    given = ffi.new("struct kcovdbg_points[]", len(arrays))
    for one, pointer, (pcs, kind) in zip(given, pointers, arrays, strict=True):
        one.pcs, one.count, one.kind = pointer, len(pcs), kind
    size = sum(len(pcs) for pcs, _ in arrays)
    merged, kinds = zeros("Q", size), bytearray(size)
    if lib.kcovdbg_merge_points(
        given, len(arrays), column("Q", merged, size), column("B", kinds, size), size
    ):
        raise ValueError("points of columns that do not ascend")
    return MergedPoints(merged, bytes(kinds))


def select_numbers(values: array[int], flags: bytes) -> array[int]:
    """Return the 32-bit numbers whose flag is set."""
    _, lib = load_native()
    size = len(values)
    selected = zeros("I", size)
    pointer = column("I", selected)
    count = lib.kcovdbg_select32(column("I", values), column("B", flags, size), size, pointer)
    del pointer
    del selected[count:]
    return selected


def select_words(values: Sequence[int], flags: bytes, added: int = 0) -> array[int]:
    """Return the 64-bit words whose flag is set, each with a number added to it."""
    _, lib = load_native()
    size = len(values)
    selected = zeros("Q", size)
    pointer = column("Q", selected)
    count = lib.kcovdbg_select64(
        column("Q", values), column("B", flags, size), size, added % (1 << 64), pointer
    )
    del pointer
    del selected[count:]
    return selected


def join_numbers(flags: bytes, unset: array[int], set_: array[int]) -> array[int]:
    """Return two columns of 32-bit numbers as one: each flag takes the next number of a column.

    :param unset: the numbers for flags of 0.
    :param set_: the numbers for flags of 1.
    :raises ValueError: when a column has more or fewer numbers than there are such flags.
    """
    _, lib = load_native()
    count, set_count = len(flags), flags.count(1)
    joined = zeros("I", count)
    lib.kcovdbg_join32(
        column("B", flags, count),
        count,
        column("I", unset, count - set_count),
        column("I", set_, set_count),
        column("I", joined, count),
    )
    return joined


def find_equal(values: array[int], number: int) -> array[int]:
    """Return the indexes of a number among 32-bit numbers."""
    _, lib = load_native()
    found = zeros("I", len(values))
    count = lib.kcovdbg_find_equal(column("I", values), len(values), number, column("I", found))
    return found[:count]


def subtract(addresses: array[int], others: array[int]) -> array[int]:
    """Return the addresses that are not among others; both ascend."""
    _, lib = load_native()
    count, left = len(addresses), zeros("Q", len(addresses))
    number = lib.kcovdbg_subtract(
        column("Q", addresses), count, column("Q", others), len(others), column("Q", left, count)
    )
    return left[:number]


def sort_rows(
    first: array[int], second: array[int], third: array[int]
) -> tuple[array[int], array[int], array[int]]:
    """Return the rows of three columns of 32-bit numbers in ascending order, equal ones once."""
    _, lib = load_native()
    size = len(first)
    ordered = first[:], second[:], third[:]
    count = lib.kcovdbg_sort_rows(*(column("I", values, size) for values in ordered), size)
    if count > size:
        raise MemoryError
    first, second, third = (values[:count] for values in ordered)
    return first, second, third


def find_run_starts(values: Sequence[int]) -> array[int]:
    """Return the indexes at which runs of equal 32-bit numbers begin."""
    _, lib = load_native()
    starts = zeros("I", len(values))
    pointer = column("I", starts)
    count = lib.kcovdbg_runs(column("I", values), len(values), pointer)
    del pointer
    del starts[count:]
    return starts


def make_columns(
    pcs: Sequence[int],
    kinds: Sequence[int],
    chains: Sequence[int],
    base: int,
    chain_ends: array[int],
) -> Mapping[str, array[int]]:
    """Return the columns of a table that depend on PCs, by their names in :data:`ARRAYS`.

    :param pcs: ascending; PCs outside the 4 GiB after ``base`` are left out.
    :param kinds: the kind of each PC.
    :param chains: the number of each PC's chain.
    :param chain_ends: the end of each chain's frames.
    :raises ValueError: when PCs do not ascend, or a chain does not exist.
    """
    _, lib = load_native()
    low, high = bisect_left(pcs, base), bisect_left(pcs, base + (1 << 32))
    pcs = array("Q", pcs[low:high])
    kinds = bytes(kinds[low:high])
    chains = array("I", chains[low:high])
    count = len(pcs)
    bucket_count = 1
    if pcs:
        bucket_count = (pcs[-1] - base >> BUCKET_SHIFT) + 2
    made = {
        "offset": zeros("I", count),
        "chain": zeros("Q", count),
        "bucket": zeros("I", bucket_count),
    }
    failed = lib.kcovdbg_make_rows(
        column("Q", pcs, count),
        column("B", kinds, count),
        column("I", chains, count),
        count,
        base,
        column("I", chain_ends, len(chain_ends)),
        len(chain_ends),
        BUCKET_SHIFT,
        column("I", made["offset"], count),
        column("Q", made["chain"], count),
        column("I", made["bucket"], bucket_count),
        bucket_count,
    )
    if failed:
        raise ValueError("PCs that do not ascend, or chains out of range")
    return made


def check_table(base: int, parts: Mapping[str, memoryview[int]], kind_count: int) -> bool:
    """Return whether the columns of a table fit together, and every number in them is in range.

    :param base: the address from which offsets count.
    :param parts: the columns, by their names in :data:`ARRAYS`.
    :param kind_count: the number of :class:`~kcovdbg.symbols.coverage_points.PointKind`'s members.
    """
    ffi, lib = load_native()
    table = ffi.new("struct kcovdbg_table *", {"base": base, "kind_count": kind_count})
    counts: dict[str, int] = {}
    kept = []
    for name, (code, counter) in ARRAYS.items():
        values = parts[name]
        try:
            kept.append(column(code, values, counts.setdefault(counter, len(values))))
        except ValueError:
            return False
        setattr(table, name, kept[-1])
    for counter, count in counts.items():
        setattr(table, counter, count)
    return not lib.kcovdbg_check_table(table)


def chain_pointer(frames: FrameColumns) -> Any:
    """Return the C structure of chains, which is valid as long as the columns, and its array."""
    ffi, _ = load_native()
    numbers = column("I", frames.chain_frame, len(frames.chain_frame))
    return ffi.new(
        "struct kcovdbg_chains *", {"frames": numbers, "count": len(frames.chain_frame)}
    ), numbers


def combine_flags(frames: FrameColumns, chains: Sequence[int], flags: bytes) -> bytes:
    """Return for each chain the flags of all its frames, combined by "or".

    :param flags: the flags of each frame.
    """
    _, lib = load_native()
    combined = bytearray(len(chains))
    within, _keep = chain_pointer(frames)
    lib.kcovdbg_chains_flags(
        within[0],
        column("Q", chains, len(chains)),
        len(chains),
        column("B", flags, len(flags)),
        len(flags),
        column("B", combined, len(chains)),
    )
    return bytes(combined)


def gather(indexes: Sequence[int], values: Sequence[int], missing: int) -> array[int]:
    """Return the value at each index.

    :param indexes: 32-bit numbers, as the values.
    :param missing: the value for an index beyond the end.
    """
    _, lib = load_native()
    found = zeros("I", len(indexes))
    lib.kcovdbg_gather(
        column("I", indexes),
        len(indexes),
        column("I", values),
        len(values),
        missing,
        column("I", found, len(indexes)),
    )
    return found
