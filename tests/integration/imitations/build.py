# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compiles an imitation, runs it, and makes a crash dump of its memory: an ELF core with a
VMCOREINFO note.

It is then opened as any dump is, by its path and that of its program, which has the debug info.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import make_note
from tests.support.programs import output_of

HERE = Path(__file__).parent
ROWS = tuple(sorted(path.stem for path in (HERE / "rows").glob("*.h")))
_PREFIX = "TRUTH "
_ET_CORE, _PT_LOAD, _PT_NOTE = 4, 1, 4


@dataclass(frozen=True)
class Machine:
    """A machine that an imitation is compiled for.

    :param run: what runs its programs here.
    :param number: of ELF.
    :param word: bytes of a pointer.
    :param shift: what everything is moved by. On x86-64 it brings the program to where a kernel is;
        arm's has no KASLR.
    :param packages: of Debian's, that have compiler and what runs programs.
    """

    name: str
    compiler: str
    run: tuple[str, ...]
    number: int
    word: int
    big_endian: bool
    shift: int
    flags: tuple[str, ...] = ()
    packages: dict[str, str] = field(default_factory=dict)


_X86_64 = Machine(
    "x86_64", "gcc", (), 62, 8, False, 0xFFFFFFFF80000000, ("-Wl,-Ttext-segment=0x1000000",)
)
_S390X = Machine(
    "s390x",
    "s390x-linux-gnu-gcc",
    ("qemu-s390x-static", "-L", "/usr/s390x-linux-gnu"),
    22,
    8,
    True,
    0x10000000,
    packages={
        "s390x-linux-gnu-gcc": "gcc-s390x-linux-gnu",
        "/usr/s390x-linux-gnu/include/stdio.h": "libc6-dev-s390x-cross",
        "qemu-s390x-static": "qemu-user-static",
    },
)
_ARM = Machine(
    "arm",
    "arm-linux-gnueabihf-gcc",
    ("qemu-arm-static", "-L", "/usr/arm-linux-gnueabihf"),
    40,
    4,
    False,
    0,
    ("-marm",),
    {
        "arm-linux-gnueabihf-gcc": "gcc-arm-linux-gnueabihf",
        "/usr/arm-linux-gnueabihf/include/stdio.h": "libc6-dev-armhf-cross",
        "qemu-arm-static": "qemu-user-static",
    },
)
MACHINES = {machine.name: machine for machine in (_X86_64, _S390X, _ARM)}
CROSS = (_S390X, _ARM)
"""Big-endian, and with 32-bit words: made once, by ``python -m tests.integration.imitations``, and
kept.
"""
KEPT = HERE / "kept"


@dataclass(frozen=True)
class Imitation:
    """A program, a dump of its memory, and what it printed about itself."""

    program: Path
    core: Path
    truth: list[dict[str, Any]]

    def lines(self, state: str) -> list[dict[str, Any]]:
        """Return the lines about one kind of thing."""
        return [line for line in self.truth if line["state"] == state]


def find_kept(row: str, machine: Machine) -> Imitation:
    """Return an imitation that was made before; its files are compressed."""
    name = f"{row}-{machine.name}"
    truth = (
        zstandard.ZstdDecompressor()
        .decompressobj()
        .decompress((KEPT / f"{name}.truth.zst").read_bytes())
    )
    return Imitation(
        KEPT / f"{name}.zst",
        KEPT / f"{name}.core.zst",
        [json.loads(line) for line in truth.splitlines()],
    )


def source_digest(row: str) -> str:
    """Return a digest of everything that an imitation is made of, to notice one that is of older
    sources.
    """
    sources = [HERE / "imitation.c", HERE / "kernel.h", HERE / "rows" / f"{row}.h"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def make_imitation(row: str, machine: Machine, directory: Path, *flags: str) -> Imitation:
    """Compile the imitation of a generation, run it, and put its dump beside it.

    :param flags: more of them for the compiler.
    """
    program = directory / f"{row}-{machine.name}"
    command = [
        machine.compiler,
        "-std=gnu11",
        "-g",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fno-pie",
        "-no-pie",
    ]
    command += [
        "-Wl,--build-id",
        "-Wl,--defsym=_stext=__executable_start",
        f'-DROW="rows/{row}.h"',
        *machine.flags,
        *flags,
    ]
    # Paths in the debug info are relative, so that whoever builds it makes the same program.
    output_of(*command, f"-ffile-prefix-map={HERE}=.", "-o", program, "imitation.c", cwd=HERE)
    dump = program.with_suffix(".dump")
    said = output_of(*machine.run, program, dump, hex(machine.shift), machine.name)
    truth = [
        json.loads(line[len(_PREFIX) :]) for line in said.splitlines() if line.startswith(_PREFIX)
    ]
    core = program.with_suffix(".core")
    with ElfFile(program) as image:
        build_id = image.build_id
    assert build_id is not None
    truth[0] |= {"build_id": build_id, "sources": source_digest(row)}
    info = {
        "OSRELEASE": truth[0]["release"],
        "BUILD-ID": build_id,
        "PAGESIZE": "4096",
        # Nobody has page tables here; drgn wants to hear of some.
        "SYMBOL(swapper_pg_dir)": "1000",
        "KERNELOFFSET": f"{machine.shift:x}",
    }
    core.write_bytes(make_core(machine, read_pieces(dump.read_bytes()), info))
    dump.unlink()
    return Imitation(program, core, truth)


def read_pieces(dump: bytes) -> list[tuple[int, bytes]]:
    """Split what the program wrote into addresses and bytes."""
    pieces = []
    while dump:
        line, _, dump = dump.partition(b"\n")
        address, size = line.split()
        pieces.append((int(address, 16), dump[: int(size)]))
        dump = dump[int(size) :]
    return pieces


def make_core(
    machine: Machine, pieces: list[tuple[int, bytes]], vmcoreinfo: dict[str, str]
) -> bytes:
    """Return an ELF core that holds these pieces of virtual memory."""
    order, word = ">" if machine.big_endian else "<", "Q" if machine.word == 8 else "I"
    text = "".join(f"{key}={value}\n" for key, value in vmcoreinfo.items()).encode()
    note = make_note("VMCOREINFO", 0, text, order)
    header_size, entry_size = (64, 56) if machine.word == 8 else (52, 32)
    parts = [(_PT_NOTE, 0, note, 4), *((_PT_LOAD, address, data, 4096) for address, data in pieces)]
    ident = (
        b"\x7fELF"
        + bytes((2 if machine.word == 8 else 1, 2 if machine.big_endian else 1, 1))
        + bytes(9)
    )
    header = ident + struct.pack(
        f"{order}HHI{word}{word}{word}IHHHHHH",
        _ET_CORE, machine.number, 1, 0, header_size, 0, 0, header_size, entry_size, len(parts), 0, 0, 0,
    )  # fmt: skip
    offset = header_size + entry_size * len(parts)
    table, body = b"", b""
    for kind, address, data, align in parts:
        # Where it lies in the file is where it lies in its page.
        start = offset + len(body)
        body += bytes((address - start) % align)
        start = offset + len(body)
        if machine.word == 8:
            table += struct.pack(
                order + "IIQQQQQQ", kind, 6, start, address, 0, len(data), len(data), align
            )
        else:
            table += struct.pack(
                order + "IIIIIIII", kind, start, address, 0, len(data), len(data), 6, align
            )
        body += data
    return header + table + body
