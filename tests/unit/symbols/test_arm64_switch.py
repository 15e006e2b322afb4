# SPDX-License-Identifier: LGPL-2.1-or-later
"""Switches of arm64 by tables of offsets."""

from __future__ import annotations

import shutil
from array import array
from collections import Counter

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.records.line_states import WHOLE, StateFinder, TraceRecords
from kcovdbg.symbols.blocks import BlockFlag, BlockMaker, FunctionFlag, order_rows, read_linked
from kcovdbg.symbols.coverage_points import PointKind, find_points
from tests.support.compiled_image import run

COMPILER = "aarch64-linux-gnu-gcc"
FLAGS = ("-O2", "-fno-pie", "-no-pie", "-nostdlib", "-static", "-fsanitize-coverage=trace-pc")
CALLBACK = """
__attribute__((noipa, no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void) {}
"""
CASES = 12
CASE = """
	case {case}:
		asm volatile(".globl case{case}; case{case}:" : "+r"(value));
		value = value * 3 ^ {case};
		break;
"""
COMPILED = (
    "int f(unsigned int number, int value) {\n\tswitch (number) {"
    + "".join(CASE.format(case=case) for case in range(CASES))
    + "\t}\n\treturn value;\n}\n"
)
# A function that jumps by a table, in pieces.
PIECES = {
    "page": "adrp x1, table\nadd x1, x1, :lo12:table",
    "load": "ldrb w0, [x1, w0, uxtw]",
    "base": "adr x2, base",
    "sum": "add x0, x2, w0, sxtb #2",
    "jump": "br x0",
}


class Function:
    """The blocks of the function f of an image."""

    def __init__(self, folder, **texts):
        if shutil.which(COMPILER) is None:
            pytest.skip(f"needs {COMPILER}")
        files = {"callback.c": CALLBACK, **texts}
        for name, text in files.items():
            (folder / name).write_text(text)
        run([COMPILER, *FLAGS, "-Wl,--entry=f", "-o", str(folder / "image"), *files], folder)
        with ElfFile(folder / "image") as elf:
            image = read_linked(elf, elf.symbols)
            self.labels = {symbol.name: symbol.address for symbol in elf.symbols if symbol.section}
            base = min(section.address for section in image.sections)
            points = array("I", [point - base for point in find_points(elf).pc])
            nothing = order_rows([])
            blocks = BlockMaker(image).make(nothing, base)
        finder = StateFinder(blocks, points, array("Q", bytes(8 * len(points))))
        number = finder.find_function(self.labels["f"])
        trace = TraceRecords(Counter(), WHOLE, frozenset({PointKind.PC}))
        self.found = finder.find_blocks(trace, number)

    @property
    def is_void(self):
        return bool(self.found.flags & FunctionFlag.VOID)

    def targets(self):
        """The addresses that the jump through a register leads to."""
        (jump,) = (one for one in self.found.blocks if one.flags & BlockFlag.INDIRECT)
        return {self.found.blocks[index].address for index in jump.successors}


def assemble(folder, pieces, before="", case="nop", behind=127):
    text = f"""
.text
.globl f
.type f, %function
f:
	stp x29, x30, [sp, -16]!
	bl __sanitizer_cov_trace_pc
{before}
{chr(10).join(pieces.values())}
base:
	ret
case1:
	{case}
	ret
case2:
	ret
.size f, . - f
.section .rodata
table: .byte 0, (case1 - base) / 4, (case2 - base) / 4, {behind}
"""
    return Function(folder, **{"code.s": text})


def test_switch_that_gcc_compiles(tmp_path):
    function = Function(tmp_path, **{"code.c": COMPILED})
    cases = {function.labels[f"case{case}"] for case in range(CASES)}
    assert len(cases) == CASES
    assert not function.is_void
    # Labels are behind what the case begins with, which is nothing or a callback.
    targets = function.targets()
    assert all(any(target <= case <= target + 8 for target in targets) for case in cases)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"page": "adr x1, table"},
        {"load": "nop\nldrb w0, [x1, w0, uxtw]\nstr w5, [sp]"},
        {"base": "cbz w5, case1\nadr x2, base"},
    ],
    ids=["plain", "near table", "others between", "branch between"],
)
def test_targets(tmp_path, changed):
    function = assemble(tmp_path, {**PIECES, **changed})
    assert not function.is_void
    labels = function.labels
    assert function.targets() == {labels["base"], labels["case1"], labels["case2"]}


def test_what_is_behind_the_table(tmp_path):
    """No entry leads between the instructions that find it, but the next bytes of data may."""
    function = assemble(tmp_path, PIECES, behind=-1)
    assert not function.is_void
    labels = function.labels
    assert function.targets() == {labels["base"], labels["case1"], labels["case2"]}


@pytest.mark.parametrize(
    "changed",
    [
        {"page": "ldr x1, [sp, 8]"},
        {"load": "mov x1, x5\nldrb w0, [x1, w0, uxtw]"},
        {"load": "bl __sanitizer_cov_trace_pc\nldrb w0, [x1, w0, uxtw]"},
        {"load": "ldp x5, x1, [sp]\nldrb w0, [x1, w0, uxtw]"},
        {"load": "ldr x5, [x1, 8]!\nldrb w0, [x1, w0, uxtw]"},
        {"load": "ldadd x1, x1, [sp]\nldrb w0, [x1, w0, uxtw]"},
        {"sum": "add x0, x2, x0"},
        {"base": "inside: adr x2, base"},
    ],
    ids=[
        "in the stack",
        "moved",
        "call",
        "pair",
        "moved base",
        "atomic",
        "no offset",
        "jump inside",
    ],
)
def test_table_that_is_not_certain(tmp_path, changed):
    """A register that something else may have set, or code that is jumped into."""
    pieces = {**PIECES, **changed}
    pieces["page"] = f".arch armv8.1-a\n{pieces['page']}"
    is_jumped_into = "inside" in pieces["base"]
    function = assemble(tmp_path, pieces, case="b inside" if is_jumped_into else "nop")
    assert function.is_void
