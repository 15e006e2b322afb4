# SPDX-License-Identifier: LGPL-2.1-or-later
"""The loops over every word of a buffer, in C where the compiled module is there and in Python where it isn't.

Nothing else but ``collect/`` imports the compiled module. Both ways give the same results; the C way is ten times to some
hundred times faster. What the C functions do is told in the headers in native/.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cache
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

NO_ID: Final = 0xFFFFFFFF
"""The number of what has none."""

# More text than any kernel has; beyond it the bitmap would cost more than it saves.
_MAX_TEXT: Final = 1 << 30
_MAX_RECORDS: Final = 1 << 30
# Steps that take about a second.
_DIFF_BUDGET: Final = 600_000_000
# difflib's time grows with the square of what differs.
_PYTHON_DIFF_LIMIT: Final = 20_000


class Words(NamedTuple):
    """The words of a buffer that hold PCs, as bytes."""

    data: bytes | bytearray | memoryview | array[int]
    """Without the count; its length may be no multiple of the stride: what is cut short at the end is left out."""
    word_size: int = 8
    """In bytes: 4 or 8."""
    big_endian: bool = sys.byteorder == "big"
    first: int = 0
    """Where the first PC is, in bytes: 24 in a buffer of comparisons."""
    stride: int | None = None
    """From one PC to the next, in bytes; None for one word. 32 in a buffer of comparisons."""
    or_bits: int = 0
    """Set in each word: the upper half that a 32-bit buffer implies, the bits that a record's type took."""

    def record_count(self) -> int:
        """Count the PCs."""
        size = memoryview(self.data).nbytes - self.first
        stride = self.stride or self.word_size
        return max(0, (size - self.word_size) // stride + 1)

    def to_array(self) -> array[int]:
        """Return the PCs."""
        code, count = ("Q" if self.word_size == 8 else "I"), self.record_count()
        view = memoryview(self.data).cast("B")
        step = (self.stride or self.word_size) // self.word_size
        words = array(code)
        if count:
            end = self.first + ((count - 1) * step + 1) * self.word_size
            words.frombytes(view[self.first : end])
        if step > 1:
            words = words[::step]
        if self.big_endian != (sys.byteorder == "big"):
            words.byteswap()
        if self.or_bits or code != "Q":
            return array("Q", [word | self.or_bits for word in words])
        return words


class Alignment(NamedTuple):
    """What two ordered traces have in common."""

    blocks: list[tuple[int, int, int]]
    """Of each run of equal records, ascending: index on the left, index on the right, length."""
    is_coarse: bool
    """The search was cut short: what is equal is equal, but there may be more of it."""


@cache
def _native() -> tuple[Any, Any]:
    # When it is first needed: most commands look at no buffer, and cffi is as slow to load as all the rest.
    from kcovdbg._native import ffi, lib

    return ffi, lib


@cache
def has_native() -> bool:
    """Tell whether the compiled module can be used; otherwise Python does it.

    It can't where it wasn't built, or was for another machine than this, and inside a GDB whose Python has no cffi.
    """
    if find_spec("_cffi_backend") is None:
        return False
    try:
        _native()
    except ImportError:
        return False
    return True


class _NativeNumbering:
    def __init__(self, base: int, size: int) -> None:
        ffi, lib = _native()
        self._text = lib.kcovdbg_text_new(base, size)
        if self._text == ffi.NULL:
            raise MemoryError
        self._text = ffi.gc(self._text, lib.kcovdbg_text_free, size // 8)
        self._count = 0

    def _words(self, words: Words) -> Any:
        ffi, _ = _native()
        view = ffi.from_buffer(words.data)
        native = ffi.new("struct kcovdbg_words *")
        native.count = words.record_count()
        native.words = ffi.cast("char *", view) + words.first if native.count else ffi.NULL
        native.stride = words.stride or words.word_size
        native.or_bits = words.or_bits
        native.word_size = words.word_size
        native.swap = words.big_endian != (sys.byteorder == "big")
        # The structure doesn't keep what it points to.
        return native, view

    def number(self, buffers: Sequence[Words]) -> array[int]:
        ffi, lib = _native()
        lib.kcovdbg_text_reset(self._text)
        for words in buffers:
            native, _keep = self._words(words)
            if lib.kcovdbg_text_add(self._text, native):
                raise MemoryError
        self._count = lib.kcovdbg_text_number(self._text)
        if self._count < 0:
            raise MemoryError
        pcs = _zeros("Q", self._count)
        lib.kcovdbg_text_pcs(self._text, ffi.from_buffer("uint64_t[]", pcs))
        return pcs

    def ids(self, words: Words) -> array[int]:
        ffi, lib = _native()
        native, _keep = self._words(words)
        ids = _zeros("I", words.record_count())
        lib.kcovdbg_text_ids(self._text, native, ffi.from_buffer("uint32_t[]", ids))
        return ids

    def counts(self, buffers: Sequence[Words]) -> array[int]:
        ffi, lib = _native()
        counts = _zeros("Q", self._count)
        for words in buffers:
            native, _keep = self._words(words)
            lib.kcovdbg_text_count(self._text, native, ffi.from_buffer("uint64_t[]", counts))
        return counts


class _PythonNumbering:
    def __init__(self) -> None:
        self._pcs = array("Q")
        self._ids: dict[int, int] = {}

    def number(self, buffers: Sequence[Words]) -> array[int]:
        distinct: set[int] = set()
        for words in buffers:
            distinct.update(words.to_array())
        self._pcs = array("Q", sorted(distinct))
        self._ids = {pc: index for index, pc in enumerate(self._pcs)}
        return self._pcs[:]

    def ids(self, words: Words) -> array[int]:
        find = self._ids.get
        return array("I", [find(pc, NO_ID) for pc in words.to_array()])

    def counts(self, buffers: Sequence[Words]) -> array[int]:
        counter: Counter[int] = Counter()
        for words in buffers:
            counter.update(words.to_array())
        return array("Q", [counter[pc] for pc in self._pcs])


class Numbering:
    """Numbers the distinct PCs of buffers by address; reused, it keeps its memory (an eighth of the text's size).

    :param text: first address of the kernel's code and the address after the last one, as recorded in buffers (KASLR
        offset taken off). PCs outside are numbered as well, slower.
    :param native: whether to use the compiled module; None for: when it is there.
    """

    def __init__(self, text: tuple[int, int] = (0, 0), *, native: bool | None = None) -> None:
        start, end = text
        if native is None:
            native = has_native()
        if native:
            self._way: _NativeNumbering | _PythonNumbering = _NativeNumbering(start, min(max(0, end - start), _MAX_TEXT))
        else:
            self._way = _PythonNumbering()

    def number(self, *buffers: Words) -> array[int]:
        """Return the distinct PCs of some buffers together, ascending; a PC's number is its index."""
        return self._way.number(buffers)

    def ids(self, words: Words) -> array[int]:
        """Return the number of each record's PC; :data:`NO_ID` where :meth:`number` hasn't seen it."""
        return self._way.ids(words)

    def counts(self, *buffers: Words) -> array[int]:
        """Count how often each numbered PC occurs in some buffers."""
        return self._way.counts(buffers)


def _zeros(code: str, count: int) -> array[int]:
    return array(code, bytes(array(code).itemsize * count))


def find_ordinals(pcs: array[int], known: array[int], *, native: bool | None = None) -> array[int]:
    """Find ascending PCs among ascending known ones.

    :return: the place of each; :data:`NO_ID` where it isn't among them.
    """
    if has_native() if native is None else native:
        ffi, lib = _native()
        ordinals = _zeros("I", len(pcs))
        lib.kcovdbg_ordinals(
            ffi.from_buffer("uint64_t[]", pcs),
            len(pcs),
            ffi.from_buffer("uint64_t[]", known),
            len(known),
            ffi.from_buffer("uint32_t[]", ordinals),
        )
        return ordinals
    ordinals = array("I")
    place = 0
    for pc in pcs:
        place = bisect_left(known, pc, place)
        ordinals.append(place if place < len(known) and known[place] == pc else NO_ID)
    return ordinals


def align(
    left: array[int],
    right: array[int],
    groups: array[int] | None = None,
    *,
    budget: int = _DIFF_BUDGET,
    native: bool | None = None,
) -> Alignment:
    """Align two sequences of ids.

    :param groups: of each id, what it belongs to: records of one group in a row are aligned as one first (functions, for
        PCs). Aligned together, sequences of a million records take a fifth of a second when they are nearly equal.
    :param budget: bounds the steps; the default is about a second's. What is left then is called different.
    :raises ValueError: when a sequence is longer than :func:`align` can do (2^30 records), or an id has no group.
    """
    if len(left) >= _MAX_RECORDS or len(right) >= _MAX_RECORDS:
        raise ValueError("too many records")
    if groups is not None and max(max(left, default=-1), max(right, default=-1)) >= len(groups):
        raise ValueError("an id without a group")
    if has_native() if native is None else native:
        return _align_native(left, right, groups, budget)
    return _align_python(left, right)


def _align_native(left: array[int], right: array[int], groups: array[int] | None, budget: int) -> Alignment:
    ffi, lib = _native()
    diff = lib.kcovdbg_diff_new(
        ffi.from_buffer("uint32_t[]", left),
        len(left),
        ffi.from_buffer("uint32_t[]", right),
        len(right),
        ffi.NULL if groups is None else ffi.from_buffer("uint32_t[]", groups),
        0 if groups is None else len(groups),
        budget,
    )
    if diff == ffi.NULL:
        raise MemoryError
    try:
        flat = _zeros("I", 3 * lib.kcovdbg_diff_count(diff))
        lib.kcovdbg_diff_blocks(diff, ffi.from_buffer("uint32_t[]", flat))
        is_coarse = bool(lib.kcovdbg_diff_is_coarse(diff))
    finally:
        lib.kcovdbg_diff_free(diff)
    numbers = iter(flat.tolist())
    return Alignment(list(zip(numbers, numbers, numbers, strict=True)), is_coarse)


def _align_python(left: array[int], right: array[int]) -> Alignment:
    head = 0
    shorter = min(len(left), len(right))
    while head < shorter and left[head] == right[head]:
        head += 1
    tail = 0
    while tail < shorter - head and left[-1 - tail] == right[-1 - tail]:
        tail += 1
    blocks = [(0, 0, head)]
    middle_left, middle_right = left[head : len(left) - tail], right[head : len(right) - tail]
    is_coarse = len(middle_left) + len(middle_right) > _PYTHON_DIFF_LIMIT
    if not is_coarse:
        matcher = SequenceMatcher(None, middle_left, middle_right, autojunk=False)
        blocks += [(head + a, head + b, size) for a, b, size in matcher.get_matching_blocks()]
        # difflib takes the longest run each time, which needn't leave the fewest differences.
        is_coarse = bool(middle_left) and bool(middle_right)
    blocks.append((len(left) - tail, len(right) - tail, tail))
    joined: list[tuple[int, int, int]] = []
    for a, b, size in blocks:
        if joined and joined[-1][0] + joined[-1][2] == a and joined[-1][1] + joined[-1][2] == b:
            joined[-1] = (*joined[-1][:2], joined[-1][2] + size)
        elif size:
            joined.append((a, b, size))
    return Alignment([block for block in joined if block[2]], is_coarse)
