# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files and addresses that are not targets, and the recognition of each kind of file; without drgn
where possible.
"""

import bz2
import gzip
import lzma
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import drgn
import pytest
import zstandard

from kcovdbg.commands import COMMANDS
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import MAGIC, make_note
from kcovdbg.errors import KcovdbgError, LimitError, TargetError, UsageError
from kcovdbg.frontends.options import parse_options
from kcovdbg.target import debug_files, local_kernel
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target import slice_file as slices
from kcovdbg.target.dump_file import KDUMP_MAGIC
from kcovdbg.target.target_options import TargetOptions, find_gdb_arguments, open_target, sort_files
from tests.support.programs import output_of
from tests.unit.target.test_kdump_file import flat

NOTES = make_note(
    "VMCOREINFO",
    0,
    b"OSRELEASE=6.12.0\nPAGESIZE=4096\nSYMBOL(swapper_pg_dir)=ffffffff82a10000\nKERNELOFFSET=0\n",
)
CORE = b"".join(
    slices.build_slice(
        62, NOTES, {0x1000: bytes(4096), 0x5000: bytes(4096)}, 0xFFFF888000000000, ()
    )
)


def make_elf(kind=2, sections=b""):
    header = struct.Struct("<16sHHIQQQIHHHHHH")
    ident = MAGIC + bytes([2, 1, 1]) + bytes(9)
    return header.pack(ident, kind, 62, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0) + sections


def make_kdump(pages=3, cut=0):
    """A kdump-compressed dump of version 6, as far as its headers go."""
    block = 4096
    data = bytearray(block * 6)
    data[:8] = KDUMP_MAGIC
    struct.pack_into("<I", data, 8, 6)
    struct.pack_into("<III", data, 428, block, 1, 2)
    struct.pack_into("<QQQQ", data, block + 32, 0, 0, 0, 0)
    # Two bitmaps of one block each, the second counts.
    data[3 * block] = (1 << pages) - 1
    for number in range(pages):
        struct.pack_into(
            "<QIIQ", data, 4 * block + 24 * number, 5 * block + 100 * number, 100, 0, 0
        )
    return bytes(data[: 5 * block + 100 * pages - cut])


@pytest.fixture
def files(tmp_path):
    contents = {
        "core": CORE,
        "kdump": make_kdump(),
        "flat": flat([(0, make_kdump())]),
        "vmlinux": make_elf(),
        "module.ko": make_elf(1),
        "script.kcov": b"tasks\n",
        "notes": b"text\n",
        "run.kcov": bytes(64),
        "empty": b"",
        "alone/core": CORE,
    }
    (tmp_path / "alone").mkdir()
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


KINDS = {
    "core": "core",
    "kdump": "kdump",
    "flat": "flattened",
    "vmlinux": "elf",
    "module.ko": "elf",
    "notes": "other",
}


@pytest.mark.parametrize(("name", "kind"), [*KINDS.items(), ("empty", "empty")])
def test_files_are_told_apart(files, name, kind):
    assert dumpfile.identify(files / name).value == kind
    slices.write_slice(files / f"{name}.zst", [(files / name).read_bytes()])
    assert dumpfile.identify(files / f"{name}.zst").value == kind


WARNING = (
    b"Warning: Permanently added '[localhost]:1569' (ED25519) to the list of known "
    b"hosts.\r\n\x1b[0m\xc3\xbc\n"
)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("text", [WARNING, b"a banner names KDUMP   files and \x7fELF\n" * 1000])
@pytest.mark.parametrize("name", ["core", "kdump", "flat"])
def test_text_in_front_of_a_dump_is_skipped(files, name, text, packed):
    """What ssh prints: before the dump, or before its compressed contents."""
    whole = dumpfile.unpack_dump(files / name)
    given = files / "given"
    given.write_bytes(text + (files / name).read_bytes())
    if packed:
        slices.write_slice(given.with_suffix(".zst"), [given.read_bytes()])
        given = given.with_suffix(".zst")
    assert dumpfile.identify(given) is dumpfile.identify(files / name)
    dump = dumpfile.unpack_dump(given)
    assert dump.path.read_bytes() == whole.path.read_bytes()
    (said,) = dump.damage
    assert f"at byte {len(text)}" in said
    assert (f"tail -c +{len(text) + 1} " in said) is not packed
    assert said in dump.notes
    assert dump.problem is None
    assert given.read_bytes() != dump.path.read_bytes()


def test_text_in_front_of_a_cut_dump(files):
    (files / "given").write_bytes(WARNING + CORE[:6000])
    dump = dumpfile.unpack_dump(files / "given")
    assert f"{len(CORE) - 6000:,} of {len(CORE):,} bytes" in dump.problem


@pytest.mark.parametrize(
    "front",
    [b"\0" + WARNING, b"x" * (65 << 10), b"\x1f\x8b\x08" + WARNING],
    ids=["binary", "long", "compressed"],
)
def test_what_is_in_front_is_no_text(files, front):
    (files / "given").write_bytes(front + CORE)
    with pytest.raises(TargetError):
        dumpfile.unpack_dump(files / "given")


@pytest.mark.parametrize("content", [b"", b"\r\n", b" \n" * 3000])
def test_a_dump_that_was_not_extracted(files, content):
    """However it is named: as a dump, beside a vmlinux, or as what could be a script."""
    (files / "given").write_bytes(content)
    given = str(files / "given")
    for options in (
        TargetOptions(core=given),
        TargetOptions(files=[str(files / "vmlinux"), given]),
        parse_options([str(files / "vmlinux"), given], COMMANDS).target,
        parse_options([given, "-e", "tasks"], COMMANDS).target,
    ):
        with pytest.raises(TargetError, match="given is empty") as caught:
            open_target(options)
        assert caught.value.hint


@pytest.mark.parametrize(
    "order", [("core", "vmlinux", "module.ko"), ("vmlinux", "core", "module.ko")]
)
def test_order_of_files_is_free(files, order):
    options = sort_files(TargetOptions(files=[str(files / name) for name in order]))
    assert options.core == str(files / "core")
    assert list(options.symbols) == [str(files / "vmlinux"), str(files / "module.ko")]


@pytest.mark.parametrize(
    ("named", "message", "hint"),
    [
        ({"core": "a.core", "files": ["core"]}, r"a\.core\b.*\bcore\b|\bcore\b.*a\.core\b", None),
        ({"core": "a", "qemu": "b"}, "--core.*--qemu", None),
        ({"core": "none"}, "none.*no such", ""),
        ({"core": "."}, "directory", ""),
        ({"core": "empty"}, "empty.*empty", ""),
        ({"core": "script.kcov"}, r"script\.kcov.*dump", ""),
        ({"core": "vmlinux"}, "vmlinux.*debug info", ""),
        # Files in /proc have no size, and cannot be read from their end.
        ({"core": "/proc/version"}, r"/proc/version\b", ""),
        ({"core": "alone/core"}, r"vmlinux.*6\.12\.0", "-s VMLINUX"),
        ({"core": "core", "symbols": ["none"]}, "none.*no such", ""),
        ({"core": "core", "symbols": ["script.kcov"]}, r"script\.kcov.*ELF", ""),
        ({"core": "core", "symbols": ["core"]}, "core.*dump", ""),
        ({"core": "core", "symbols": ["vmlinux"]}, "vmlinux.*DWARF", ""),
        ({"core": "core", "symbols": ["module.ko"]}, r"module\.ko.*DWARF", ""),
        ({"gdb_remote": "localhost:1"}, "vmlinux", "-s VMLINUX"),
        ({"qemu": "none"}, "no such socket", None),
        ({"files": ["notes"]}, "notes", "vmlinux"),
        ({"files": ["run.kcov"]}, r"^run\.kcov .*trace", "file:run.kcov"),
    ],
    ids=str,
)
def test_what_is_no_target(files, monkeypatch, named, message, hint):
    """Each is refused with its name and what to do."""
    monkeypatch.chdir(files)
    with pytest.raises(KcovdbgError, match=message) as caught:
        open_target(TargetOptions(**named))
    assert "\n" not in f"{caught.value}{caught.value.hint}"
    assert hint is None or (caught.value.hint and hint in caught.value.hint)


@pytest.fixture
def patience():
    """Opening a pipe without a writer would wait forever."""

    def stop(_signal, _frame):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def name_in(place, name):
    places = {
        "core": {"core": name},
        "symbols": {"core": "core", "symbols": [name]},
        "files": {"files": [name]},
    }
    return TargetOptions(**places[place])


@pytest.mark.parametrize("place", ["core", "symbols", "files"])
@pytest.mark.parametrize(
    ("name", "message"), [("pipe", "pipe"), ("socket", "socket"), ("/dev/zero", "device")]
)
def test_no_files_at_all(files, monkeypatch, patience, place, name, message):
    monkeypatch.chdir(files)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(TargetError, match=f"^{name}.*{message}") as caught:
            open_target(name_in(place, name))
    assert "file" in caught.value.hint


def test_a_file_that_becomes_a_pipe(files, monkeypatch, patience):
    """Between the look at it and its opening."""
    os.mkfifo(files / "pipe")
    found = (files / "core").stat()
    monkeypatch.setattr(Path, "stat", lambda _path, **_options: found)
    with pytest.raises(TargetError, match="pipe"):
        dumpfile.identify(files / "pipe")


@pytest.mark.parametrize("place", ["core", "symbols", "files"])
def test_what_others_compressed(files, monkeypatch, place):
    monkeypatch.chdir(files)
    Path("packed").write_bytes(bz2.compress(CORE if place == "core" else make_elf()))
    with pytest.raises(TargetError, match=r"packed.*bzip2") as caught:
        open_target(name_in(place, "packed"))
    assert "bzip2 -d" in caught.value.hint


@pytest.mark.parametrize("module", [gzip, lzma, zstandard])
def test_images_are_unpacked_into_the_cache(tmp_path, monkeypatch, module):
    """Once, whole, and never under the final name before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    image = make_elf(sections=random.Random(0).randbytes(1 << 16) + bytes(1 << 21))
    packed, cut, bomb = tmp_path / "vmlinux.packed", tmp_path / "cut", tmp_path / "bomb"
    data = module.compress(image)
    packed.write_bytes(data)
    first = dumpfile.unpack(packed)
    assert (first.path.read_bytes(), first.path.is_relative_to(tmp_path / "cache")) == (image, True)
    status = first.path.stat()
    again = dumpfile.unpack(packed)
    assert (again.path, again.path.stat().st_mtime_ns, again.notes) == (
        first.path,
        status.st_mtime_ns,
        (),
    )
    assert dumpfile.identify(packed) is dumpfile.FileKind.ELF
    cut.write_bytes(data[: len(data) * 3 // 4])
    with pytest.raises(TargetError, match=r"cut"):
        dumpfile.unpack(cut)
    monkeypatch.setenv("KCOVDBG_LIMITS", "unpacked-size=1048576")
    bomb.write_bytes(module.compress(make_elf(sections=bytes(1 << 24))))
    with pytest.raises(LimitError, match=r"bomb") as caught:
        dumpfile.unpack(bomb)
    assert "unpacked-size" in caught.value.hint
    assert list(first.path.parent.iterdir()) == [first.path]


@pytest.mark.parametrize("offset", ["", "KERNELOFFSET=0\n"])
def test_no_offset_is_as_no_vmcoreinfo(tmp_path, offset):
    """drgn would take it to be 0, and fail later with another reason."""
    info = NOTES.replace(b"KERNELOFFSET=0\n", b"X" * 15)
    core = b"".join(
        slices.build_slice(
            62, info if not offset else NOTES, {0x1000: bytes(4096)}, 0xFFFF888000000000, ()
        )
    )
    (tmp_path / "core").write_bytes(core)
    with pytest.raises(TargetError) as caught:
        open_target(TargetOptions(core=str(tmp_path / "core")))
    assert ("KERNELOFFSET" in str(caught.value)) is not bool(offset)


@pytest.mark.parametrize(
    "content",
    [CORE[:size] for size in (17, 63, 70, 200, 4096)]
    + [make_kdump(cut=cut) for cut in (299, 300, 4000, 8000, 12000, 20000)],
    ids=len,
)
def test_dumps_without_memory(tmp_path, content):
    path = tmp_path / "dump"
    path.write_bytes(content)
    with pytest.raises(TargetError, match=r"truncated|not a crash dump"):
        open_target(TargetOptions(core=str(path)))


@pytest.mark.parametrize("size", [6000, len(CORE) - 1, len(CORE)])
def test_truncated_cores(tmp_path, size):
    """Existing pages can be read; missing ones are errors, not zeros."""
    path = tmp_path / "core"
    path.write_bytes(CORE[:size])
    dump = dumpfile.unpack_dump(path)
    said = [
        f"{size:,} of {len(CORE):,} bytes, {len(CORE) - size:,} are" in note for note in dump.notes
    ]
    assert said == [True] * (size < len(CORE))
    assert (dump.problem is not None) == (size < len(CORE))
    prog = drgn.Program()
    prog.set_core_dump(dump.path)
    for address, offset in {0x1000: 4096, 0x5000: 8192}.items():
        whole = min(max(size - offset, 0), 4096)
        assert prog.read(address, whole, True) == bytes(whole)
        if whole < 4096:
            with pytest.raises(drgn.FaultError):
                prog.read(address + whole, 1, True)
    # The cut is told beside what it may have caused.
    with pytest.raises(TargetError) as caught:
        open_target(TargetOptions(core=str(path)))
    assert (f"{size:,} of {len(CORE):,} bytes" in str(caught.value)) == (size < len(CORE))
    assert caught.value.hint


@pytest.mark.parametrize(("cut", "missing"), [(0, 0), (1, 1), (100, 1), (101, 2)])
def test_truncated_kdumps(tmp_path, cut, missing):
    path = tmp_path / "kdump"
    path.write_bytes(make_kdump(cut=cut))
    dump = dumpfile.unpack_dump(path)
    assert [f"{missing} of 3 pages" in note for note in dump.notes] == [True] * (missing > 0)
    # Descriptors of missing pages are zeros, which libkdumpfile refuses; the user's file is not
    # changed.
    for number in range(3):
        descriptor = dump.path.read_bytes()[4 * 4096 + 24 * number :][:24]
        assert any(descriptor) == (number < 3 - missing)
    assert path.read_bytes() == make_kdump(cut=cut)


def test_pages_that_were_never_written(tmp_path):
    """As makedumpfile leaves them when the disk is full."""
    path = tmp_path / "kdump"
    data = bytearray(make_kdump())
    data[4 * 4096 + 24 : 4 * 4096 + 48] = bytes(24)
    path.write_bytes(data)
    assert ["1 of 3 pages" in note for note in dumpfile.unpack_dump(path).notes] == [True]


def test_truncated_flattened_dump(files, tmp_path):
    content = (files / "flat").read_bytes()
    (tmp_path / "cut").write_bytes(content[:-20])
    with pytest.raises(TargetError, match=r"cut\b.*truncated"):
        dumpfile.unpack(tmp_path / "cut")
    assert "1 of 3 pages" in dumpfile.unpack_dump(tmp_path / "cut").notes[-1]
    # All of the dump, without the end mark.
    (tmp_path / "cut").write_bytes(content[:-16])
    assert "truncated" in dumpfile.unpack_dump(tmp_path / "cut").notes[-1]


def test_truncated_compressed_files(tmp_path):
    slices.write_slice(tmp_path / "a.zst", [os.urandom(100_000)])
    data = (tmp_path / "a.zst").read_bytes()
    for size in (10, 18, 1000, len(data) - 1):
        (tmp_path / "cut.zst").write_bytes(data[:size])
        for unpack in (dumpfile.unpack, dumpfile.unpack_dump):
            with pytest.raises(TargetError, match=r"truncated|damaged"):
                unpack(tmp_path / "cut.zst")
    (tmp_path / "bad.zst").write_bytes(data[:500] + b"\xff" * 100 + data[600:])
    with pytest.raises(TargetError, match="damaged"):
        dumpfile.unpack(tmp_path / "bad.zst")


def test_truncated_compressed_dumps(tmp_path):
    pages = {0x1000 * number: os.urandom(4096) for number in range(64)}
    core = b"".join(slices.build_slice(62, NOTES, pages, None, ()))
    slices.write_slice(tmp_path / "core.zst", [core])
    data = (tmp_path / "core.zst").read_bytes()
    (tmp_path / "cut.zst").write_bytes(data[:-5000])
    dump = dumpfile.unpack_dump(tmp_path / "cut.zst")
    assert core.startswith(dump.path.read_bytes())
    assert "bytes are missing" in dump.notes[-1]


def test_no_room_for_unpacking(files, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(files / "none"))
    with pytest.raises(TargetError, match=r"flat\b.*none\b"):
        dumpfile.unpack(files / "flat")


def test_working_out_what_it_is_takes_no_drgn(files):
    code = (
        "import sys; sys.modules['drgn'] = None\n"
        "from kcovdbg.errors import CapabilityError\n"
        "from kcovdbg.target.target_options import TargetOptions, open_target, sort_files\n"
        "print(sort_files(TargetOptions(files=[sys.argv[1]])).core)\n"
        "try: open_target(TargetOptions(core=sys.argv[1]))\n"
        "except CapabilityError as error: print(error.hint)"
    )
    assert output_of(sys.executable, "-c", code, files / "core").splitlines() == [
        str(files / "core"),
        "pip install drgn",
    ]


def test_images_without_a_dump(files, monkeypatch):
    """Targets that the command line names come before the running kernel."""
    monkeypatch.chdir(files)
    for name, build_id in (("one", "01" * 20), ("two", "02" * 20)):
        output_of(
            "gcc",
            "-nostdlib",
            "-static",
            f"-Wl,--build-id=0x{build_id},-e0",
            "-xc",
            "/dev/null",
            "-o",
            name,
        )
    monkeypatch.setattr(local_kernel, "running_build_id", lambda: "01" * 20)
    with pytest.raises(UsageError, match=r"2 .*: one, two") as caught:
        open_target(TargetOptions(files=["one", "two"]))
    assert "VMCORE" in caught.value.hint
    Path("two.debug").write_bytes(Path("two").read_bytes())
    tried = []
    monkeypatch.setattr("kcovdbg.target.drgn.programs.open_kernel", tried.append)
    monkeypatch.setattr(
        "kcovdbg.target.drgn.programs.open_image_target",
        lambda names, _notes=(): images.append([*names]),
    )
    # Another kernel's is a target of its own, named in either way, as is the running kernel's where
    # the user says so.
    images: list[list[str]] = []
    open_target(TargetOptions(files=["two", "two.debug"]))
    open_target(TargetOptions(symbols=["two", "module.ko"]))
    open_target(TargetOptions(symbols=["one"], image=True))
    assert (images, tried) == ([["two", "two.debug"], ["two", "module.ko"], ["one"]], [])
    open_target(TargetOptions(symbols=["two"], kernel=True))
    assert tried == [("two",)]
    tried.clear()
    # The running kernel's own, and modules.
    open_target(TargetOptions(files=["one", "module.ko"]))
    assert tried == [("one", "module.ko")]
    # A module is the running kernel's if that has loaded it.
    with pytest.raises(UsageError, match=r"module\.ko") as caught:
        open_target(TargetOptions(symbols=["module.ko"]))
    assert "VMLINUX" in caught.value.hint
    assert tried == [("one", "module.ko")]
    monkeypatch.setattr(local_kernel, "has_loaded_module", lambda _build_id: True)
    open_target(TargetOptions(symbols=["module.ko"]))
    open_target(TargetOptions(symbols=["module.ko"], kernel=True))
    assert tried[1:] == [("module.ko",)] * 2
    # Which kernel runs is unknown: the image is not known to be its own.
    monkeypatch.setattr(local_kernel, "running_build_id", lambda: None)
    images.clear()
    open_target(TargetOptions(symbols=["one"]))
    assert images == [["one"]]


def test_loaded_modules_are_known_by_their_notes(tmp_path):
    (tmp_path / "mod/notes").mkdir(parents=True)
    (tmp_path / "mod/notes/.note.gnu.build-id").write_bytes(make_note("GNU", 3, b"\x07" * 20))
    assert local_kernel.has_loaded_module("07" * 20, tmp_path)
    assert not local_kernel.has_loaded_module("08" * 20, tmp_path)
    assert not local_kernel.has_loaded_module(None, tmp_path)


@pytest.mark.parametrize("place", ["build-id", "beside", "debuginfod"])
def test_debug_files_of_a_stripped_image(tmp_path, monkeypatch, place):
    monkeypatch.setattr(debug_files, "_ROOT", tmp_path / "debug")
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path / "cache"))
    (tmp_path / "a.c").write_text("void _start(void) {}\n")
    whole, image = tmp_path / "whole", tmp_path / "image"
    output_of("gcc", "-g", "-nostdlib", "-static", "-Wl,--build-id", "-o", whole, tmp_path / "a.c")
    build_id = ElfFile(whole).build_id
    paths = {
        "build-id": tmp_path / "debug" / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug",
        "beside": tmp_path / "image.debug",
        "debuginfod": tmp_path / "cache" / build_id / "debuginfo",
    }
    path = paths[place]
    path.parent.mkdir(parents=True, exist_ok=True)
    output_of("objcopy", "--only-keep-debug", whole, path)
    link = [f"--add-gnu-debuglink={path}"] if place == "beside" else []
    output_of("objcopy", "--strip-debug", *link, whole, image)
    found_id, name = debug_files.read_stripped(image)
    assert found_id == build_id
    assert debug_files.find_debug_file(image, found_id, name) == path
    path.write_bytes(whole.read_bytes()[:100])
    assert debug_files.find_debug_file(image, found_id, name) is None


@pytest.mark.skipif(shutil.which("gdb") is None, reason="GDB runs")
@pytest.mark.parametrize(
    "name", ["-ex=shell touch owned", "--eval-command=shell touch owned", "-x", "| touch owned"]
)
def test_no_name_of_a_file_is_an_option_or_a_command_of_gdb(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    shutil.copy("/bin/true", tmp_path / name)
    for options in (
        TargetOptions(symbols=(f"./{name}",)),
        TargetOptions(symbols=(name,)),
        TargetOptions(files=(name,)),
    ):
        arguments = find_gdb_arguments(options)
        assert arguments == [str(tmp_path / name)]
        subprocess.run(["gdb", "-nx", "-batch", *arguments], capture_output=True, timeout=60)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(shutil.which("gdb") is None, reason="GDB runs")
@pytest.mark.parametrize(
    "address",
    ["| touch owned", "|touch owned:1", "| touch x #:1", ":1", "[::1]:1", "unix:| touch owned"],
)
def test_no_address_is_a_command_of_gdb(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    arguments = find_gdb_arguments(TargetOptions(gdb_remote=address))
    subprocess.run(
        ["gdb", "-nx", "-batch", "-iex", "set tcp auto-retry off", *arguments],
        capture_output=True,
        timeout=60,
    )
    assert list(tmp_path.iterdir()) == []
