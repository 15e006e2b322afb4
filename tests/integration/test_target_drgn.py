# SPDX-License-Identifier: LGPL-2.1-or-later
"""Features that drgn lacks, and the errors that are raised then."""

import drgn
import pytest

from kcovdbg.errors import ReadError
from kcovdbg.target.drgn.page_recorder import record
from kcovdbg.target.drgn.target import DrgnSlab, _walking
from kcovdbg.target.opener import TargetOptions, open_target

PLACE = 0xFFFFFFFF82000000


def make_program(symbols):
    prog = drgn.Program(drgn.Platform(drgn.Architecture.X86_64))

    def find(_prog, name, _address, _one):
        return (
            [drgn.Symbol(name, symbols[name], 8, drgn.SymbolBinding.GLOBAL, drgn.SymbolKind.OBJECT)] if name in symbols else []
        )

    prog.register_symbol_finder("made up", find, enable_index=0)
    return prog


def test_where_memory_is_mapped_is_found_without_debug_info():
    prog = make_program({"saved_command_line": PLACE, "other": PLACE + 8})
    with pytest.raises(LookupError):
        prog["saved_command_line"]
    DrgnSlab(prog)
    # A second one of the same program changes nothing.
    DrgnSlab(prog)
    assert prog["saved_command_line"].address_ == PLACE
    assert prog["saved_command_line"].type_.type_name() == "char *"
    with pytest.raises(LookupError):
        prog["other"]


def test_nothing_is_made_up():
    prog = make_program({})
    DrgnSlab(prog)
    with pytest.raises(LookupError):
        prog["saved_command_line"]


def test_what_drgn_has_no_class_for_is_a_gap():
    with pytest.raises(ReadError, match=r"slab cache of files.*direct mapping"), _walking("the slab cache of files"):
        raise Exception("could not find variable in direct mapping")  # noqa: TRY002
    # A bug in the program stays an internal error.
    with pytest.raises(RuntimeError), _walking("the slab cache of files"):
        raise RuntimeError("a bug")


def test_a_slice_maps_the_whole_image():
    """Debuggers that do not walk page tables find what only drgn has read."""
    target = open_target(TargetOptions(demo=True))
    assert target.kaslr_offset
    recording, _ = record(target, lambda recorder: None)
    start, end = (target.symbol(name).address for name in ("_text", "__bss_stop"))
    assert any(run.vaddr <= start and end <= run.vaddr + run.size for run in recording.mapped)
    target.close()
