# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV as posted in January 2016 (version 3), before it was merged in v4.6 (kcov-abi.md 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.abi.generations import KCOV, MODE, Era
from kcovdbg.abi.record import Codec, Encoding, RecordKind
from kcovdbg.series.declaration import BufferFacts, Series, SeriesMember, Variant
from kcovdbg.target.struct_layout import find_kernel_symbol
from kcovdbg.target.target import Target

WORDS_32: Final = "32-bit-words"
"""The buffer holds 32-bit words, the lower halves of PCs."""
VMA_REFERENCES: Final = "vma-references"
"""Each mapping holds a reference of its own."""

# Where x86-64 has the kernel's text.
_UPPER_HALF: Final = 0xFFFFFFFF << 32
_MODE: Final = "kcov_mode_trace"


class _LowHalves(Codec):
    __slots__ = ()

    def decode_address(self, word: int, encoding: Encoding) -> tuple[RecordKind, int | None]:
        return RecordKind.PC, word + encoding.base & WORD_MASK


PC_32: Final[Codec] = _LowHalves(
    "pc-32", "lower halves of addresses", word_size=4, has_plain_pcs=False, base=_UPPER_HALF
)
"""32-bit words, the lower half of an address each.

The posting's example adds ones as the upper half.
"""


def _encode(
    target: Target, facts: BufferFacts, encoding: Encoding
) -> tuple[Encoding, Sequence[str]]:
    """Add the upper half of the text's addresses.

    The posting does not subtract the KASLR offset.
    """
    del facts
    text = find_kernel_symbol(target, "_stext")
    upper = _UPPER_HALF if target.word_size == 8 else 0
    if text is not None:
        upper = text.address >> 32 << 32
    return replace(encoding, base=upper - target.kaslr_offset), ()


SERIES: Final = Series(
    name="KCOV posting of January 2016",
    feature=WORDS_32,
    era=Era("E0", "posting v3 of January 2016", "32-bit words, references held by mappings"),
    variants=(
        Variant(
            "",
            recognized_by="`rc` in `struct kcov`, `kcov_mode_trace`",
            also_shown="32-bit words, references held by mappings",
            tested_on="imitation `e0`",
            features=frozenset({WORDS_32, VMA_REFERENCES}),
            marks=((KCOV, "rc"), (MODE, _MODE)),
            enumerators=(_MODE,),
        ),
    ),
    members=(SeriesMember(KCOV, ("rc.refs.counter", "rc.counter"), field="refcount"),),
    enumerators=(_MODE,),
    replaced=frozenset({"KCOV_MODE_DISABLED", "KCOV_MODE_TRACE"}),
    every_codec=PC_32,
    word_size=4,
    size_in_words=True,
    counts_mappings=True,
    encode=_encode,
)
