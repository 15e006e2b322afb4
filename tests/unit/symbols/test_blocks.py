# SPDX-License-Identifier: LGPL-2.1-or-later
"""Blocks of code that is not what it looks like: each kind in a small image."""

from __future__ import annotations

from array import array
from collections import Counter
from functools import partial

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import CapabilityError
from kcovdbg.records.line_states import WHOLE, BlockState, StateFinder, TraceRecords
from kcovdbg.symbols.blocks import BlockFlag, BlockMaker, FunctionFlag, order_rows, read_linked
from kcovdbg.symbols.coverage_points import PointKind, find_points
from kcovdbg.symbols.dwarf_reader import DwarfReader
from tests.support.compiled_image import run

POINT = "call __sanitizer_cov_trace_pc\n"
# What all images have. Sections with code need an address that is not 0.
COMMON = """
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
function other
ret
end other
function f
call __sanitizer_cov_trace_pc
"""


class Image:
    """The blocks of an image; places are named by labels."""

    def __init__(self, folder, code, compiled=""):
        (folder / "code.s").write_text(COMMON + code)
        (folder / "compiled.c").write_text(compiled)
        run(
            [
                "gcc",
                "-nostdlib",
                "-static",
                "-no-pie",
                "-O1",
                "-fcf-protection=none",
                "-Wl,-z,noexecstack",
                "-o",
                str(folder / "image"),
                "code.s",
                *(("-g", "compiled.c") if compiled else ()),
            ],
            folder,
        )
        with ElfFile(folder / "image") as elf:
            image = read_linked(elf, elf.symbols, DwarfReader(elf) if compiled else None)
            self.labels = {
                symbol.name: symbol.address
                for symbol in elf.symbols
                if symbol.section and symbol.name
            }
            self.base = min(section.address for section in image.sections)
            maker = BlockMaker(image)
            points = array("I", [point - self.base for point in find_points(elf).pc])
        nothing = order_rows([])
        kinds = array("Q", bytes(8 * len(points)))
        self.finder = StateFinder(maker.make(nothing, self.base), points, kinds)

    def function(self, name="f", records=()):
        number = self.finder.find_function(self.labels[name])
        trace = TraceRecords(Counter(records), WHOLE, frozenset({PointKind.PC}))
        return self.finder.find_blocks(trace, number)

    def states(self, name, records):
        """The states of blocks that begin at labels, by label."""
        by_address = {block.address: block.state for block in self.function(name, records).blocks}
        return {
            label: by_address[address]
            for label, address in self.labels.items()
            if address in by_address
        }

    def block(self, label):
        """The block that begins at a label, None where none does."""
        found = [
            block for block in self.function(label).blocks if block.address == self.labels[label]
        ]
        return found[0] if found else None

    def flags(self, label):
        return self.block(label).flags & ~BlockFlag.FALLS

    def successors(self, label):
        """The labels that a block leads to; of several at one address the first by name."""
        names = {}
        for name, address in sorted(self.labels.items(), reverse=True):
            names[address] = name
        blocks = self.function(label).blocks
        return {
            names.get(blocks[index].address, hex(blocks[index].address))
            for index in self.block(label).successors
        }


@pytest.fixture
def make(tmp_path):
    return partial(Image, tmp_path)


def test_code_in_front_of_functions_is_of_none(make):
    """Hashes of types and room for other code have symbols of functions, and lines."""
    image = make(
        "a: ret\nend f\n"
        "function __pfx_g\nnop\nnop\nend __pfx_g\n"
        "function __cfi_g\nmov $0x12345678, %eax\nend __cfi_g\n"
        "function g\ncall __sanitizer_cov_trace_pc\nret\nend g\n"
    )
    assert image.finder.find_function(image.labels["__pfx_g"]) is None
    assert image.finder.find_function(image.labels["__cfi_g"] + 2) is None
    assert [block.address for block in image.function("g").blocks] == [image.labels["g"]]
    assert image.flags("g") & BlockFlag.ENTRY


def test_where_functions_call_ftrace_nothing_jumps_to(make):
    code = "g: call other\na: je c\nb: call other\nc: ret\nend f\n.data\n"
    table = "__start_mcount_loc: .quad f, b\n__stop_mcount_loc:\n"
    others = ".quad 0, 0\n{}after: .quad c\n"
    image = make(code + others.format(table))
    assert not image.flags("b") & BlockFlag.ENTRY
    # What is beside the table is a pointer, and so is what is in it by another name.
    assert image.flags("c") & BlockFlag.ENTRY
    image = make(code + others.format(table.replace("_mcount_loc", "_other")))
    assert image.flags("b") & BlockFlag.ENTRY


def test_branches_and_calls(make):
    image = make("a: je c\nb: call other\nd: nop\nc: ret\nend f\n")
    assert image.successors("f") == {"b", "c"}
    assert image.successors("b") == {"d"}
    assert image.flags("b") == BlockFlag.CALL
    assert image.successors("d") == {"c"}
    assert image.flags("c") == BlockFlag.EXIT
    assert image.flags("f") == BlockFlag.ENTRY


def test_jump_of_a_conditional_tail_call_leaves(make):
    image = make("je other\nb: jmp other\nend f\n")
    assert image.successors("f") == {"b"}
    assert image.flags("f") == BlockFlag.ENTRY | BlockFlag.EXIT
    assert image.flags("b") == BlockFlag.EXIT


ALTERNATIVE = """
a: je s
s: jmp t
.nops 3
e: nop
t: ret
u: ret
end f
.section .altinstr_replacement, "ax"
r: jmp u
.section .altinstructions, "a"
.long s - ., r - .
.word 1, 0
.byte 5, 5
"""


def test_alternative(make):
    image = make(
        ALTERNATIVE.replace(".nops 3\ne: nop", "e: nop").replace(
            "jmp t", ".byte 0xe9\n.long t - 1f\n1:"
        )
    )
    assert image.successors("s") == {"e", "t", "u"}
    assert image.flags("s") == BlockFlag.NO_LINES | BlockFlag.CALL
    assert image.block("e") is not None


@pytest.mark.parametrize(
    "members", [".word 1, 0\n.byte 5, 5", ".word 1\n.byte 5, 5", ".word 1\n.byte 5, 5, 0"]
)
def test_layouts_of_alternatives(make, members):
    code = ALTERNATIVE.replace(".nops 3\ne: nop", "e: nop").replace(
        "jmp t", ".byte 0xe9\n.long t - 1f\n1:"
    )
    image = make(code.replace(".word 1, 0\n.byte 5, 5", members))
    assert image.successors("s") == {"e", "t", "u"}


def test_layout_of_alternatives_in_debug_info(make):
    """The members of entries are found wherever they are, with others between them."""
    code = ALTERNATIVE.replace(".nops 3\ne: nop", "e: nop").replace(
        "jmp t", ".byte 0xe9\n.long t - 1f\n1:"
    )
    code = code.replace(".word 1, 0\n.byte 5, 5", ".byte 5, 1, 2, 3, 5, 0")
    structure = """struct alt_instr {
    int instr_offset, repl_offset;
    unsigned char instrlen, unknown[3], replacementlen, last;
} __attribute__((packed)) sample;
"""
    # A layout that makes sense is not the right one.
    assert make(code).successors("s") == {"e", "t"}
    image = make(code, structure)
    assert image.successors("s") == {"e", "t", "u"}
    assert image.block("e") is not None


def test_static_cpu_feature(make):
    """The jump leads to code in another section, which leads back."""
    image = make("""s: .byte 0xe9
.long aux - 1f
1:
y: nop
n: ret
end f
.section .altinstr_aux, "ax"
aux: testb $1, other
jnz y
jmp n
""")
    assert image.successors("f") == {"n", "y"}
    assert BlockFlag.EXIT not in image.flags("f")


@pytest.mark.parametrize("site", ["jmp t", "xchg %ax, %ax"])
def test_static_key(make, site):
    image = make(f"""s: {site}
n: nop
t: ret
end f
.section .rodata
.globl __start___jump_table, __stop___jump_table
.balign 8
__start___jump_table:
.long s - ., t - .
.quad 0
__stop___jump_table:
""")
    assert image.successors("f") == {"n", "t"}


def test_static_call(make):
    image = make(
        "call __SCT__x\nb: jmp __SCT__x\nend f\nfunction __SCT__x\njmp other\nend __SCT__x\n"
    )
    assert image.successors("f") == {"b"}
    assert BlockFlag.EXIT in image.flags("b")
    assert BlockFlag.EXIT not in image.flags("f")


@pytest.mark.parametrize("rest", ["", ".long 0"])
def test_exception(make, rest):
    image = make(f"""s: mov (%rax), %rax
n: nop
t: ret
end f
.section __ex_table, "a"
.long s - ., t - .
{rest}
""")
    assert image.successors("f") == {"n", "t"}


TRAPS = """
je w
jle x
ud2
v: nop
w: ud2
y: nop
x: ud2
z: ret
end f
.section __bug_table, "a"
"""


FILE = ".long name - .\n.word 5"


@pytest.mark.parametrize("middle", [FILE, f".long 0\n{FILE}"], ids=["12 bytes", "16 bytes"])
def test_traps(make, middle):
    # With a flag that is newer than the format.
    entries = f".long w - .\n{middle}, 0x911\n.long x - .\n{middle}, 0x10\n"
    image = make(TRAPS + entries + '.section .rodata\nname: .asciz "file.c"\n')
    assert (image.successors("w"), image.flags("w")) == ({"y"}, 0)
    assert (image.successors("x"), image.flags("x")) == (set(), BlockFlag.EXIT)
    # One that no table has, as that of a check of control flow, may be one or the other.
    blocks = image.function().blocks
    (unlisted,) = (block for block in blocks if block.address + 2 == image.labels["v"])
    assert BlockFlag.EXIT in unlisted.flags
    assert [blocks[index].address for index in unlisted.successors] == [image.labels["v"]]


@pytest.mark.parametrize(
    ("structure", "entry"),
    [
        (
            "int bug_addr_disp, new[3]; unsigned short flags, line;",
            ".long {} - .\n.long 0, 0, 0\n.word {}, 5\n",
        ),
        (
            "unsigned long bug_addr; const char *file; unsigned short line, flags;",
            ".quad {}\n.quad 0\n.word 5, {}\n.long 0\n",
        ),
    ],
    ids=["new member", "addresses"],
)
def test_layout_of_traps_in_debug_info(make, structure, entry):
    entries = entry.format("w", "1") + entry.format("x", "0")
    image = make(TRAPS + entries, f"struct bug_entry {{ {structure} }} sample;")
    # Addresses in data are those of entries.
    assert image.successors("w") == {"y"}
    assert BlockFlag.EXIT not in image.flags("w")
    assert image.successors("x") == set()
    assert BlockFlag.EXIT in image.flags("x")


def test_traps_of_an_unknown_table(make):
    image = make(TRAPS + ".byte 1, 2, 3, 4, 5, 6, 7\n")
    assert (image.successors("w"), image.flags("w")) == ({"y"}, BlockFlag.EXIT)
    assert (image.successors("x"), image.flags("x")) == ({"z"}, BlockFlag.EXIT)


@pytest.mark.parametrize(
    ("name", "members", "entry"),
    [
        (
            "exception_table_entry",
            "int new, insn, fixup, data;",
            ".long 0, s - ., t - ., 0",
        ),
        (
            "jump_entry",
            "long key; int code, target, new;",
            ".quad 0\n.long s - ., t - ., 0, 0",
        ),
    ],
)
def test_other_layouts_in_debug_info(make, name, members, entry):
    section = {"exception_table_entry": "__ex_table", "jump_entry": "__jump_table"}[name]
    code = f"""s: mov (%rax), %rax
n: nop
t: ret
end f
.section {section}, "a"
{entry}
"""
    image = make(code, f"struct {name} {{ {members} }} sample;")
    assert image.successors("f") == {"n", "t"}


def test_declarations_have_no_layout(make):
    """A unit that only names a structure does not end the search for it."""
    code = TRAPS + ".long w - .\n.long 0, 0, 0\n.word 1, 5\n"
    members = "int bug_addr_disp, new[3]; unsigned short flags, line;"
    first = "struct bug_entry; struct bug_entry *pointer;"
    image = make(code, f"{first} struct bug_entry {{ {members} }} sample;")
    assert (image.successors("w"), image.flags("w")) == ({"y"}, 0)


@pytest.mark.parametrize("table", ["__ex_table", ".altinstructions", "__jump_table"])
def test_other_unknown_tables(make, table):
    with pytest.raises(CapabilityError):
        make(f'ret\nend f\n.section {table}, "a"\n.byte 1, 2, 3, 4, 5, 6, 7\n')


def test_static_key_by_addresses(make):
    image = make("""s: xchg %ax, %ax
n: nop
t: ret
end f
.section __jump_table, "a"
.quad s, t, 0
""")
    assert image.successors("s") == {"n", "t"}


def test_cold_part(make):
    image = make("""je c
back: ret
end f
function gap
nop
end gap
.type f.cold, @function
f.cold:
c: nop
jmp back
end f.cold
""")
    assert image.successors("f") == {"back", "c"}
    assert image.successors("c") == {"back"}


def test_table_of_pointers(make):
    image = make(
        "jmp *table(,%rax,8)\na: ret\nb: ret\nend f\n.section .rodata\n.balign 8\ntable: .quad "
        "a, b\n"
    )
    assert image.successors("f") == {"a", "b"}
    assert BlockFlag.ENTRY not in image.flags("a")
    assert not image.function().flags & FunctionFlag.VOID


def test_table_of_offsets_is_not_understood(make):
    image = make("""lea table(%rip), %rdx
movslq (%rdx,%rax,4), %rax
add %rdx, %rax
jmp *%rax
a: ret
b: ret
end f
.section .rodata
.balign 4
table: .long a - table, b - table
""")
    assert image.function().flags & FunctionFlag.VOID


def test_entry_of_a_warning_is_no_table_of_offsets(make):
    """Since v6.19, a warning hands its entry to a function that traps."""
    image = make("""cmp $1, %eax
ja w
jump: jmp *table(,%rax,8)
w: lea entry(%rip), %rdi
trap: call other
a: ret
b: ret
end f
.section .rodata
.balign 8
table: .quad a, b
.section __bug_table, "a"
entry: .long trap - .
.word 1
""")
    assert not image.function().flags & FunctionFlag.VOID
    assert image.successors("jump") == {"a", "b"}


def test_tail_call_through_a_register(make):
    image = make("lea other(%rip), %rax\njmp *%rax\nend f\n")
    assert not image.function().flags & FunctionFlag.VOID
    assert image.flags("f") == BlockFlag.ENTRY | BlockFlag.EXIT | BlockFlag.INDIRECT


def test_code_with_address_taken(make):
    """A jump through a register may lead to what an instruction of the function names."""
    image = make("lea b(%rip), %rax\njmp *%rax\na: ret\nb: ret\nend f\n")
    assert BlockFlag.ENTRY in image.flags("b")


def test_pointer_into_assembly(make):
    image = make("nop\nb: ret\nend f\n.data\n.balign 8\n.quad b\n")
    assert BlockFlag.ENTRY in image.flags("b")


def test_jump_from_elsewhere(make):
    image = make("nop\nb: nop\nc: ret\nend f\nfunction g\njmp b\nend g\nstray: jmp c\n")
    assert BlockFlag.ENTRY in image.flags("b")
    assert BlockFlag.ENTRY in image.flags("c")


def test_jump_to_the_callback_leaves(make):
    image = make("je b\nc: ret\nb: jmp __sanitizer_cov_trace_pc\nend f\n")
    assert image.flags("b") == BlockFlag.EXIT


def test_debug_info_says_that_a_function_never_returns(make):
    """Its code has a return, as that of a function that another one stops does."""
    code = "b: call stop\nc: ret\nend f\n"
    compiled = '%svoid stop(void) { __asm__ volatile ("ret"); __builtin_unreachable(); }'
    attribute = "__attribute__((noreturn)) "
    assert BlockFlag.EXIT not in make(code, compiled % "").flags("f")
    assert BlockFlag.EXIT in make(code, compiled % attribute).flags("f")


def test_function_that_never_returns(make):
    image = make("""je b
call dies
b: call leads
c: ret
end f
function dies
1: pause
jmp 1b
end dies
function leads
jmp dies
end leads
function ends
call dies
end ends
""")
    assert image.function("dies").flags & FunctionFlag.NO_RETURN
    assert image.function("leads").flags & FunctionFlag.NO_RETURN
    assert image.function("ends").flags & FunctionFlag.NO_RETURN
    assert not image.function("f").flags & FunctionFlag.NO_RETURN
    assert BlockFlag.EXIT in image.flags("b")


def test_thunks(make):
    image = make("""je b
jmp __x86_return_thunk
b: call __x86_indirect_thunk_rax
c: jmp __x86_indirect_thunk_rax
end f
.globl __x86_return_thunk, __x86_indirect_thunk_rax
__x86_return_thunk:
ret
__x86_indirect_thunk_rax:
jmp *%rax
""")
    assert image.flags("b") == BlockFlag.CALL
    assert image.successors("b") == {"c"}
    assert image.flags("c") == BlockFlag.EXIT | BlockFlag.INDIRECT
    assert not image.function().flags & FunctionFlag.NO_RETURN


def test_checked_call_that_fineibt_replaces(make):
    """FineIBT overwrites kCFI's check of an indirect call when the kernel boots: then no jump skips
    the trap, whose bytes are executed on the way to the call. A table of their own has these traps:
    what follows was executed where the check was.
    """
    check = """mov $0x12345678, %r10d
add -4(%r11), %r10d
je c
t: ud2
"""
    image = make(
        check
        + "c: call *%r11\nd: ret\nend f\n"
        + "function __cfi_g\n.nops 11\nmov $0x12345678, %eax\nend __cfi_g\n"
        + "function g\ncall __sanitizer_cov_trace_pc\n"
        + check.replace("c\n", "i\n").replace("t:", "h:")
        + 'i: jmp *%r11\nend g\n.section __kcfi_traps, "a"\n.long t - ., h - .\n'
        + '.section __bug_table, "a"\n.long other - ., other - .\n.word 1, 0\n'
    )
    assert image.successors("f") == {"t", "c"}
    assert image.successors("t") == {"c"}
    assert image.flags("t") == 0
    assert image.successors("h") == {"i"}
    # The preamble, in place of which FineIBT's own check of the hash is, is no code of g.
    assert image.finder.find_function(image.labels["__cfi_g"] + 12) is None
    assert image.flags("g") & BlockFlag.ENTRY
    states = image.states("f", [image.labels["f"] + 5])
    assert states["c"] is BlockState.EXECUTED
    assert states["t"] is BlockState.UNKNOWN


def test_padding_is_not_code(make):
    image = make("jmp b\np: nop\nint3\nb: ret\nend f\n")
    assert image.flags("p") == BlockFlag.NO_LINES
    assert image.successors("p") == set()
    assert image.flags("b") == BlockFlag.EXIT


def test_where_recording_begins(make):
    image = make(
        "call kcov_remote_start\nb: nop\nret\nend f\nfunction kcov_remote_start\nret\nend "
        "kcov_remote_start\n"
    )
    assert BlockFlag.EXIT in image.flags("f")
    assert BlockFlag.ENTRY in image.flags("b")


def test_what_is_no_instruction(make):
    image = make(".byte 0x06\nret\nend f\n")
    assert image.function().flags & FunctionFlag.VOID


def test_jump_into_an_instruction(make):
    image = make("je s + 1\ns: mov $0x90909090, %eax\nret\nend f\n")
    assert image.function().flags & FunctionFlag.VOID


def test_other_sections_with_code(make):
    image = make(
        'ret\nend f\n.section .init.text, "ax"\nfunction g\n'
        + POINT
        + "je b\na: nop\nb: ret\nend g\n"
    )
    assert image.successors("g") == {"a", "b"}


def test_functions_without_callbacks(make):
    image = make("ret\nend f\nfunction g\nje 1f\nnop\n1: ret\nend g\n")
    assert len(image.function("g").blocks) == 3
    assert not image.function("g").flags & FunctionFlag.INSTRUMENTED
    assert image.function("f").flags & FunctionFlag.INSTRUMENTED


def test_address_that_is_pushed_for_a_return(make):
    image = make("push $a\niretq\na: ret\nend f\n")
    assert BlockFlag.ENTRY in image.flags("a")


@pytest.mark.parametrize(
    ("code", "is_entry"),
    [
        ("mov $a, %rdi", False),
        ("mov $a, %edi", False),
        ("lea a(%rip), %rdi", False),
        ("movq $a, (%rdi)", True),
        ("mov $a, %rdi\npush %rdi\niretq", True),
        ("mov $a, %rdi\njmp *%rdi", True),
    ],
)
def test_address_that_a_register_holds(make, code, is_entry):
    """A function that is called gets it, unless control may come there by it."""
    image = make(f"je a\n{code}\na: ret\nend f\n")
    assert (BlockFlag.ENTRY in image.flags("a")) == is_entry
