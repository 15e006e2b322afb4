# SPDX-License-Identifier: LGPL-2.1-or-later
"""Images of memory that are not read are refused by the name of their format, with what to do
instead.
"""

import gzip
import struct

import pytest

from kcovdbg.errors import KcovdbgError
from kcovdbg.records.input_kind import InputKind, find_path_kind
from kcovdbg.records.pc_file import NotATraceError, read_pc_file
from kcovdbg.target.dump_file import unpack_dump

PAGE = 4096
# The interrupt vectors of a BIOS.
VECTORS = struct.pack("<HH", 0xFF53, 0xF000) * 256
BANNER = b"Linux version 6.12.0 (gcc)"
IMAGES = {
    "QEMU": b"QEVM\0\0\0\3",
    "libvirt": b"LibvirtQemudSave\2\0\0\0",
    "qcow2": b"QFI\xfb\0\0\0\3",
    "LiME": struct.pack("<IIQQQ", 0x4C694D45, 1, 0x1000, 0x9FFFF, 0),
    "AVML": struct.pack("<IIQQQ", 0x4C4D5641, 2, 0x1000, 0x9FFFF, 0),
    "VMware": struct.pack("<III", 0xBED2BED2, 8, 92),
    "Windows": b"PAGEDU64\x0f\0\0\0",
    "VirtualBox": b"\x7fVirtualBox SavedState V2.0\n",
    "s390": struct.pack(">QI", 0xA8190173618F23FD, 5),
    "Xen": b"\xff" * 8 + b"XENF\0\0\0\2",
    "raw": VECTORS,
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(("name", "start"), IMAGES.items())
def test_formats(tmp_path, name, start, pack):
    path = tmp_path / "memory"
    path.write_bytes(pack(start.ljust(PAGE, b"\0") + bytes(PAGE)))
    with pytest.raises(KcovdbgError) as caught:
        unpack_dump(path)
    assert name in str(caught.value)
    assert caught.value.hint
    with pytest.raises(NotATraceError) as caught:
        read_pc_file(path, path.read_bytes())
    assert name in caught.value.found
    found = find_path_kind(str(path))
    assert found.kind is InputKind.OTHER
    assert name in found.noun


def test_raw_memory_without_a_bios(tmp_path):
    path = tmp_path / "memory"
    content = bytearray(1 << 20)
    content[300_000 : 300_000 + len(BANNER)] = BANNER
    for size, mark, expected in (
        (1 << 20, b"", True),
        ((1 << 20) - 1, b"", False),
        (1 << 20, b"HdrS", False),
    ):
        content[0x202:0x206] = mark or bytes(4)
        path.write_bytes(content[:size])
        with pytest.raises(KcovdbgError) as caught:
            unpack_dump(path)
        assert ("raw memory" in str(caught.value)) is expected


def test_another_file(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(bytes(range(256)) * 16)
    with pytest.raises(KcovdbgError) as caught:
        unpack_dump(path)
    assert "memory" not in str(caught.value)
