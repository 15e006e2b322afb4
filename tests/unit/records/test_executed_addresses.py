# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists of executed addresses: formats of tools that write them, how others are recognized, and
states of blocks by them.
"""

import struct
from array import array

import pytest

from kcovdbg.abi.record import EXACT, decode_record, make_encoding
from kcovdbg.records.executed_addresses import is_instruction_run, read_exactly
from kcovdbg.records.joined_buffers import merge_buffers
from kcovdbg.records.line_states import (
    ALL_EXECUTED_CODE,
    EXECUTED_CODE,
    FunctionState,
    LineState,
    TraceRecords,
    quality_of,
)
from kcovdbg.records.pc_convention import CodeAddresses, list_points
from kcovdbg.records.pc_file import NotATraceError, read_pc_file
from kcovdbg.records.pc_list import TraceKernel
from kcovdbg.records.pc_options import PcFormat, ReadingOptions
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.symbols.blocks import BlockFlag, FunctionFlag
from tests.unit.records.test_line_states import BASE, SIZE, Block, make_finder

CALL, ENTRY, EXIT = BlockFlag.CALL, BlockFlag.ENTRY, BlockFlag.EXIT
VOID = FunctionFlag.VOID
FIRST, SECOND, THIRD = 0xFFFFFFFF81032CC5, 0xFFFFFFFF81032CD0, 0xFFFFFFFFC0001000
USER = 0x7F0000401000


def qemu(pc, style):
    """A line of QEMU's log, as versions write it."""
    return {
        "2.5": f"Trace 0x7f3c40000000 [{pc:016x}] start_kernel\n",
        "2.10": f"Trace 0x7f3c40000000 [0: {pc:016x}] start_kernel\n",
        "4": f"Trace 0: 0x7f3c40000000 [0000000000000000/{pc:016x}/0x4093] start_kernel\n",
        "7": f"Trace 0: 0x7f3c40000000 [0000000000000000/{pc:016x}/00004093/ff000000] "
        f"start_kernel\n",
    }[style]


@pytest.mark.parametrize("style", ["2.5", "2.10", "4", "7"])
def test_qemu_blocks(style):
    text = "".join(qemu(pc, style) for pc in (USER, FIRST, SECOND, FIRST, THIRD))
    found = read_pc_file("x", text.encode())
    assert list(found.words) == [FIRST, SECOND, FIRST, THIRD]
    assert (found.is_exact, found.others, found.listed_code, found.disorder) == (True, 1, None, "")


def test_qemu_block_that_was_not_executed():
    """QEMU logs a block, and then that an interrupt kept it from it."""
    stopped = f"Stopped execution of TB chain before 0x7f3c40000000 [{SECOND:016x}] f\n"
    text = qemu(FIRST, "7") + qemu(SECOND, "7") + qemu(SECOND, "7") + stopped + qemu(FIRST, "7")
    assert list(read_pc_file("x", text.encode()).words) == [FIRST, SECOND, FIRST]


def test_qemu_blocks_of_several_cpus_have_no_order():
    text = qemu(FIRST, "7") + qemu(SECOND, "7").replace("Trace 0", "Trace 1")
    assert read_pc_file("x", text.encode()).disorder


IN_ASM = f"""----------------
IN:{" "}
0xfffffff0:  ea 5b e0 00 f0           ljmpw    $0xf000:$0xe05b

----------------
IN: f
{FIRST:#x}:  0f 32                    rdmsr{"    "}
{FIRST + 2:#x}:  48 8d 25 51 3f a0 01     leaq     0x1a03f51(%rip), %rsp
{FIRST + 9:#x}:  c3                       retq

----------------
IN: g
{SECOND:#x}:  c3                       retq
----------------
IN: f
{FIRST:#x}:  0f 32                    rdmsr
"""


def test_qemu_instructions():
    found = read_pc_file("x", IN_ASM.encode())
    # An exception may keep a block from being executed behind its first instruction.
    assert list(found.words) == [FIRST, SECOND]
    assert list(found.listed_code) == [FIRST, FIRST + 2, FIRST + 9, SECOND]
    assert found.others == 1
    assert found.disorder


PERF = {
    "samples": f"""swapper     0 [000]   100.000001:     250000 cycles:  {FIRST:x} native_halt+0x5 ([kernel.kallsyms])
            bash   415 [001]   100.000002:     250000 cycles:  {USER:x} main+0x1 (/bin/bash)
            bash 415/416 [001]   100.000003:     250000 cycles:  {SECOND:x} [unknown] ([kernel.kallsyms])
""",
    "callers": f"""swapper     0 [000]   100.000001:     250000 cycles:{" "}
\t{FIRST:x} native_halt+0x5 ([kernel.kallsyms])
\t{THIRD:x} caller+0x5 ([kernel.kallsyms])

swapper     0 [000]   100.000002:     250000 cycles:{" "}
\t{SECOND:x} native_halt+0x5 ([kernel.kallsyms])
""",
    "branches": f"ls  99 [000]  1.02:  1  branches:  {FIRST:x} f+0x5 ([kernel.kallsyms]) => "
    f"{SECOND:x} g "
    f"([kernel.kallsyms])\n",
    "instructions": f"ls  99 [000]  1.000002:  {FIRST:x} f+0x5 ([kernel.kallsyms])\t\tinsn: f4\n"
    f"ls  99 [000]  1.000003:  {SECOND:x} f+0x6 ([kernel.kallsyms])\t\tinsn: c3\n",
    "addresses alone": f"        {FIRST:x} f+0x5 ([kernel.kallsyms])\n        {SECOND:x} f+0x6 "
    f"([kernel.kallsyms])\n",
}


@pytest.mark.parametrize("name", PERF)
def test_perf(name):
    found = read_pc_file("x", PERF[name].encode())
    assert list(found.words) == [FIRST, SECOND]
    assert found.is_exact
    assert found.disorder


GDB = {
    "next instructions": f"=> {FIRST:#x} <f+5>:\thlt\n=> {SECOND:#x}:\tret\n",
    "display": f"1: x/i $pc\n=> {FIRST:#x} <f+5>:\thlt\n(gdb) \n1: x/i $pc\n=> {SECOND:#x} "
    f"<f+16>:\tret\n",
    "breakpoints": f"\nBreakpoint 1, {FIRST:#x} in f ()\n\nThread 2 hit Breakpoint 2.1, "
    f"{SECOND:#x} in g "
    f"()\n",
    "record": f"14\t   {FIRST:#x} <f+5>:\thlt\n15\t   {SECOND:#x} <f+16>:\tret\n",
}


@pytest.mark.parametrize("name", GDB)
def test_gdb(name):
    found = read_pc_file("x", GDB[name].encode())
    assert list(found.words) == [FIRST, SECOND]
    assert found.is_exact


@pytest.mark.parametrize(
    "text",
    [qemu(USER, "7"), IN_ASM[: IN_ASM.index("IN: f")], PERF["samples"].splitlines()[1].strip()],
)
def test_logs_without_the_kernel(text):
    with pytest.raises(NotATraceError):
        read_pc_file("x", text.encode())


def test_named_format_that_a_file_has_not():
    for wanted in (PcFormat.QEMU_EXEC, PcFormat.QEMU_ASM, PcFormat.PERF, PcFormat.GDB):
        with pytest.raises(NotATraceError):
            read_pc_file("x", b"nothing\n", wanted)


def test_records_keep_the_address():
    encoding = make_encoding(EXACT, 8)
    found = decode_record(array("Q", [FIRST]), 0, encoding)
    assert (found.word, found.pc) == (FIRST, FIRST + 1)


# Blocks of 7 to 20 bytes, as far apart as those of real code.
STARTS = [0]
while STARTS[-1] < 0x400000:
    STARTS.append(STARTS[-1] + 7 + STARTS[-1] * 2654435761 % 14)
CODE = CodeAddresses(BASE, array("I", STARTS), (BASE, BASE + 0x401000))
POINTS = list_points([BASE + start + 5 for start in STARTS[::2]], CODE.code)
KERNEL = TraceKernel("aa", 0, "x86_64", lambda: (POINTS,), find_code=lambda: CODE)


def trace(tmp_path, addresses, kernel=KERNEL, **options):
    path = tmp_path / "list"
    path.write_text("".join(f"{address:#x}\n" for address in addresses))
    return read_trace(path, kernel, ReadingOptions(**options))


SOME = [BASE + start for start in STARTS[17::977]]


def test_starts_of_blocks_are_recognized(tmp_path):
    buffer = trace(tmp_path, SOME[:9])
    assert buffer.encoding.codec is EXACT
    assert list(buffer.words) == SOME[:9]
    assert not buffer.fit.is_low


@pytest.mark.parametrize("count", [9, 300])
@pytest.mark.parametrize("offset", [0x3600000, 0x200000, -0x200000])
def test_offset_of_kaslr_is_found(tmp_path, count, offset):
    buffer = trace(tmp_path, [address + offset for address in SOME[:count]])
    assert buffer.encoding.codec is EXACT
    assert list(buffer.words) == SOME[:count]


def test_named_offset_and_convention(tmp_path):
    moved = [address + 0x3600000 for address in SOME[:3]]
    assert list(trace(tmp_path, moved, pc="exact", kaslr_offset=0x3600000).words) == SOME[:3]
    assert list(trace(tmp_path, SOME[:3], pc="exact").words) == SOME[:3]
    assert trace(tmp_path, SOME[:9], pc="raw").encoding.codec is not EXACT


@pytest.mark.parametrize("distance", [0, -5])
@pytest.mark.parametrize("count", [9, 300])
def test_points_remain_points(tmp_path, distance, count):
    points = [point + distance for point in list(POINTS)[3 :: len(POINTS.offset) // 301][:count]]
    assert trace(tmp_path, points).encoding.codec is not EXACT


def test_anything_else_is_not_recognized(tmp_path):
    others = [BASE + start + 3 for start in STARTS[5::1013]]
    assert trace(tmp_path, others[:9]).encoding.codec is not EXACT
    assert trace(tmp_path, others[:300]).encoding.codec is not EXACT
    # So few may be anything.
    assert trace(tmp_path, SOME[:3]).encoding.codec is not EXACT


def test_instructions_are_recognized(tmp_path):
    run = [BASE + start + more for start in STARTS[4000:4200] for more in (0, 2, 5)]
    assert is_instruction_run(run)
    assert trace(tmp_path, run).encoding.codec is EXACT
    assert not is_instruction_run(SOME)


def test_edges_are_recognized(tmp_path):
    path = tmp_path / "edges_uniq.lst"
    pairs = [(BASE + STARTS[at] + 2, BASE + STARTS[at + 30]) for at in range(100, 3000, 41)]
    path.write_text("".join(f"{start:x},{end:x},1\n" for start, end in pairs))
    buffer = read_trace(path, KERNEL)
    assert buffer.encoding.codec is EXACT
    assert sorted(buffer.words) == sorted({address for pair in pairs for address in pair})


def test_drcov_of_a_guest(tmp_path):
    path = tmp_path / "guest.drcov"
    head = (
        "DRCOV VERSION: 2\nDRCOV FLAVOR: qemu\nModule Table: version 2, count 1\nColumns: id, "
        "base, end, entry, path\n"
    )
    module = f"  0, {BASE:#x}, {BASE + 0x400000:#x}, 0x0, vmlinux\nBB Table: {len(SOME)} bbs\n"
    data = b"".join(struct.pack("<IHH", address - BASE, 5, 0) for address in SOME)
    path.write_bytes((head + module).encode() + data)
    buffer = read_trace(path, KERNEL)
    assert (buffer.encoding.codec, list(buffer.words), buffer.order.is_known) == (
        EXACT,
        SOME,
        False,
    )


def test_list_of_another_kernel_is_low(tmp_path):
    text = "".join(qemu(address + 0x10000000, "7") for address in SOME[:9])
    path = tmp_path / "log"
    path.write_text(text)
    starts = array("I", [start * 3 for start in STARTS[::40]])
    code = CodeAddresses(BASE, starts, (BASE, BASE + 0x100000))
    assert read_trace(path, TraceKernel("aa", 0, "x86_64", find_code=lambda: code)).fit.is_low


def test_offset_is_not_guessed_from_few():
    found = read_exactly([SOME[0] + 0x200000], CODE, 0)
    assert (found.kaslr_offset, found.is_certain) == (0, False)


def test_lists_are_merged(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_text(IN_ASM.replace(f"{SECOND:#x}", f"{SECOND + 16 * (path.name == 'b'):#x}"))
    every = [read_trace(path) for path in paths]
    merged = merge_buffers("file:x", every, ())
    assert list(merged.listed_code) == [FIRST, FIRST + 2, FIRST + 9, SECOND, SECOND + 16]
    assert quality_of(merged) == ALL_EXECUTED_CODE
    path = tmp_path / "c"
    path.write_text(qemu(FIRST, "7"))
    assert quality_of(merge_buffers("file:x", [*every, read_trace(path)], ())) == EXECUTED_CODE


def states(blocks, executed, listed=None, flags=0):
    """Return a letter for each block of a function without points."""
    records = {BASE + 0x1000 + SIZE * block + more + EXACT.lead: 1 for block, more in executed}
    quality = EXECUTED_CODE if listed is None else ALL_EXECUTED_CODE
    every = [BASE + 0x1000 + SIZE * block for block in listed or ()]
    trace = TraceRecords(records, quality, frozenset(), listed=every)
    found = make_finder(blocks, flags=flags).find_blocks(trace, 0)
    return "".join("?-+!"[block.state] for block in found.blocks)


DIAMOND = (Block((1, 2), ENTRY), Block((3,)), Block((3,)), Block((), EXIT))
LINE = (Block((1,), ENTRY), Block((2,)), Block((), EXIT))


@pytest.mark.parametrize(
    ("blocks", "executed", "listed", "wanted"),
    [
        (DIAMOND, [], None, "????"),
        (DIAMOND, [(0, 0)], None, "+???"),
        (DIAMOND, [(0, 4)], None, "+???"),
        # What alone follows, and what alone leads to it.
        (DIAMOND, [(1, 0)], None, "++?+"),
        (LINE, [(0, 0)], None, "+++"),
        (LINE, [(2, 15)], None, "+++"),
        # A call may not return, and control may come from elsewhere.
        ((Block((1,), ENTRY | CALL), Block((), EXIT)), [(0, 0)], None, "+?"),
        ((Block((1,), ENTRY), Block((), EXIT | ENTRY)), [(1, 0)], None, "?+"),
        ((Block((1,), ENTRY | EXIT), Block((), EXIT)), [(0, 0)], None, "+?"),
        # With a list of all that may have been executed, the rest was not.
        (DIAMOND, [], [], "----"),
        (DIAMOND, [(0, 0)], [0, 1, 3], "++-+"),
        # After an exception what is behind it may be listed, and was not executed.
        (DIAMOND, [(0, 0), (2, 0)], [0, 1, 2, 3], "+?++"),
        (
            (Block((1, 2), ENTRY), Block((), EXIT), Block((), EXIT)),
            [(0, 0), (2, 0)],
            [0, 1, 2],
            "+?+",
        ),
        # A loop that nothing leaves.
        ((Block((1,), ENTRY), Block((1,))), [(0, 0)], None, "++"),
    ],
)
def test_states_of_blocks(blocks, executed, listed, wanted):
    assert states(blocks, executed, listed) == wanted


def test_unknown_edges():
    """Control may have come to the middle of what looks like a block."""
    assert states(LINE, [(0, 0)], flags=VOID) == "+??"
    assert states(LINE, [(0, 4)], flags=VOID) == "!??"
    assert states(LINE, [(0, 4)], [0], flags=VOID) == "!--"


def test_lines_of_functions_without_points():
    lines = ((10, 1), (11, 1))
    finder = make_finder(
        (Block((1, 2), ENTRY, lines=lines[:1]), Block((), EXIT, lines=lines[1:]), Block((), EXIT)),
        flags=0,
    )
    trace = TraceRecords(
        {BASE + 0x1000 + EXACT.lead: 3, BASE + 1: 1},
        ALL_EXECUTED_CODE,
        frozenset(),
        listed=[BASE + 0x1000],
    )
    assert [(line.line, line.state, line.hits) for line in finder.find_lines(trace)["file.c"]] == [
        (10, LineState.EXECUTED, 3),
        (11, LineState.NOT_EXECUTED, 0),
    ]
    found = finder.find_columns(trace)
    assert found.unmatched == 1
    assert found.entry_state[0] == FunctionState.EXECUTED


def test_starts_of_all_blocks():
    finder = make_finder(DIAMOND, LINE)
    starts = [0x1000 + SIZE * block for block in range(4)]
    assert list(finder.find_starts()) == starts + [
        starts[-1] + SIZE + 64 + SIZE * block for block in range(3)
    ]
