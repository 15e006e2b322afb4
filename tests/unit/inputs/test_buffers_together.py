# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks by name, patterns of names and ``all``, wherever a buffer or a task is named; and columns
that are never cut.
"""

from dataclasses import replace

import pytest

from kcovdbg.console.terminal import Color, Painter, Terminal
from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E2, E9A


@pytest.fixture
def kernel():
    return Kernel(E9A)


def test_tasks_by_a_pattern(kernel):
    """Comparisons are not in one buffer with PCs."""
    rows, said = Asker(kernel.target).rows("buffer 'executor*'")
    of_tasks = [kernel.truth.objects[name] for name in ("local", "full", "orphan")]
    assert len(rows) == sum(kcov.count for kcov in of_tasks)
    assert "41 has comparisons" in said


@pytest.mark.parametrize("row", [E2, E9A], ids=lambda row: row.name)
def test_all_buffers(row):
    kernel = Kernel(row)
    rows, _ = Asker(kernel.target).rows("buffer all")
    kept = [
        kcov.count
        for kcov in kernel.truth.objects.values()
        if kcov.count and kcov.mode != "TRACE_CMP"
    ]
    sections = [words for size, words in kernel.truth.areas.values()] if row.has_remote else []
    assert sum(kept) <= len(rows) <= sum(kept) + sum(sections)
    assert bool(sections) == (len(rows) > sum(kept))


def test_nothing_matches(kernel):
    asker = Asker(kernel.target)
    for line in ("buffer 'no*'", "last 'no*'", "objects 'no*'"):
        out, said = asker.ask(line)
        assert (out, "'no*'" in said) == ("", True)


@pytest.mark.parametrize(
    ("word", "pids"), [("executor", {40}), ("executor/?", {41, 42, 43}), ("40", {40})]
)
def test_last_takes_names(kernel, word, pids):
    rows, _ = Asker(kernel.target).rows(f"last {word}")
    assert {row["pid"] for row in rows} == pids


def test_objects_take_patterns(kernel):
    rows, _ = Asker(kernel.target).rows("objects 'executor/?'")
    assert {row["pid"] for row in rows} == {41, 42, 43}


class NarrowAsker(Asker):
    """Asks on a terminal of 80 columns."""

    def _terminal(self, _color):
        return replace(
            Terminal(self.out, self.err, None, Painter(), Painter(), Color.NEVER), width=80
        )


def test_references_are_never_cut(kernel):
    """One corrupt count widens no column, either."""
    kernel.write_word(kernel.buffers["full"], 0xFFFFA56440886000)
    out, _ = NarrowAsker(kernel.target).ask("objects")
    rows, _ = Asker(kernel.target).rows("objects")
    assert max(map(len, out.splitlines())) <= 80
    text = " ".join(out.split())
    (full,) = [row for row in rows if row["kcov"] == hex(kernel.objects["full"])]
    assert "fd 40/5, vma 40" in text
    assert full["count"] == 0xFFFFA56440886000
    assert str(full["count"]) in Asker(kernel.target).ask("objects --wide")[0]
