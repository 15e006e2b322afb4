# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcov-show on the lab's kernel, KASLR on: through QEMU's stub, and on dumps of every state."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pexpect
import pytest

from kcovdbg.elf.file import ElfFile
from tests.lab.guest import Machine
from tests.support.gdb_run import LOADER, run_gdb

pytestmark = pytest.mark.lab


# QEMU's stub is left reading virtual memory, whatever read it before.
_VIRTUAL = "maint packet Qqemu.PhyMemMode:0"


def test_kaslr_ways(kernel, standing_guest, standing_dump):
    dump = standing_dump("elf-paging")
    said = run_gdb(kernel.vmlinux, dump.path, ask=["kcov-show info --json"])
    assert "from the core's VMCOREINFO" in said.stderr
    from_core = int(said.json()[0]["kaslr_offset"], 16)
    with standing_guest.paused():
        connect = f"target remote {standing_guest.sockets.gdb_remote}"
        said = run_gdb(kernel.vmlinux, before=[connect, _VIRTUAL], ask=["kcov-show info --json", "kcov-show tasks --json"])
        assert "from the IDT" in said.stderr
        offset = int(said.json(0)[0]["kaslr_offset"], 16)
        # As people load symbols who know where the kernel is.
        relocated = run_gdb(
            before=[f"symbol-file {kernel.vmlinux} -o {offset:#x}", connect],
            ask=["print/x &init_task", "kcov-show tasks --json", "kcov-show info --json", "print/x &init_task"],
        )
        assert relocated.json(1) == said.json(1)
        assert int(relocated.json(2)[0]["kaslr_offset"], 16) == offset
        # And they stay as they were.
        assert relocated.answers[0].split(" = ")[1] == relocated.answers[3].split(" = ")[1]
        # Without a way in but the loaded symbols, and without any: as on kgdb, which has no monitor of QEMU's.
        blind = "python import kcovdbg.target.gdb.opener as t; t._monitor = lambda command: ''"
        for symbols, way in ((f"symbol-file {kernel.vmlinux} -o {offset:#x}", "as the loaded symbols"), (None, "searching")):
            said = run_gdb(
                *([] if symbols else [kernel.vmlinux]),
                before=[*([symbols] if symbols else []), connect, blind],
                ask=["kcov-show info --json"],
            )
            assert way in said.stderr
            assert int(said.json()[0]["kaslr_offset"], 16) == offset
    assert from_core % 0x200000 == offset % 0x200000 == 0


def test_physical_core_is_refused(kernel, standing_dump):
    dump = standing_dump("elf")
    said = run_gdb(kernel.vmlinux, dump.path, ask=["print init_task.tasks.next == &init_task.tasks", "kcov-show tasks"])
    # There are a hundred tasks in this kernel.
    assert said.answers[0] == "$1 = 1"
    assert said.answers[1] == ""
    assert "physical addresses only" in said.stderr
    assert f"kcovdbg -c {dump.path}" in said.stderr


def test_other_vmlinux_is_refused(kernel, standing_dump, tmp_path):
    image = ElfFile(Path(kernel.vmlinux).resolve())
    data = bytearray(image.path.read_bytes())
    position = data.index(bytes.fromhex(image.build_id))
    data[position] ^= 0xFF
    other = tmp_path / "vmlinux"
    other.write_bytes(data)
    dump = standing_dump("elf-paging")
    said = run_gdb(other, dump.path, ask=["kcov-show tasks"])
    assert said.answers == [""]
    assert "not the vmlinux of the core: kernel 6.12" in said.stderr


def test_two_cpus(kernel, boot):
    guest = boot(Machine(cpus=2))
    guest.wait_done()
    connect = f"target remote {guest.sockets.gdb_remote}"
    said = run_gdb(kernel.vmlinux, before=[connect], ask=["kcov-show info --json", "kcov-show tasks -a --json"])
    # The second one's idle task is on no list: it is found through that CPU's runqueue.
    idle = [(row["comm"], row["cpu"]) for row in said.json(1) if row["pid"] == 0]
    assert idle == [("swapper/0", 0), ("swapper/1", 1)]
    # Symbols that are loaded where the kernel is have moved per-CPU ones too, which the kernel hasn't.
    offset = said.json(0)[0]["kaslr_offset"]
    said = run_gdb(
        before=[f"symbol-file {kernel.vmlinux} -o {offset}", connect],
        ask=["print *(struct rq *)((char *)&runqueues + __per_cpu_offset[1])", "kcov-show tasks -a --json"],
    )
    assert "Cannot access memory" in said.stderr
    assert [(row["comm"], row["cpu"]) for row in said.json(1) if row["pid"] == 0] == idle


def test_user_mode_is_told(kernel, standing_guest):
    # As it looks there: nothing but the table of interrupts can be read.
    script = (
        "import kcovdbg.target.gdb.opener as t, kcovdbg.errors as e\n"
        "monitor, read = t._monitor, t.make_reader(None, None, 0)\n"
        "def see(address, size):\n"
        "    if address >> 40 != 0xfffffe:\n"
        "        raise e.ReadError('not mapped', address)\n"
        "    return read(address, size)\n"
        "t._monitor = lambda line: monitor(line).replace('CPL=0', 'CPL=3')\n"
        "t.make_reader = lambda *_: see\n"
    )
    with standing_guest.paused():
        connect = f"target remote {standing_guest.sockets.gdb_remote}"
        said = run_gdb(kernel.vmlinux, before=[connect, _VIRTUAL, f"python exec({script!r})"], ask=["kcov-show tasks"])
    assert said.answers == [""]
    assert "CPU 0 is in user mode" in said.stderr
    entry = ElfFile(Path(kernel.vmlinux).resolve()).symbols.find("do_syscall_64").address
    way_out = re.search(r"thbreak \*(0x[0-9a-f]+), then continue", said.stderr)
    assert (int(way_out[1], 16) - entry) % 0x200000 == 0


def test_budget(kernel, standing_guest):
    with standing_guest.paused():
        connect = f"target remote {standing_guest.sockets.gdb_remote}"
        count = "python print(gdb.execute('maint print statistics', to_string=True))"
        said = run_gdb(
            kernel.vmlinux,
            before=[connect, _VIRTUAL],
            ask=[
                *(count, "set debug remote 1", "kcov-show tasks", "set debug remote 0", count),
                *("kcov-show tasks --json", "kcov-show tasks -a --json"),
            ],
        )
    units = [int(re.search(r"Number of read (?:CUs|units): (\d+)", said.answers[i])[1]) for i in (0, 4)]
    # Those before are GDB's own, for the place where the guest stands.
    assert units[1] - units[0] <= 3
    packets = said.stderr.count("Sending packet:")
    shown, tasks = len(said.json(5)), len(said.json(6))
    print(f"{units[1] - units[0]} compilation units, {packets} packets for {tasks} tasks, of which {shown} are shown")
    assert shown > 20
    assert tasks > 2 * shown
    # Of a task that is shown the saved registers are read as well, for its system call.
    assert packets <= 2 * tasks + shown


def test_blocks_of_kgdb(kernel, standing_guest):
    # QEMU's stub takes kgdb's blocks as well. Of a stub that names no limit, as kgdb, GDB reads 156 bytes at once.
    lines = ("tasks", "tasks -a", "check")
    mark = "=== packets ==="
    marked = f"python import sys; print('{mark}', file=sys.stderr, flush=True)"
    ask = []
    for stub in ("KGDB", "OTHER"):
        ask.append(f"python import kcovdbg.target.gdb.opener as t; t.identify_stub = lambda: t.Stub.{stub}")
        for line in lines:
            ask += [marked, "set debug remote 1", f"kcov-show {line} --json", "set debug remote 0", marked]
    with standing_guest.paused():
        connect = f"target remote {standing_guest.sockets.gdb_remote}"
        limit = ["set remote memory-read-packet-size 156", "set remote memory-read-packet-size fixed"]
        who = "python import kcovdbg.target.gdb.stub as s; print(s.identify_stub())"
        said = run_gdb(kernel.vmlinux, before=[*limit, connect, _VIRTUAL], ask=["set debug remote 1", who, *ask], timeout=300)
    assert "Stub.QEMU" in said.answers[1]
    answers = [answer for line, answer in zip(ask, said.answers[2:], strict=True) if line.endswith("--json")]
    packets = [part.count("Sending packet:") for part in said.stderr.split(mark)[1::2]]
    for line, ours, gdbs, answer, expected in zip(lines, packets, packets[3:], answers, answers[3:], strict=False):
        print(f"{line}: {ours} packets instead of {gdbs}")
        assert answer == expected != ""
        assert 0 < ours <= gdbs / 2


def test_guest_goes_on(kernel, standing_guest):
    connect = f"target remote {standing_guest.sockets.gdb_remote}"
    run_gdb(kernel.vmlinux, before=[connect, _VIRTUAL], ask=["kcov-show tasks", "kcov-show objects"])
    assert standing_guest.qmp.running()
    with standing_guest.paused():
        run_gdb(kernel.vmlinux, before=[connect], ask=["kcov-show tasks", "kcov-show bogus"])


def test_watch_ends_without_a_terminal(kernel, standing_guest):
    with standing_guest.paused():
        connect = f"target remote {standing_guest.sockets.gdb_remote}"
        said = run_gdb(kernel.vmlinux, before=[connect, _VIRTUAL], ask=["kcov-show info", "kcov-show watch 1 info"])
    assert said.answers[1] == said.answers[0] != ""


def test_running_target_is_refused(kernel, standing_guest):
    connect = f"target remote {standing_guest.sockets.gdb_remote}"
    said = run_gdb(kernel.vmlinux, before=[connect, "continue &"], ask=["kcov-show tasks", "interrupt"])
    assert "the target is running" in said.stderr


def test_physical_stub_is_refused(kernel, standing_guest):
    with standing_guest.paused():
        connect = f"target remote {standing_guest.sockets.gdb_remote}"
        said = run_gdb(kernel.vmlinux, before=[connect, "maint packet Qqemu.PhyMemMode:1"], ask=["kcov-show tasks", _VIRTUAL])
    assert "reads physical memory" in said.stderr


# As slow as a serial line.
SLOW_READS = """
import pathlib, time
import kcovdbg.target.gdb.opener as opener

reads, make = [], opener.make_reader

def make_slow(*about):
    read = make(*about)

    def read_slowly(address, size):
        time.sleep(0.05)
        reads.append(address)
        if len(reads) == 10:
            pathlib.Path({walking!r}).touch()
        return read(address, size)

    return read_slowly

opener.make_reader = make_slow
"""


def test_interrupt_in_a_walk(kernel, standing_guest, tmp_path):
    child = pexpect.spawn(
        "gdb", ["-nx", "-q", "-iex", "set auto-load no", "-iex", f"source {LOADER}", str(kernel.vmlinux)], timeout=60
    )
    child.expect_exact("(gdb) ")
    for line in (f"target remote {standing_guest.sockets.gdb_remote}", _VIRTUAL):
        child.sendline(line)
        child.expect_exact("(gdb) ")
    script, walking = tmp_path / "slow.py", tmp_path / "walking"
    script.write_text(SLOW_READS.format(walking=str(walking)))
    child.sendline(f"source {script}")
    child.expect_exact("(gdb) ")
    child.sendline("kcov-show tasks")
    end = time.monotonic() + 60
    while not walking.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    child.sendintr()
    child.expect_exact("Quit")
    child.expect_exact("(gdb) ")
    child.sendline("python print('reads:', len(reads))")
    child.expect(r"reads: (\d+)")
    # The whole walk takes more than 100.
    assert int(child.match[1]) < 40
    child.expect_exact("(gdb) ")
    child.sendline("kcov-show info")
    child.expect_exact("KCOV generation")
    child.expect_exact("(gdb) ")
    child.sendline("detach")
    child.expect_exact("(gdb) ")
    child.sendline("quit")
    child.expect(pexpect.EOF)
    assert standing_guest.qmp.running()
