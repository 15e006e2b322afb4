# SPDX-License-Identifier: LGPL-2.1-or-later
"""``struct kcov_state`` of the 2025 deduplication series, and its guards: what splits a buffer into bitmap and trace.

The same structure is in a task, in an object and in a CPU's saved state (kcov-abi.md 6).
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.record import RecordFormat
from kcovdbg.target import Target
from kcovdbg.walk.block import BlockLayout
from kcovdbg.walk.layout import KCOV, PERCPU, TASK

_MEMBERS: Final = ("size", "area", "trace_size", "trace", "bitmap_size", "bitmap")
_IN: Final = {TASK: "kcov_state", KCOV: "state", PERCPU: "saved_state"}
# Four bytes an edge: the largest kernels have some millions.
_MAX_GUARDS: Final = 1 << 26


class KcovState(NamedTuple):
    """What ``struct kcov_state`` says, but its sequence; None is a member that the debug info lacks."""

    size: int | None
    """Of the whole buffer, in words."""
    area: int | None
    trace_size: int | None
    """In words, the count word included."""
    trace: int | None
    """``unsigned long *``: the count word."""
    bitmap_size: int | None
    """In bits."""
    bitmap: int | None
    """``unsigned long *``."""


def read_state(target: Target, type_name: str, address: int) -> KcovState:
    """Read the state inside a task, an object, or a CPU's KCOV data.

    :param type_name: of what is at the address.
    :raises ReadError: when it can't be read.
    :raises MissingTypeError: when the debug info lacks the type.
    """
    outer = _IN[type_name]
    # The first version of the series had a struct inside the state.
    paths = {name: (f"{outer}.{name}", f"{outer}.s.{name}") for name in _MEMBERS}
    return KcovState(*BlockLayout(target, type_name, paths).read(target, address))


def read_guards(target: Target) -> array[int] | None:
    """Read the guards of all edges: 0, or the number that an edge got when it was first met.

    :return: None where the compiler made no section of them, as GCC doesn't.
    :raises MissingSymbolError: when there is none.
    :raises ReadError: when they can't be read.
    """
    start = target.symbol("__start___sancov_guards").address
    size = target.symbol("__stop___sancov_guards").address - start
    if not 0 < size <= _MAX_GUARDS:
        return None
    encoding = record.make_encoding(RecordFormat.PC_32, 4, target.big_endian)
    return record.decode_words(target.read(start, size), encoding)


def read_highest_guard(target: Target) -> int:
    """Read ``kcov_guard_max_index``: how many edges have a number.

    :raises MissingSymbolError: when this kernel has none.
    :raises ReadError: when it can't be read.
    """
    data = target.read(target.symbol("kcov_guard_max_index").address, 4)
    return int.from_bytes(data, "big" if target.big_endian else "little")
