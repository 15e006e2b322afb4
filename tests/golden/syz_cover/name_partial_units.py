# SPDX-License-Identifier: LGPL-2.1-or-later
"""Turn dwz's partial units into compilation units with a name.

``python -m tests.golden.syz_cover.name_partial_units IMAGE COPY``. syzkaller's reader stops at units of another kind.
``DW_AT_comp_dir`` of a partial unit becomes its ``DW_AT_name``. A unit without attributes, which only imports others, gets
the abbreviations of one that has a name, in the place of its first imports.
"""

import struct
import sys
from pathlib import Path

from kcovdbg.elf.file import ElfFile

PARTIAL_UNIT, COMPILE_UNIT, IMPORTED_UNIT = 0x3C, 0x11, 0x3D
COMP_DIR, NAME = 0x1B, 0x03
IMPLICIT_CONST = 0x21
# DW_AT_stmt_list as DW_FORM_sec_offset, DW_AT_name as DW_FORM_line_strp: 8 bytes.
NAMED = [(0x10, 0x17), (NAME, 0x1F)]
# DW_AT_import as DW_FORM_ref_addr.
IMPORTING = [(0x18, 0x10)]
HEADER = struct.Struct("<IHBBI")


def uleb(data, at):
    """Return a number in LEB128 and the offset behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def abbreviations(data, start, end):
    """Yield each abbreviation: offset of its table, code, tag, offset of the tag, attributes with form, offset of each."""
    table = at = start
    while at < end:
        code, at = uleb(data, at)
        if code == 0:
            table = at
            continue
        tag_at = at
        tag, at = uleb(data, at)
        at += 1
        attributes = []
        while True:
            attribute_at = at
            attribute, at = uleb(data, at)
            form, at = uleb(data, at)
            if form == IMPLICIT_CONST:
                _, at = uleb(data, at)
            if attribute == form == 0:
                break
            attributes.append((attribute, form, attribute_at))
        yield table - start, code, tag, tag_at, attributes


def rename(data, section):
    """Change the tags and attributes of partial units; return all abbreviations by table and code."""
    tables = {}
    for table, code, tag, tag_at, attributes in abbreviations(
        data, section.offset, section.offset + section.size
    ):
        if tag == PARTIAL_UNIT:
            data[tag_at] = tag = COMPILE_UNIT
            for _, _, at in (entry for entry in attributes if entry[0] == COMP_DIR):
                data[at] = NAME
            attributes = [
                (NAME if attribute == COMP_DIR else attribute, form, at)
                for attribute, form, at in attributes
            ]
        tables.setdefault(table, {})[code] = (
            tag,
            [(attribute, form) for attribute, form, _ in attributes],
        )
    return tables


def main(image, copy):
    """Write the copy."""
    data = bytearray(Path(image).read_bytes())
    with ElfFile(image) as elf:
        info = elf.section(".debug_info")
        tables = rename(data, elf.section(".debug_abbrev"))
    donor, named, importing = next(
        (table, name_code, import_code)
        for table, codes in tables.items()
        for name_code, entry in codes.items()
        for import_code, other in codes.items()
        if entry == (COMPILE_UNIT, NAMED)
        and other == (IMPORTED_UNIT, IMPORTING)
        and max(name_code, import_code) < 0x80
    )
    at = info.offset
    while at < info.offset + info.size:
        length, _, _, _, table = HEADER.unpack_from(data, at)
        code, entry = uleb(data, at + HEADER.size)
        if tables[table][code] == (COMPILE_UNIT, []):
            imports = (length - (entry - at - 4) - 1) // 5
            kept = [
                bytes(data[entry + 5 * number + 1 : entry + 5 * number + 5])
                for number in range(imports - 2)
            ]
            # A code of three bytes fills what 8 bytes of attributes leave of two imports.
            unit = (
                bytes([0x80 | named, 0x80, 0])
                + bytes(8)
                + b"".join(bytes([importing]) + unit for unit in kept)
                + b"\0"
            )
            struct.pack_into("<I", data, at + 8, donor)
            assert len(unit) == length + 4 - HEADER.size
            data[at + HEADER.size : at + 4 + length] = unit
        at += 4 + length
    Path(copy).write_bytes(data)


if __name__ == "__main__":
    main(*sys.argv[1:])
