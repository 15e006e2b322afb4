# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finding coverage points in code that gcc makes here, and in code of other machines laid out by hand."""

import platform
import shutil
import struct
import subprocess
from array import array
from contextlib import closing

import pytest

from kcovdbg.errors import TargetError
from kcovdbg.symbols import points
from kcovdbg.symbols.compdir import read_build_directory
from kcovdbg.symbols.elf import ElfFile
from kcovdbg.symbols.points import find_module_points, find_points, find_points_between

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="needs gcc for x86-64")

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
    flags = ["-g", "-O1", "-fno-pie", "-fcf-protection=none", "-fsanitize-coverage=trace-pc,trace-cmp"]
    subprocess.run(["gcc", *flags, "-c", "a.c"], cwd=folder, check=True)
    link = ["gcc", "-no-pie", "-nostdlib", "-static", "-Wl,--build-id", "-o", "a", "a.o"]
    subprocess.run(link, cwd=folder, check=True)
    return folder


def by_objdump(path, callee):
    text = subprocess.run(["objdump", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    return [int(line.split(":")[0], 16) + 5 for line in text.splitlines() if "call" in line and line.endswith(f"<{callee}>")]


@needs_gcc
def test_points_of_a_linked_image(built):
    with closing(ElfFile(built / "a")) as elf:
        found = find_points(elf)
    assert list(found.pc) == by_objdump(built / "a", "__sanitizer_cov_trace_pc")
    assert len(found.pc) >= 3
    assert list(found.cmp) == by_objdump(built / "a", "__sanitizer_cov_trace_const_cmp4")
    assert len(found.cmp) == 1
    # Of what ends in a jump to the callback, itself or by way of another.
    assert set(by_objdump(built / "a", "jumper") + by_objdump(built / "a", "hopper")) <= set(found.tail)
    assert not set(by_objdump(built / "a", "branchy")) & set(found.tail)


@needs_gcc
def test_points_of_one_function(built):
    with closing(ElfFile(built / "a")) as elf:
        function = next(symbol for symbol in elf.symbols() if symbol.name == "branchy")
        everything = find_points(elf)
        found = find_points_between(elf, function.value, function.value + function.size)
    inside = range(function.value, function.value + function.size + 1)
    assert found.pc == array("Q", [pc for pc in everything.pc if pc in inside])
    assert found.cmp == everything.cmp


@needs_gcc
def test_points_of_a_relocatable_file(built):
    with closing(ElfFile(built / "a.o")) as module, closing(ElfFile(built / "a")) as linked:
        found = find_module_points(module)[".text"]
        start = linked.section(".text").address
        points_of_image = find_points(linked)
        assert not find_points(module).pc
        assert not find_module_points(linked)
    assert [start + offset for offset in found.pc] == list(points_of_image.pc)
    assert [start + offset for offset in found.cmp] == list(points_of_image.cmp)


@needs_gcc
def test_build_id_and_directory(built):
    notes = subprocess.run(["readelf", "-n", "a"], cwd=built, capture_output=True, text=True, check=True).stdout
    with closing(ElfFile(built / "a")) as elf:
        assert elf.build_id in notes
        assert read_build_directory(elf) == str(built)
    for version in ("4", "5"):
        name = f"dwarf{version}"
        flags = ["-g", f"-gdwarf-{version}", "-gz=zlib", "-nostdlib", "-static", "-no-pie"]
        subprocess.run(["gcc", *flags, "-Wl,--build-id", "-o", name, "a.c"], cwd=built, check=True)
        with closing(ElfFile(built / name)) as elf:
            assert read_build_directory(elf) == str(built)


@needs_gcc
def test_stripped_and_debug_only_images_have_no_points(built):
    subprocess.run(["objcopy", "--only-keep-debug", "a", "debug"], cwd=built, check=True)
    subprocess.run(["strip", "-o", "stripped", "a"], cwd=built, check=True)
    for name in ("debug", "stripped"):
        with closing(ElfFile(built / name)) as elf:
            assert not any(find_points(elf))


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\2\1" + bytes(9), b"\x7fELF\2\1\1" + b"\xff" * 100])
def test_what_is_no_elf_file(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(TargetError):
        ElfFile(path)


def test_arm64_branches():
    def branch(opcode, words):
        return struct.pack("<I", opcode | words & 0x3FFFFFF)

    text = branch(0x94000000, 4) + branch(0x14000000, -1) + struct.pack("<II", 0xD63F0000 | 3 << 5, 0xD65F03C0)
    code = points._scan_arm64(text, 0x1000, False)
    assert code.calls == ([0x1004], [0x1010])
    assert code.jumps == ([0x1008], [0x1000])
    assert code.indirect == [0x100C]


def test_s390_branches():
    text = b"\xc0\xe5" + struct.pack(">i", 8) + b"\xc0\xf4" + struct.pack(">i", -3) + b"\x0d\xe1"
    code = points._scan_s390(text, 0x1000, True)
    assert code.calls == ([0x1006], [0x1010])
    assert code.jumps == ([0x100C], [0x1000])
    assert code.indirect == [0x100E]


def test_x86_calls_within_another_calls_bytes():
    # The second one starts in the displacement of the first: both are looked at.
    text = b"\xe8\xe8\x01\x00\x00\x00\x00"
    assert points._scan_x86(text, 0, False).calls.back == [5, 6]
