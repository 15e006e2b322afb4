# SPDX-License-Identifier: LGPL-2.1-or-later
"""Blocks, points and lines of modules: those of the same code that ld linked."""

from __future__ import annotations

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ElfError
from kcovdbg.elf.placed_module import PlacedModule
from kcovdbg.errors import CapabilityError
from kcovdbg.model.location import LoadedModule
from kcovdbg.records.line_states import (
    WHOLE,
    LineState,
    TraceRecords,
    join_line_states,
    make_finder,
    select_code_records,
)
from kcovdbg.symbols.blocks import BlockFlag, FunctionFlag
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import make_module_table, make_table
from tests.support.compiled_image import run

SOURCE = """
extern int call(int), total;
extern void panic(const char *) __attribute__((cold));
__attribute__((noinline)) static int inner(int n)
{
    if (n == 3)
        return total;
    return call(n) * 7;
}
int choose(int n)
{
    switch (n) {
    case 0: return call(1);
    case 1: return inner(2);
    case 2: return total;
    case 3: return call(4) + 1;
    case 4: return inner(5) + 2;
    case 5: return call(total);
    }
    return n;
}
int leave(int n)
{
    if (__builtin_expect(n == 8, 0)) {
        total = n;
        panic("eight");
    }
    return inner(n);
}
static int (*const table[])(int) = { choose, leave };
int by_pointer(int n)
{
    return table[n & 1](n);
}
__attribute__((section(".exit.text"))) int at_exit(int n)
{
    return n ? call(n) : 0;
}
__attribute__((section(".init.text"))) int at_init(int n)
{
    return n ? call(n) : 1;
}
"""
# What tables of the kernel say.
TABLES = """
.text
.type tables, @function
tables:
call __sanitizer_cov_trace_pc
key: .byte 0x0f, 0x1f, 0x44, 0, 0
movl (%rdi), %eax
fault: movl (%rsi), %eax
old: .byte 0x90, 0x90, 0x90, 0x90, 0x90
je warned
ud2
warned: ud2
jmp done
fixed: nop
done: jmp __x86_return_thunk
other: call *%rax
jmp __x86_indirect_thunk_rax
.size tables, . - tables
.section __ex_table, "a"
.long fault - ., fixed - .
.section __jump_table, "aw"
.long key - ., other - .
.quad total - .
.section __bug_table, "aw"
.long warned - 2 - ., file - .
.word 7, 0
.long warned - ., file - .
.word 8, 1
.section .rodata
file: .asciz "file"
.section .altinstr_replacement, "ax"
new: jmp fixed
.section .altinstructions, "a"
.long old - ., new - .
.word 1, 0
.byte 5, 5
.section __mcount_loc, "a"
.quad old
"""
# What the kernel defines.
KERNEL = """
.globl __sanitizer_cov_trace_pc, __x86_return_thunk, __x86_indirect_thunk_rax, call, panic, total
.type panic, @function
.type call, @function
.section .kernel, "ax"
__sanitizer_cov_trace_pc: ret
__x86_return_thunk: ret
__x86_indirect_thunk_rax: jmp *%rax
call: ret
.size call, 1
panic: jmp panic
.size panic, . - panic
.data
total: .long 0
"""
PLACES = {
    ".text": 0xFFFFFFFFC0001000,
    ".text.unlikely": 0xFFFFFFFFC0003000,
    ".exit.text": 0xFFFFFFFFC0005000,
    ".init.text": 0xFFFFFFFFC0007000,
}
FLAGS = ["-g", "-O2", "-fsanitize-coverage=trace-pc", "-mcmodel=kernel", "-fno-pie", "-fno-pic"]
FLAGS += ["-fcf-protection=none", "-fno-stack-protector", "-fno-asynchronous-unwind-tables"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("module")
    for name, text in (("code.c", SOURCE), ("tables.s", TABLES), ("kernel.s", KERNEL)):
        (folder / name).write_text(text)
    for name in ("code.c", "tables.s", "kernel.s"):
        run(["gcc", *(FLAGS if name == "code.c" else []), "-c", name], folder)
    run(["ld", "-r", "--build-id=sha1", "-o", "module.ko", "code.o", "tables.o"], folder)
    others = [".kernel", ".data", ".rodata", ".altinstr_replacement", ".altinstructions"]
    others += ["__ex_table", "__jump_table", "__bug_table", "__mcount_loc", ".note.gnu.build-id"]
    addresses = PLACES | {name: 0xFFFFFFFFC0020000 + 0x1000 * at for at, name in enumerate(others)}
    script = ""
    for name, address in addresses.items():
        # As the kernel's linker script has them.
        stem = name.strip("_")
        start, end = f"__start___{stem}", f"__stop___{stem}"
        if stem == "mcount_loc":
            start, end = f"__start_{stem}", f"__stop_{stem}"
        symbols = (f"{start} = .;", f"{end} = .;") if name.startswith("__") else ("", "")
        script += f"{name} {address:#x} : {{ {symbols[0]} *({name}) {symbols[1]} }}\n"
    (folder / "script").write_text(f"SECTIONS {{\n{script}}}\n")
    command = ["ld", "-e0", "--build-id=sha1", "-T", "script", "-o", "image"]
    run([*command, "module.ko", "kernel.o"], folder)
    return folder


@pytest.fixture(scope="module")
def linked(folder):
    with ElfFile(folder / "image") as elf:
        return LocationTable("image", contents=make_table(elf).to_bytes())


@pytest.fixture(scope="module")
def placed(folder):
    with PlacedModule(folder / "module.ko", PLACES) as elf:
        return LocationTable("module", contents=make_table(elf).to_bytes())


def trace_of(pcs):
    return TraceRecords(dict.fromkeys(pcs, 1), WHOLE, frozenset({PointKind.PC}))


def blocks_of(table, symbol):
    """Return the flags of a function, and its blocks with the addresses that they lead to."""
    finder = make_finder(table)
    found = finder.find_blocks(trace_of(()), finder.find_function(symbol.address))
    rows = [
        (
            one.address,
            one.size,
            one.flags,
            {found.blocks[index].address for index in one.successors},
            one.lines,
        )
        for one in found.blocks
    ]
    return found.flags, rows


def test_blocks_are_those_of_the_linked_code(linked, placed):
    symbols = list(placed.functions())
    names = {symbol.name for symbol in symbols}
    assert {"choose", "by_pointer", "leave.cold", "tables", "at_exit", "at_init"} <= names
    for symbol in symbols:
        flags, blocks = blocks_of(placed, symbol)
        assert blocks
        assert (flags, blocks) == blocks_of(linked, symbol), symbol.name
        assert flags & FunctionFlag.INSTRUMENTED


def test_points_and_lines_are_those_of_the_linked_code(linked, placed):
    pcs = list(placed.pcs())
    assert len(pcs) > 15
    inside = [pc for pc in linked.pcs() if any(at <= pc < at + 4096 for at in PLACES.values())]
    assert pcs == inside
    assert placed.get_rows(pcs) == linked.get_rows(pcs)


def test_calls_of_what_never_returns_leave(placed):
    """The kernel's functions of these names are known; what follows the call is other code."""
    (symbol,) = placed.find_functions("leave.cold".__eq__)
    _, blocks = blocks_of(placed, symbol)
    cold = [flags for address, _, flags, *_ in blocks if address >= symbol.address]
    assert [BlockFlag.EXIT in flags for flags in cold if BlockFlag.CALL in flags] == [True]


def test_what_the_replaced_tables_say(placed):
    (symbol,) = placed.find_functions("tables".__eq__)
    flags, blocks = blocks_of(placed, symbol)
    assert not flags & FunctionFlag.VOID
    successors = {address - symbol.address: to for address, _, _, to, _ in blocks}
    at = {address - symbol.address for address, *_ in blocks}
    # The static key's other side, the fixup, the replaced code, and behind the warning.
    assert {0, 10, 14, 19, 21, 23, 25, 27, 28, 33} <= at
    assert symbol.address + 33 in successors[0]
    assert symbol.address + 27 in successors[10]
    assert symbol.address + 27 in successors[14]
    assert successors[21] == set()
    assert successors[23] == {symbol.address + 25}


def test_init_code_at_an_unknown_place_is_left_out(folder, placed):
    places = {name: address for name, address in PLACES.items() if name != ".init.text"}
    module = LoadedModule("module", "00", 0x8000, tuple(places.items()))
    table = make_module_table(module, str(folder / "module.ko"))
    names = {symbol.name for symbol in table.functions()}
    assert names == {symbol.name for symbol in placed.functions()} - {"at_init"}
    for symbol in table.functions():
        assert blocks_of(table, symbol) == blocks_of(placed, symbol)


def test_states_of_lines(placed):
    """Of a trace of a kernel, what is in the module is taken."""
    text = SOURCE.splitlines()

    def line_of(start):
        return next(number for number, one in enumerate(text, 1) if one.startswith(start))

    (inner,) = placed.find_functions(lambda name: name.startswith("inner"))
    points = list(placed.find_in(range(inner.address, inner.address + inner.size)))
    rows = placed.get_rows(points)
    lines = [frames[0].line for _, frames in rows]
    # The function was entered, and its condition was false.
    own = [
        pc
        for pc, line in zip(points, lines, strict=True)
        if line != line_of("        return total")
    ]
    trace = trace_of([*own, 0x1000, PLACES[".text"] - 0x100000])
    selected = select_code_records(trace, placed)
    assert list(selected.counts) == own
    found = make_finder(placed).find_lines(selected)
    assert (found.contradictions, found.unmatched) == (0, 0)
    states = {line.line: line.state for line in next(iter(found.files.values()))}
    assert states[line_of("    if (n == 3)")].was_executed
    assert states[line_of("        return total")] is LineState.NOT_EXECUTED
    assert states[line_of("    return call(n) * 7")] is LineState.EXECUTED
    assert states[line_of("    case 3")] is LineState.NOT_EXECUTED


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        ({LineState.EXECUTED, LineState.NOT_EXECUTED}, LineState.PARTLY),
        ({LineState.EXECUTED, LineState.UNDECIDED}, LineState.EXECUTED),
        ({LineState.NOT_EXECUTED, LineState.MOVED}, LineState.MOVED),
        ({LineState.NOT_EXECUTED, LineState.NOT_INSTRUMENTED}, LineState.OUTSIDE),
        ({LineState.NOT_EXECUTED}, LineState.NOT_EXECUTED),
    ],
)
def test_lines_with_code_in_the_image_and_in_a_module(states, wanted):
    assert join_line_states(states) is wanted


def test_machines_whose_relocations_are_unknown(folder, tmp_path):
    data = bytearray((folder / "module.ko").read_bytes())
    # EM_RISCV
    data[18] = 243
    (tmp_path / "module.ko").write_bytes(data)
    with pytest.raises(CapabilityError):
        PlacedModule(tmp_path / "module.ko", PLACES)


def test_damaged_relocations_and_sections(folder, tmp_path):
    """A module comes from elsewhere: what is no address or symbol is damage."""
    data = (folder / "module.ko").read_bytes()
    with ElfFile(folder / "module.ko") as elf:
        header = elf.header
        sections = {section.name: section for section in elf.sections}
    words = {
        # The symbol of the first relocation.
        sections[".rela.text"].offset + 12: b"\xff" * 4,
        # The size of a section without an address.
        header.shoff + header.shentsize * sections[".rodata"].number + 32: b"\xff" * 8,
    }
    cases = [(data[:at] + word + data[at + len(word) :], PLACES) for at, word in words.items()]
    cases.append((data, PLACES | {".text": (1 << 64) - 4096}))
    for number, (content, places) in enumerate(cases):
        path = tmp_path / f"{number}.ko"
        path.write_bytes(content)
        loaded = LoadedModule("module", None, 1 << 16, tuple(places.items()))
        with pytest.raises(ElfError):
            make_module_table(loaded, str(path))
