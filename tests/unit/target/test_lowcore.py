# SPDX-License-Identifier: LGPL-2.1-or-later
"""VMCOREINFO of s390x kernels by the address in their lowcore."""

import pytest

from kcovdbg.elf.header import make_note
from kcovdbg.errors import TargetError
from kcovdbg.target.rsp import StubReadError
from kcovdbg.target.stub_kernel import read_lowcore_vmcoreinfo

NOTE = 0x12345000


def reader(pointer, data):
    def read(address, size):
        if address == 0xE0C:
            return pointer.to_bytes(8, "big")
        if address == NOTE:
            return data.ljust(size, b"\0")
        raise StubReadError(f"{address:#x}")

    return read


def test_found_by_its_address():
    note = make_note("VMCOREINFO", 0, b"OSRELEASE=6.12.0\nPAGESIZE=4096\n", ">")
    assert read_lowcore_vmcoreinfo(reader(NOTE, note)) == b"OSRELEASE=6.12.0\nPAGESIZE=4096\n"


@pytest.mark.parametrize(
    ("pointer", "data"),
    [
        pytest.param(0, b"", id="not booted"),
        pytest.param(NOTE | 1, b"", id="booting: the KASLR offset"),
        pytest.param(NOTE, make_note("CORE", 1, b"x", ">"), id="another note"),
        pytest.param(NOTE + 8, b"", id="not in memory"),
    ],
)
def test_none_where_there_is_none(pointer, data):
    with pytest.raises(TargetError):
        read_lowcore_vmcoreinfo(reader(pointer, data))
