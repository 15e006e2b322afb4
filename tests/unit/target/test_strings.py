# SPDX-License-Identifier: LGPL-2.1-or-later
"""Strings in memory of which a part is missing."""

from kcovdbg.target.struct_layout import read_string
from tests.support.memory_target import MemoryTarget

PAGE = 0xFFFF_8880_0000_0000
LIMIT = 64


def test_string_near_a_missing_page():
    """An allocation of 64 bytes at the end of a page holds a name of 41 bytes after 16 others."""
    memory = bytearray(4096)
    address = PAGE + 4096 - 48
    memory[-48:] = b"a" * 40 + bytes(8)
    assert read_string(MemoryTarget(segments={PAGE: memory}), address, LIMIT) == "a" * 40


def test_string_without_its_end():
    memory = bytearray(b"a" * 4096)
    target = MemoryTarget(segments={PAGE: memory})
    assert read_string(target, PAGE + 4096 - 48, LIMIT) is None
    assert read_string(target, PAGE + 8192, LIMIT) is None
    assert read_string(target, PAGE, LIMIT) == "a" * LIMIT
