# SPDX-License-Identifier: LGPL-2.1-or-later
"""Notes of ELF files."""

import pytest

from kcovdbg.elf.header import NT_GNU_BUILD_ID, Note, find_build_id, make_note, parse_notes


@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_notes(byte_order):
    notes = [
        Note("GNU", NT_GNU_BUILD_ID, b"\x12\x34\x56"),
        Note("VMCOREINFO", 0, b"OSRELEASE=6.12\n"),
        Note("", 7, b""),
    ]
    data = b"".join(make_note(*note, byte_order) for note in notes)
    assert list(parse_notes(data, byte_order)) == notes
    assert find_build_id(notes) == "123456"
    assert find_build_id(notes[1:]) is None


@pytest.mark.parametrize("cut", [1, 5, 13])
def test_a_note_that_is_cut_off_is_left_out(cut):
    first, second = make_note("GNU", 1, b"whole"), make_note("GNU", 2, b"0123")
    assert [note.type for note in parse_notes(first + second[:-cut], "<")] == [1]
