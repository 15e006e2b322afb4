# SPDX-License-Identifier: LGPL-2.1-or-later
"""Instructions of x86-64 by objdump."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from kcovdbg.compiled_module import load_native
from kcovdbg.elf.file import ElfFile

_LINE = re.compile(r"^\s*([0-9a-f]+):\t([0-9a-f]{2}(?: [0-9a-f]{2})*)\s*(?:\t(.*))?$")
_PREFIXES = re.compile(
    r"^(?:(?:cs|ds|es|fs|gs|ss|data16|addr32|bnd|lock|notrack|rep\w*|rex\S*|rex\.\w+) +)+"
)


class Instruction(NamedTuple):
    """An instruction as objdump prints it."""

    address: int
    code: bytes
    text: str
    """Mnemonic and operands, without prefixes; empty where objdump knows none."""


def disassemble(image: Path, *options: str) -> Iterator[Instruction]:
    """Iterate over the instructions of all sections with code; skip the test without objdump."""
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump")
    command = ["objdump", "-d", "-w", "--insn-width=16", *options, str(image)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            match = _LINE.match(line.rstrip())
            if match:
                yield Instruction(
                    int(match[1], 16), bytes.fromhex(match[2]), _PREFIXES.sub("", match[3] or "")
                )
    assert process.returncode == 0


_RETURNS = frozenset(
    "ret retw lret iret iretw iretl sysret sysretl sysexit sysexitl rsm eretu erets".split()
)
_TRAPS = frozenset("ud0 ud1 ud2 int1 int3 icebp".split())


def flow_of(instruction: Instruction) -> str:
    """Return what an instruction does, by its text: the name of one of ``KCOVDBG_FLOW_*``; padding
    counts as next.
    """
    mnemonic, _, operands = instruction.text.partition(" ")
    mnemonic = mnemonic.removesuffix("q")
    is_indirect = operands.lstrip().startswith("*")
    if mnemonic in ("call", "lcall", "callw"):
        return "INDIRECT_CALL" if is_indirect else "CALL"
    if mnemonic in ("jmp", "ljmp", "jmpw"):
        return "INDIRECT_JUMP" if is_indirect else "JUMP"
    if mnemonic.startswith(("j", "loop")) or mnemonic == "xbegin":
        return "BRANCH"
    if mnemonic in _RETURNS:
        return "RETURN"
    return "TRAP" if mnemonic in _TRAPS else "NEXT"


FLOWS = (
    "NEXT",
    "NEXT",
    "CALL",
    "JUMP",
    "BRANCH",
    "RETURN",
    "TRAP",
    "INDIRECT_CALL",
    "INDIRECT_JUMP",
    "MAY_LEAVE",
    "BAD",
)


Range = tuple[int, int]
"""The first address of a function, and its size."""


class Difference(NamedTuple):
    """An instruction that objdump decodes in another way."""

    address: int
    code: bytes
    theirs: Instruction | None
    flow: str


def compare_decoders(
    image: Path, pick: Callable[[list[Range]], Sequence[Range]] = list
) -> tuple[int, list[Difference]]:
    """Decode functions of a linked image; return the number of instructions, and those that objdump
    decodes in another way.

    :param pick: returns the functions that are decoded, of all: neighbours, for objdump decodes all
        that is between them as well.

    Where a length differs, the rest of the function is not compared.
    """
    ffi, lib = load_native()
    total = 0
    different = []
    with ElfFile(image) as elf:
        texts = [
            (section.address, bytes(elf.map_section(section))) for section in elf.text_sections()
        ]
        columns = elf.symbols.function_columns
        addresses, sizes = columns.addresses, columns.sizes
    picked = pick(sorted(set(zip(addresses, sizes, strict=True))))
    low = min(start for start, _ in picked)
    high = max(start + size for start, size in picked)
    bounds = (f"--start-address={low:#x}", f"--stop-address={high:#x}")
    theirs = {one.address: one for one in disassemble(image, *bounds)}
    for start, size in picked:
        for address, text in texts:
            if address <= start and size and start + size <= address + len(text):
                code = text[start - address : start - address + size]
                offsets, lengths = ffi.new("uint32_t[]", size), ffi.new("uint8_t[]", size)
                flows, displacements = ffi.new("uint8_t[]", size), ffi.new("int64_t[]", size)
                count = lib.kcovdbg_x86_decode_all(
                    code, size, offsets, lengths, flows, displacements
                )
                total += count
                for index in range(count):
                    at, end = start + offsets[index], start + offsets[index] + lengths[index]
                    other, flow = theirs.get(at), FLOWS[flows[index]]
                    is_same = (
                        other is not None
                        and len(other.code) == lengths[index]
                        and flow_of(other) == flow
                    )
                    if is_same and other is not None and flow in ("CALL", "JUMP", "BRANCH"):
                        target = int(
                            other.text.split()[-2 if other.text.endswith(">") else -1].split(",")[
                                -1
                            ],
                            16,
                        )
                        is_same = (end + displacements[index] - target) % (1 << 64) == 0
                    if not is_same:
                        different.append(
                            Difference(at, code[offsets[index] :][: lengths[index]], other, flow)
                        )
                    if other is None or len(other.code) != lengths[index]:
                        break
    return total, different
