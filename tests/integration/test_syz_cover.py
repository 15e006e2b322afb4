# SPDX-License-Identifier: LGPL-2.1-or-later
"""Exports beside what syzkaller's own syz-cover writes for the same PCs of the same image, kept in
golden/syz_cover.
"""

from collections import Counter
from pathlib import Path

import pytest
import zstandard

FOLDER = Path(__file__).parents[1] / "golden/syz_cover"


@pytest.fixture
def export(opened_demo, tmp_path):
    def exported(name):
        opened_demo.run(f"export {name} file:{FOLDER}/rawcover --pc call -o {tmp_path}/out")
        return (tmp_path / "out").read_text().splitlines()

    return exported


def kept(name):
    return (
        zstandard.ZstdDecompressor()
        .decompressobj()
        .decompress((FOLDER / f"{name}.zst").read_bytes())
        .decode()
        .splitlines()
    )


@pytest.mark.parametrize(
    ("name", "rows"), [("funccover", 14016), ("rawcoverfiles", 13449), ("jsonl", 297370)]
)
def test_every_row_is_theirs(export, name, rows):
    ours, theirs = Counter(export(name)), Counter(kept(name))
    assert theirs.total() == rows
    assert not ours - theirs
    assert not theirs - ours


def test_rawcover_is_what_went_in(export):
    assert export("rawcover") == (FOLDER / "rawcover").read_text().splitlines()
