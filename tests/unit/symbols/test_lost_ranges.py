# SPDX-License-Identifier: LGPL-2.1-or-later
"""Inlined code whose list of ranges gcc ended by its first range, an empty one where its unit begins;
addr2line finds it by what is inlined inside of it.
"""

from array import array

from kcovdbg.elf.file import ElfFile
from kcovdbg.symbols.blocks import order_rows
from kcovdbg.symbols.dwarf_reader import DwarfReader
from kcovdbg.symbols.symbolizer import Symbolizer, find_image_text
from tests.support.inlined_code import BASE, link_image, list_chain

# outer() is inlined into function() at line 30, and inner() into outer() at line 20; inner()'s code
# is at BASE + 2.
CODE = """
    .file 1 "file.c"
    .text
    .globl _start
_start:
    nop; nop
    .loc 1 10 1
    nop; nop
    .loc 1 30 1
    nop; nop
end:
"""
RANGES = "    .quad 0, 0, 2, 4, 0, 0\n"
ENTRIES = """
outer:
    .byte 2; .string "outer"; .byte 1
inner:
    .byte 2; .string "inner"; .byte 1
    .byte 3; .string "function"; .quad _start; .quad end - _start
    .byte 4; .long outer - unit; .long 0; .byte 1, 30
    .byte 5; .long inner - unit; .quad _start + 2; .quad 2; .byte 1, 20
    .byte 0, 0, 0
"""


def test_code_in_a_function_without_ranges(tmp_path):
    image = link_image(tmp_path, code=CODE, ranges=RANGES, entries=ENTRIES)
    names = [name for name, _ in list_chain(image, BASE + 2)]
    assert names == ["inner", "outer", "function"]
    with ElfFile(image) as elf:
        reader = DwarfReader(elf)
        addresses = array("Q", [BASE + 2])
        for everything in (False, True):
            units = list(reader.find_units(addresses))
            found = reader.read(units, [1], addresses, everything=everything)
            locations = found.locations.arrays()
            strings = ["", *locations.strings()]
            (chain,) = found.chains
            start = locations.chain_ends[chain - 1] if chain else 0
            frames = locations.chain_frames[start : locations.chain_ends[chain]]
            assert [strings[locations.frames[4 * number]] for number in frames] == names
    rows = order_rows([found.rows])
    inlined = [rows.columns.inlined[index] for index in range(rows.columns.inlined_count)]
    calls = {(one.start - BASE, one.end - BASE, one.line) for one in inlined}
    assert calls == {(2, 4, 20), (2, 4, 30)}
    location = Symbolizer(text=find_image_text(None, image)).locate_instruction(BASE + 2)
    assert [frame.function for frame in location.frames] == names
