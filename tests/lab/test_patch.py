# SPDX-License-Identifier: LGPL-2.1-or-later
"""``patch`` on diffs of the kernel's own source, compared with QEMU's log of every instruction that
a guest executed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import pytest

from kcovdbg.elf.file import ElfFile
from tests.lab.kernel import Kernel
from tests.lab.patch_truth import DECIDED, UNDECIDED, PatchTruth
from tests.lab.test_executed_lines import Truth

# Diffs, files of each, hunks of each file, and lines of each hunk.
_FEW_PATCHES, _PATCHES, _FILES, _HUNKS, _LINES = 8, 20, 10, 3, 12
_CONTEXT = 3
# Calls that are the traces of each diff.
_TRACES = 6


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


def test_patches(
    request: pytest.FixtureRequest, truth: Truth, kernel: Kernel, tmp_path: Path
) -> None:
    """Each line that a diff adds, by several calls together. ``--exhaustive`` asks about more."""
    tally: Counter[str] = Counter()
    wrong: list[object] = []
    judge = PatchTruth(truth, kernel.vmlinux, kernel.tree)
    count = _PATCHES if request.config.getoption("exhaustive") else _FEW_PATCHES
    for number in range(count):
        chosen = truth.calls[number :: len(truth.calls) // _TRACES][:_TRACES]
        executed = {address for _, own in chosen for address in own}
        lines = truth.lines_of(judge.find_functions(executed), executed)
        diff = tmp_path / f"{number}.diff"
        write_diff(diff, kernel.tree, choose_places(lines, kernel.tree, number))
        found = judge.judge(diff, chosen, tmp_path)
        assert len(found.rows) == sum(
            line.startswith("+") and not line.startswith("+++")
            for line in diff.read_text().split("\n")
        )
        has_missed = any(row["state"] == "not-executed" for row in found.rows)
        assert found.status == (1 if has_missed else 0)
        for row in found.rows:
            assert row["built_line"] == row["line"] or row["reason"] == "text", row
        tally.update(found.states)
        wrong += found.wrong
    print(dict(tally))
    assert wrong == [], wrong
    decided = sum(tally[state] for state in DECIDED)
    undecided = sum(tally[reason] for reason in UNDECIDED)
    assert decided >= 50 * count
    assert decided / (decided + undecided) >= 0.95
