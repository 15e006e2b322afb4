# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finding coverage points in code that gcc makes here, and in code of other machines laid out by
hand.
"""

import platform
import re
import shutil
import struct
from array import array
from random import Random

import pytest

from kcovdbg.abi.record import CMP, PC
from kcovdbg.check.runner import check
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_AARCH64, EM_RISCV, EM_S390, EM_X86_64
from kcovdbg.errors import ReadError, TargetError
from kcovdbg.model.kcov import name_kcov
from kcovdbg.symbols.arch import BranchKind
from kcovdbg.symbols.branches import find_branches
from kcovdbg.symbols.code_proof import CodeProof
from kcovdbg.symbols.coverage_points import PointKind, find_points, find_text_points
from kcovdbg.symbols.dwarf_reader import NO_UNIT, DwarfReader, read_comp_dir
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.state import StateReader
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E6, E9A
from tests.support.programs import list_functions, output_of, split_image

needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() != "x86_64", reason="needs gcc for x86-64"
)

SOURCE = """
__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void) { asm volatile(""); }
__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_const_cmp4(int a, int b) { asm volatile(""); }
__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_cmp4(int a, int b) { asm volatile(""); }
__attribute__((noipa)) int branchy(int a) { return a == 7 ? a * 3 : a + 1; }
asm(".globl jumper\\n.type jumper,@function\\njumper: jmp __sanitizer_cov_trace_pc\\n.size jumper,.-jumper");
asm(".globl hopper\\n.type hopper,@function\\nhopper: test %eax,%eax\\njne jumper\\nret\\n.size hopper,.-hopper");
void jumper(void);
void hopper(void);
__attribute__((no_sanitize_coverage)) void caller(void) { jumper(); hopper(); branchy(1); asm volatile(""); }
void _start(void) { caller(); }
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    (folder / "a.c").write_text(SOURCE)
    flags = [
        "-g",
        "-O1",
        "-fno-pie",
        "-fcf-protection=none",
        "-fsanitize-coverage=trace-pc,trace-cmp",
    ]
    output_of("gcc", *flags, "-c", "a.c", cwd=folder)
    output_of(
        "gcc", "-no-pie", "-nostdlib", "-static", "-Wl,--build-id", "-o", "a", "a.o", cwd=folder
    )
    return folder


def by_objdump(path, *callees):
    """Return the return addresses of calls."""
    text = output_of("objdump", "-d", path)
    return [
        int(at, 16) + 5
        for at, name in re.findall(r"^ *(\w+):.*call.*<(.*)>$", text, re.MULTILINE)
        if name in callees
    ]


def no_memory(address, size):
    raise ReadError(f"nothing at {address:#x}", address)


@needs_gcc
def test_code_proves_what_can_be_recorded(built):
    """By objdump: calls of callbacks, and of functions that jump to one; no other call, and no
    other address.
    """
    image = built / "a"
    pcs, cmps = (
        by_objdump(image, f"__sanitizer_cov_trace_{name}") for name in ("pc", "const_cmp4")
    )
    tails, others = by_objdump(image, "jumper", "hopper"), by_objdump(image, "branchy", "caller")
    assert tails
    assert others
    with ElfFile(image) as elf:
        read = elf.read
        proof = CodeProof(image, elf.build_id, 0, None)
        assert proof.problem() is None
        assert proof.judge([*pcs, *tails], PC, read)[0] == {}
        assert proof.judge(cmps, CMP, read)[0] == {}
        assert proof.judge(cmps, PC, read)[1] == set(cmps)
        wrong = [*others, *(pc + 1 for pc in pcs), 0, 1 << 46]
        assert proof.judge(wrong, PC, read)[0].keys() == set(wrong)
        # The image does not show code that the kernel has patched.
        assert proof.judge(others, PC, no_memory) == ({}, set())
        (pc,) = others[:1]
        displacement = struct.pack("<i", elf.symbols.find("jumper").address - pc)

        def read_patched(address, size):
            code = bytearray(elf.read(address, size))
            code[pc - address - 4 : pc - address] = displacement
            return bytes(code)

        assert proof.judge([pc], PC, read_patched)[0] == {}
        # Code in one file, symbols and debug info in another.
        debug_file, stripped = split_image(image)
        split = CodeProof(debug_file, elf.build_id, 0, None, code=stripped)
        for codec in (PC, CMP):
            asked = [*pcs, *cmps, *tails, *wrong]
            assert split.judge(asked, codec, read) == proof.judge(asked, codec, read)
    assert CodeProof(debug_file, None, 0, None).problem() == "the kernel image has no code"
    assert "different builds" in (
        CodeProof(debug_file, None, 0, None, code="/bin/true").problem() or ""
    )
    assert CodeProof(image, "00" * 20, 0, None).problem() == "the kernel image is of another build"
    assert CodeProof(None, None, 0, None).problem() == "no kernel image is given"


@needs_gcc
def test_points_of_a_linked_image(built):
    with ElfFile(built / "a") as elf:
        found = find_points(elf)
    assert list(found.pc) == by_objdump(built / "a", "__sanitizer_cov_trace_pc")
    assert len(found.pc) >= 3
    assert list(found.cmp) == by_objdump(built / "a", "__sanitizer_cov_trace_const_cmp4")
    assert len(found.cmp) == 1
    # Of what ends in a jump to the callback, itself or by way of another.
    assert set(by_objdump(built / "a", "jumper", "hopper")) <= set(found.tail)
    assert not set(by_objdump(built / "a", "branchy")) & set(found.tail)


# One file has the function, the other a function of the same name, whose cold part jumps to the
# callback.
TWINS = (
    """
.text
.globl __sanitizer_cov_trace_pc, ask_plain
.type __sanitizer_cov_trace_pc, @function
__sanitizer_cov_trace_pc: ret
.size __sanitizer_cov_trace_pc, . - __sanitizer_cov_trace_pc
.type twin, @function
twin: ret
.size twin, . - twin
.type ask_plain, @function
ask_plain: call twin
ret
.size ask_plain, . - ask_plain
""",
    """
.text
.globl ask_split
.skip 200, 0x90
.type twin, @function
twin: test %eax, %eax
jne twin.cold
ret
.size twin, . - twin
.type ask_split, @function
ask_split: call twin
ret
.size ask_split, . - ask_split
.skip 200, 0x90
.type twin.cold, @function
twin.cold: jmp __sanitizer_cov_trace_pc
.size twin.cold, . - twin.cold
""",
)


@needs_gcc
def test_a_cold_part_belongs_to_the_function_of_its_file(tmp_path):
    for name, code in zip(("a.s", "b.s"), TWINS, strict=True):
        (tmp_path / name).write_text(code)
    command = "gcc -nostdlib -static -no-pie -Wl,-e,ask_split -o image a.s b.s"
    output_of(*command.split(), cwd=tmp_path)
    listing = output_of("objdump", "-d", tmp_path / "image")
    calls = {
        caller: int(back, 16)
        for caller, back in re.findall(r"<(ask_\w+)>:\n.*call .*\n *(\w+):", listing)
    }
    with ElfFile(tmp_path / "image") as elf:
        assert list(find_points(elf).tail) == [calls["ask_split"]]


TAIL_CALLS = """
#include <stdio.h>
#include <string.h>
static struct { void *pc; const char *function; } records[16];
static int count;
const char *running = "";
__attribute__((noinline, no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void)
{
    if (count < 16) {
        records[count].pc = __builtin_return_address(0);
        records[count++].function = running;
    }
}
/* Far from one another: a short jump cannot be told from other bytes. */
#define FUNCTION(name, body) \\
    asm(".text\\n.skip 200,0x90\\n.globl " #name "\\n.type " #name ",@function\\n" #name ":" body "\\n.size " #name ",.-" #name)
#define RUN(string) "push %rax\\nlea " string "(%rip), %rax\\nmov %rax, running(%rip)\\npop %rax\\n"
asm(".section .rodata\\nn_leaf: .string \\"leaf\\"\\nn_other: .string \\"other\\"\\nn_twice: .string \\"twice\\"\\n");
/* Ends in the callback; leads to one that does; to either of two; has two jumps; may lead anywhere. */
FUNCTION(leaf, RUN("n_leaf") "jmp __sanitizer_cov_trace_pc");
FUNCTION(other, RUN("n_other") "jmp __sanitizer_cov_trace_pc");
FUNCTION(chained, "jmp leaf");
FUNCTION(either, "test %edi,%edi\\njne leaf\\njmp other");
FUNCTION(twice, RUN("n_twice")
         "test %edi,%edi\\njne 1f\\njmp __sanitizer_cov_trace_pc\\n.skip 200,0x90\\n1: jmp __sanitizer_cov_trace_pc");
FUNCTION(anywhere, "test %edi,%edi\\njne leaf\\nlea other(%rip), %rax\\njmp *%rax");
/* Leads to a function that may lead anywhere, and in two steps; by way of another one's middle. */
FUNCTION(pointing, "lea chained(%rip), %rax\\njmp *%rax");
FUNCTION(through, "jmp pointing");
FUNCTION(beyond, "test %edi,%edi\\njne leaf\\njmp through");
FUNCTION(parted, ".skip 200,0x90\\nparted_end: jmp chained");
FUNCTION(middle, "jmp parted_end");
FUNCTION(innocent, ".skip 200,0x90\\nret");
FUNCTION(passing, "jmp innocent");
/* As data of each CPU. */
asm(".section .percpu,\\"\\",@progbits\\n.type at_zero,@object\\nat_zero: .skip 64\\n.size at_zero,64\\n.text\\n");
void leaf(int), other(int), chained(int), either(int), twice(int), anywhere(int);
void pointing(int), through(int), beyond(int), middle(int), passing(int);
__attribute__((no_sanitize_coverage)) int main(void)
{
    void (*volatile pointer)(int) = other;
    leaf(0); chained(0); either(0); either(1); twice(0); twice(1); anywhere(0); anywhere(1); pointer(0);
    pointing(0); through(0); beyond(0); beyond(1); middle(0); passing(0);
    for (int i = 0; i < count; i++)
        printf("%p %s\\n", records[i].pc, records[i].function);
    return 0;
}
"""


@pytest.fixture(scope="module")
def tail_calls(tmp_path_factory):
    """The path of a program, and what it recorded: return addresses of the callback with the
    functions that jumped to it.
    """
    folder = tmp_path_factory.mktemp("tail_calls")
    (folder / "a.c").write_text(TAIL_CALLS)
    flags = ("-O1", "-no-pie", "-fno-pie", "-fcf-protection=none")
    output_of("gcc", *flags, "-o", "a", "a.c", cwd=folder)
    lines = output_of(folder / "a").splitlines()
    return folder / "a", [(int(pc, 16), function) for pc, function in map(str.split, lines)]


@needs_gcc
def test_tail_calls_against_what_a_program_recorded(tail_calls):
    """Disassembly has the jumps."""
    image, recorded = tail_calls
    names = "leaf leaf other leaf twice twice other leaf other leaf leaf leaf leaf leaf"
    assert [function for _, function in recorded] == names.split()
    with ElfFile(image) as elf:
        found = find_points(elf)
        proof = CodeProof(image, None, 0, None)
        text = next(section for section in elf.text_sections() if section.name == ".text")

        def read(address, size):
            code = elf.read_section(text).ljust(1 << 20, b"\0")
            at = address - text.address
            return bytes(max(-at, 0)) + code[max(at, 0) : at + size]

        assert proof.judge([pc for pc, _ in recorded], PC, read)[0] == {}
        innocent = by_objdump(image, "passing")
        assert proof.judge(innocent, PC, read)[0].keys() == {*innocent}
        functions = {
            symbol.name: range(symbol.address, symbol.address + symbol.size)
            for symbol in elf.symbols
        }
    assert not found.pc
    assert {pc for pc, _ in recorded} <= {*found.tail, recorded[-1][0]}
    listing = output_of("objdump", "-d", image)
    jumps = [
        int(at, 16)
        for at in re.findall(r"^ *(\w+):.*jmp.*<__sanitizer_cov_trace_pc>$", listing, re.MULTILINE)
    ]
    assert len(jumps) == 4
    for pc, function in recorded[:2] + recorded[4:6]:
        inside = [jump for jump in jumps if jump in functions[function]]
        assert len(found.jumps[pc]) == len(inside)
        assert all(any(jump <= at < jump + 5 for jump in inside) for at in found.jumps[pc])
    # Called from one place each, these were recorded for two functions, or could be.
    assert not {pc for pc, _ in recorded[2:4] + recorded[6:]} & found.jumps.keys()


@needs_gcc
@pytest.mark.parametrize("row", [E6, E9A], ids=["6.1", "6.1 since 6.1.185"])
def test_no_finding_on_records_of_tail_calls(tail_calls, row):
    """Records of tail calls in a buffer as 6.1 lays it out, with a wrong one and without."""
    image, recorded = tail_calls
    kernel = Kernel(row)
    (wrong,) = by_objdump(image, "passing")
    with ElfFile(image) as elf:
        text = next(section for section in elf.text_sections() if section.name == ".text")
        code = elf.read_section(text)
    start = text.address & -4096
    kernel.target.write(start, (bytes(text.address - start) + code).ljust(1 << 20, b"\0"))

    def find(pcs):
        buffer = kernel.buffers["full"]
        for number, word in enumerate([len(pcs) + 1, *pcs, 0]):
            kernel.write_word(buffer + 8 * number, word)
        layout = detect_layout(kernel.target)
        reader = StateReader(kernel.target, layout, lambda: CodeProof(image, None, 0, None))
        about = (name_kcov(kernel.objects["full"]),)
        return check(reader, wanted=("B12",), about=about)

    pcs = [pc for pc, _ in recorded]
    healthy = find(pcs)
    assert (healthy.findings, healthy.applied, healthy.unjudged) == ((), 1, {})
    (finding,) = find([*pcs, wrong]).findings
    assert finding.rule == "B12"
    assert finding.severity.is_violation


@needs_gcc
def test_points_of_one_function(built):
    with ElfFile(built / "a") as elf:
        function = next(symbol for symbol in elf.symbols if symbol.name == "branchy")
        everything = find_points(elf)
        found = find_text_points(elf.read(function.address, function.size), function.address, elf)
    inside = range(function.address, function.address + function.size + 1)
    points = [(pc, PointKind.PC) for pc in everything.pc if pc in inside]
    assert found == sorted([*points, *((pc, PointKind.CMP) for pc in everything.cmp)])


@needs_gcc
def test_build_id_and_directory(built):
    with ElfFile(built / "a") as elf:
        assert elf.build_id in output_of("readelf", "-n", built / "a")
        assert read_comp_dir(elf) == str(built)
    for version in ("4", "5"):
        name = f"dwarf{version}"
        flags = ["-g", f"-gdwarf-{version}", "-gz=zlib", "-nostdlib", "-static", "-no-pie"]
        output_of("gcc", *flags, "-Wl,--build-id", "-o", name, "a.c", cwd=built)
        with ElfFile(built / name) as elf:
            assert read_comp_dir(elf) == str(built)


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"\x7fELF\2\1" + bytes(9), b"\x7fELF\2\1\1" + b"\xff" * 100]
)
def test_what_is_no_elf_file(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(TargetError):
        ElfFile(path)


def branches_in(text, machine, kinds, address=0x1000, targets=None):
    return list(zip(*find_branches([(address, text)], machine, kinds, targets), strict=True))


def test_arm64_branches():
    def branch(opcode, words):
        return struct.pack("<I", opcode | words & 0x3FFFFFF)

    # blr x3, ret, and blraa x8, x9 of a kernel with authenticated pointers.
    text = (
        branch(0x94000000, 4)
        + branch(0x14000000, -1)
        + struct.pack("<III", 0xD63F0060, 0xD65F03C0, 0xD73F0909)
    )
    assert branches_in(text, EM_AARCH64, BranchKind.CALL) == [(0x1004, 0x1010)]
    assert branches_in(text, EM_AARCH64, BranchKind.JUMP) == [(0x1008, 0x1000)]
    assert branches_in(text, EM_AARCH64, BranchKind.INDIRECT_CALL) == [(0x100C, 0), (0x1014, 0)]


def test_s390_branches():
    # brasl, jg, basr; a jump on no condition, and a return.
    text = b"\xc0\xe5" + struct.pack(">i", 8) + b"\xc0\xf4" + struct.pack(">i", -3) + b"\x0d\xe1"
    text += b"\xc0\x04" + struct.pack(">i", 8) + b"\x07\xfe" + b"\x07\xf1"
    assert branches_in(text, EM_S390, BranchKind.CALL) == [(0x1006, 0x1010)]
    assert branches_in(text, EM_S390, BranchKind.JUMP) == [(0x100C, 0x1000)]
    assert branches_in(text, EM_S390, BranchKind.INDIRECT_CALL) == [(0x100E, 0)]
    assert branches_in(text, EM_S390, BranchKind.INDIRECT_JUMP) == [(0x1018, 0)]


def test_riscv_branches():
    """Encodings by GNU as, with the targets that objdump shows."""
    words = [
        "016000ef",  # 1000: jal ra,1016
        "bff5",  # 1004: c.j 1000
        "00001097",  # 1006: auipc ra,0x1
        "ff8080e7",  # 100a: jalr ra,-8(ra), to 1ffe
        "fffff317",  # 100e: auipc t1,0xfffff
        "00830067",  # 1012: jalr zero,8(t1), to 16
        "b7e5",  # 1016: c.j ffe
        "9782",  # 1018: c.jalr a5
        "8782",  # 101a: c.jr a5
        "8082",  # 101c: ret
        "000780e7",  # 101e: jalr ra,0(a5)
        "fddff06f",  # 1022: jal zero,ffe
        "9002",  # 1026: c.ebreak
    ]
    text = b"".join(bytes.fromhex(word)[::-1] for word in words)
    assert branches_in(text, EM_RISCV, BranchKind.CALL) == [(0x1004, 0x1016), (0x100E, 0x1FFE)]
    jumps = [(0x1006, 0x1000), (0x1016, 0x16), (0x1018, 0xFFE), (0x1026, 0xFFE)]
    assert branches_in(text, EM_RISCV, BranchKind.JUMP) == jumps
    assert branches_in(text, EM_RISCV, BranchKind.INDIRECT_CALL) == [(0x101A, 0), (0x1022, 0)]
    assert branches_in(text, EM_RISCV, BranchKind.INDIRECT_JUMP) == [(0x101C, 0)]


# By how objdump writes them. What follows a prefix is the branch; that of a name is its address.
X86_LINE = re.compile(
    r"^ *([0-9a-f]+):\t(?:(?:notrack|bnd|ds|cs) )*(call|jmp|j\w+) +(\*?)(\S+)", re.MULTILINE
)
X86_KINDS = {
    ("call", ""): BranchKind.CALL,
    ("call", "*"): BranchKind.INDIRECT_CALL,
    ("jmp", "*"): BranchKind.INDIRECT_JUMP | BranchKind.SWITCH_JUMP,
}
X86_SOURCE = """
.globl _start
_start:
    call near; jmp far; jne far; call *%rax; call *%r9; call *(%rbx); call *8(%rbx); call *800(%rbx)
    call *(%rsp); call *8(%rsp,%rax,4); call *800(%r12); call *table(%rip); call *table(,%rax,8); call *(%rbp); call *(%r13)
    jmp *%rdx; jmp *(%rcx); jmp *8(%rcx); jmp *800(%rcx); jmp *table(%rip); jmp *table(,%rax,8); jmp *8(%rsp,%rax,8)
near: je near; jmp near; ret
    .skip 300
far: jmp _start; ret
table: .quad 0
"""


@needs_gcc
def test_x86_branches_against_objdump(tmp_path):
    """All forms that the assembler makes are found; other bytes may look like one as well."""
    (tmp_path / "a.s").write_text(X86_SOURCE)
    output_of("gcc", "-nostdlib", "-static", "-no-pie", "-o", "a", "a.s", cwd=tmp_path)
    text = output_of("objdump", "-d", "--no-show-raw-insn", tmp_path / "a")
    starts = [int(at, 16) for at in re.findall(r"^ *([0-9a-f]+):\t", text, re.MULTILINE)]
    with ElfFile(tmp_path / "a") as elf:
        (section,) = elf.text_sections()
        code, address = elf.read_section(section), section.address
    count = 0
    for at, word, star, operand in X86_LINE.findall(text):
        end = starts[starts.index(int(at, 16)) + 1]
        is_short = not star and end - int(at, 16) == 2
        kind = BranchKind.SHORT_JUMP if is_short else X86_KINDS.get((word, star), BranchKind.JUMP)
        assert (end, 0 if star else int(operand, 16)) in branches_in(
            code, EM_X86_64, kind, address
        ), (word, operand)
        assert (kind is BranchKind.JUMP or is_short) == (
            word not in ("call", "jmp") or (not star and word == "jmp")
        )
        count += 1
    assert count == 25
    assert len(branches_in(code, EM_X86_64, BranchKind.SWITCH_JUMP, address)) == 1


def test_search_in_parts():
    """Random code with many calls, in several parts for the threads; some cross the borders of
    parts.
    """
    random = Random(5)
    size, address = (1 << 21) + 77, 0x1000000
    text = bytearray(random.randbytes(size))
    for at in [random.randrange(size - 8) for _ in range(60000)] + [
        (1 << 20) - back for back in (1, 3, 4, 6)
    ]:
        text[at : at + 5] = b"\xe8" + struct.pack("<i", random.randrange(-at, size - at))
    targets = {address + random.randrange(size) for _ in range(200000)}
    ends = (address + match.start() + 5 for match in re.finditer(rb"\xe8(?=....)", text, re.DOTALL))
    calls = ((end, end + struct.unpack_from("<i", text, end - address - 4)[0]) for end in ends)
    expected = [call for call in calls if call[1] in targets]
    assert branches_in(bytes(text), EM_X86_64, BranchKind.CALL, address, targets) == expected
    assert len(expected) > 500


def test_x86_calls_within_another_calls_bytes():
    # The second one starts in the displacement of the first: both are looked at.
    text = b"\xe8\xe8\x01\x00\x00\x00\x00"
    assert [back for back, _ in branches_in(text, EM_X86_64, BranchKind.CALL, 0)] == [5, 6]


@needs_gcc
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("version", [4, 5])
def test_compilation_units_against_the_symbol_table(tmp_path, compiler, version):
    """A function of each of two files, in sections apart: lists of ranges in one, a single range in
    the other.
    """
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.c").write_text(
        'int other(int);\n__attribute__((section(".init.text"))) int early(int a) { return a; }\n'
        "int _start(int a) { return other(early(a)); }\n"
    )
    (tmp_path / "sub/b.c").write_text("int other(int a) { return a + 1; }\n")
    flags = ["-g", f"-gdwarf-{version}", "-O0", "-fno-pie", "-no-pie", "-nostdlib", "-static"]
    output_of(compiler, *flags, "-o", "a", "a.c", "sub/b.c", cwd=tmp_path)
    code = list_functions(tmp_path / "a")
    with ElfFile(tmp_path / "a") as elf:
        reader = DwarfReader(elf)
        units = {reader.unit(number).name: number for number in range(len(reader))}
        assert {reader.unit(number).directory for number in units.values()} == {str(tmp_path)}
        assert read_comp_dir(elf) == str(tmp_path)
        of_address = {code[name][0].stop: NO_UNIT for name in ("early", "_start", "other")}
        for name, functions in (("a.c", ["early", "_start"]), ("sub/b.c", ["other"])):
            for span in (span for function in functions for span in code[function]):
                of_address[span.start] = of_address[span.stop - 1] = units[name]
        asked = array("Q", sorted(of_address))
        assert list(reader.find_units(asked)) == [of_address[address] for address in asked]
    assert units.keys() == {"a.c", "sub/b.c"}
