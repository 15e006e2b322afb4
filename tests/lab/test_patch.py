# SPDX-License-Identifier: LGPL-2.1-or-later
"""``patch`` on diffs of the kernel's own source, held against QEMU's log of every instruction that
a guest executed.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.frontends.cli import main
from kcovdbg.records.line_states import SET, TraceRecords
from kcovdbg.symbols.coverage_points import PointKind
from tests.lab.kernel import Kernel
from tests.lab.test_executed_lines import Truth

# Diffs, files of each, hunks of each file, and lines of each hunk.
_PATCHES, _FILES, _HUNKS, _LINES = 20, 10, 3, 12
_CONTEXT = 3
# Calls that are the traces of each diff.
_TRACES = 6
_STATES = ("executed", "partly", "not-executed")


@pytest.fixture(scope="module")
def truth(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Truth]:
    if kernel.recipe.platform.name != "x86_64":
        pytest.skip("the log of instructions is of x86-64")
    with ElfFile(kernel.vmlinux) as elf:
        yield Truth(kernel, elf, tmp_path_factory.mktemp("executed"))


def choose_places(lines: Iterable[tuple[str, int]], tree: Path, seed: int) -> dict[str, list[int]]:
    """Return where hunks begin, by file: at some lines."""
    places: dict[str, list[int]] = {}
    for file, line in sorted(lines, key=lambda place: crc32(f"{seed} {place}".encode())):
        name = file.removeprefix("./")
        first = max(line - _LINES // 2, 1)
        known = places.get(name, [])
        is_free = all(abs(first - other) > _LINES + 2 * _CONTEXT for other in known)
        has_room = (
            len(known) < _HUNKS if known else len(places) < _FILES and (tree / name).is_file()
        )
        if is_free and has_room:
            places[name] = sorted((*known, first))
    return places


def write_diff(path: Path, tree: Path, places: Mapping[str, Sequence[int]]) -> None:
    """Write a diff that adds lines from each of some places on, of the text that is there."""
    parts = []
    for file, begins in places.items():
        lines = (tree / file).read_text(errors="replace").split("\n")
        parts.append(f"diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n")
        added = 0
        for first in begins:
            start, end = (
                max(first - _CONTEXT, 1),
                min(first + _LINES + _CONTEXT - 1, len(lines) - 1),
            )
            last = min(first + _LINES - 1, end)
            body = [
                ("+" if first <= number <= last else " ") + lines[number - 1]
                for number in range(start, end + 1)
            ]
            before = sum(line[0] == " " for line in body)
            parts.append(
                f"@@ -{start - added},{before} +{start},{len(body)} @@\n"
                + "".join(f"{line}\n" for line in body)
            )
            added += last - first + 1
    path.write_text("".join(parts))


def call_lines_of(
    truth: Truth, functions: Iterable[int], executed: set[int]
) -> dict[tuple[str, int], bool]:
    """Return the lines that code of functions was inlined at, and whether some of it was
    executed.
    """
    lines: dict[tuple[str, int], bool] = {}
    for function in functions:
        for start, size in truth.parts[function]:
            for one in truth.instructions.read(start, size):
                for line in one.frames[1:]:
                    lines[line] = lines.get(line, False) or one.address in executed
    return lines


def test_patches(
    truth: Truth, kernel: Kernel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line that a diff adds, by several calls together."""
    tally: Counter[str] = Counter()
    wrong = []
    slowest = 0.0
    everything = truth.finder.find_lines(TraceRecords({}, SET, frozenset({PointKind.PC})))
    with_code = {
        (file.removeprefix("./"), line.line)
        for file, lines in everything.files.items()
        for line in lines
    }
    for number in range(_PATCHES):
        chosen = truth.calls[number :: len(truth.calls) // _TRACES][:_TRACES]
        executed = {address for _, own in chosen for address in own}
        functions = sorted(
            {
                one
                for address in executed
                if (one := truth.finder.find_function(address)) is not None
            }
        )
        lines = truth.lines_of(functions, executed)
        diff = tmp_path / f"{number}.diff"
        write_diff(diff, kernel.tree, choose_places(lines, kernel.tree, number))
        traces = []
        for index, (call, _) in enumerate(chosen):
            trace = tmp_path / f"{number}-{index}.txt"
            trace.write_text("".join(f"{pc:#x}\n" for pc in call.records))
            traces.append(f"file:{trace}")
        start = time.monotonic()
        words = [
            "-s",
            str(kernel.vmlinux),
            "--source-dir",
            str(kernel.tree),
            "patch",
            str(diff),
            *traces,
            "--pc",
            "raw",
            "--json",
        ]
        status = main(words)
        slowest = max(slowest, time.monotonic() - start) if number else slowest
        rows = json.loads(capsys.readouterr().out)
        assert len(rows) == sum(
            line.startswith("+") and not line.startswith("+++")
            for line in diff.read_text().split("\n")
        )
        assert status == (1 if any(row["state"] == "not-executed" for row in rows) else 0)
        # Of lines of all other functions, not executed is right.
        own = {(file.removeprefix("./"), line): was for (file, line), was in lines.items()}
        calls = {
            (file.removeprefix("./"), line): was
            for (file, line), was in call_lines_of(truth, functions, executed).items()
        }
        for row in rows:
            place = row["file"], row["line"]
            tally[row["reason"] or row["state"]] += 1
            assert row["built_line"] == row["line"] or row["reason"] == "text", row
            if row["state"] in _STATES:
                # Of a line with code of its own, that decides; code that was inlined there makes it
                # executed.
                ran, ran_inlined = own.get(place, False), calls.get(place, False)
                has_own = place in with_code
                is_wrong = (
                    ran or (ran_inlined and not has_own)
                    if row["state"] == "not-executed"
                    else not (ran or ran_inlined)
                )
            else:
                is_wrong = row["state"] == "no-code" and own.get(place, False)
            wrong += [(number, *place, row["state"])] if is_wrong else []
    print(dict(tally), slowest)
    assert wrong == [], wrong
    decided = sum(tally[state] for state in _STATES)
    # Those that only inlined code is of are counted apart.
    undecided = tally["undecided"] + tally["moved"] + tally["edges"] + tally["outside"]
    assert decided >= 1000
    assert decided / (decided + undecided) >= 0.95
    assert decided / (decided + undecided + tally["inlined"]) >= 0.9
