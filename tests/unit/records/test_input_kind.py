# SPDX-License-Identifier: LGPL-2.1-or-later
"""What files, directories and streams are taken for."""

import gzip
import json
import lzma
import os
import struct
from pathlib import Path

import pytest
import zstandard

from kcovdbg.errors import KcovdbgError, LimitError, TargetError
from kcovdbg.input_file import MAGICS, FrameReader, unpack_data
from kcovdbg.limits import WORK, over_limit
from kcovdbg.records.input_kind import InputKind, find_kind, find_path_kind
from kcovdbg.target.dump_file import unpack

ROOT = Path(__file__).parents[3]
PCS = [0xFFFFFFFF81000005 + 16 * index for index in range(12)]
HEX = "".join(f"{pc:#x}\n" for pc in PCS)
BOOT = "[    0.000000] Linux version 6.12\n[    0.100000] Command line: quiet\n"
STACK = " ksys_read+0x99/0x150\n do_syscall_64+0x54/0xb0\n"
OOPS = (
    f"BUG: kernel NULL pointer dereference, address: 0\nCPU: 0 PID: 41 Comm: kc Not tainted\nCall "
    f"Trace:\n <TASK>\n{STACK}"
)
DIFF = "--- a/fs/read_write.c\n+++ b/fs/read_write.c\n@@ -1,2 +1,2 @@\n-int a;\n+int b;\n"
MAIL = (
    f"From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\nSubject: [PATCH] "
    f"fs\n\n{OOPS}\n---\n{DIFF}"
)
SAMPLE = (ROOT / "examples" / "fuzz.jsonl").read_text()
SIDE = {"format": 1, "mode": "TRACE_PC", "word_size": 8, "byteorder": "little"}
ELF = b"\x7fELF\x02\x01\x01" + bytes(9)

KINDS = {
    "core": (ELF + b"\x04\0" + bytes(64), InputKind.DUMP),
    "kdump": (b"KDUMP   " + bytes(64), InputKind.DUMP),
    "image": (ELF + b"\x02\0" + bytes(64), InputKind.IMAGE),
    "module": (ELF + b"\x01\0" + bytes(64), InputKind.IMAGE),
    "table": (b"KCOVSYM\0" + bytes(64), InputKind.TABLE),
    "script": (b"#!/usr/bin/env kcovdbg\ntasks\n", InputKind.SCRIPT),
    "script, by its path": (b"#!/usr/local/bin/kcovdbg --quiet\ntasks\n", InputKind.SCRIPT),
    "a script of sh": (b"#!/bin/sh\nkcovdbg tasks\n", InputKind.OTHER),
    "list": (HEX, InputKind.TRACE),
    "list with a count": (f"12\n{HEX}", InputKind.TRACE),
    "negative numbers": ("-2130195659\n-2130195643\n", InputKind.TRACE),
    "buffer": (struct.pack("<13Q", 12, *PCS), InputKind.TRACE),
    "list in dmesg": ("".join(f"[   12.34] {line}\n" for line in HEX.split()), InputKind.TRACE),
    "functions": ("vfs_read+0x18/0x11a\nksys_read+0x70/0x100 [kcov]\n" * 3, InputKind.TRACE),
    "/proc/PID/stack": ("[<0>] do_poll+0x18/0x11a\n[<0>] ksys_read+0x70/0x100\n", InputKind.TRACE),
    "CSV": (
        "index,pc\n" + "".join(f"{index},{pc:#x}\n" for index, pc in enumerate(PCS)),
        InputKind.TRACE,
    ),
    "JSON": (json.dumps([{"pc": hex(pc)} for pc in PCS]), InputKind.TRACE),
    "boot log": (BOOT, InputKind.LOG),
    "a log that a crash cut": (BOOT.encode() + bytes(4096), InputKind.LOG),
    "a serial log with zeros": (bytes(99) + OOPS.encode(), InputKind.LOG),
    "zeros": (bytes(4096), InputKind.TRACE),
    "the start of ELF": (b"\x7fELF", InputKind.OTHER),
    "coverage of lines": (
        '{"source_files":[{"name":"a.c","coverage":[1,null,0,40000]}]}',
        InputKind.OTHER,
    ),
    "nm -S": (
        "".join(f"{pc:016x} 0000000000000010 T f\n" for pc in PCS),
        InputKind.OTHER,
    ),
    "readelf -s": (
        "Symbol table:\n"
        + "".join(f"  {pc & 99}: {pc:016x}    16 FUNC    GLOBAL DEFAULT    1 f\n" for pc in PCS),
        InputKind.OTHER,
    ),
    "objdump -t": (
        "".join(f"{pc:016x} g     F .text\t0000000000000010 f\n" for pc in PCS),
        InputKind.OTHER,
    ),
    "points": (
        "PC   KIND  ADDRESS  FUNCTION  WHERE  HITS\n"
        + "".join(f"{pc:#x}  pc    {pc:#x}  f  fs/a.c:1  0\n" for pc in PCS),
        InputKind.OTHER,
    ),
    "kprobes": ("".join(f"{pc:016x}  k  f+0x0    [FTRACE]\n" for pc in PCS), InputKind.OTHER),
    "floats": ("".join(f"{pc:e}\n" for pc in PCS), InputKind.TEXT),
    "oops": (OOPS, InputKind.LOG),
    "oops behind a boot": (BOOT * 500 + OOPS, InputKind.LOG),
    "log of a serial line": (
        b"\0\0\xff" + BOOT.encode() * 20 + b"\x1b[0m\0" + OOPS.encode(),
        InputKind.LOG,
    ),
    "log that begins as commands": (f"info > x\n! touch x\n{BOOT * 2}", InputKind.LOG),
    "old stack": (
        "Call Trace:\n"
        + "".join(f" [<{pc:016x}>] ? vfs_read+0x15/0x40\n" * 3 for pc in PCS[:1])
        + OOPS,
        InputKind.LOG,
    ),
    "stack of GDB": (
        "#0  0xffffffff811dc419 in ksys_read (fd=3) at fs/read_write.c:712\n#1  "
        "0xffffffff814de834 in do_syscall_64 ()\n",
        InputKind.LOG,
    ),
    "report": (OOPS.replace("Comm: kc", "Comm: syz-executor.0"), InputKind.REPORT),
    "newer report": (OOPS.replace("Comm: kc", "Comm: syz.0.17"), InputKind.REPORT),
    "log of syzkaller": (
        f"2026/07/01 10:00:00 executing program 0 (id=1):\ngetpid()\n\n{BOOT}{OOPS}",
        InputKind.REPORT,
    ),
    "long log of syzkaller": (
        "executing program 0 (id=1):\ngetpid()\n\n" * 9000 + OOPS,
        InputKind.REPORT,
    ),
    "log without times": ("usb 1-1: new device\n" * 9000 + OOPS, InputKind.LOG),
    "recording": (SAMPLE, InputKind.RECORDING),
    "side file": (json.dumps(SIDE), InputKind.SIDE_FILE),
    "side file in lines": (json.dumps(SIDE, indent=1), InputKind.SIDE_FILE),
    "configuration": (
        '# mine\n{\n "target": "linux/amd64",\n "workdir": "/syz"\n}\n',
        InputKind.WORKDIR,
    ),
    "patch": (DIFF, InputKind.PATCH),
    "patch of Git": (f"diff --git a/fs/a.c b/fs/a.c\nindex 1..2 100644\n{DIFF}", InputKind.PATCH),
    "patch that quotes an oops": (MAIL, InputKind.PATCH),
    "lcov": ("TN:\nSF:a.c\nDA:1,1\nend_of_record\n", InputKind.OTHER),
    "kallsyms": ("ffffffff81000000 T _stext\nffffffff81000010 t run_init\n", InputKind.OTHER),
    "corpus": (struct.pack("<II", 0xBADDB, 4) + b"\1\2" * 50, InputKind.OTHER),
    "program of syzkaller": (
        "# {Threaded:true}\nr0 = openat$kcov(0xffffffffffffff9c, &(0x7f0000000000), 0x2, 0x0)\n"
        "ioctl$KCOV_INIT_TRACE(r0, 0x80086301, 0x1000)\n",
        InputKind.OTHER,
    ),
    "trace of ftrace": (
        "# tracer: function\n#\n kc-pc-77 [000] ...1. 12.345678: ksys_read <-do_syscall_64\n",
        InputKind.OTHER,
    ),
    "ftrace's stacks": (
        "# tracer: nop\n#\n" + " => vfs_read+0x18/0x11a\n => ksys_read+0x70/0x100\n" * 3,
        InputKind.TRACE,
    ),
    "levels": ("".join(f"<{level}>[    0.{level}] text\n" for level in range(8)), InputKind.LOG),
    "commands": ("tasks\ncheck\n", InputKind.TEXT),
    "sentences": ("Some words.\nAnd more of them.\n", InputKind.TEXT),
    "C": ("#include <stdio.h>\nint main(void)\n{\n\treturn 0;\n}\n", InputKind.TEXT),
    "noise": (bytes(range(256)) * 20, InputKind.BINARY),
    "nothing": (b"", InputKind.EMPTY),
    "white space": (b"\n \n", InputKind.EMPTY),
}


@pytest.mark.parametrize("name", KINDS)
def test_content(tmp_path, name):
    content, kind = KINDS[name]
    data = content if isinstance(content, bytes) else content.encode()
    path = tmp_path / "x"
    forms = [data, gzip.compress(data), lzma.compress(data)] if data.strip() else [data]
    if isinstance(content, str) and content:
        forms += [
            content.encode(encoding)
            for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be")
        ]
    for form in forms:
        # A script is run only as it is; compressed text cannot be run.
        is_other = (kind is InputKind.SCRIPT and form is not data) or (
            kind is InputKind.TEXT and form.startswith(MAGICS)
        )
        expected = InputKind.OTHER if is_other else kind
        assert find_kind(form).kind is expected
        path.write_bytes(form)
        assert find_path_kind(str(path)).kind is expected


def test_a_start_that_is_cut():
    """Of a pipe, or of a large file."""
    for name in ("list", "boot log", "oops behind a boot"):
        content, kind = KINDS[name]
        data = (content * 40).encode()
        assert find_kind(data[: len(data) - 7]).kind is kind
        assert find_kind(gzip.compress(data)[:-12]).kind is kind


def test_large_lists_are_lists(tmp_path):
    path = tmp_path / "x"
    path.write_text(HEX * 10000)
    assert find_path_kind(str(path)).kind is InputKind.TRACE
    path.write_bytes(gzip.compress((HEX * 10000).encode()))
    assert find_path_kind(str(path)).kind is InputKind.TRACE


def test_damaged_data_is_refused_by_name():
    found = find_kind(b"\x1f\x8b\x08\0" + b"\xff" * 64)
    assert found.kind is InputKind.OTHER
    assert "gzip" in found.noun


def test_a_side_file_makes_a_trace(tmp_path):
    (tmp_path / "a.kcov").write_bytes(struct.pack("<3Q", 2, 7, 8))
    (tmp_path / "a.kcov.json").write_text(json.dumps(SIDE))
    assert find_path_kind(str(tmp_path / "a.kcov")).kind is InputKind.TRACE
    assert find_path_kind(str(tmp_path / "a.kcov.json")).kind is InputKind.SIDE_FILE


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["crashes/"], InputKind.WORKDIR),
        (["description", "log0", "report0"], InputKind.CRASH),
        (["log0"], InputKind.CRASH),
        (["repro.report"], InputKind.CRASH),
        (["vmcore", "log3"], InputKind.CRASH),
        (["description"], InputKind.CRASH),
        (["description", "vmcore"], InputKind.CRASH),
        (["vmcore", "vmcore-dmesg.txt"], InputKind.OTHER),
        (["description", "HEAD", "config"], InputKind.OTHER),
        (["vmlinux", "a.ko"], InputKind.OTHER),
        (["a.hex"], InputKind.TRACE),
        (["a.txt"], InputKind.OTHER),
        ([], InputKind.OTHER),
    ],
)
def test_directories(tmp_path, names, kind):
    for name in names:
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text(HEX if name == "a.hex" else "words\n")
    assert find_path_kind(str(tmp_path)).kind is kind


def test_a_directory_names_a_file_that_is_answered(tmp_path):
    (tmp_path / "a.txt").write_text("words\n")
    (tmp_path / "mail.txt").write_text(OOPS)
    found = find_path_kind(str(tmp_path))
    assert found.kind is InputKind.OTHER
    assert str(tmp_path / "mail.txt") in (found.hint or "")


def test_pipes_and_devices(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert find_path_kind(str(tmp_path / "pipe")).kind is InputKind.PIPE
    for path in ("/dev/null", str(tmp_path / "none")):
        with pytest.raises(KcovdbgError):
            find_path_kind(path)


def test_what_is_compressed_twice_is_not_unpacked_twice():
    data = gzip.compress(gzip.compress(bytes(1 << 20)))
    assert find_kind(data).kind is InputKind.OTHER


def test_frames_without_data_take_no_time(tmp_path, monkeypatch):
    """Each begins a decompressor: 18 MB of them took minutes before any byte was there."""
    frame = zstandard.ZstdCompressor().compress(b"")
    for data in (frame * 5000, gzip.compress(b"x") * 5000):
        with pytest.raises(KcovdbgError):
            unpack_data("list", data)
        path = tmp_path / "vmlinux"
        path.write_bytes(data)
        with pytest.raises(TargetError):
            unpack(path)
    # Files that were appended to, and small ones.
    assert unpack_data("log", gzip.compress(b"a line of a log\n" * 8) * 3000)
    assert unpack_data("log", gzip.compress(b"x") * 1000) == b"x" * 1000


def test_a_limit_is_not_called_damage(monkeypatch):
    def fail(self, size):
        raise over_limit(WORK, "reading it")

    monkeypatch.setattr(FrameReader, "read", fail)
    with pytest.raises(LimitError):
        unpack_data("list", gzip.compress(b"x"))
