# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of the lab's kernel against llvm-symbolizer and drgn.

Every coverage point with KCOVDBG_LAB_ALL_POINTS=1, which takes some minutes for drgn; without, one
of a hundred.
"""

import os
import re
import subprocess
from collections import Counter

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.model.location import Frame
from kcovdbg.symbols.coverage_points import PointKind, find_points
from kcovdbg.symbols.dwarf_reader import read_comp_dir
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import build_table_file
from kcovdbg.target.drgn.lines import frames_at, open_image_program
from tests.lab.conftest import find_built
from tests.lab.kcovdbg_run import ask
from tests.support.programs import ask_llvm, output_of

ALL = os.environ.get("KCOVDBG_LAB_ALL_POINTS") == "1"
STEP = 1 if ALL else 101


@pytest.fixture(scope="module")
def image():
    return find_built("default").vmlinux


@pytest.fixture(scope="module")
def table(image, tmp_path_factory):
    path = build_table_file(image, folder=tmp_path_factory.mktemp("symbols"))
    return LocationTable(path)


def plain_pcs(table):
    """Return the points without tail calls of the callback, for which the table names the function
    that made the call.
    """
    tail_calls = set(table.pcs(PointKind.TAIL_KNOWN))
    assert tail_calls
    return [pc for pc in table.pcs() if pc not in tail_calls][::STEP]


def difference(mine, theirs):
    if len(mine) != len(theirs):
        return "depth"
    fields = {
        name
        for a, b in zip(mine, theirs, strict=True)
        for name in Frame._fields
        if getattr(a, name) != getattr(b, name)
    }
    return ", ".join(sorted(fields))


def compare(table, pcs, theirs, fields=Frame._fields):
    """Count the differences by kind, with an example of each."""
    counts, examples = Counter(), {}
    for pc, row, other in zip(pcs, table.get_rows(pcs), theirs, strict=True):
        mine = [
            frame._replace(**{name: None for name in Frame._fields if name not in fields})
            for frame in row[1]
        ]
        if what := difference(mine, other):
            counts[what] += 1
            examples.setdefault(what, (hex(pc), mine, other))
    return counts, examples


def without_detours(path):
    """Return a path without ``name/../``: the table has one spelling of each file."""
    before = None
    while before != path:
        before, path = path, re.sub(r"(?<![^/])(?!\.\.?/)[^/]+/\.\./", "", path, count=1)
    return path


def by_llvm_json(image, addresses, names):
    """Run llvm-symbolizer with another output format than the table's builder."""
    answers = ask_llvm(image, addresses, f"--functions={names}", "--no-demangle")
    assert len(answers) == len(addresses)
    for answer in answers:
        frames = [
            Frame(
                frame["FunctionName"] or None,
                frame["FileName"] or None,
                frame["Line"] or None,
                frame["Column"] or None,
            )
            for frame in answer
        ]
        # Without debug info it still prints the symbol's name, as for calls in assembly code.
        yield [] if len(frames) == 1 and frames[0][1:] == (None, None, None) else frames


def test_every_call_is_a_point(image, table):
    """objdump misreads some instructions that it does not know; the points that it finds must be in
    the table.
    """
    with ElfFile(image) as elf:
        points = find_points(elf)
        build_id = elf.build_id
    assert table.build_id == build_id
    assert table.pcs(PointKind.PC) == points.pc
    assert len(points.pc) > 200_000
    process = subprocess.Popen(
        ["objdump", "-d", "--no-show-raw-insn", str(image)],
        stdout=subprocess.PIPE,
        text=True,
        encoding="latin-1",
    )
    found = {"pc": set(), "cmp": set()}
    for line in process.stdout:
        if "<__sanitizer_cov_trace_" in line and "call" in line:
            kind = "pc" if "_trace_pc>" in line else "cmp"
            found[kind].add(int(line.split(":")[0], 16) + 5)
    assert process.wait() == 0
    assert found["pc"] <= set(points.pc)
    assert found["cmp"] <= set(points.cmp)
    print(
        f"points: {len(points.pc)} PC, {len(points.cmp)} CMP, {len(points.tail)} behind calls; "
        f"not in objdump's list: {len(points.pc) - len(found['pc'])} PC, "
        f"{len(points.cmp) - len(found['cmp'])} CMP"
    )


def test_table_equals_llvm_symbolizer(image, table):
    """Compare files, lines, columns, inlined frames, and names without the compiler's suffixes."""
    pcs = plain_pcs(table)
    with ElfFile(image) as elf:
        root = f"{read_comp_dir(elf)}/"
    counts, names = Counter(), Counter()
    answers = by_llvm_json(image, [pc - 1 for pc in pcs], "linkage")
    for row, theirs in zip(table.get_rows(pcs), answers, strict=True):
        relative = [
            frame._replace(file=frame.file and without_detours(frame.file.removeprefix(root)))
            for frame in theirs
        ]
        unnamed = [frame._replace(function=None) for frame in relative]
        what = difference([frame._replace(function=None) for frame in row[1]], unnamed)
        counts[what] += 1
        if what == "depth":
            continue
        for mine, other in zip(row[1], relative, strict=True):
            if mine.function != other.function:
                is_suffix = (
                    mine.function is not None
                    and strip_clone_suffix(other.function or "") == mine.function
                )
                names["suffix" if is_suffix else "other"] += 1
    print(f"llvm-symbolizer: {len(pcs)} points, differences {dict(counts)}, names {dict(names)}")
    assert counts == {"": len(pcs)}
    # Aliases of a function: DWARF names one of them, the symbol table several or another one.
    assert names["other"] <= len(pcs) // 100


def test_table_equals_drgn(image, table):
    pcs = list(table.pcs()) if ALL else plain_pcs(table)
    ranges = table.text_ranges()
    program = open_image_program(
        image, min(text.start for text in ranges), max(text.end for text in ranges)
    )
    theirs = [frames_at(program, pc - 1) for pc in pcs]
    counts, examples = compare(table, pcs, theirs)
    print(f"drgn: {len(pcs)} points, differences {dict(counts)}")
    assert not counts, examples


def test_points_of_a_module(standing_dump, userland):
    """Points in a loaded module's code, found by objdump from the relocations of its file; the
    guest prints its address.
    """
    dump = standing_dump()
    (told,) = [line for line in dump.lines if line.get("state") == "kc-keep"]
    (file,) = [path for path in userland.modules if path.stem == "kcovlab_keep"]
    shown = output_of("objdump", "-dr", file)
    for function in ("kcovlab_keep_inner", "kcovlab_keep_outer"):
        code = shown.partition(f" <{function}>:")[2].partition("\n\n")[0]
        calls = re.findall(
            r"([0-9a-f]+): R_X86_64_(?:PLT32|PC32)\t__sanitizer_cov_trace_(\w+)-0x4", code
        )
        start = int(shown.partition(f" <{function}>:")[0].split()[-1], 16)
        base = int(told["functions"][function], 16) - start
        expected = [(base + int(at, 16) + 4, "pc" if name == "pc" else "cmp") for at, name in calls]
        points, (about, *_) = ask(
            dump.target, f"points {function} fd:{told['tid']}/{told['fds'][0]}", f"why {function}"
        )
        assert [(int(row["address"], 16), row["kind"]) for row in points] == expected
        assert {row["symbol"] for row in points} == {function}
        assert any(row["hits"] for row in points)
        assert about["code"] == "function-instrumented"
        assert about["values"]["points"] == [name for _, name in calls].count("pc")
