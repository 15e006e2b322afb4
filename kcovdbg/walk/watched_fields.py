# SPDX-License-Identifier: LGPL-2.1-or-later
"""The fields of KCOV's structures that a watchpoint can be set on, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcovdbg.errors import CapabilityError, UsageError
from kcovdbg.target.struct_layout import BlockLayout
from kcovdbg.target.watchpoints import MemorySpan
from kcovdbg.walk.layout import AREA, KCOV, TASK, Layout

# What hardware watches.
_SIZES: Final = (1, 2, 4, 8)
_TASK_PREFIXES: Final = ("kcov", "saved_")
_UNWATCHED: Final = frozenset({"lock"})
HEADER: Final = "header"
"""The list entry at the start of a free area, which is watched as a whole."""


def list_fields(layout: Layout, type_name: str) -> Sequence[str]:
    """Return the names of the fields of a structure that can be watched in this kernel."""
    if type_name == AREA:
        return (HEADER,)
    block = _find_block(layout, type_name)
    names = (name for name, member in block.members.items() if member is not None and member.size in _SIZES)
    if type_name == TASK:
        return tuple(name for name in names if name.startswith(_TASK_PREFIXES))
    return tuple(name for name in names if name not in _UNWATCHED)


def find_spans(layout: Layout, type_name: str, address: int, field: str) -> tuple[MemorySpan, ...]:
    """Return the memory of a field.

    :param address: of the structure.
    :raises UsageError: when this kernel has no such field, or it cannot be watched.
    """
    if field not in list_fields(layout, type_name):
        known = ", ".join(list_fields(layout, type_name))
        raise UsageError(f"{type_name} has no field '{field}' that can be watched", hint=f"one of {known}")
    block = _find_block(layout, type_name)
    found = [member for name, member in block.members.items() if member is not None and (type_name == AREA or name == field)]
    return tuple(MemorySpan(address + member.offset, member.size) for member in found)


def _find_block(layout: Layout, type_name: str) -> BlockLayout:
    """Return the layout of a structure.

    :raises CapabilityError: when the debug info does not have it.
    """
    block = {TASK: layout.task, KCOV: layout.kcov, AREA: layout.area}[type_name]
    if block is None:
        raise CapabilityError(f"the debug info has no {type_name}")
    return block
