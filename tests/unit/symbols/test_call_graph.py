# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls between functions, in small images; those of a compiled one by objdump."""

from __future__ import annotations

import re

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.symbols.blocks import BlockMaker, order_rows, read_linked
from kcovdbg.symbols.call_graph import CallGraph
from tests.support.compiled_image import run
from tests.support.objdump import disassemble

CODE = """
.macro function name
.globl \\name
.type \\name, @function
\\name:
.endm
.macro end name
.size \\name, . - \\name
.endm
.text
function __sanitizer_cov_trace_pc
ret
end __sanitizer_cov_trace_pc
function __x86_return_thunk
ret
end __x86_return_thunk
function callee
nop
ret
end callee
function pointed
nop
ret
end pointed
function caller.cold
nop
in_cold: call callee
jmp caller
end caller.cold
function caller
call __sanitizer_cov_trace_pc
direct: call callee
call caller
je caller.cold
conditional: je callee
lea: lea pointed(%rip), %rax
mov: mov $pointed, %eax
lea callee + 1(%rip), %rax
call *%rax
tail: jmp callee
end caller
function last
jmp __x86_return_thunk
end last
function __x64_sys_read
ret
end __x64_sys_read
asm_exc_trap:
nop
entered: call exc_trap
jump: jmp last
.long 0xcccccccc
function exc_trap
nop
ret
end exc_trap
.section .rodata
.balign 8
.quad 1
table: .quad pointed
.quad pointed + 1
"""


class Calls:
    """The calls of an image; places and functions are named by labels."""

    def __init__(self, folder, *options, code=CODE):
        (folder / "code.s").write_text(code)
        link = ["gcc", "-nostdlib", "-static", "-Wl,-z,noexecstack", "-Wl,-e,caller", *options]
        run([*link, "-o", str(folder / "image"), "code.s"], folder)
        with ElfFile(folder / "image") as elf:
            self.image = read_linked(elf, elf.symbols)
            self.labels = {
                symbol.name: symbol.address
                for symbol in elf.symbols
                if symbol.section and symbol.name
            }
            self.graph = CallGraph(self.image)
            self.base = min(section.address for section in self.image.sections)
            self.blocks = BlockMaker(self.image).make(order_rows([]), self.base)
        self.names = {address: name for name, address in self.labels.items()}

    def number(self, name):
        number = self.graph.function_at(self.labels[name])
        assert number is not None
        return number

    def callers(self, name):
        found = self.graph.find_callers(self.number(name))
        return {
            (self.names[site.address], self.graph.name(site.caller), site.is_tail) for site in found
        }

    def pointers(self, name):
        found = self.graph.find_pointers(self.number(name))
        return [
            (
                self.names[place.address],
                None if place.function is None else self.graph.name(place.function),
            )
            for place in found
        ]


@pytest.fixture
def calls(tmp_path):
    return Calls(tmp_path, "-no-pie")


def test_direct_calls_and_tail_calls(calls):
    assert calls.callers("callee") == {
        ("direct", "caller", False),
        ("conditional", "caller", True),
        ("tail", "caller", True),
        ("in_cold", "caller", False),
    }


def test_calls_inside_of_a_function_are_none(calls):
    """A call of itself, and jumps to its cold part and back."""
    assert calls.callers("caller") == set()
    assert calls.number("caller.cold") == calls.number("caller")
    assert calls.graph.name(calls.number("caller.cold")) == "caller"


def test_callbacks_and_thunks_are_no_functions_that_are_called(calls):
    assert calls.callers("__sanitizer_cov_trace_pc") == set()
    assert calls.callers("__x86_return_thunk") == set()


def test_pointers_are_of_starts_alone(calls):
    assert calls.callers("pointed") == set()
    assert calls.pointers("pointed") == [("table", None), ("lea", "caller"), ("mov", "caller")]
    assert calls.pointers("callee") == []
    assert calls.pointers("caller") == []
    assert calls.graph.has_pointers(calls.number("pointed"))
    assert not calls.graph.has_pointers(calls.number("callee"))


def test_data_with_a_label_in_it(tmp_path):
    data = ".type data, @object\ndata: .quad 1\ntable: .quad pointed\n.size data, . - data\n"
    calls = Calls(tmp_path, "-no-pie", code=CODE.replace("table: .quad pointed\n", data))
    assert calls.graph.data_at(calls.labels["table"]).name == "data"


def test_pointers_that_are_relocated(tmp_path):
    code = CODE.replace("mov: mov $pointed, %eax", "mov: nop")
    (tmp_path / "code.s").write_text(code.replace(".section .rodata", ".data"))
    run(
        [
            "gcc",
            "-nostdlib",
            "-shared",
            "-Wl,-Bsymbolic",
            "-Wl,-z,noexecstack",
            "-o",
            "image",
            "code.s",
        ],
        tmp_path,
    )
    with ElfFile(tmp_path / "image") as elf:
        graph = CallGraph(read_linked(elf, elf.symbols))
        labels = {
            symbol.name: symbol.address for symbol in elf.symbols if symbol.section and symbol.name
        }
    number = graph.function_at(labels["pointed"])
    places = [place.address for place in graph.find_pointers(number) if place.function is None]
    assert set(places) == {labels["table"]}


def test_system_calls(calls):
    assert calls.graph.system_calls == {calls.number("__x64_sys_read")}


@pytest.mark.parametrize(
    "entry",
    [
        "long x64_sys_call(long x) { return __x64_sys_read(x); }",
        "long (*const sys_call_table[])(long) = { __x64_sys_read };",
    ],
    ids=["function", "table"],
)
def test_system_calls_that_the_entry_code_does_not_have(tmp_path, entry):
    """Those of other architectures are in the image as well, and in tables of other things."""
    source = f"""
    __attribute__((noipa)) long __x64_sys_read(long x) {{ return x; }}
    __attribute__((noipa)) long __x64_sys_socketcall(long x) {{ return x; }}
    {entry}
    long (*volatile eil_addr)(long) = __x64_sys_socketcall;
    """
    (tmp_path / "program.c").write_text(source)
    link = ["-nostdlib", "-static", "-fno-pie", "-no-pie", "-Wl,-e,__x64_sys_read"]
    run(["gcc", "-O1", *link, "-o", "image", "program.c"], tmp_path)
    with ElfFile(tmp_path / "image") as elf:
        graph = CallGraph(read_linked(elf, elf.symbols))
    assert {graph.name(number) for number in graph.system_calls} == {"__x64_sys_read"}


def test_numbers_are_those_of_blocks(calls):
    assert calls.graph.fits(calls.blocks)
    assert not calls.graph.fits(calls.blocks._replace(base=calls.base + 1))
    assert not calls.graph.fits(
        calls.blocks._replace(part_function=[*calls.blocks.part_function[:-1], 99])
    )


PROGRAM = r"""
typedef int number(int);
int a(int x); int b(int x); int c(int x); number *d(int x);
__attribute__((noinline)) int a(int x) { return x > 3 ? b(x - 1) + 1 : c(x); }
__attribute__((noinline)) int b(int x) { return x & 1 ? a(x / 2) : c(x) * 2; }
__attribute__((noinline)) int c(int x) { asm volatile("" : "+r"(x)); return x; }
__attribute__((noinline)) number *d(int x) { return x ? a : b; }
number *const table[] = { c, b };
int _start(void) { return d(a(1))(2) + table[c(0) & 1](3); }
"""
BRANCH = re.compile(r"(?:call|j\w+)\s+([0-9a-f]+) <")


@pytest.mark.parametrize("level", ["-O0", "-O2", "-Os"])
def test_compiled_code_by_objdump(tmp_path, level):
    (tmp_path / "program.c").write_text(PROGRAM)
    run(
        ["gcc", level, "-nostdlib", "-static", "-fno-pie", "-no-pie", "-o", "image", "program.c"],
        tmp_path,
    )
    with ElfFile(tmp_path / "image") as elf:
        graph = CallGraph(read_linked(elf, elf.symbols))
        functions = {symbol.address: symbol.name for symbol in elf.symbols if symbol.is_function}
    expected = set()
    for one in disassemble(tmp_path / "image"):
        match = BRANCH.match(one.text)
        if match and int(match[1], 16) in functions:
            to, owner = graph.function_at(int(match[1], 16)), graph.function_at(one.address)
            expected |= {(one.address, to)} if to != owner else set()
    found = {(site.address, to) for to in range(len(graph)) for site in graph.find_callers(to)}
    assert found == expected
    pointed = {
        name
        for address, name in functions.items()
        if graph.has_pointers(graph.function_at(address))
    }
    assert pointed >= {"b", "c"}


def test_what_system_calls_may_lead_to(calls):
    """Calls lead on, and so does each pointer; callers of what is reached do not count."""
    names = {calls.graph.name(function) for function in calls.graph.reachable}
    assert names == {"__x64_sys_read", "pointed", "exc_trap", "last"}


def test_assembly_code_of_no_function_has_the_addresses_of_what_it_calls(calls):
    """Exceptions and system calls enter the kernel there."""
    assert calls.pointers("exc_trap") == [("entered", None)]
    assert calls.pointers("last") == [("jump", None)]
    assert calls.callers("exc_trap") == set()
