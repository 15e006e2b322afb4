# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces with records in modules: named by the side file and the module's file alone, and compared across boots."""

import json
import re
import struct
import subprocess

import pytest

from kcovdbg.elf.file import ElfFile
from tests.integration.test_two_builds import ask, images
from tests.support.two_builds import BEFORE, build_program

pytest.importorskip("drgn")

SOURCE = """
int total;
__attribute__((noinline)) int keep_inner(int n)
{
    if (n == 3)
        return total;
    return n * 7;
}
int keep_outer(int n)
{
    int sum = 0;
    while (n--)
        sum += keep_inner(n);
    return sum;
}
"""
PLACES = (0x7FC0000000, 0x7FC0432000)


class Module:
    """A relocatable file with debug info, as a module's is."""

    def __init__(self, folder):
        self.path = folder / "keep.ko"
        (folder / "keep.c").write_text(SOURCE)
        flags = ["-g", "-O1", "-fsanitize-coverage=trace-pc", "-mcmodel=large", "-fno-pie"]
        subprocess.run(["gcc", *flags, "-c", "keep.c", "-o", "keep.o"], cwd=folder, check=True)
        subprocess.run(["ld", "-r", "--build-id=sha1", "-o", self.path, "keep.o"], cwd=folder, check=True)
        with ElfFile(self.path) as elf:
            self.build_id = elf.build_id
        code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", self.path], capture_output=True, text=True, check=True)
        after_call = False
        self.functions = {}
        """Offset of each return address -> function."""
        for line in code.stdout.splitlines():
            if match := re.match(r"[0-9a-f]+ <(\w+)>:", line):
                function = match[1]
            elif match := re.match(r"\s*([0-9a-f]+):\s+(\w+)", line):
                if after_call:
                    self.functions[int(match[1], 16)] = function
                after_call = match[2].startswith("call")

    def lines(self, offsets):
        """Return the lines of calls before return addresses."""
        words = ["addr2line", "-j", ".text", "-e", str(self.path), *(hex(offset - 1) for offset in offsets)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return [int(line.rpartition(":")[2].split()[0]) for line in done.stdout.splitlines()]

    def trace(self, program, name, place):
        """Write a trace of all of its points, after some of the program; return its name and its offsets in order."""
        program.run(name, 9)
        path = program.folder / f"{name}.kcov"
        data = path.read_bytes()
        offsets = sorted(self.functions) * 2
        words = [word for (word,) in struct.iter_unpack("<Q", data[8:])] + [place + offset for offset in offsets]
        path.write_bytes(struct.pack(f"<{len(words) + 1}Q", len(words), *words))
        side = path.with_name(f"{path.name}.json")
        here = {"name": "keep", "build_id": self.build_id, "size": 4096, "sections": {".text": hex(place + 0x1000)}}
        # As if the kernel had been moved by 4096.
        side.write_text(json.dumps({**json.loads(side.read_text()), "kaslr_offset": "0x1000", "modules": [here]}))
        return f"file:{path}", offsets


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield build_program(tmp_path_factory.mktemp("program") / "p", BEFORE)


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return Module(tmp_path_factory.mktemp("module"))


def test_names_come_from_the_modules_file(program, module):
    trace, offsets = module.trace(program, "named", PLACES[0])
    assert len(set(offsets)) > 5
    _, rows = ask(*images(program), "--other-vmlinux", module.path, "diff", trace, program.run("alone", 9)[0], "--json")
    found = {int(row["pc"], 0) - PLACES[0]: row["frames"][0] for row in rows}
    assert {offset: frame["function"] for offset, frame in found.items()} == module.functions
    assert [found[offset]["line"] for offset in sorted(found)] == module.lines(sorted(found))


def test_traces_of_two_boots(program, module):
    traces = [module.trace(program, f"boot{number}", place)[0] for number, place in enumerate(PLACES)]
    for words in (images(program), (*images(program), "--other-vmlinux", module.path)):
        assert ask(*words, "diff", *traces, "--json") == (0, [])
        assert ask(*words, "diff", "--ordered", *traces, "--json") == (0, [])
        assert ask(*words, "trace", traces[1], "--against", traces[0])[0] == 0
    _, rows = ask(*images(program), "--other-vmlinux", module.path, "trace", traces[1], "--json")
    assert {row["function"] for row in rows} >= set(module.functions.values())


def test_what_one_boot_has_more(program, module):
    left, offsets = module.trace(program, "more", PLACES[0])
    right, _ = module.trace(program, "less", PLACES[1])
    path = program.folder / "less.kcov"
    gone = offsets[2]
    words = [word for (word,) in struct.iter_unpack("<Q", path.read_bytes()[8:]) if word != PLACES[1] + gone]
    path.write_bytes(struct.pack(f"<{len(words) + 1}Q", len(words), *words))
    status, (row,) = ask(*images(program), "--other-vmlinux", module.path, "diff", left, right, "--json")
    assert (status, row["side"], int(row["pc"], 0)) == (1, "left", PLACES[0] + gone)
