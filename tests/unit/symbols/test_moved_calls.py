# SPDX-License-Identifier: LGPL-2.1-or-later
"""Inlined code of which the compiler moved an instruction in front of the condition of its call: the
call's line was executed only if a statement of the code begins in what ran.
"""

from array import array

import pytest

from kcovdbg.abi.record import EXACT
from kcovdbg.elf.file import ElfFile
from kcovdbg.records.line_states import LineState, Quality, StateFinder, TraceRecords
from kcovdbg.symbols.address_locator import AddressLocator
from kcovdbg.symbols.blocks import BlockMaker, order_rows, read_linked
from kcovdbg.symbols.dwarf_reader import DwarfReader
from tests.support.inlined_code import BASE, link_image, list_chain

# Instructions of 2, 4, 2, 2 and 1 bytes.
MOVED, BODY, LAST = BASE + 2, BASE + 8, BASE + 10
# function() calls callee() at line 11, if the condition of line 10 is true.
CODE = """
    .file 1 "file.c"
    .text
    .globl _start
    .type _start, @function
_start:
    .loc 1 10 1
    test %edi, %edi
.Lmoved:
    .loc 1 40 1 is_stmt 0
    lea 8(%rsi), %rax
.Lmoved_end:
    .loc 1 10 1 is_stmt 0
    je .Llast
.Lbody:
    .loc 1 40 1 is_stmt 1
    mov %edi, (%rax)
.Lbody_end:
.Llast:
    .loc 1 12 1
    ret
end:
    .size _start, end - _start
"""
RANGES = """
    .quad .Lmoved - _start, .Lmoved_end - _start, .Lbody - _start, .Lbody_end - _start, 0, 0
"""
ENTRIES = """
callee:
    .byte 2; .string "callee"; .byte 1
    .byte 3; .string "function"; .quad _start; .quad end - _start
    .byte 4; .long callee - unit; .long 0; .byte 1, 11
    .byte 0, 0, 0
"""


@pytest.mark.parametrize(
    ("is_called", "wanted"), [(False, LineState.MOVED), (True, LineState.EXECUTED)]
)
def test_moved_instruction(tmp_path, is_called, wanted):
    image = link_image(tmp_path, code=CODE, ranges=RANGES, entries=ENTRIES)
    assert list_chain(image, MOVED) == [("callee", "40"), ("function", "11")]
    with ElfFile(image) as elf:
        units = AddressLocator(DwarfReader(elf), elf.symbols, array("Q"), lambda _: None).finish()
        blocks = BlockMaker(read_linked(elf, elf.symbols)).make(order_rows(units.rows), BASE)
    finder = StateFinder(blocks, array("I"), array("Q"))
    ways = {False: (BASE, LAST), True: (BASE, BODY, LAST)}
    executed = {address + EXACT.lead: 1 for address in ways[is_called]}
    quality = Quality.EXACT | Quality.COMPLETE | Quality.ENDED
    trace = TraceRecords(executed, quality, frozenset())
    states = {line.line: line.state for line in finder.find_lines(trace)["file.c"]}
    assert states == {
        10: LineState.EXECUTED,
        11: wanted,
        12: LineState.EXECUTED,
        40: wanted,
    }
