# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words of an oops: the formats are those of the kernel's sources."""

import pytest

from kcovdbg.console.command_line import parse_line
from kcovdbg.records.log_text import split_log
from kcovdbg.records.oops_words import find_log_words, parse_words

PC = 0xFFFFFFFF8108CB35


@pytest.mark.parametrize(
    "text",
    [
        f"{PC:x}",
        f"{PC:#x}",
        f"{PC:X}",
        f"{PC:x},",
        f"{PC}",
        f"{PC - (1 << 64)}",
        f"[<{PC:x}>]",
        f"[<{PC:016x}>],",
    ],
)
def test_addresses(text):
    (word,) = parse_words(text)
    assert (word.address, word.function) == (PC, None)
    assert word.is_oops is text.startswith("[<")


@pytest.mark.parametrize(
    ("text", "function", "offset", "size", "module", "is_exact"),
    [
        ("func+0x15/0x40", "func", 0x15, 0x40, None, False),
        ("func+0x15", "func", 0x15, None, None, False),
        ("func+21", "func", 21, None, None, False),
        ("func+021", "func", 21, None, None, False),
        ("func", "func", 0, None, None, True),
        ("add", "add", 0, None, None, True),
        ("func+0x0/0x40", "func", 0, 0x40, None, True),
        ("func [mod]", "func", 0, None, "mod", True),
        ("func+0x1/0x2 [mod]", "func", 1, 2, "mod", False),
        ("func+0x1/0x2 [mod 0123abcd]", "func", 1, 2, "mod", False),
        ("(func+0x1/0x2)", "func", 1, 2, None, False),
        ("? func+0x1/0x2", "func", 1, 2, None, False),
        ("RIP: 0010:func+0x15/0x40", "func", 0x15, 0x40, None, True),
        ("0010:func+0x15/0x40,", "func", 0x15, 0x40, None, False),
        ("pc : func+0x15/0x40", "func", 0x15, 0x40, None, True),
        ("lr : func+0x15/0x40", "func", 0x15, 0x40, None, False),
        ("[<ffffffff8108cb35>] ? func+0x15/0x40", "func", 0x15, 0x40, None, False),
        ("func.constprop.0.isra.0+0x15/0x40", "func.constprop.0.isra.0", 0x15, 0x40, None, False),
        ("func.cold+0x15/0x40", "func.cold", 0x15, 0x40, None, False),
    ],
)
def test_functions(text, function, offset, size, module, is_exact):
    (word,) = parse_words(text)
    assert (word.function, word.offset, word.size, word.module) == (function, offset, size, module)
    assert word.is_exact is is_exact


def test_several():
    words = list(parse_words("a+0x1/0x2 [m], b 0x12 ffffffff81000000"))
    assert [(word.function, word.address) for word in words] == [
        ("a", None),
        ("b", None),
        (None, 0x12),
        (None, 0xFFFFFFFF81000000),
    ]


@pytest.mark.parametrize(
    "text", ["zz!", "a b&c", "0xffffffffffffffffff", "99999999999999999999", "a+", "<a>"]
)
def test_what_is_no_place(text):
    with pytest.raises(ValueError, match=r"\S"):
        list(parse_words(text))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[   12.345678] RIP: 0010:f+0x1/0x2", [("f+0x1/0x2", True)]),
        ("[   12.345678][   C0]  ? f.part.0+0x1/0x2", [("f.part.0+0x1/0x2", False)]),
        ("[   12.3][ T101]  f+0x1/0x2 [m]", [("f+0x1/0x2 [m]", False)]),
        ("<4>[   12.3] RIP  [<ffffffff81000000>] f+0x1/0x2", [("f+0x1/0x2", True)]),
        ("[   12.3] IP: [<ffffffff81000000>] f+0x1/0x2", [("f+0x1/0x2", True)]),
        ("[   12.3] NIP [c000000000001234] f+0x1/0x2", [("f+0x1/0x2", True)]),
        ("[   12.3] LR [c000000000001234] f+0x1/0x2", [("f+0x1/0x2", False)]),
        ("[   12.3] epc : f+0x1/0x2", [("f+0x1/0x2", True)]),
        ("WARNING: CPU: 1 PID: 1 at m/a.c:46 f+0x1/0x2 [m]", [("f+0x1/0x2 [m]", True)]),
        ("BUG: KASAN: use-after-free in f+0x1/0x2", [("f+0x1/0x2", False)]),
        ("mutex at: f+0x1/0x2, g+0x3/0x4", [("f+0x1/0x2", False), ("g+0x3/0x4", False)]),
        ("RIP: 0033:0x455bf0", []),
        ("[   12.3] nothing here", []),
        ("Code: 90 90 <0f> 0b", []),
        ("ffffffff8108cb35", [("ffffffff8108cb35", False)]),
        (" [<ffffffff8108cb35>]", [("[<ffffffff8108cb35>]", False)]),
        (f"f+{'9' * 5000}", []),
        ("  0xffffffff8108cb35,", [("0xffffffff8108cb35", False)]),
        ("", []),
    ],
)
def test_lines(line, found):
    (words,) = find_log_words(split_log(line or " "))
    assert [(word.text, word.is_exact) for word in words] == found
    assert all(line[slice(*word.span)] in word.text for word in words)
    assert not any(word.is_torn for word in words)


# show_regs() and show_trace() of arch/*/kernel; the addresses are made up.
REGISTERS = [
    # loongarch
    ("   ra: 9000000000224600 g+0x30/0x60", [("g+0x30/0x60", False)]),
    ("  ERA: 9000000000223d3c f+0x2c/0x80", [("f+0x2c/0x80", True)]),
    # sparc
    ("TPC: <f+0x1/0x2>", [("f+0x1/0x2", True)]),
    ("RPC: <g+0x1/0x2>", [("g+0x1/0x2", False)]),
    ("TRAPLOG: TPC<f+0x1/0x2>", [("f+0x1/0x2", True)]),
    ("             TPC[f+0x1/0x2] O7[g+0x1/0x2] I7[h+0x1/0x2]",
     [("f+0x1/0x2", True), ("g+0x1/0x2", False), ("h+0x1/0x2", False)]),
    # arc
    ("Invalid Read @ 0x00000000 by insn @ f+0x32/0x130", [("f+0x32/0x130", True)]),
    ("BTA: 0x813b9a72\n SP: 0x9f055ea4  FP: 0x00000000 BLK: g+0xc0/0x130".splitlines()[1], [("g+0xc0/0x130", False)]),
    # mips, riscv
    ("epc   : 80104a18 f+0x8/0x30", [("f+0x8/0x30", True)]),
    ("ra    : 80104a18 g+0x8/0x30", [("g+0x8/0x30", False)]),
    ("epc : f+0x12/0x34 ra : g+0x1/0x2", [("f+0x12/0x34", True), ("g+0x1/0x2", False)]),
    # arm, arm64, sh, alpha, csky, m68k
    ("PC is at f+0x1/0x2", [("f+0x1/0x2", True)]),
    ("LR is at g+0x1/0x2", [("g+0x1/0x2", False)]),
    ("PR is at g+0x1/0x2", [("g+0x1/0x2", False)]),
    ("pc is at f+0x1/0x2", [("f+0x1/0x2", True)]),
    ("PC: 0x8000a000 (f+0x1/0x2)", [("f+0x1/0x2", True)]),
    ("PC: [<0004a4b8>] f+0x1/0x2", [("f+0x1/0x2", True)]),
    ("pc : [<ffffff8008081234>] lr : [<ffffff8008085678>] pstate: 60000145",
     [("ffffff8008081234", True), ("ffffff8008085678", False)]),
    # powerpc, s390, parisc
    ("NIP [c000000000001234] f+0x1/0x2", [("f+0x1/0x2", True)]),
    ("NIP:  c000000000001234 LR: c000000000005678 CTR: 0000000000000000",
     [("c000000000001234", True), ("c000000000005678", False)]),
    ("--- interrupt: 700 at f+0x1/0x2", [("f+0x1/0x2", True)]),
    ("CPU 1 self-detected hard LOCKUP @ f+0x1/0x2", [("f+0x1/0x2", True)]),
    ("Krnl PSW : 0704c00180000000 00000000001c4fd8 (f+0x68/0x1c8)", [("f+0x68/0x1c8", True)]),
    (" IAOQ[0]: f+0x1/0x2", [("f+0x1/0x2", True)]),
    (" RP(r2): g+0x1/0x2", [("g+0x1/0x2", False)]),
    # x86
    ("EIP is at f+0x1/0x2", [("f+0x1/0x2", True)]),
    ("EIP: f+0x1/0x2", [("f+0x1/0x2", True)]),
    ("RIP: 0010:0xffffffff81234567", [("0xffffffff81234567", True)]),
    ("    [exception RIP: f+22]", [("f+22", True)]),
    ("    RIP: ffffffff8142a3b6  RSP: ffffc90000013e28  RFLAGS: 00010246", [("ffffffff8142a3b6", True)]),
    ("CFI failure at f+0x1/0x2 (target: g+0x0/0x2; expected type: 0x12345678)", [("f+0x1/0x2", True), ("g+0x0/0x2", True)]),
    # WARN(): v2.6.12, v3.11, v6.19, with its condition, without CONFIG_DEBUG_BUGVERBOSE.
    ("WARNING: at fs/a.c:713 f+0x1/0x2()", [("f+0x1/0x2", False)]),
    ("WARNING: CPU: 1 PID: 6 at fs/a.c:713 f+0x1/0x2()", [("f+0x1/0x2", False)]),
    ("WARNING: CPU: 1 PID: 6 at fs/a.c:713 f+0x1/0x2", [("f+0x1/0x2", True)]),
    ("WARNING: fs/a.c:713 at f+0x1/0x2, CPU#1: syz.0.17/6543", [("f+0x1/0x2", True)]),
    ("WARNING: [ptr == NULL] fs/a.c:713 at f+0x1/0x2, CPU#1: a b/6", [("f+0x1/0x2", True)]),
    ("WARNING: at f+0x1/0x2, CPU#1: syz.0.17/6543", [("f+0x1/0x2", True)]),
    ("WARNING: CPU: 1 PID: 6543 at f+0x1/0x2", [("f+0x1/0x2", True)]),
    ("WARNING: can't access registers at f+0x1/0x2", [("f+0x1/0x2", False)]),
    ("BUG: KFENCE: use-after-free read in f+0x1/0x2", [("f+0x1/0x2", True)]),
    ("BUG: KFENCE: memory corruption in f+0x1/0x2", [("f+0x1/0x2", False)]),
    # Stacks of other programs.
    (" #1 [ffffc90000013b80] f at ffffffff811dc419", [("ffffffff811dc419", False)]),
    (" #1 [ffffc90000013b80] f+153 at ffffffff811dc419", [("f+153", False)]),
    (" #1 [ffffc90000013b80] f at ffffffff811dc419 [mod]", [("ffffffff811dc419", False)]),
    ("#0  0xffffffff811dc419 in f (fd=3)", [("0xffffffff811dc419", True)]),
    ("#1  0xffffffff811dc419 in f ()", [("0xffffffff811dc419", False)]),
    ("\tffffffff811dc419 f+0x99 ([kernel.kallsyms])", [("f+0x99", False)]),
    ("\tffffffffc01dc419 f+0x99 ([ext4])", [("f+0x99 [ext4]", False)]),
    ("\tffffffffc01dc419 f+0x99 (/lib/modules/6.1.0/kernel/fs/ext4/ext4.ko)", [("f+0x99 [ext4]", False)]),
    ("\tffffffff811dc419 [unknown] ([kernel.kallsyms])", [("ffffffff811dc419", False)]),
    # Modules and the image.
    (" f+0x1/0x2 [kernel]", [("f+0x1/0x2", False)]),
    (" f+0x1/0x2 [mod@ffffffffc0000000+0x4000]", [("f+0x1/0x2 [mod]", False)]),
    (" f+0x1/0x2 [mod 0123456789abcdef0123456789abcdef01234567]", [("f+0x1/0x2 [mod]", False)]),
    # Addresses alone.
    ("Call Trace: [<c0123456>] [<c0123457>]", [("[<c0123456>]", False), ("[<c0123457>]", False)]),
    (" ? 0xffffffffc0a01234", [("0xffffffffc0a01234", False)]),
]  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "[   12.345678][   C1] "])
@pytest.mark.parametrize(("line", "found"), REGISTERS)
def test_registers_and_stacks_of_each_machine(line, found, prefix):
    (words,) = find_log_words(split_log(prefix + line))
    assert [(word.text, word.is_exact) for word in words] == found
    assert all((prefix + line)[slice(*word.span)] in word.text for word in words)
    assert all(
        word.is_oops
        for word in words
        if word.address is not None and (prefix or "[" not in line[:20]) and prefix
    )


def test_the_line_after_a_banner():
    """arch/s390/kernel/dumpstack.c: show_last_breaking_event()"""
    banner = "[    1.0][    T1] Last Breaking-Event-Address:\n"
    text = f"{banner}[    1.0][    C1] x\n[    1.0][    T1]  [<00000000001c4fd8>] f+0x68/0x1c8\n"
    assert [word.is_exact for words in find_log_words(split_log(text)) for word in words] == [True]


@pytest.mark.parametrize(
    "line",
    [
        "f+0x1[   12.345678][   C1] BUG: soft lockup",
        "f+0x12f/0x300[   12.345678][   C1] BUG: soft lockup",
        "f+0x1<4>[   12.345678] BUG",
        "f+0x12f/",
        "f+0x12f/0x",
        "f+0x",
        "f+0x1BUG: soft lockup",
        "f+0x12f/0x12e",
        "f+0x99999/0x300 [mod]",
        "f+0x12f/0x30watchdog: BUG",
        "[   12.345678] f+0x1",
    ],
)
def test_words_that_are_cut_off(line):
    *_, words = find_log_words(split_log(f"[   12.3] g+0x1/0x2\n{line}"))
    assert [word.is_torn for word in words] == [True]


@pytest.mark.parametrize(
    "after", ["", ",", ")", "]", ">", ":", ".", "()", " x", "\t", "<-g", " [mod]", "'"]
)
def test_what_may_follow_a_word(after):
    *_, words = find_log_words(split_log(f"[   12.3] g+0x1/0x2\n f+0x1/0x2{after}"))
    assert [(word.function, word.is_torn) for word in words] == [("f", False)]


@pytest.mark.parametrize(
    "line",
    [
        "a+" * 3000,
        "a+0x1/0x2" * 1000,
        "RIP: " * 1000,
        "[<c0123456>] " * 1000,
        "WARNING: at " * 500,
        "#1 [" * 1000,
        "." * 100_000,
    ],
)
def test_hostile_lines_take_no_time(line):
    find_log_words(split_log(f"{line}\n" * 20))


def test_brackets_are_no_redirection():
    line = parse_line("sym [<ffffffff8108cb35>] > out")
    assert [word.text for word in line.words] == ["sym", "[<ffffffff8108cb35>]"]
    assert line.redirection.path == "out"


# From the kernel's sources: arch/arm64/kernel/stacktrace.c, arch/loongarch/mm/fault.c,
# arch/powerpc/mm/fault.c, arch/riscv/kernel/process.c until v5.7.
@pytest.mark.parametrize(
    ("line", "exact"),
    [
        (" func+0x15/0x40 (P)", [True]),
        (" func+0x15/0x40 [mod] (PF)", [True]),
        (" func+0x15/0x40 (F)", [False]),
        (" func+0x15/0x40 (C)", [False]),
        (
            f"CPU 8 Unable to handle x at virtual address 0, era == {PC:x}, ra == {PC:x}",
            [True, False],
        ),
        (f"Faulting instruction address: {PC:#x}", [True]),
        (f"sepc: {PC:x} ra : {PC:x} sp : 0000003fff9b2d60", [True, False]),
    ],
)
def test_exact_counters(line, exact):
    (words,) = find_log_words(split_log(line))
    assert [word.is_exact for word in words] == exact
