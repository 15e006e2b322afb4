# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every kind of target gives the same answers, leaves the machine as it was, and reports errors in
one line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import drgn
import pytest

from kcovdbg.errors import CapabilityError, ReadError, TargetError
from kcovdbg.limits import REPLY_TIME
from kcovdbg.target import missing_vmcoreinfo
from kcovdbg.target.drgn.page_recorder import record, record_stack
from kcovdbg.target.drgn.target import DrgnTarget
from kcovdbg.target.dump_file import unpack_dump
from kcovdbg.target.rsp import RspClient
from kcovdbg.target.slice_file import write_slice
from kcovdbg.target.target import Target
from kcovdbg.target.target_options import TargetOptions, open_target
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.tasks import TaskWalk, read_current_tasks
from tests.lab.conftest import Booter, DumpMaker
from tests.lab.dump import FORMATS, write_dump
from tests.lab.guest import Guest, Machine
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.lab.kernel import Kernel
from tests.lab.recipe import ARCHITECTURES
from tests.lab.test_kdump import count_missing


def look(target: Target) -> str:
    """Return everything that walks of tasks, descriptors and mappings find, and the buffers, as one
    comparable text.
    """
    from kcovdbg.walk.files import FileWalk

    layout = detect_layout(target)
    tasks = list(TaskWalk(target, layout))
    files = FileWalk(target)
    found = [
        # Members that change while a kernel runs are left out.
        [
            (task.address, task.pid, task.comm, task.kcov, task.kcov_area, task.kcov_size)
            for task in tasks
            if task.kcov
        ],
        list(files.for_each_descriptor(tasks)),
        list(files.for_each_mapping(tasks)),
        [target.read(task.kcov_area, 8 * task.kcov_size).hex() for task in tasks if task.kcov_area],
        find_areas(target),
    ]
    return json.dumps(found)


def find_areas(target: Target) -> object:
    """Return the vmalloc areas; makedumpfile 1.7.2 leaves out pages of Linux 7.3's."""
    try:
        return sorted(target.vmalloc.for_each_vmalloc_area()) if target.vmalloc else None
    except ReadError as error:
        return str(error)


def stacks(target: Target) -> list[object]:
    """Return the stacks of tasks with KCOV state and of running ones."""
    assert target.stacks is not None
    layout = detect_layout(target)
    found: list[object] = []
    running = list(read_current_tasks(target).found.values())
    for address in [task.address for task in TaskWalk(target, layout) if task.kcov] + running:
        try:
            found.append(target.stacks.stack_trace(address))
        except (CapabilityError, ReadError) as error:
            found.append(type(error).__name__)
    return found


def work(target: Target) -> None:
    look(target)
    layout = detect_layout(target)
    for task in TaskWalk(target, layout):
        if task.kcov:
            record_stack(target, task.address)
    for address in read_current_tasks(target).found.values():
        record_stack(target, address)


def open_dump(path: Path, kernel: Kernel) -> DrgnTarget:
    return open_target(TargetOptions(core=str(path), symbols=[str(kernel.vmlinux)]))


def open_guest(guest: Guest, way: str = "qemu") -> DrgnTarget:
    address = guest.sockets.debugger_qmp if way == "qemu" else guest.sockets.gdb_remote
    return open_target(TargetOptions(**{way: str(address)}, symbols=[str(guest.kernel.vmlinux)]))


def assert_unwound(target: Target) -> None:
    """Assert that no stack is missing."""
    assert all(isinstance(stack, list) and stack for stack in stacks(target))


@pytest.mark.parametrize("dump_format", sorted(FORMATS))
def test_slices_answer_as_the_dump_did(
    standing_dump: DumpMaker, tmp_path: Path, dump_format: str
) -> None:
    dump = standing_dump(dump_format)
    source = open_dump(dump.path, dump.kernel)
    recording, _ = record(source, work)
    assert write_slice(tmp_path / "a.slice", recording.content()) < dump.path.stat().st_size
    piece = open_dump(tmp_path / "a.slice", dump.kernel)
    assert look(piece) == look(source)
    assert stacks(piece) == stacks(source)
    for attribute in (
        "release",
        "machine",
        "build_id",
        "kaslr_offset",
        "word_size",
        "kernel_range",
        "live",
    ):
        assert getattr(piece, attribute) == getattr(source, attribute)
    # Memory that was not recorded is unreadable, not zeros.
    absent = next(address for address in range(0, 64 << 20, 4096) if address not in recording.pages)
    with pytest.raises(ReadError):
        piece.read((recording.direct_map or 0) + absent, 8)


def test_addresses_that_no_kernel_has_are_no_memory(standing_dump: DumpMaker) -> None:
    """A QEMU dump without paging would return the firmware's memory."""
    for dump_format in ("elf", "elf-paging"):
        dump = standing_dump(dump_format)
        target = open_dump(dump.path, dump.kernel)
        for address in (0, 0x1000, 0x100000, 1 << 46):
            with pytest.raises(ReadError) as caught:
                target.read(address, 8)
            assert caught.value.address == address


def test_the_same_through_qmp_and_gdb_stub_and_dump(
    boot: Booter, kernel: Kernel, tmp_path: Path
) -> None:
    guest = boot(Machine(cpus=2))
    with guest.paused():
        write_dump(guest, tmp_path / "dump")
        expected = look(open_dump(tmp_path / "dump", kernel))
        live = open_guest(guest)
        assert live.live
        assert look(live) == expected
        stub = open_guest(guest, "gdb_remote")
        assert look(stub) == expected
        # The stub gives registers: running tasks can be unwound.
        assert stacks(stub) == stacks(open_dump(tmp_path / "dump", kernel))
        stub.close()
        # It was stopped before it was read, and still is where the stub tells: test_target_rsp.py
        # has versions of QEMU.
        version = guest.qmp.execute("query-version")["qemu"]
        assert guest.qmp.running() == ((version["major"], version["minor"]) >= (8, 1))
    live.close()


def test_slices_of_running_guests(standing_guest: Guest, tmp_path: Path) -> None:
    target = open_guest(standing_guest)
    seen: list[bool] = []

    def work_and_see(inner: Target) -> None:
        seen.append(standing_guest.qmp.running())
        work(inner)

    recording, _ = record(target, work_and_see)
    assert seen == [False]
    assert standing_guest.qmp.running()
    assert recording.is_consistent
    write_slice(tmp_path / "a.slice", recording.content())
    target.close()
    piece = open_dump(tmp_path / "a.slice", standing_guest.kernel)
    assert not any("inconsistent" in note for note in piece.notes)
    # QEMU gave the registers of each CPU.
    assert_unwound(piece)


def test_who_looks_through_the_stub_lets_the_guest_go_on(standing_guest: Guest) -> None:
    for _ in range(2):
        target = open_guest(standing_guest, "gdb_remote")
        assert not standing_guest.qmp.running()
        target.close()
        target.close()
        assert standing_guest.qmp.running()


def test_a_busy_qmp_socket_says_so(standing_guest: Guest) -> None:
    first = open_guest(standing_guest)
    started = time.monotonic()
    with pytest.raises(TargetError, match=r"qmp-debugger\b.*no greeting") as caught:
        open_guest(standing_guest)
    assert time.monotonic() - started < 10
    assert "one client at a time" in str(caught.value.hint)
    first.close()


def test_a_monitor_that_goes_silent_while_memory_is_read_through_it(standing_guest: Guest) -> None:
    """Over TCP all memory is read through QEMU's monitor, long after the guest was opened."""

    def relay(replies: int) -> None:
        with (
            listener.accept()[0] as client,
            socket.socket(socket.AF_UNIX) as server,
            contextlib.suppress(OSError),
        ):
            server.connect(str(standing_guest.sockets.debugger_qmp))
            while ready := select.select([client, server], [], [])[0]:
                for near in ready:
                    data = near.recv(65536)
                    if not data:
                        return
                    replies -= data.count(b"\n") if near is server else 0
                    if near is client or replies > 0:
                        (client if near is server else server).sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=relay, args=(250,), daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        words = (
            "--limit",
            f"{REPLY_TIME}=3",
            "--qemu",
            address,
            "-s",
            standing_guest.kernel.vmlinux,
            "-e",
            "objects",
        )
        done = run_kcovdbg(*words)
        thread.join(20)
    assert done.returncode == 2
    assert REPLY_TIME in done.stderr


def test_a_busy_stub_says_so_and_the_guest_goes_on(
    standing_guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kcovdbg.target import rsp

    first = open_guest(standing_guest, "gdb_remote")
    monkeypatch.setattr(rsp.RspClient.__init__, "__defaults__", (1.0,))
    with pytest.raises(TargetError, match=r"\b1 s\b"):
        open_guest(standing_guest, "gdb_remote")
    first.close()
    # QEMU accepts the abandoned connection only now, and stops the guest for it.
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        time.sleep(0.2)
    assert standing_guest.qmp.running()


def test_a_guest_that_boots(boot: Booter, kernel: Kernel) -> None:
    """kcovdbg waits for the kernel to boot, and recognizes it by a vmlinux."""
    guest = boot(Machine(options=("-S",)), waits=False)
    for symbols in ([], [str(kernel.vmlinux)]):
        with pytest.raises(TargetError, match="VMCOREINFO") as caught:
            open_target(TargetOptions(qemu=str(guest.sockets.debugger_qmp), symbols=symbols))
        assert caught.value.hint
    guest.qmp.execute("cont")
    target = open_guest(guest)
    assert list(TaskWalk(target, detect_layout(target)))
    target.close()


def test_a_guest_whose_vmcoreinfo_qemu_cant_hand_over(
    boot: Booter, kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TCP, or without -device vmcoreinfo, the kernel is found in the guest's memory."""
    # QEMU has it only for a guest that wrote it to this device.
    monkeypatch.setitem(
        ARCHITECTURES, "x86_64", dataclasses.replace(ARCHITECTURES["x86_64"], vmcoreinfo=())
    )
    guest = boot()
    target = open_guest(guest)
    assert any("interrupt descriptor table" in note for note in target.notes)
    with guest.paused():
        stub = open_guest(guest, "gdb_remote")
        assert target.kaslr_offset == stub.kaslr_offset
        expected = look(target)
        assert look(stub) == expected
        stub.close()
        for name in ("elf", "elf-paging", "kdump"):
            write_dump(guest, tmp_path / name, name)
    target.close()
    options = TargetOptions(qemu=str(guest.sockets.debugger_qmp))
    for others in (
        options,
        *(TargetOptions(core=str(tmp_path / name)) for name in ("elf", "elf-paging", "kdump")),
    ):
        with pytest.raises(TargetError, match="VMCOREINFO") as caught:
            open_target(others)
        assert "-device vmcoreinfo" in str(caught.value.hint)
    guest.stop()
    # With the kernel's VMCOREINFO, then without one.
    for symbol_names in (
        missing_vmcoreinfo.SYMBOLS,
        [name for name in missing_vmcoreinfo.SYMBOLS if "vmcoreinfo" not in name],
    ):
        monkeypatch.setattr(missing_vmcoreinfo, "SYMBOLS", symbol_names)
        for name in ("elf", "elf-paging", "kdump"):
            dump = open_dump(tmp_path / name, kernel)
            assert dump.kaslr_offset == target.kaslr_offset
            assert look(dump) == expected
            assert sum("interrupt descriptor table" in note for note in dump.notes) == 1
    # All running tasks can be unwound, and a slice is a dump with VMCOREINFO.
    assert_unwound(dump)
    write_slice(tmp_path / "a.slice", record(dump, work)[0].content())
    assert look(open_dump(tmp_path / "a.slice", kernel)) == expected
    (tmp_path / "vmlinux").symlink_to(kernel.vmlinux)
    found = open_target(TargetOptions(core=str(tmp_path / "elf")))
    assert any("directory of the dump" in note for note in found.notes)
    wrong = flip_build_id(kernel, str(dump.build_id), tmp_path / "wrong")
    for name in ("elf", "elf-paging", "kdump"):
        with pytest.raises(TargetError, match="does not match") as caught:
            open_target(TargetOptions(core=str(tmp_path / name), symbols=[str(wrong)]))
        assert str(wrong) in str(caught.value.hint)
        assert dump.release in str(caught.value)


def test_a_stub_that_reads_virtual_memory_only(
    boot: Booter, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory access as with stubs other than QEMU's: it suffices without KASLR; with KASLR an error
    says so.
    """
    monkeypatch.setattr(RspClient, "use_physical_memory", lambda client: False)
    guest = boot(Machine(append="nokaslr"))
    with guest.paused():
        target = open_guest(guest, "gdb_remote")
        found = look(target)
        target.close()
        monkeypatch.undo()
        target = open_guest(guest, "gdb_remote")
        assert look(target) == found
        target.close()


def test_a_stub_that_doesnt_tell_where_the_kernel_is(
    standing_guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is searched for."""
    with standing_guest.paused():
        target = open_guest(standing_guest, "gdb_remote")
        offset, found = target.kaslr_offset, look(target)
        target.close()
        monkeypatch.setattr(RspClient, "use_physical_memory", lambda client: False)
        target = open_guest(standing_guest, "gdb_remote")
        assert target.kaslr_offset == offset != 0
        assert look(target) == found
        target.close()


def flip_build_id(kernel: Kernel, build_id: str, path: Path) -> Path:
    """Write the vmlinux of another build."""
    content = bytearray(kernel.vmlinux.read_bytes())
    wanted = bytes.fromhex(build_id)
    position = content.find(wanted)
    while position >= 0:
        content[position] ^= 0xFF
        position = content.find(wanted, position + 1)
    path.write_bytes(content)
    return path


def test_the_wrong_vmlinux(standing_dump: DumpMaker, tmp_path: Path) -> None:
    dump = standing_dump()
    wrong = flip_build_id(
        dump.kernel, open_dump(dump.path, dump.kernel).build_id or "", tmp_path / "vmlinux"
    )
    with pytest.raises(TargetError, match="does not match: its build ID") as caught:
        open_target(TargetOptions(core=str(dump.path), symbols=[str(wrong)]))
    assert dump.kernel.release in str(caught.value.hint)


def test_a_stripped_vmlinux(standing_dump: DumpMaker, tmp_path: Path) -> None:
    if shutil.which("strip") is None:
        pytest.skip("needs binutils")
    dump = standing_dump()
    subprocess.run(["strip", "-g", "-o", tmp_path / "vmlinux", dump.kernel.vmlinux], check=True)
    with pytest.raises(TargetError, match="DWARF"):
        open_target(TargetOptions(core=str(dump.path), symbols=[str(tmp_path / "vmlinux")]))
    with pytest.raises(TargetError, match="ELF"):
        open_target(TargetOptions(core=str(dump.path), symbols=[str(dump.kernel.image)]))


def test_a_separate_debug_file(
    standing_dump: DumpMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its per-CPU data has no contents, and is not moved by KASLR."""
    if shutil.which("objcopy") is None:
        pytest.skip("needs binutils")
    dump = standing_dump()
    debug_file = tmp_path / "vmlinux.debug"
    subprocess.run(["objcopy", "--only-keep-debug", dump.kernel.vmlinux, debug_file], check=True)
    whole = open_dump(dump.path, dump.kernel)
    assert whole.kaslr_offset
    target = open_target(TargetOptions(core=str(dump.path), symbols=[str(debug_file)]))
    for cpu in whole.cpus():
        assert target.per_cpu("runqueues", cpu) == whole.per_cpu("runqueues", cpu)
    assert read_current_tasks(target).found == read_current_tasks(whole).found
    assert look(target) == look(whole)
    # Named together with the image without debug info, and found through that image.
    (tmp_path / "debuginfod" / str(whole.build_id)).mkdir(parents=True)
    image, linked = tmp_path / "image", tmp_path / "linked"
    subprocess.run(["strip", "-g", "-o", image, dump.kernel.vmlinux], check=True)
    subprocess.run(["objcopy", f"--add-gnu-debuglink={debug_file}", image, linked], check=True)
    for symbols in ([image, debug_file], [debug_file, image], [linked]):
        target = open_target(
            TargetOptions(core=str(dump.path), symbols=[str(path) for path in symbols])
        )
        assert look(target) == look(whole)
        (note,) = (note for note in target.notes if str(debug_file) in note)
        assert str(symbols[symbols[0] == debug_file]) in note
        assert target.code == str(symbols[symbols[0] == debug_file])
    cached = tmp_path / "debuginfod" / str(whole.build_id) / "debuginfo"
    os.link(debug_file, cached)
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path / "debuginfod"))
    target = open_target(TargetOptions(core=str(dump.path), symbols=[str(image)]))
    assert any(str(cached) in note for note in target.notes)
    recording, _ = record(target, work)
    write_slice(tmp_path / "a.slice", recording.content())
    piece = open_target(TargetOptions(core=str(tmp_path / "a.slice"), symbols=[str(debug_file)]))
    assert read_current_tasks(piece).found == read_current_tasks(whole).found
    assert stacks(piece) == stacks(whole)


def test_vmlinux_beside_the_dump(standing_dump: DumpMaker, tmp_path: Path) -> None:
    dump = standing_dump("kdump")
    shutil.copy(dump.path, tmp_path / "dump")
    with pytest.raises(TargetError, match="no vmlinux for kernel"):
        open_target(TargetOptions(core=str(tmp_path / "dump")))
    (tmp_path / "vmlinux").symlink_to(dump.kernel.vmlinux)
    target = open_target(TargetOptions(core=str(tmp_path / "dump")))
    assert any("directory of the dump" in note for note in target.notes)


@pytest.mark.parametrize("dump_format", ["elf", "filtered", "flattened", "kdump"])
def test_truncated_dumps(standing_dump: DumpMaker, tmp_path: Path, dump_format: str) -> None:
    """Existing pages are unchanged, and missing ones are never zeros."""
    dump = standing_dump(dump_format)
    content = dump.path.read_bytes()
    (tmp_path / "cut").write_bytes(content[:400])
    with pytest.raises(TargetError, match="truncated") as caught:
        open_dump(tmp_path / "cut", dump.kernel)
    assert caught.value.hint
    platform = drgn.host_platform if dump_format == "kdump" else None
    whole = drgn.Program(platform)
    whole.set_core_dump(unpack_dump(dump.path).path)
    for share in (0.5, 0.99):
        (tmp_path / "cut").write_bytes(content[: int(len(content) * share)])
        unpacked = unpack_dump(tmp_path / "cut")
        assert "missing" in unpacked.notes[-1]
        part = drgn.Program(platform)
        if (dump_format, share) == ("kdump", 0.5):
            # For a dump that does not name the machine, libkdumpfile reads the kernel's page tables
            # at once.
            with contextlib.suppress(Exception):
                part.set_core_dump(unpacked.path)
            continue
        part.set_core_dump(unpacked.path)
        assert count_missing(part, whole, 128)
    # Most of it is there, but pages that are needed first may be missing.
    with contextlib.suppress(TargetError):
        found = open_dump(tmp_path / "cut", dump.kernel)
        assert sum("missing" in note and "truncated" in note for note in found.notes) == 1


def test_the_crashed_task(crash_dump: DumpMaker) -> None:
    dump = crash_dump()
    target = open_dump(dump.path, dump.kernel)
    task = target.stacks.crashed_task()
    assert task is not None
    functions = [frame.function for frame in target.stacks.stack_trace(task)]
    assert "sysrq_handle_crash" in functions
    assert all(frame.pc >= target.kernel_range[0] for frame in target.stacks.stack_trace(task))
