# SPDX-License-Identifier: LGPL-2.1-or-later
"""Images and tables made to exhaust memory or time, or to lead C code outside of what it was
given.
"""

import random
import resource
import struct
import subprocess
import time
import zlib
from array import array

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ElfError
from kcovdbg.errors import CapabilityError, LimitError
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.dwarf_reader import NO_UNIT, DwarfReader
from kcovdbg.symbols.location_table import LocationTable, TableError
from kcovdbg.symbols.table_builder import build_table_file
from kcovdbg.symbols.table_rows import LocationArrays, Locations
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.support.compiled_image import compile_image

FIELDS = "name type flags address offset size link info align entry".split()
SECTION = struct.Struct("<IIQQQQIIQQ")
ALLOC, EXEC, COMPRESSED = 2, 4, 0x800


def make_elf(path, **sections):
    """Write an image of sections: contents, or contents with flags."""
    names, body, headers = bytearray(b"\0"), bytearray(64), [SECTION.pack(*[0] * 10)]
    for name, data in {**sections, "shstrtab": b""}.items():
        data, flags = data if isinstance(data, tuple) else (data, 0)
        at = len(names)
        names += f".{name}\0".encode()
        data = bytes(names) if name == "shstrtab" else data
        headers.append(SECTION.pack(at, 1, flags, 0, len(body), len(data), 0, 0, 1, 0))
        body += data
    ident = b"\x7fELF\2\1\1".ljust(16, b"\0")
    body[:64] = ident + struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, 0, 0, len(body), 0, 64, 0, 0, 64, len(headers), len(headers) - 1
    )
    path.write_bytes(body + b"".join(headers))
    return path


def change_section(path, name, **changes):
    """Change fields of a section header."""
    with ElfFile(path) as elf:
        section, at = elf.section(name), elf.header.shoff
    with path.open("r+b") as file:
        file.seek(at + section.number * SECTION.size)
        fields = dict(zip(FIELDS, SECTION.unpack(file.read(64)), strict=True))
        file.seek(at + section.number * SECTION.size)
        file.write(SECTION.pack(*{**fields, **changes}.values()))
    return section


def test_overlapping_code_is_refused(tmp_path):
    """PCs found in two sections at the same addresses do not ascend."""
    image = compile_image(tmp_path)
    with ElfFile(image) as elf:
        address = elf.section(".text").address
    change_section(image, ".eh_frame", flags=ALLOC | EXEC, address=address + 8)
    with pytest.raises(ElfError, match=r"\.text|\.eh_frame"):
        build_table_file(image, folder=tmp_path / "tables")


def test_code_far_apart_is_refused(tmp_path):
    image = compile_image(tmp_path)
    change_section(image, ".eh_frame", flags=ALLOC | EXEC, address=1 << 40)
    with pytest.raises(CapabilityError):
        build_table_file(image, folder=tmp_path / "tables")


def test_image_without_points_has_names_and_blocks(tmp_path):
    """A kernel without KCOV has coverage by the addresses that another tool saw executed."""
    image = compile_image(
        tmp_path, "gcc", "-gdwarf-5", "-fno-sanitize-coverage=trace-pc", "-Dtrace_pc=no_callback"
    )
    subprocess.run(
        ["objcopy", "--redefine-sym", "__sanitizer_cov_trace_pc=another", image], check=True
    )
    table = LocationTable(build_table_file(image, folder=tmp_path / "tables"))
    assert not table.pcs(*PointKind)
    assert list(table.functions())


def compressed(claimed, size):
    return struct.pack("<I4xQQ", 1, claimed, 1) + zlib.compress(bytes(size))


def test_compressed_sections_take_what_they_claim(tmp_path):
    image = make_elf(
        tmp_path / "image",
        debug_small=(compressed(64, 64 << 20), COMPRESSED),
        debug_large=(compressed(1 << 50, 64), COMPRESSED),
        debug_short=(compressed(128, 64), COMPRESSED),
        zdebug_old=b"ZLIB" + struct.pack(">Q", 64) + zlib.compress(bytes(64 << 20)),
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ElfFile(image) as elf:
        assert elf.read_section(elf.section(".debug_small")) == bytes(64)
        assert elf.read_section(elf.section(".zdebug_old")) == bytes(64)
        assert elf.read_section(elf.section(".debug_small"), 8) == bytes(8)
        with pytest.raises(ElfError):
            elf.read_section(elf.section(".debug_short"))
        with pytest.raises(LimitError):
            elf.read_section(elf.section(".debug_large"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


def test_units_that_share_a_list_of_ranges(tmp_path):
    """Each of 40,000 units names the same list of 4,000 ranges: 160 million of them in an image of
    a megabyte.
    """
    # DW_TAG_compile_unit with DW_AT_ranges as DW_FORM_sec_offset and DW_AT_name as DW_FORM_string.
    abbrev = bytes((1, 0x11, 0, 0x55, 0x17, 0x03, 0x08, 0, 0, 0))
    entry = bytes((1, 0, 0, 0, 0, ord("a"), 0))
    unit = struct.pack("<IHIB", 7 + len(entry), 4, 0, 8) + entry
    ranges = b"".join(
        struct.pack("<QQ", 16 * number + 1, 16 * number + 9) for number in range(4000)
    ) + bytes(16)
    image = make_elf(
        tmp_path / "image", debug_info=unit * 40_000, debug_abbrev=abbrev, debug_ranges=ranges
    )
    with ElfFile(image) as elf:
        reader = DwarfReader(elf)
        start = time.process_time()
        assert set(reader.find_units(array("Q", [1, 10, 8, 16 * 3999 + 8]))) <= {
            39_999,
            NO_UNIT,
            *range(40_000),
        }
        assert time.process_time() - start < 5


# An entry of DW_RLE_offset_pair: a range of one byte.
RANGE = b"\x04\x00\x01"


def image_of_ranges(path, count):
    """Write an image whose one unit has so many ranges of one byte, in a compressed section."""
    # DW_TAG_compile_unit with DW_AT_ranges as DW_FORM_sec_offset, DW_AT_low_pc as DW_FORM_addr and
    # a name.
    abbrev = bytes((1, 0x11, 0, 0x55, 0x17, 0x11, 1, 0x03, 8, 0, 0, 0))
    unit = struct.pack("<HBBI", 5, 1, 8, 0) + b"\1" + struct.pack("<IQ", 12, 0x401000) + b"a.c\0"
    lists = struct.pack("<IHBBI", 0x7FFFFFEF, 5, 8, 0, 0) + RANGE * count + b"\0"
    return make_elf(
        path,
        debug_info=struct.pack("<I", len(unit)) + unit,
        debug_abbrev=abbrev,
        debug_rnglists=(
            struct.pack("<IIQQ", 1, 0, len(lists), 1) + zlib.compress(lists),
            COMPRESSED,
        ),
        debug_line=bytes(16),
    )


def test_ranges_take_no_memory_of_their_own(tmp_path):
    image = image_of_ranges(tmp_path / "image", 1 << 23)
    with ElfFile(image) as elf:
        reader = DwarfReader(elf)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert list(reader.find_units(array("Q", [0x400FFF, 0x401000, 0x401001]))) == [
            NO_UNIT,
            0,
            NO_UNIT,
        ]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 << 10


def test_lines_that_were_made_to_collide(tmp_path):
    """Of frames whose lines and columns had one slot of a table before hashes had a secret."""
    factor, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    inverse = pow(factor, -1, 1 << 64)

    def mix(value, word):
        value = (value ^ word) * factor & mask
        return value ^ value >> 29

    def unmix(value):
        found = value
        for _ in range(4):
            found = value ^ found >> 29
        return found

    start = mix(1, 2 << 32 | 1)
    words = [unmix(number << 24) * inverse & mask ^ start for number in range(1, 40_000)]
    frames = array("I")
    for word in words:
        frames.extend((2, 1, word >> 32, word & 0xFFFFFFFF))
    count = len(words)
    locations = Locations()
    locations.add(
        LocationArrays(
            b"a.c\0f\0", frames, array("I", range(1, count + 1)), array("I", range(count))
        )
    )
    assert len(locations.arrays().chain_ends) == count
    assert locations.probes < 16 * count


def test_tables_that_change_after_they_were_opened(tmp_path):
    """A table that was checked is what is used, whatever its owner does to the file."""
    path = build_table_file(compile_image(tmp_path), folder=tmp_path / "tables")
    table = LocationTable(path)
    pcs = list(table.pcs())
    with path.open("r+b") as file:
        file.write(b"\xff" * 2000)
        file.truncate(100)
    assert all(row is not None and row[1] for row in table.get_rows(pcs))
    assert list(table.functions())
    with pytest.raises(TableError):
        LocationTable(path)


@pytest.mark.parametrize("array", range(15))
def test_tables_with_a_right_checksum_are_checked(tmp_path, array):
    """Columns of other lengths than they should have, and numbers beyond the ends of others."""
    whole = build_table_file(compile_image(tmp_path), folder=tmp_path / "tables").read_bytes()
    entry = 80 + 16 * array
    at, size = struct.unpack_from("<QQ", whole, entry)
    path = tmp_path / "damaged"

    def refused(data):
        path.write_bytes(data[:72] + struct.pack("<I", zlib.crc32(data[80:])) + data[76:])
        try:
            LocationTable(path)
        except TableError:
            return True
        return False

    assert not refused(whole)
    assert refused(whole[:entry] + struct.pack("<QQ", at, size // 8 * 4) + whole[entry + 16 :])
    assert refused(whole[:entry] + struct.pack("<QQ", at, 1 << 62) + whole[entry + 16 :])
    assert refused(whole[:entry] + struct.pack("<QQ", 0, size) + whole[entry + 16 :])
    # Offsets, lines, columns, starts and sizes of functions may be any.
    may_be_any = array in (0, 6, 7, 10, 11)
    assert refused(whole[:at] + b"\xff" * size + whole[at + size :]) is not may_be_any


@pytest.mark.parametrize("name", [".debug_info", ".debug_abbrev"])
@pytest.mark.parametrize("with_dump", [True, False])
def test_damaged_debug_info_is_refused_in_one_sentence(demo, tmp_path, with_dump, name):
    """drgn and libdw name what they found, in exceptions of their own."""
    image = tmp_path / "vmlinux"
    data = bytearray(demo.vmlinux.read_bytes())
    with ElfFile(demo.vmlinux) as elf:
        section = elf.section(name)
    chance = random.Random(1)
    for _ in range(4000):
        data[section.offset + chance.randrange(section.size)] = chance.randrange(256)
    image.write_bytes(data)
    target = ("-c", demo.core) if with_dump else ()
    # Of an image, the rest is shown.
    done = run_kcovdbg(*target, "-s", image, "-q", "-e", "info", status=2 if with_dump else 0)
    said = done.stderr if with_dump else done.stdout
    assert "could not read debug info" in said
    assert "internal error" not in said
