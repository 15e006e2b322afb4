# SPDX-License-Identifier: LGPL-2.1-or-later
"""Exports beside what syzkaller's own syz-cover writes for the same PCs of the same image, kept in golden/syz_cover."""

from collections import Counter
from pathlib import Path

import pytest
import zstandard

from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Workspace
from kcovdbg.console.kernel import Kernel
from kcovdbg.console.runner import run_reporting
from kcovdbg.target.opener import TargetOptions, open_target
from tests.support.state import Streams

FOLDER = Path(__file__).parents[1] / "golden/syz_cover"


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    streams = Streams()
    demo = Workspace(COMMANDS, Kernel(lambda: open_target(TargetOptions(demo=True))), find_terminal=streams.find)
    out = tmp_path_factory.mktemp("syz_cover") / "out"

    def exported(name, pcs=FOLDER / "rawcover"):
        assert run_reporting(demo, f"export {name} file:{pcs} --pc call -o {out}") == 0
        return out.read_text().splitlines()

    return exported


def kept(name):
    return zstandard.ZstdDecompressor().decompressobj().decompress((FOLDER / f"{name}.zst").read_bytes()).decode().splitlines()


@pytest.mark.parametrize(("name", "rows"), [("funccover", 14016), ("rawcoverfiles", 13449), ("jsonl", 297370)])
def test_every_row_is_theirs(export, name, rows):
    ours, theirs = Counter(export(name)), Counter(kept(name))
    assert theirs.total() == rows
    assert not ours - theirs
    assert not theirs - ours


def test_rawcover_is_what_went_in(export):
    assert export("rawcover") == (FOLDER / "rawcover").read_text().splitlines()
