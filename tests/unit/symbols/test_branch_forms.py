# SPDX-License-Identifier: LGPL-2.1-or-later
"""Instructions of machines whose branches have fixed forms: length, what each does to the flow of
control, and where to.
"""

import pytest

from kcovdbg.compiled_module import load_native
from kcovdbg.elf.header import EM_AARCH64, EM_RISCV, EM_S390
from kcovdbg.symbols.branches import describe_architecture
from tests.support.objdump import FLOWS

# The bytes, what they do, and how far from their start a branch leads.
ARM64 = [
    ("40000054", "BRANCH", 8),  # b.eq
    ("800000b4", "BRANCH", 16),  # cbz x0
    ("40001837", "BRANCH", 8),  # tbnz w0, #3
    ("e0ffff54", "BRANCH", -4),
    ("01000094", "CALL", 4),
    ("ffffff17", "JUMP", -4),
    ("c0035fd6", "RETURN", 0),
    ("ff0b5fd6", "RETURN", 0),  # retaa
    ("e0039fd6", "RETURN", 0),  # eret
    ("00021fd6", "INDIRECT_JUMP", 0),
    ("20003fd6", "INDIRECT_CALL", 0),
    ("000021d4", "TRAP", 0),  # brk #0x800
    ("0000008b", "NEXT", 0),
]
RISCV = [
    ("6304b500", "BRANCH", 8),  # beq a0, a1
    ("e31e05fe", "BRANCH", -4),  # bnez a0
    ("01c5", "BRANCH", 8),  # c.beqz a0
    ("75fd", "BRANCH", -4),  # c.bnez a0
    ("8280", "RETURN", 0),
    ("67800000", "RETURN", 0),
    ("8287", "INDIRECT_JUMP", 0),  # c.jr a5
    ("8297", "INDIRECT_CALL", 0),
    ("ef000001", "CALL", 16),
    ("6f000001", "JUMP", 16),
    ("02900000", "TRAP", 0),  # c.ebreak
    ("73001000", "TRAP", 0),
    ("73002010", "RETURN", 0),  # sret
    ("97000000e7800001", "CALL", 16),
    ("13000000", "NEXT", 0),
    ("0100", "NEXT", 0),
]
S390 = [
    ("a7840004", "BRANCH", 8),
    ("a784fffe", "BRANCH", -4),
    ("a7f40004", "JUMP", 8),
    ("a7040004", "NEXT", 0),
    ("c0f400000004", "JUMP", 8),
    ("c08400000004", "BRANCH", 8),
    ("c0e500000004", "CALL", 8),
    ("a7160004", "BRANCH", 8),  # brct
    ("ec1200048064", "BRANCH", 8),  # cgrje
    ("07fe", "RETURN", 0),
    ("077e", "MAY_LEAVE", 0),  # bner %r14
    ("07f1", "INDIRECT_JUMP", 0),
    ("0de1", "INDIRECT_CALL", 0),
    ("0700", "NEXT", 0),
    ("47000000", "NEXT", 0),
    ("af000000", "TRAP", 0),
    ("b90400f2", "NEXT", 0),
    ("e310f0000004", "NEXT", 0),
]


@pytest.mark.parametrize(
    ("machine", "code", "flow", "distance"),
    [
        (machine, *row)
        for machine, rows in ((EM_AARCH64, ARM64), (EM_RISCV, RISCV), (EM_S390, S390))
        for row in rows
    ],
)  # fmt: skip
def test_form(machine, code, flow, distance):
    ffi, lib = load_native()
    data = bytes.fromhex(code)
    decoded = ffi.new("struct kcovdbg_instruction *")
    lib.kcovdbg_decode(describe_architecture(machine), data, len(data), decoded)
    assert FLOWS[decoded.flow] == flow
    if flow in ("BRANCH", "CALL", "JUMP"):
        assert decoded.length + decoded.displacement == distance
    # c.ebreak is followed by something else here.
    assert decoded.length == (2 if code == "02900000" else len(data))


@pytest.mark.parametrize("machine", [EM_AARCH64, EM_RISCV, EM_S390])
def test_ends_are_never_passed(machine):
    ffi, lib = load_native()
    for first in range(256):
        decoded = ffi.new("struct kcovdbg_instruction *")
        lib.kcovdbg_decode(describe_architecture(machine), bytes([first]), 1, decoded)
        assert decoded.length == 1
