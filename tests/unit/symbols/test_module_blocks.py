# SPDX-License-Identifier: LGPL-2.1-or-later
"""Blocks, points and lines of modules: those of the same code that ld linked."""

from __future__ import annotations

import shutil
import subprocess
from typing import NamedTuple

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
    find_code_columns,
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
other: je 1f
checked: ud2
1: call *%rax
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
.section __kcfi_traps, "a"
.long checked - .
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
ARM64_TABLES = """
.text
.type tables, %function
tables:
bl __sanitizer_cov_trace_pc
key: nop
ldr w0, [x1]
fault: ldr w0, [x2]
old: nop
cbz w0, far
tbnz w0, #3, further
b.eq furthest
brk #0x800
fixed: nop
b call
other: blr x3
ret
.size tables, . - tables
.section .text.unlikely, "ax"
.type far_code, %function
far_code:
far: nop
further: bl call
furthest: b other
.size far_code, . - far_code
.section __ex_table, "a"
.long fault - ., fixed - .
.short 0, 0
.section __jump_table, "aw"
.long key - ., other - .
.quad total - .
.section .altinstr_replacement, "ax"
new: b fixed
.section .altinstructions, "a"
.long old - ., new - .
.short 1
.byte 4, 4
"""
ARM64_KERNEL = """
.globl __sanitizer_cov_trace_pc, call, panic, total
.type panic, %function
.type call, %function
.section .kernel, "ax"
__sanitizer_cov_trace_pc: ret
call: ret
.size call, 4
panic: b panic
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
FLAGS = ["-g", "-O2", "-fsanitize-coverage=trace-pc", "-fno-pie", "-fno-pic"]
FLAGS += ["-fno-stack-protector", "-fno-asynchronous-unwind-tables"]


class Tools(NamedTuple):
    """What makes a module of a machine."""

    compiler: str
    prefix: str
    """Of the names of binutils."""
    flags: tuple[str, ...]
    tables: str
    kernel: str


TOOLS = {
    "x86-64": Tools("gcc", "", ("-mcmodel=kernel", "-fcf-protection=none"), TABLES, KERNEL),
    "arm64": Tools("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-", (), ARM64_TABLES, ARM64_KERNEL),
    "arm64 by clang": Tools(
        "clang",
        "aarch64-linux-gnu-",
        ("--target=aarch64-linux-gnu",),
        ARM64_TABLES,
        ARM64_KERNEL,
    ),
}


@pytest.fixture(scope="module", params=TOOLS)
def tools(request):
    found = TOOLS[request.param]
    for program in (found.compiler, f"{found.prefix}ld"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    return found


@pytest.fixture(scope="module")
def folder(tools, tmp_path_factory):
    folder = tmp_path_factory.mktemp("module")
    texts = (("code.c", SOURCE), ("tables.s", tools.tables), ("kernel.s", tools.kernel))
    for name, text in texts:
        (folder / name).write_text(text)
    run([tools.compiler, *FLAGS, *tools.flags, "-c", "code.c"], folder)
    for name in ("tables", "kernel"):
        run([f"{tools.prefix}as", "-o", f"{name}.o", f"{name}.s"], folder)
    link = f"{tools.prefix}ld"
    run([link, "-r", "--build-id=sha1", "-o", "module.ko", "code.o", "tables.o"], folder)
    others = [".kernel", ".data", ".rodata", ".altinstr_replacement", ".altinstructions"]
    others += ["__ex_table", "__jump_table", "__bug_table", "__kcfi_traps", "__mcount_loc"]
    others.append(".note.gnu.build-id")
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
    command = [link, "-e0", "--build-id=sha1", "-T", "script", "-o", "image"]
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
    assert {"choose", "by_pointer", "leave", "tables", "at_exit", "at_init"} <= names
    for symbol in symbols:
        flags, blocks = blocks_of(placed, symbol)
        assert blocks
        assert (flags, blocks) == blocks_of(linked, symbol), symbol.name
        assert flags & FunctionFlag.INSTRUMENTED or symbol.name == "far_code"


def test_points_and_lines_are_those_of_the_linked_code(linked, placed):
    pcs = list(placed.pcs())
    assert len(pcs) > 15
    inside = [pc for pc in linked.pcs() if any(at <= pc < at + 4096 for at in PLACES.values())]
    assert pcs == inside
    assert placed.get_rows(pcs) == linked.get_rows(pcs)


def test_calls_of_what_never_returns_leave(placed):
    """The kernel's functions of these names are known; what follows the call is other code."""
    symbols = placed.find_functions(("leave", "leave.cold").__contains__)
    blocks = blocks_of(placed, symbols[-1])[1]
    calls = [flags for address, _, flags, *_ in blocks if BlockFlag.CALL in flags]
    assert [BlockFlag.EXIT in flags for flags in calls].count(True) == 1


# What a table of the kernel says of places in tables(): the static key's other side, the fixup, and
# the jump of the replacement.
LISTED = {"key": {0: 33}, "fault": {10: 27}, "old": {14: 27}}
ARM64_LISTED = {"key": {0: 44}, "fault": {8: 36}, "old": {16: 36}}


def test_what_the_replaced_tables_say(tools, placed):
    (symbol,) = placed.find_functions("tables".__eq__)
    flags, blocks = blocks_of(placed, symbol)
    assert not flags & FunctionFlag.VOID
    successors = {
        address - symbol.address: {there - symbol.address for there in to}
        for address, _, _, to, _ in blocks
    }
    listed = LISTED if tools is TOOLS["x86-64"] else ARM64_LISTED
    for (at, to), *_ in (places.items() for places in listed.values()):
        assert to in successors[at]


def test_what_the_table_of_bugs_says(tools, placed):
    if tools is not TOOLS["x86-64"]:
        pytest.skip("of x86-64")
    (symbol,) = placed.find_functions("tables".__eq__)
    successors = {
        address - symbol.address: to for address, _, _, to, _ in blocks_of(placed, symbol)[1]
    }
    # Behind the warning is other code, and the other trap ends it.
    assert {0, 10, 14, 19, 21, 23, 25, 27, 28, 33} <= successors.keys()
    assert successors[21] == set()
    assert successors[23] == {symbol.address + 25}


def test_branches_to_other_sections(tools, placed):
    """Their displacements are those of relocations."""
    if tools is TOOLS["x86-64"]:
        pytest.skip("of arm64")
    (symbol,) = placed.find_functions("tables".__eq__)
    flags = {
        address - symbol.address: flags for address, _, flags, *_ in blocks_of(placed, symbol)[1]
    }
    assert all(BlockFlag.EXIT in flags[at] for at in (20, 24, 28))
    # Another function jumps there.
    assert BlockFlag.ENTRY in flags[44]


def test_lines_are_those_of_addr2line(folder, tools, placed):
    found, places = [], []
    for symbol in placed.functions():
        for address, size, flags, _, lines in blocks_of(placed, symbol)[1]:
            if lines and not BlockFlag.NO_LINES & flags:
                found.append({line for _, line in lines})
                places.append(range(address, address + size))
    shown = {}
    for section, start in PLACES.items():
        own = [at for place in places for at in place if start <= at < start + 4096]
        offsets = [hex(at - start) for at in own]
        command = [f"{tools.prefix}addr2line", "-e", "module.ko", "-j", section, *offsets]
        text = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        lines = [one.rpartition(":")[2].split()[0] for one in text.stdout.splitlines()]
        shown.update(zip(own, lines, strict=True))
    assert len(found) > 25
    assert found == [
        {int(shown[at]) for at in place if shown[at].isdecimal() and int(shown[at])}
        for place in places
    ]


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
    found = make_finder(placed).find_columns(selected)
    assert (found.contradictions, found.unmatched) == (0, 0)
    lines = next(iter(find_code_columns(found, None).rows().values()))
    states = {line.line: line.state for line in lines}
    assert states[line_of("    if (n == 3)")].was_executed
    assert states[line_of("        return total")] is LineState.NOT_EXECUTED
    assert states[line_of("    return call(n) * 7")] is LineState.EXECUTED
    # Unknown where the switch is a table of offsets.
    assert states[line_of("    case 3")] in (LineState.NOT_EXECUTED, LineState.EDGES)


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


def test_a_machine_whose_calls_are_unknown(folder, tmp_path):
    """Its machine is why no point is known, whatever KCOV is."""
    data = bytearray((folder / "image").read_bytes())
    # EM_MIPS
    data[18] = 8
    (tmp_path / "image").write_bytes(data)
    with ElfFile(tmp_path / "image") as elf, pytest.raises(CapabilityError) as caught:
        make_table(elf)
    assert "mips" in str(caught.value)
    assert "CONFIG_KCOV" not in caught.value.hint


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
    # A file of some MB has tables of relocations of many GB, all at one place.
    start, table = header.shoff, sections[".rela.text"].number
    row = data[start + header.shentsize * table :][: header.shentsize]
    rows = data[start : start + header.shentsize * header.shnum] + row * 500
    head = bytearray(data)
    head[0x28:0x30] = len(data).to_bytes(8, "little")
    head[0x3C:0x3E] = (header.shnum + 500).to_bytes(2, "little")
    cases.append((bytes(head) + rows, PLACES))
    for number, (content, places) in enumerate(cases):
        path = tmp_path / f"{number}.ko"
        path.write_bytes(content)
        loaded = LoadedModule("module", None, 1 << 16, tuple(places.items()))
        with pytest.raises(ElfError):
            make_module_table(loaded, str(path))
