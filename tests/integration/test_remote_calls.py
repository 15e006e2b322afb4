# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls of kcov_remote_start() in code that gcc makes here, as objdump finds them: in an image, and
in a module's memory.
"""

import platform
import re
import shutil
from types import SimpleNamespace

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import CapabilityError, ReadError
from kcovdbg.symbols.branches import open_code
from kcovdbg.symbols.remote_calls import RemoteCalls
from tests.support.programs import output_of, split_image

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() != "x86_64", reason="needs gcc for x86-64"
)

PAGE = 4096
# A wrapper that is inlined, one that is not and ends in a jump, and code between them that makes
# the image larger than a chunk.
SOURCE = """
#define KEPT __attribute__((noipa))
KEPT void kcov_remote_start(unsigned long handle) { asm volatile("" :: "r"(handle)); }
static inline __attribute__((always_inline)) void kcov_remote_start_common(unsigned long id) { kcov_remote_start(id); }
KEPT void near(void) { kcov_remote_start_common(1); asm volatile(""); }
asm(".skip 300000, 0x90");
KEPT void kcov_remote_start_usb(unsigned long id) { kcov_remote_start(1ul << 56 | id); }
KEPT void far(void) { kcov_remote_start_usb(2); asm volatile(""); }
KEPT __attribute__((section(".text.unlikely"))) void other(void) { kcov_remote_start(3); asm volatile(""); }
KEPT void none(void) { asm volatile(""); }
void _start(void) { near(); far(); other(); none(); asm volatile(""); }
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    folder = tmp_path_factory.mktemp("image")
    (folder / "a.c").write_text(SOURCE)
    flags = (
        "-O2 -fno-toplevel-reorder -fno-pie -no-pie -nostdlib -static -fcf-protection=none "
        "-Wl,--build-id"
    )
    output_of("gcc", *flags.split(), "-o", folder / "a", folder / "a.c")
    return folder / "a"


def by_objdump(image):
    """Return the addresses after the calls and jumps, with what they lead to."""
    text = output_of("objdump", "-d", "--no-show-raw-insn", image)
    found = re.findall(
        r"^ *([0-9a-f]+):\t(?:call|jmp) .*<(kcov_remote_start\w*)>$", text, re.MULTILINE
    )
    return sorted((int(address, 16) + 5, name) for address, name in found)


def test_calls_of_an_image(image):
    expected = by_objdump(image)
    assert [name for _, name in expected].count("kcov_remote_start") == 3
    assert [name for _, name in expected].count("kcov_remote_start_usb") == 1
    for offset in (0, 0x10000):
        calls = RemoteCalls(open_code(image, None, None), offset)
        assert calls.of_image() == [(address + offset, name) for address, name in expected]


def test_calls_of_a_stripped_image(image):
    debug_file, stripped = split_image(image)
    split = RemoteCalls(open_code(debug_file, stripped, None), 0)
    assert split.of_image() == by_objdump(image)


def test_calls_of_a_module(image):
    """Its code is in memory; a page of it may be missing."""
    calls, expected = RemoteCalls(open_code(image, None, None), 0), by_objdump(image)
    with ElfFile(image) as elf:
        text = elf.section(".text")
        end = text.address + text.size
        lost = max(address for address, _ in expected) & -PAGE
        whole, missing = calls.of_module(text.address, end, elf)
        assert (whole, missing) == (expected, 0)

        def read(address, size):
            if address <= lost < address + size:
                raise ReadError("no such page", address)
            return elf.read(address, size)

        part, missing = calls.of_module(text.address & -PAGE, end, SimpleNamespace(read=read))
        assert missing == 1
        assert part == [call for call in expected if call[0] & -PAGE != lost]


@pytest.mark.parametrize("name", ["stripped", "debug info alone", "another build", "none"])
def test_images_that_cannot_be_searched(image, name):
    debug_file, stripped = split_image(image)
    paths = {
        "stripped": stripped,
        "debug info alone": debug_file,
        "another build": image,
        "none": None,
    }
    with pytest.raises(CapabilityError):
        open_code(paths[name], None, "00" * 20 if name == "another build" else None)
