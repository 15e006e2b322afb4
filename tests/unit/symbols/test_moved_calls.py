# SPDX-License-Identifier: LGPL-2.1-or-later
"""Inlined code of which the compiler moved an instruction in front of the condition of its call: the
call's line was executed only if a statement of the code begins in what ran.
"""

import subprocess
from array import array

import pytest

from kcovdbg.abi.record import EXACT
from kcovdbg.elf.file import ElfFile
from kcovdbg.records.line_states import LineState, Quality, StateFinder, TraceRecords
from kcovdbg.symbols.address_locator import AddressLocator
from kcovdbg.symbols.blocks import BlockMaker, order_rows, read_linked
from kcovdbg.symbols.dwarf_reader import DwarfReader

BASE = 0x10000
# Instructions of 2, 4, 2, 2 and 1 bytes.
MOVED, BODY, LAST = BASE + 2, BASE + 8, BASE + 10
# function() calls callee() at line 11, if the condition of line 10 is true.
SOURCE = """
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
    .section .debug_ranges,"",@progbits
    .quad .Lmoved - _start, .Lmoved_end - _start, .Lbody - _start, .Lbody_end - _start, 0, 0
    .section .debug_abbrev,"",@progbits
    .byte 1, 0x11, 1, 0x03, 0x08, 0x13, 0x0b, 0x10, 0x17, 0x11, 0x01, 0x12, 0x07, 0, 0
    .byte 2, 0x2e, 0, 0x03, 0x08, 0x20, 0x0b, 0, 0
    .byte 3, 0x2e, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x07, 0, 0
    .byte 4, 0x1d, 0, 0x31, 0x13, 0x55, 0x17, 0x58, 0x0b, 0x59, 0x0b, 0, 0
    .byte 0
    .section .debug_line,"",@progbits
    .section .debug_info,"",@progbits
unit:
    .long unit_end - unit - 4
    .short 4
    .long 0
    .byte 8
    .byte 1; .string "file.c"; .byte 12; .long .debug_line; .quad _start; .quad end - _start
callee:
    .byte 2; .string "callee"; .byte 1
    .byte 3; .string "function"; .quad _start; .quad end - _start
    .byte 4; .long callee - unit; .long 0; .byte 1, 11
    .byte 0, 0
unit_end:
"""


@pytest.mark.parametrize(
    ("is_called", "wanted"), [(False, LineState.MOVED), (True, LineState.EXECUTED)]
)
def test_moved_instruction(tmp_path, is_called, wanted):
    source, image = tmp_path / "code.s", tmp_path / "image"
    source.write_text(SOURCE)
    place = f"-Wl,-Ttext={BASE:#x},--build-id"
    subprocess.run(["gcc", "-nostdlib", "-static", place, source, "-o", image], check=True)
    with ElfFile(image) as elf:
        command = ["addr2line", "-i", "-e", image, hex(MOVED)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert [line.rpartition(":")[2] for line in shown.split()] == ["40", "11"]
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
