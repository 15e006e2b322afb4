# SPDX-License-Identifier: LGPL-2.1-or-later
"""Errors of drgn, and what a slice has for other debuggers."""

import pytest

from kcovdbg.errors import ReadError
from kcovdbg.target.drgn.drgn_messages import walking
from kcovdbg.target.drgn.page_recorder import record
from kcovdbg.target.target_options import TargetOptions, open_target


def test_what_drgn_has_no_class_for_is_a_gap():
    with (
        pytest.raises(ReadError, match=r"slab cache of files.*direct mapping"),
        walking("the slab cache of files"),
    ):
        raise Exception("could not find variable in direct mapping")  # noqa: TRY002
    # A bug in the program stays an internal error.
    with pytest.raises(RuntimeError), walking("the slab cache of files"):
        raise RuntimeError("a bug")


def test_a_slice_maps_the_whole_image():
    """Debuggers that do not walk page tables find what only drgn has read."""
    target = open_target(TargetOptions(demo=True))
    assert target.kaslr_offset
    recording, _ = record(target, lambda recorder: None)
    start, end = (target.symbol(name).address for name in ("_text", "__bss_stop"))
    assert any(run.vaddr <= start and end <= run.vaddr + run.size for run in recording.mapped)
    target.close()
