# SPDX-License-Identifier: LGPL-2.1-or-later
"""The location table: a file with the source locations of all coverage points of one build of the
kernel.

Looking up a PC in debug info takes some hundred microseconds, and a trace has thousands of PCs: so
the points of a build are located once. The file is searched as it is.

Layout: a header (:data:`_HEADER`), a directory of arrays (:data:`_ENTRY` each), the arrays. Numbers
in the header are little-endian; the arrays have the byte order of the machine that wrote them,
which is in the header, since the file is a cache for that machine. Locations are shared: a PC has a
chain, a chain has frames, a frame has strings.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from io import BytesIO
from itertools import compress, count, pairwise, repeat
from operator import is_not, itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from kcovdbg.elf.symbol_table import demangle, is_mangled
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import open_input
from kcovdbg.limits import need_memory
from kcovdbg.model.location import KIND_BITS, KIND_MASK, MAX_DEPTH, Frame, FrameColumns
from kcovdbg.output_file import PRIVATE, open_output
from kcovdbg.symbols.blocks import BlockColumns
from kcovdbg.symbols.coverage_points import POINT_KINDS, PointKind
from kcovdbg.symbols.definitions import NO_DEFINITIONS, Definition, DefinitionColumns
from kcovdbg.symbols.table_rows import (
    ARRAYS,
    BUCKET_SHIFT,
    LocationArrays,
    Locations,
    check_table,
    combine_flags,
    find_run_starts,
    gather,
    join_numbers,
    make_columns,
)
from kcovdbg.target.end_signals import reading

FORMAT: Final = 16
"""Part of the file's name: versions of kcovdbg with different formats keep different files."""

NO_POINTS_HINT: Final = "build the kernel with CONFIG_KCOV"

_MAGIC: Final = b"KCOVSYM\0"
MAX_SIZE: Final = 1 << 30
"""Limit for the bytes of a table; a table of a million points has 60 MiB."""
# Bytes that a short string takes in a list.
_STRING_SIZE: Final = 64
# Magic, format, byte order mark, length of the file, base address of offsets, build ID (zero
# padded) and its length, number of arrays, checksum (CRC-32) of everything after the header.
_HEADER: Final = struct.Struct("<8sI4sQQ32sIII4x")
_ENTRY: Final = struct.Struct("<QQ")
_ORDER_MARK: Final = b"BIG\0" if sys.byteorder == "big" else b"LIT\0"


class TableError(KcovdbgError):
    """The file is not a location table, is damaged, or is of another build."""


class TextRange(NamedTuple):
    """A part of the kernel's image that has code, with addresses as in the image."""

    start: int
    end: int
    """The address after the last one."""
    name: str
    """The section, such as ``.init.text``."""


class TableColumns(NamedTuple):
    """A table's rows as columns."""

    base: int
    """Address that offsets count from."""
    offset: Sequence[int]
    """Offsets of the PCs, ascending; 32-bit numbers."""
    chain: Sequence[int]
    """Words of chains of :attr:`frames`, with the kinds of points; 64-bit numbers."""
    frames: FrameColumns


class FunctionSymbol(NamedTuple):
    """The ELF symbol of a function; functions inlined everywhere have none, functions split by the
    compiler several.
    """

    name: str
    address: int
    """As in the image."""
    size: int
    alias: str | None = None
    """Another name at this address, which llvm-addr2line shows instead: the last one of the largest
    symbols there.
    """
    unit: str | None = None
    """Source file of the compilation unit that the function is in, relative to the build root; None
    where it is unknown.
    """


def _gather(items: Any, indexes: Sequence[int]) -> Sequence[Any]:
    """Return the items at one or more indexes, without a step of the interpreter for each."""
    return itemgetter(*indexes)(items) if len(indexes) > 1 else (items[indexes[0]],)


class LocationTable:
    """A location table, in memory: its file may be another user's, who may change it after it was
    checked.

    :param path: the file, or the name in messages of a table that was not written.
    :param build_id: the build ID that it must have, hexadecimal; None for any.
    :param contents: the contents of a table that was not written to a file.
    :raises TableError: when the file is not a complete table of this build and format.
    :raises OSError: when it cannot be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        build_id: str | None = None,
        *,
        contents: bytes | None = None,
    ) -> None:
        self.path = Path(path)
        if contents is not None:
            self._open(BytesIO(contents), build_id)
        else:
            with reading(str(path)), open_input(self.path) as file:
                self._open(file, build_id)
        self._frames: dict[int, Frame] = {}
        # By words of the array of chains.
        self._rows: dict[int, tuple[int, tuple[Frame, ...]] | None] = {-1: None}

    def _open(self, file: BinaryIO, build_id: str | None) -> None:
        header = file.read(_HEADER.size)
        if not header.startswith(_MAGIC):
            raise TableError(f"{self.path} is not a location table", wrong_file=str(self.path))
        if len(header) < _HEADER.size:
            raise TableError(f"{self.path} is truncated")
        _, version, order, length, base, found_id, id_size, arrays, checksum = _HEADER.unpack(
            header
        )
        if version != FORMAT or order != _ORDER_MARK or arrays != len(ARRAYS):
            raise TableError(f"{self.path} is not a location table of format {FORMAT}")
        if length > MAX_SIZE:
            raise TableError(f"{self.path} has {length} bytes, more than any location table")
        self.build_id = found_id[:id_size].hex()
        if build_id is not None and build_id != self.build_id:
            raise TableError(f"{self.path} is of another build")
        payload = file.read(max(length - _HEADER.size, 0) + 1)
        if length != _HEADER.size + len(payload) or len(payload) < len(ARRAYS) * _ENTRY.size:
            raise TableError(f"{self.path} is truncated")
        if zlib.crc32(payload) != checksum:
            raise TableError(f"{self.path} is damaged")
        self._base: int = base
        self._parts = {}
        for index, (name, (code, _)) in enumerate(ARRAYS.items()):
            at, size = _ENTRY.unpack_from(payload, index * _ENTRY.size)
            start = at - _HEADER.size
            if start < 0 or start + size > len(payload) or at % 8 or size % array(code).itemsize:
                raise TableError(f"{self.path} is damaged: {name} is incomplete")
            self._parts[name] = memoryview(payload)[start : start + size].cast(code)
            if name == "string":
                # Zeros separate them.
                self._string_count = payload.count(0, start, start + size)
        if not check_table(base, self._parts, len(PointKind)):
            raise TableError(f"{self.path} is damaged: numbers out of range")
        # Each string is a part of a frame or a function, or the name of a range or a file.
        columns = (
            "frame_function",
            "frame_file",
            "function_name",
            "function_alias",
            "function_unit",
            "definition_file",
            "definition_name",
            "range",
            "block_file",
        )
        if self._string_count > sum(len(self._parts[name]) for name in columns):
            raise TableError(f"{self.path} is damaged: more strings than names")
        self._offset = self._parts["offset"]
        self._chain = self._parts["chain"]
        self._bucket = self._parts["bucket"]
        self._bucket_count = len(self._bucket) - 1
        self._chain_frame = self._parts["chain_frame"]

    def __len__(self) -> int:
        """Return the number of PCs."""
        return len(self._offset)

    def get_rows(self, pcs: Iterable[int]) -> list[tuple[int, tuple[Frame, ...]] | None]:
        """Return for each PC its kind (of :class:`PointKind`) and its frames; None for a PC that is
        not in the table.

        Frames are innermost first; there are none if debug info has no line.

        :param pcs: as recorded.
        """
        # Everything shown waits for this: so no function is called for each PC.
        base, count = self._base, self._bucket_count
        buckets, offsets, chain_of = self._bucket, self._offset, self._chain
        words: list[int] = []
        add = words.append
        for pc in pcs:
            offset = pc - base
            bucket = offset >> BUCKET_SHIFT
            if 0 <= bucket < count:
                end = buckets[bucket + 1]
                index = bisect_left(offsets, offset, buckets[bucket], end)
                if index < end and offsets[index] == offset:
                    add(chain_of[index])
                    continue
            add(-1)
        rows = self._rows
        missing = set(words).difference(rows)
        if missing:
            self._read_rows(sorted(missing))
        return [rows[word] for word in words]

    def _read_rows(self, words: Sequence[int]) -> None:
        """Read the rows of some words of the array of chains: column by column, as most of these
        loops then run in C.
        """
        chain_frame, known = self._chain_frame, self._frames
        chains = [
            chain_frame[word >> 16 : (word >> 16) + (word >> KIND_BITS & MAX_DEPTH)].tolist()
            for word in words
        ]
        missing = tuple(set().union(*chains).difference(known))
        if missing:
            strings = self._strings
            names = _gather(strings, _gather(self._parts["frame_function"], missing))
            files = _gather(strings, _gather(self._parts["frame_file"], missing))
            lines = [line or None for line in _gather(self._parts["frame_line"], missing)]
            columns = [column or None for column in _gather(self._parts["frame_column"], missing)]
            # Faster than Frame's constructor with its named arguments.
            make = partial(tuple.__new__, Frame)
            known.update(
                zip(missing, map(make, zip(names, files, lines, columns, strict=True)), strict=True)
            )
        find = known.__getitem__
        rows = [
            (word & KIND_MASK, tuple(map(find, chain)))
            for word, chain in zip(words, chains, strict=True)
        ]
        self._rows.update(zip(words, rows, strict=True))

    @property
    def columns(self) -> TableColumns:
        """All PCs as columns."""
        function, file, line, column = (
            self._parts[f"frame_{name}"] for name in ("function", "file", "line", "column")
        )
        frames = FrameColumns(self._chain_frame, function, file, line, column, self._strings)
        return TableColumns(self._base, self._offset, self._chain, frames)

    @cached_property
    def blocks(self) -> BlockColumns | None:
        """The blocks of all functions; None if the image's code was not understood."""
        parts = self._parts
        if not parts["block_end"]:
            return None
        files = [self._strings[number] or "" for number in parts["block_file"]]
        starts, sizes, functions = (parts[f"part_{name}"] for name in ("start", "size", "function"))
        return BlockColumns(
            self._base, starts, sizes, functions, parts["block_end"], parts["block"], files
        )

    @cached_property
    def _strings(self) -> list[str | None]:
        # Decoding all strings costs less than finding the wanted ones. The first stands for None.
        need_memory(
            _STRING_SIZE * self._string_count, f"{self.path}: its {self._string_count:,} strings"
        )
        return [None, *bytes(self._parts["string"]).decode("utf-8", "replace").split("\0")]

    def pcs(self, *kinds: PointKind) -> array[int]:
        """Return the PCs of these kinds, of all kinds by default, ascending."""
        return self._choose(range(len(self)), kinds or PointKind)

    def find(
        self,
        kinds: Iterable[PointKind] = POINT_KINDS,
        *,
        function: str | None = None,
        files: Iterable[str] = (),
    ) -> array[int]:
        """Return the points that have a frame in a function, or else in some files, inlined frames
        included; ascending.

        :param kinds: the kinds of points; by default without tail calls, whose PC is in the caller
            of the executed function.
        :param function: its name in DWARF, or the name of a symbol, all of whose code counts; for
            Rust the mangled or the plain name.
        :param files: relative to the build root; a leading ``./`` makes no difference.
        """
        columns = self.columns
        symbols: list[FunctionSymbol] = []
        if function is None:
            paths = {file.removeprefix("./") for file in files}
            wanted = self.find_frames("frame_file", paths | {f"./{path}" for path in paths})
        else:
            if is_mangled(function) and not self.find_functions(function.__eq__):
                # Inlined everywhere.
                function = demangle(function)
            wanted = self.find_frames("frame_function", {function})
            symbols = self.find_functions(self._list_symbols(function).__contains__)
        flags = bytearray(len(columns.frames.function))
        for frame in wanted:
            flags[frame] = 1
        found = set(compress(count(), combine_flags(columns.frames, columns.chain, bytes(flags))))
        for symbol in symbols:
            found.update(self._rows_in(range(symbol.address, symbol.address + symbol.size)))
        return self._choose(sorted(found), kinds)

    def find_in(self, code: range) -> array[int]:
        """Return the points in a range of code, ascending."""
        return self._choose(self._rows_in(code), POINT_KINDS)

    def _rows_in(self, code: range) -> range:
        """Return the indexes of the PCs in a range of code."""
        # The return address of the last call is behind the range.
        ends = (code.start - self._base, code.stop - self._base)
        return range(*(bisect_right(self._offset, end) for end in ends))

    def _choose(self, rows: Iterable[int], kinds: Iterable[PointKind]) -> array[int]:
        """Return the PCs of some kinds at some indexes."""
        wanted = frozenset(map(int, kinds))
        chosen = (index for index in rows if self._chain[index] & KIND_MASK in wanted)
        return array("Q", [self._base + self._offset[index] for index in chosen])

    def find_frames(self, column: str, texts: Collection[str]) -> set[int]:
        """Return the frames that have one of some texts in a column: their indexes in
        :attr:`columns`.

        :param column: ``frame_function`` or ``frame_file``.
        """
        wanted = {index for index, text in enumerate(self._strings) if text in texts}
        return set(compress(count(), map(wanted.__contains__, self._parts[column])))

    def _names_in(self, *columns: str) -> set[str]:
        return {
            name
            for column in columns
            for index in set(self._parts[column])
            if (name := self._strings[index])
        }

    def files(self) -> list[str]:
        """Return the names of the files of all frames, sorted."""
        return sorted(self._names_in("frame_file"))

    def text_ranges(self) -> tuple[TextRange, ...]:
        """Return the parts of the image that have code."""
        parts = self._parts["range"]
        return tuple(
            TextRange(
                self._base + parts[at],
                self._base + parts[at + 1],
                self._strings[parts[at + 2]] or "",
            )
            for at in range(0, len(parts), 3)
        )

    def function_at(self, address: int) -> FunctionSymbol | None:
        """Return the symbol of the function that an address is in, None when it is in none.

        :param address: of an instruction, as in the image; for a PC as recorded, one less.
        """
        starts = self._parts["function_start"]
        offset = address - self._base
        index = bisect_right(starts, offset) - 1
        if index < 0 or offset >= starts[index] + self._parts["function_size"][index]:
            return None
        return self._function(index)

    def next_function(self, address: int) -> int | None:
        """Return the start of the next function after an address, None when there is none."""
        starts = self._parts["function_start"]
        index = bisect_right(starts, address - self._base)
        return self._base + starts[index] if index < len(starts) else None

    def mangled_at(self, pc: int, frames: Sequence[Frame]) -> str | None:
        """Return the symbol that contains a recorded PC, if the outermost frame has another name:
        in Rust, the plain one.
        """
        if not frames or "::" not in (frames[-1].function or ""):
            return None
        function = self.function_at(pc - 1)
        return None if function is None else function.name

    def functions(self) -> Iterator[FunctionSymbol]:
        """Iterate over the symbols of all functions, ascending."""
        return map(self._function, range(len(self._parts["function_start"])))

    def functions_named(self, name: str) -> list[FunctionSymbol]:
        """Return the symbols of a function and of its clones, which have suffixes.

        :param name: for Rust the mangled or the plain name.
        """
        symbols, clones = self._list_symbols(name), f"{name}."
        return self.find_functions(lambda text: text in symbols or text.startswith(clones))

    def _list_symbols(self, function: str) -> Collection[str]:
        """Return the names that the symbol of a function may have: its own, or a mangled one."""
        if "::" not in function:
            return (function,)
        mangled = (text for text in self._strings if text and demangle(text) == function)
        return {function, *mangled}

    def find_functions(self, wants: Callable[[str], bool]) -> list[FunctionSymbol]:
        """Return the symbols of the functions whose name or alias is wanted."""
        ids = {
            index for index, text in enumerate(self._strings) if text is not None and wants(text)
        }
        found: set[int] = set()
        for column in ("function_name", "function_alias"):
            found.update(compress(count(), map(ids.__contains__, self._parts[column])))
        return [self._function(index) for index in sorted(found)]

    def function_names(self) -> set[str]:
        """Return the names of all functions: the symbols' names, and the names in DWARF, which are
        not mangled.
        """
        names = self._names_in("function_name", "function_alias", "frame_function")
        return names | {demangle(name) for name in names if is_mangled(name)}

    def units(self) -> set[str]:
        """Return the source files of all compilation units that functions are in."""
        return self._names_in("function_unit")

    @cached_property
    def definitions(self) -> Mapping[str, Sequence[Definition]]:
        """Where functions with code are defined, by the normal path of the file; each file's by
        line.
        """
        found: defaultdict[str, list[Definition]] = defaultdict(list)
        columns = (self._parts[f"definition_{name}"] for name in ("file", "line", "name"))
        for file, line, name in zip(*columns, strict=True):
            definition = Definition(self._strings[file] or "", line, self._strings[name] or "")
            found[definition.file].append(definition)
        return found

    def definition_lines(self) -> dict[str, Sequence[int]]:
        """Return the lines where functions with code are defined, ascending, by the normal path of
        the file.
        """
        files, lines = self._parts["definition_file"], self._parts["definition_line"]
        found: dict[str, Sequence[int]] = {}
        for start, end in pairwise([*find_run_starts(files), len(files)]):
            found[self._strings[files[start]] or ""] = lines[start:end]
        return found

    def _function(self, index: int) -> FunctionSymbol:
        name = self._strings[self._parts["function_name"][index]]
        start, size = self._parts["function_start"][index], self._parts["function_size"][index]
        alias = self._strings[self._parts["function_alias"][index]]
        unit = self._strings[self._parts["function_unit"][index]]
        return FunctionSymbol(name or "", self._base + start, size, alias, unit)


def _narrow(columns: array[int]) -> array[int]:
    """Return columns of frames as 16-bit numbers; a larger one becomes 0, which is unknown."""
    halves = array("H", columns.tobytes())
    first, second = halves[0::2], halves[1::2]
    low, high = (second, first) if sys.byteorder == "big" else (first, second)
    if high.tobytes().strip(b"\0"):
        for index in compress(count(), high):
            low[index] = 0
    return low


def _number_known(strings: Locations, texts: Sequence[str | None]) -> array[int]:
    """Return the numbers of strings, 0 for None."""
    is_known = bytes(map(is_not, texts, repeat(None)))
    known = strings.number([text for text in texts if text is not None])
    return join_numbers(is_known, array("I", bytes(4 * is_known.count(0))), known)


class SymbolColumns(NamedTuple):
    """The symbols of functions as columns, ascending, one at an address; see
    :class:`FunctionSymbol`.
    """

    names: Sequence[str]
    addresses: Sequence[int]
    sizes: Sequence[int]
    aliases: Sequence[str | None]
    units: Sequence[str | None]

    def between(self, start: int, end: int) -> SymbolColumns:
        """Return the symbols that begin at or after an address, and before the end."""
        found = slice(*(bisect_left(self.addresses, address) for address in (start, end)))
        return SymbolColumns(
            self.names[found],
            self.addresses[found],
            self.sizes[found],
            self.aliases[found],
            self.units[found],
        )


class NewTable(NamedTuple):
    """The contents of a table that is to be written."""

    build_id: str
    """Hexadecimal."""
    ranges: Sequence[TextRange]
    """The image's text."""
    pcs: Sequence[int]
    """Ascending."""
    kinds: Sequence[int]
    chains: Sequence[int]
    """The location of each PC, by its number in ``locations``."""
    locations: LocationArrays
    functions: SymbolColumns
    definitions: DefinitionColumns = NO_DEFINITIONS
    blocks: BlockColumns | None = None
    """None if the image's code was not understood."""

    @property
    def _base(self) -> int:
        return min((text.start for text in self.ranges), default=0)

    def _arrays(self) -> Mapping[str, array[int]]:
        base, locations = self._base, self.locations
        rows = make_columns(self.pcs, self.kinds, self.chains, base, locations.chain_ends)
        strings = Locations()
        strings.add(LocationArrays(locations.text, array("I"), array("I"), array("I")))
        range_names = strings.number([text.name for text in self.ranges])
        ranges = array("I")
        for text, name in zip(self.ranges, range_names, strict=True):
            ranges.extend((text.start - base, text.end - base, name))
        functions = self.functions.between(base, base + (1 << 32))
        arrays = {
            **rows,
            "chain_frame": locations.chain_frames,
            "frame_function": locations.frames[0::4],
            "frame_file": locations.frames[1::4],
            "frame_line": locations.frames[2::4],
            "frame_column": _narrow(locations.frames[3::4]),
            "range": ranges,
            "function_start": array("I", [start - base for start in functions.addresses]),
            "function_size": array("I", [min(size, 0xFFFFFFFF) for size in functions.sizes]),
            "function_name": strings.number(functions.names),
            "function_alias": _number_known(strings, functions.aliases),
            "function_unit": _number_known(strings, functions.units),
            **self._definition_arrays(strings),
            **self._block_arrays(strings),
        }
        # The strings come last, when all are known. Zeros separate them.
        return {**arrays, "string": array("B", strings.arrays().text[:-1])}

    def _definition_arrays(self, strings: Locations) -> Mapping[str, array[int]]:
        definitions = self.definitions
        files, names = (strings.number(texts) for texts in (definitions.files, definitions.names))
        return {
            "definition_file": gather(definitions.of_file, files, 0),
            "definition_line": definitions.lines,
            "definition_name": gather(definitions.of_name, array("I", [0]) + names, 0),
        }

    def _block_arrays(self, strings: Locations) -> Mapping[str, array[int]]:
        blocks = self.blocks or BlockColumns(self._base, (), (), (), (), b"", ())
        return {
            "part_start": array("I", blocks.part_start),
            "part_size": array("I", blocks.part_size),
            "part_function": array("I", blocks.part_function),
            "block_end": array("Q", blocks.code_end),
            "block": array("B", blocks.code),
            "block_file": strings.number(blocks.files),
        }

    def _parts(self) -> Iterator[bytes | memoryview]:
        """Yield the contents of the file, in parts."""
        arrays = self._arrays()
        at = _HEADER.size + len(ARRAYS) * _ENTRY.size
        directory = bytearray()
        for name in ARRAYS:
            size = len(arrays[name]) * arrays[name].itemsize
            directory += _ENTRY.pack(at, size)
            at += size + -size % 8
        payload: list[bytes | memoryview] = [bytes(directory)]
        for name in ARRAYS:
            data = memoryview(arrays[name]).cast("B")
            payload += [data, bytes(-len(data) % 8)]
        checksum = 0
        for part in payload:
            checksum = zlib.crc32(part, checksum)
        build_id = bytes.fromhex(self.build_id)[:32]
        yield _HEADER.pack(
            _MAGIC,
            FORMAT,
            _ORDER_MARK,
            at,
            self._base,
            build_id,
            len(build_id),
            len(ARRAYS),
            checksum,
        )
        yield from payload

    def to_bytes(self) -> bytes:
        """Return the table as the contents of a file."""
        return b"".join(self._parts())

    def write(self, path: Path) -> None:
        """Write the table to a temporary file, then rename it: readers see the old file or the new
        one.

        :raises OSError: when it cannot be written.
        """
        with open_output(path, mode=PRIVATE) as file:
            file.writelines(self._parts())
