# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file that holds the locations of all coverage points of one build of the kernel.

Resolving a PC from debug info costs some hundred microseconds, and a trace has thousands; a build's points are resolved once
and kept. The file is mapped and searched in place, with nothing but mmap, struct and zlib's checksum, so that GDB's Python
reads it as well.

Layout: a header (:data:`_HEADER`), a directory of arrays (:data:`_ENTRY` each), the arrays. Numbers in the header are
little-endian; the arrays have the byte order of the machine that wrote them, which the header tells, since the file is a
cache for that machine. Locations are shared: a PC has a chain, a chain has frames, a frame has strings.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from kcovdbg.errors import KcovdbgError
from kcovdbg.model.location import Frame
from kcovdbg.symbols.points import PointKind

FORMAT: Final = 2
"""Part of the file's name: another version of kcovdbg with another format has files of its own."""

_MAGIC: Final = b"KCOVSYM\0"
# Magic, format, byte order mark, length of the file, address that offsets count from, build-id (zero padded) and its length,
# arrays, checksum (CRC-32) of everything behind the header.
_HEADER: Final = struct.Struct("<8sI4sQQ32sIII")
_ENTRY: Final = struct.Struct("<QQ")
_ORDER_MARK: Final = b"BIG\0" if sys.byteorder == "big" else b"LIT\0"
# A PC is first looked up by its offset's higher bits, then searched for among the few that share them.
_BUCKET_SHIFT: Final = 6
_KIND_MASK: Final = 3
_MAX_DEPTH: Final = (1 << 14) - 1

# The arrays, in the order of the directory, with their item's type.
_ARRAYS: Final[dict[str, Literal["B", "I", "Q"]]] = {
    "offset": "I",
    # From the lowest bit: kind (2 bits), length of the chain (14), index of its first frame in "chain_frame".
    "chain": "Q",
    "bucket": "I",
    "chain_frame": "I",
    # Indexes of strings, counted from 1; 0 stands for None in all four.
    "frame_function": "I",
    "frame_file": "I",
    "frame_line": "I",
    "frame_column": "I",
    # Each but the last with a zero byte behind it.
    "string": "B",
    # start and end as offsets, name.
    "range": "I",
    "function_start": "I",
    "function_size": "I",
    "function_name": "I",
    # One string: DW_AT_comp_dir.
    "directory": "I",
}


class TableError(KcovdbgError):
    """The file isn't a table, is damaged, or is of another build."""


class TextRange(NamedTuple):
    """A part of the kernel's image that holds code, addresses as in the image."""

    start: int
    end: int
    """The address after the last one."""
    name: str
    """The section, such as ``.init.text``."""


class Entry(NamedTuple):
    """What the table has for a PC."""

    kind: PointKind
    frames: tuple[Frame, ...]
    """Innermost first; empty where debug info has no line for it."""


class FunctionSymbol(NamedTuple):
    """A function by its ELF symbol; one inlined everywhere has none, one split by the compiler several."""

    name: str
    address: int
    """As in the image."""
    size: int


def _gather(items: Any, indexes: Sequence[int]) -> Sequence[Any]:
    """Return the items of some indexes, at least one, without a step of the interpreter for each."""
    return itemgetter(*indexes)(items) if len(indexes) > 1 else (items[indexes[0]],)


class Table:
    """A table, mapped.

    :param path: the file.
    :param build_id: the build that it must be of, hexadecimal; None takes any.
    :raises TableError: when the file isn't a whole table of this build and format.
    :raises OSError: when it can't be opened.
    """

    def __init__(self, path: str | os.PathLike[str], build_id: str | None = None) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            try:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise TableError(f"{path} is empty") from error
        self._whole = memoryview(self._map)
        self._parts: dict[str, memoryview[int]] = {}
        try:
            self._open(build_id)
        except TableError:
            self.close()
            raise
        self._frames: dict[int, Frame] = {}
        # By words of the array of chains.
        self._rows: dict[int, tuple[int, tuple[Frame, ...]] | None] = {-1: None}

    def _open(self, build_id: str | None) -> None:
        if len(self._map) < _HEADER.size:
            raise TableError(f"{self.path} is cut short")
        magic, version, order, length, base, found_id, id_size, arrays, checksum = _HEADER.unpack_from(self._map)
        if magic != _MAGIC or version != FORMAT or order != _ORDER_MARK or arrays != len(_ARRAYS):
            raise TableError(f"{self.path} is no symbol table of this version")
        if length != len(self._map):
            raise TableError(f"{self.path} is cut short")
        self.build_id = found_id[:id_size].hex()
        if build_id is not None and build_id != self.build_id:
            raise TableError(f"{self.path} is of another build")
        with self._whole[_HEADER.size :] as payload:
            if zlib.crc32(payload) != checksum:
                raise TableError(f"{self.path} is damaged")
        self._base: int = base
        for index, (name, code) in enumerate(_ARRAYS.items()):
            at, size = _ENTRY.unpack_from(self._map, _HEADER.size + index * _ENTRY.size)
            try:
                self._parts[name] = self._whole[at : at + size].cast(code)
            except TypeError:
                raise TableError(f"{self.path} is damaged: {name} isn't whole") from None
        self._offset = self._parts["offset"]
        self._chain = self._parts["chain"]
        self._bucket = self._parts["bucket"]
        self._bucket_count = len(self._bucket) - 1
        self._chain_frame = self._parts["chain_frame"]

    def close(self) -> None:
        """Unmap the file."""
        self._offset = self._chain = self._bucket = self._chain_frame = memoryview(b"")
        for part in self._parts.values():
            part.release()
        self._parts = {}
        self._whole.release()
        self._map.close()

    def __len__(self) -> int:
        """Count the PCs."""
        return len(self._offset)

    def _index(self, pc: int) -> int:
        """Find a PC's index, -1 where the table hasn't got it."""
        offset = pc - self._base
        bucket = offset >> _BUCKET_SHIFT
        if not 0 <= bucket < self._bucket_count:
            return -1
        end = self._bucket[bucket + 1]
        index = bisect_left(self._offset, offset, self._bucket[bucket], end)
        return index if index < end and self._offset[index] == offset else -1

    def __contains__(self, pc: object) -> bool:
        """Tell whether the table has a PC (as recorded: KASLR offset taken off, the return address)."""
        return isinstance(pc, int) and self._index(pc) >= 0

    def get(self, pc: int) -> Entry | None:
        """Look up one PC, as recorded.

        :return: None where the table hasn't got it.
        """
        row = self.get_rows((pc,))[0]
        return None if row is None else Entry(PointKind(row[0]), row[1])

    def get_rows(self, pcs: Iterable[int]) -> list[tuple[int, tuple[Frame, ...]] | None]:
        """Look up many PCs, as recorded: kind (of :class:`PointKind`) and frames of each, None for those it hasn't got."""
        # What everything on the screen waits for: _index() in place, and no call per PC.
        base, count = self._base, self._bucket_count
        buckets, offsets, chain_of = self._bucket, self._offset, self._chain
        words: list[int] = []
        add = words.append
        for pc in pcs:
            offset = pc - base
            bucket = offset >> _BUCKET_SHIFT
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
        """Read the rows of some words of the array of chains.

        Column by column, since that leaves most of the work to loops in C.
        """
        chain_frame, known = self._chain_frame, self._frames
        chains = [chain_frame[word >> 16 : (word >> 16) + (word >> 2 & _MAX_DEPTH)].tolist() for word in words]
        missing = tuple(set().union(*chains).difference(known))
        if missing:
            strings = self._strings
            names = _gather(strings, _gather(self._parts["frame_function"], missing))
            files = _gather(strings, _gather(self._parts["frame_file"], missing))
            lines = [line or None for line in _gather(self._parts["frame_line"], missing)]
            columns = [column or None for column in _gather(self._parts["frame_column"], missing)]
            # Without Frame's own constructor and its named arguments.
            make = partial(tuple.__new__, Frame)
            known.update(zip(missing, map(make, zip(names, files, lines, columns, strict=True)), strict=True))
        find = known.__getitem__
        rows = [(word & _KIND_MASK, tuple(map(find, chain))) for word, chain in zip(words, chains, strict=True)]
        self._rows.update(zip(words, rows, strict=True))

    @cached_property
    def _strings(self) -> list[str | None]:
        # All of them: one decoding costs less than a look at each that is wanted. The first one stands for None.
        return [None, *bytes(self._parts["string"]).decode().split("\0")]

    def pcs(self, *kinds: PointKind) -> array[int]:
        """Return all PCs of these kinds, or of all where none is given, ascending."""
        base = self._base
        if not kinds:
            return array("Q", [base + offset for offset in self._offset])
        wanted = frozenset(int(kind) for kind in kinds)
        pairs = zip(self._offset, self._chain, strict=True)
        return array("Q", [base + offset for offset, word in pairs if word & _KIND_MASK in wanted])

    def find(self, *, function: str | None = None, file: str | None = None) -> array[int]:
        """Find the points that have a frame in a function, or in a file, or both; inlined frames too. Ascending.

        :param function: its name as in DWARF.
        :param file: relative to the build root, without a leading ``./``.
        """
        functions = None if function is None else self._string_ids({function})
        files = None if file is None else self._string_ids({file, f"./{file}"})
        columns = zip(self._parts["frame_function"], self._parts["frame_file"], strict=True)
        wanted = {
            index
            for index, (name, place) in enumerate(columns)
            if (functions is None or name in functions) and (files is None or place in files)
        }
        places = [place for place, index in enumerate(self._chain_frame) if index in wanted]
        base = self._base
        found = array("Q")
        for offset, word in zip(self._offset, self._chain, strict=True):
            start = word >> 16
            place = bisect_left(places, start)
            if place < len(places) and places[place] < start + (word >> 2 & _MAX_DEPTH) and word & _KIND_MASK != PointKind.TAIL:
                found.append(base + offset)
        return found

    def _string_ids(self, texts: set[str]) -> set[int]:
        return {index for index, text in enumerate(self._strings) if text in texts}

    def files(self) -> list[str]:
        """Name all files that a frame lies in, sorted."""
        names = (self._strings[index] for index in set(self._parts["frame_file"]))
        return sorted(name for name in names if name is not None)

    def text_ranges(self) -> tuple[TextRange, ...]:
        """Return the parts of the image that hold code."""
        parts = self._parts["range"]
        return tuple(
            TextRange(self._base + parts[at], self._base + parts[at + 1], self._strings[parts[at + 2]] or "")
            for at in range(0, len(parts), 3)
        )

    def function_at(self, address: int) -> FunctionSymbol | None:
        """Find the function symbol that an address of the image lies in.

        :param address: of an instruction: for a PC as recorded, one less.
        """
        starts = self._parts["function_start"]
        offset = address - self._base
        index = bisect_right(starts, offset) - 1
        if index < 0 or offset >= starts[index] + self._parts["function_size"][index]:
            return None
        return self._function(index)

    def functions(self) -> Iterator[FunctionSymbol]:
        """Yield all function symbols, ascending."""
        return (self._function(index) for index in range(len(self._parts["function_start"])))

    def _function(self, index: int) -> FunctionSymbol:
        name = self._strings[self._parts["function_name"][index]]
        start, size = self._parts["function_start"][index], self._parts["function_size"][index]
        return FunctionSymbol(name or "", self._base + start, size)

    @property
    def directory(self) -> str | None:
        """``DW_AT_comp_dir``: the folder that the kernel was built in; None where debug info doesn't tell."""
        return self._strings[self._parts["directory"][0]]


class TableWriter:
    """Collects what goes into a table.

    :param build_id: hexadecimal.
    :param ranges: the image's text.
    """

    def __init__(self, build_id: str, ranges: Sequence[TextRange]) -> None:
        self._build_id = bytes.fromhex(build_id)
        self._ranges = ranges
        self._base = min((text.start for text in ranges), default=0)
        self._strings: dict[str, int] = {}
        self._frames: dict[tuple[int, int, int, int], int] = {}
        self._frame_ids: dict[Frame, int] = {}
        self._chains: dict[tuple[int, ...], int] = {}
        self._rows: dict[int, tuple[int, int]] = {}
        self._functions: list[tuple[int, int, int]] = []
        self._directory = 0

    def _string(self, text: str | None) -> int:
        return 0 if text is None else self._strings.setdefault(text, len(self._strings) + 1)

    def frame_id(self, function: str | None, file: str | None, line: int | None, column: int | None) -> int:
        """Intern a frame, for :meth:`add`."""
        key = (
            self._string(function),
            self._string(file),
            line or 0,
            column or 0,
        )
        return self._frames.setdefault(key, len(self._frames))

    def add(self, pc: int, kind: PointKind, frame_ids: tuple[int, ...]) -> None:
        """Add a PC with the frames of its location, innermost first."""
        self._rows[pc] = (int(kind), self._chains.setdefault(frame_ids, len(self._chains)))

    def add_all(self, pcs: Sequence[int], kinds: Sequence[PointKind], chains: Sequence[tuple[int, ...]]) -> None:
        """Add PCs, each with its kind and the frames of its location: what :meth:`add` does, for a whole image at once."""
        known = self._chains
        ids = [known.setdefault(chain, len(known)) for chain in chains]
        self._rows.update(zip(pcs, zip(kinds, ids, strict=True), strict=True))

    def add_frames(self, pc: int, kind: PointKind, frames: Iterable[Frame]) -> None:
        """Add a PC with its location."""
        ids = self._frame_ids
        chain = []
        for frame in frames:
            index = ids.get(frame)
            if index is None:
                index = ids[frame] = self.frame_id(*frame)
            chain.append(index)
        self.add(pc, kind, tuple(chain))

    def add_function(self, symbol: FunctionSymbol) -> None:
        """Add a function symbol; of several at one address the first one counts."""
        self._functions.append((symbol.address, symbol.size, self._string(symbol.name)))

    def set_directory(self, directory: str | None) -> None:
        """Tell the folder that the kernel was built in."""
        self._directory = self._string(directory)

    def _arrays(self) -> Mapping[str, array[int]]:
        base = self._base
        pcs = sorted(pc for pc in self._rows if 0 <= pc - base < 1 << 32)
        offsets = array("I", [pc - base for pc in pcs])
        # Where each bucket's offsets start, and where the last one's end.
        counts = [0] * ((offsets[-1] >> _BUCKET_SHIFT) + 2 if offsets else 1)
        for offset in offsets:
            counts[(offset >> _BUCKET_SHIFT) + 1] += 1
        buckets = array("I", accumulate(counts))
        rows = [self._rows[pc] for pc in pcs]
        chain_words, chain_frame = [], array("I")
        for chain in self._chains:
            depth = min(len(chain), _MAX_DEPTH)
            chain_words.append(len(chain_frame) << 16 | depth << 2)
            chain_frame.extend(chain[:depth])
        columns = list(zip(*self._frames, strict=True)) or [(), (), (), ()]
        ranges = array("I")
        for text in self._ranges:
            ranges.extend((text.start - base, text.end - base, self._string(text.name)))
        functions: dict[int, tuple[int, int]] = {}
        for start, size, name in self._functions:
            if 0 <= start - base < 1 << 32:
                functions.setdefault(start - base, (min(size, 0xFFFFFFFF), name))
        starts = sorted(functions)
        return {
            "offset": offsets,
            "chain": array("Q", [chain_words[chain] | kind for kind, chain in rows]),
            "bucket": buckets,
            "chain_frame": chain_frame,
            "frame_function": array("I", columns[0]),
            "frame_file": array("I", columns[1]),
            "frame_line": array("I", columns[2]),
            "frame_column": array("I", columns[3]),
            "string": array("B", "\0".join(self._strings).encode("utf-8", "replace")),
            "range": ranges,
            "function_start": array("I", starts),
            "function_size": array("I", [functions[start][0] for start in starts]),
            "function_name": array("I", [functions[start][1] for start in starts]),
            "directory": array("I", [self._directory]),
        }

    def to_bytes(self) -> bytes:
        """Lay the table out as a file."""
        arrays = self._arrays()
        at = _HEADER.size + len(_ARRAYS) * _ENTRY.size
        directory, parts = bytearray(), bytearray()
        for name in _ARRAYS:
            data = arrays[name].tobytes()
            directory += _ENTRY.pack(at + len(parts), len(data))
            parts += data + bytes(-len(data) % 8)
        payload = bytes(directory + parts)
        header = _HEADER.pack(
            _MAGIC,
            FORMAT,
            _ORDER_MARK,
            _HEADER.size + len(payload),
            self._base,
            self._build_id[:32],
            min(len(self._build_id), 32),
            len(_ARRAYS),
            zlib.crc32(payload),
        )
        return header + payload

    def write(self, path: Path) -> None:
        """Write the table so that whoever reads it meanwhile sees the old file or the new one, and never half of it.

        :raises OSError: when it can't be written.
        """
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with fresh.open("wb") as file:
                file.write(self.to_bytes())
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
