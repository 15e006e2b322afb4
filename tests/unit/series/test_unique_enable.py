# SPDX-License-Identifier: LGPL-2.1-or-later
"""A bitmap that an ended session left: its words are no count."""

from __future__ import annotations

import pytest

from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import P1, P2

BITMAPS = {
    "every edge of the first word": [2**64 - 16, 0, 0x10],
    "few edges": [0x12, 0, 0, 0x8000],
    "kernel addresses by chance": [2**64 - 2, 2**64 - 1, 2**64 - 1],
}


OFFSETS = {
    "no KASLR offset": 0,
    "a KASLR offset that takes records out of the kernel's half": 0xFFFFFFFF80000000,
}


def idle(row, words, sequence=2):
    """Return a kernel with an object that is initialized again, and whose buffer starts with these
    words.
    """
    kernel = Kernel(row)
    kernel.put(
        kernel.objects["stopped"],
        "struct kcov",
        **{kernel._path("kcov", "sequence").replace(".", "__"): sequence},
    )
    for number in range(8):
        kernel.write_word(
            kernel.buffers["stopped"] + 8 * number, words[number] if number < len(words) else 0
        )
    return kernel


@pytest.mark.parametrize("row", [P1, P2], ids=lambda row: row.name)
@pytest.mark.parametrize("name", BITMAPS)
@pytest.mark.parametrize("offset", OFFSETS.values(), ids=OFFSETS)
def test_bitmap_is_no_count(row, name, offset):
    kernel = idle(row, BITMAPS[name])
    kernel.target.kaslr_offset = offset
    asker = Asker(kernel.target)
    (kcov,), _ = asker.rows(f"objects {kernel.objects['stopped']:#x}")
    assert (kcov["mode"], kcov["count"], kcov["full"]) == ("INIT", None, None)
    assert any("bitmap" in error for error in kcov["errors"])
    _, said = asker.rows(f"buffer kcov:{kernel.objects['stopped']:#x}")
    assert "bitmap" in said
    # Nothing is unread: no rule lacks the count.
    assert [row for row in asker.rows("check B1 B2")[0] if row["severity"] == "unknown"] == []
    codes = {row["code"] for row in asker.rows(f"why kcov:{kernel.objects['stopped']:#x}")[0]}
    assert not codes & {"coverage", "count-impossible", "buffer-full", "remote-enable-failed"}


@pytest.mark.parametrize("row", [P1, P2], ids=lambda row: row.name)
@pytest.mark.parametrize("offset", OFFSETS.values(), ids=OFFSETS)
def test_trace_of_an_ended_session_has_a_count(row, offset):
    """Of addresses, of comparisons, and one that user space reset."""
    text = Kernel(row).text - offset
    for words, count in (([2, text, text + 0x10], 2), ([1, 5, 1, 2, text], 1), ([0, text], 0)):
        kernel = idle(row, words)
        kernel.target.kaslr_offset = offset
        (kcov,), _ = Asker(kernel.target).rows(f"objects {kernel.objects['stopped']:#x}")
        assert (kcov["count"], kcov["errors"]) == (count, [])
