# SPDX-License-Identifier: LGPL-2.1-or-later
"""Errors of drgn, and what a slice has for other debuggers."""

import drgn
import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import ReadError
from kcovdbg.target.drgn.drgn_messages import walking
from kcovdbg.target.drgn.lines import open_image_program
from kcovdbg.target.drgn.page_recorder import record
from kcovdbg.target.drgn.program_types import ProgramTypes
from kcovdbg.target.target_options import TargetOptions, open_target
from tests.support.programs import output_of


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


def test_static_variables_with_one_name(tmp_path):
    """Each is known by its own type, whichever of them drgn takes for the name."""
    sources = {
        "core/sysfs.c": "struct { int id; int (*show)(void); } attribute = { 1, speed };",
        "port/sysfs.c": "struct { int (*store)(void), (*next)(void); } attribute = { speed, speed };",
        "port/main.c": "int (*attribute[2])(void) = { speed };",
    }
    for number, (name, text) in enumerate(sources.items()):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        code = f"static int speed(void) {{ return {number}; }}\nstatic {text}\n"
        code += f"void *use{number}(void) {{ return &attribute; }}\n"
        (tmp_path / name).write_text(code)
    flags = ("-g", "-O0", "-no-pie", "-nostdlib", "-Wl,-e,use0", "-Wl,--build-id")
    output_of("gcc", *flags, "-o", "a", *sources, cwd=tmp_path)
    with ElfFile(tmp_path / "a") as elf:
        placed = sorted(symbol.address for symbol in elf.symbols if symbol.name == "attribute")
    program = open_image_program(tmp_path / "a", 0x400000, 0x500000, drgn.host_platform)
    types = ProgramTypes(program)
    found = [types.member_at("attribute", address, 8, sources) for address in placed]
    assert sorted(found, key=str) == [".next", ".show", "[1]"]
    assert types.member_at("attribute", placed[0] + 1, 8, sources) is None
    assert types.member_at("missing", placed[0], 8, sources) is None
