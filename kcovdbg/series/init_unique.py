# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV_INIT_UNIQUE: a bitmap of the kernel's text instead of records, by Alexander Lochmann, 2020-2021 (kcov-abi.md 8.1)."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.abi.mode import Mode, plain_name
from kcovdbg.abi.record import Codec, Encoding, decode_words
from kcovdbg.errors import MissingSymbolError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.object_names import name_kcov
from kcovdbg.model.rule import Hex, Violation, rule, values
from kcovdbg.model.state import Part, State
from kcovdbg.series.declaration import BufferPlace, BufferReader, Detection, Encoded, Series, SeriesState, Variant
from kcovdbg.target.protocol import Target

TEXT_BITMAP: Final = "text-bitmap"
"""The whole buffer is a bitmap of the kernel's text."""
STEP: Final = 4
"""Bytes of text that one bit stands for."""

_ENUMERATORS: Final = ("KCOV_MODE_INIT_TRACE", "KCOV_MODE_INIT_UNIQUE", "KCOV_MODE_UNIQUE_PC")
_BITS: Final = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))
_PIECE: Final = 4096
_MODE: Final = "UNIQUE_PC"


class _BitmapCodec(Codec):
    __slots__ = ()

    def capacity(self, size: int, word_size: int, prefix_words: int = 0) -> int:
        return max(0, (size - prefix_words) * word_size * 8)

    def decode_uncounted(self, data: bytes, encoding: Encoding) -> array[int]:
        """Return the addresses that are marked, ascending, rounded down to four bytes from ``_stext`` on."""
        if encoding.big_endian:
            # Bits are numbered within words: those of a big-endian word's last byte come first.
            words = decode_words(data, encoding)
            if sys.byteorder == "big":
                words.byteswap()
            data = words.tobytes()
        found = array("Q")
        zeros = bytes(_PIECE)
        for position in range(0, len(data), _PIECE):
            piece = data[position : position + _PIECE]
            # Text is covered sparsely: most pages of the bitmap are empty.
            if piece != zeros[: len(piece)]:
                found.extend(
                    (encoding.base + STEP * (8 * (position + at) + bit)) & WORD_MASK
                    for at, byte in enumerate(piece)
                    if byte
                    for bit in _BITS[byte]
                )
        return found


BITMAP: Final[Codec] = _BitmapCodec("text-bitmap", "marks of covered text", has_count=False, has_plain_pcs=False)
"""A bit for four bytes of the kernel's text. The base of its encoding is ``_stext`` minus the KASLR offset."""


def _detect(target: Target, enumerators: Mapping[str, int]) -> Detection | None:
    del target
    if not {"INIT_UNIQUE", "INIT_TRACE"} & set(map(plain_name, enumerators)):
        return None
    return Detection(frozenset({TEXT_BITMAP}), VARIANT, _ENUMERATORS)


def _encode(target: Target, place: BufferPlace, encoding: Encoding) -> Encoded:
    del place
    if encoding.has_count:
        return Encoded(encoding)
    try:
        return Encoded(replace(encoding, base=target.symbol("_stext").address - target.kaslr_offset))
    except MissingSymbolError as error:
        return Encoded(encoding, (f"addresses are offsets into the text: {error}",))


def _read(target: Target, state: State, read_buffer: BufferReader) -> SeriesState:
    """Read the bitmaps of objects, by ``struct kcov *``."""
    del target
    found: dict[int, Buffer] = {}
    for address, fields in state.kcovs.items():
        if fields.size and fields.area and state.objects[address].mode == _MODE:
            buffer = read_buffer(f"kcov:{address:#x}", fields.size)
            if buffer is not None:
                found[address] = buffer
    return SeriesState(found)


@rule(
    "B10",
    Severity.ERROR,
    "a bitmap of the text is as long as the text, and marks nothing behind it",
    since="posted series of 2021 with KCOV_INIT_UNIQUE",
    guaranteed_by="kcov_ioctl() (KCOV_INIT_UNIQUE), __sanitizer_cov_trace_pc()",
    consequence="Coverage is missing, or marked outside of the bitmap.",
    needs=Part.SERIES | Part.OBJECTS | Part.TEXT,
    features=(TEXT_BITMAP,),
)
def check_text(state: State) -> Iterator[Violation]:
    """B10."""
    kernel = state.kernel
    if None in state.text:
        return
    start, end = ((address or 0) - kernel.kaslr_offset for address in state.text)
    buffers: Mapping[int, Buffer] = state.series[TEXT_BITMAP]
    for address, fields in state.kcovs.items() if start < end else ():
        if not fields.size or not fields.area or state.objects[address].mode != _MODE:
            continue
        room = 8 * STEP * kernel.bytes_of(fields.size)
        if room < end - start:
            yield Violation(
                name_kcov(address),
                f"its bitmap covers {room} bytes of text, but the text has {end - start}: the kernel writes behind its end",
                values(size=fields.size, text=end - start),
                kcovs=(address,),
            )
        beyond = [pc for pc in (buffers[address].words if address in buffers else ()) if pc >= end]
        if beyond:
            yield Violation(
                name_kcov(address),
                f"its bitmap marks {len(beyond)} places behind the text, the first {beyond[0]:#x}",
                values(pc=Hex(beyond[0]), end=Hex(end)),
                Certainty.UNSURE,
                "user space can write its buffer",
                kcovs=(address,),
                severity=Severity.WARNING,
            )


VARIANT: Final = Variant(
    "KCOV_INIT_UNIQUE (2021)",
    recognized_by="`KCOV_MODE_INIT_UNIQUE`",
    also_shown="a buffer that is a bitmap of the kernel's text; its end by `check` (B10)",
    tested_on="imitation `l`",
)

SERIES: Final = Series(
    name="KCOV_INIT_UNIQUE",
    feature=TEXT_BITMAP,
    features=(TEXT_BITMAP,),
    variants=(VARIANT,),
    detect=_detect,
    enumerators=_ENUMERATORS,
    replaced=frozenset({"KCOV_MODE_INIT"}),
    modes=(Mode(_MODE, BITMAP), Mode("INIT_UNIQUE", BITMAP)),
    # KCOV_IN_CTXSW is the sign bit.
    in_ctxsw=1 << 31,
    encode=_encode,
    layout_by_mode=True,
    read=_read,
    rules=(check_text,),
    # A unique object has no size in words, and no count.
    excludes=frozenset({"B1", "K3", "K4", "X5"}),
)
