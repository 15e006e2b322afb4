# SPDX-License-Identifier: LGPL-2.1-or-later
"""GDB's types as names and members of a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import gdb
from kcovdbg.target.protocol import Member

_STRUCTS: Final = {gdb.TYPE_CODE_STRUCT: "struct", gdb.TYPE_CODE_UNION: "union", gdb.TYPE_CODE_ENUM: "enum"}


def type_name(found: gdb.Type) -> str:
    """Return the name of a type in C, keyword included."""
    name = found.name
    if name is None:
        return str(found)
    # In C, GDB's names of structures have no keyword.
    keyword = _STRUCTS.get(found.code)
    return f"{keyword} {name}" if keyword is not None and not name.startswith(f"{keyword} ") else name


def array_length(found: gdb.Type) -> int:
    """Return the number of elements of an array, 0 for a flexible one."""
    try:
        low, high = found.range()
    except (gdb.error, RuntimeError):
        # A flexible array has no bounds.
        return 0
    return max(0, int(high) - int(low) + 1)


def _fields(found: gdb.Type) -> Sequence[gdb.Field]:
    return found.fields() if found.code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION) else ()


def member_names(found: gdb.Type) -> list[str]:
    """Return the names of the members of a structure, those of anonymous structures included."""
    names: list[str] = []
    for field in _fields(found):
        if field.name:
            names.append(field.name)
        elif field.type is not None:
            names += member_names(field.type.strip_typedefs())
    return names


def _find_field(found: gdb.Type, name: str, start: int) -> tuple[gdb.Field, int] | None:
    """Find a member, in anonymous structures as well; return it and its offset in bits."""
    for field in _fields(found):
        place = start + int(getattr(field, "bitpos", 0))
        if field.name == name:
            return field, place
        if not field.name and field.type is not None:
            inside = _find_field(field.type.strip_typedefs(), name, place)
            if inside is not None:
                return inside
    return None


def resolve_member(found: gdb.Type, path: str, *, big_endian: bool) -> Member | None:
    """Find a member by its dotted path, None when there is none."""
    place = 0
    field: gdb.Field | None = None
    for name in path.split("."):
        step = _find_field(found, name, place)
        if step is None or step[0].type is None:
            return None
        field, place = step
        found = step[0].type.strip_typedefs()
    assert field is not None
    assert field.type is not None
    size = int(found.sizeof)
    signed = found.code in (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_CHAR, gdb.TYPE_CODE_ENUM) and int(gdb.Value(-1).cast(found)) < 0
    if found.code == gdb.TYPE_CODE_ARRAY:
        return Member(place // 8, size, type_name(found.target()), length=array_length(found))
    if field.bitsize:
        offset = place // 8 // size * size
        bit = place - 8 * offset
        low = 8 * size - bit - field.bitsize if big_endian else bit
        return Member(offset, size, type_name(field.type), signed, bit_offset=low, bit_size=field.bitsize)
    return Member(place // 8, size, type_name(field.type), signed)
