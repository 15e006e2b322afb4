# SPDX-License-Identifier: LGPL-2.1-or-later
"""The decoder of x86-64, held against objdump; tests/lab holds it against objdump over a whole
kernel.
"""

import random

import pytest

from kcovdbg.compiled_module import load_native
from tests.support.compiled_image import run
from tests.support.objdump import FLOWS, compare_decoders, disassemble, flow_of

# One of each form that the maps treat in its own way.
CODE = """
.globl _start
.type _start, @function
_start:
    ret $8
    lretq
    iretq
    sysretq
    sysexitl
    ud2
    ud1 (%rax), %eax
    int3
    int $0x80
    call _start
    call *%rax
    call *8(%rax,%rcx,4)
    notrack jmp *%r11
    jmp *_start(,%rax,8)
    jmp *_start(%rip)
    jmp _start
    .byte 0xe9
    .long 100
    je _start
    jecxz _start
1:  jrcxz 1b
    loop 1b
    jne 1b
    jmp 1b
    xbegin _start
    xabort $3
    movabs $0x1122334455667788, %rax
    movabs 0x1122334455667788, %al
    mov $1, %ax
    mov $1, %eax
    movq $1, 8(%rsp,%rcx,2)
    movw $1, 0x1234(%rip)
    testb $1, (%rax)
    testl $1, (%rax)
    testw $1, (%rax)
    notl (%rax)
    enter $1, $2
    imul $5, (%rax), %ecx
    imul $0x555555, (%rax), %ecx
    shld $3, %rax, (%rcx)
    btq $5, (%rax)
    mov %cr3, %rax
    mov %rax, %db7
    lock cmpxchg16b (%rsi)
    rep movsb
    rep stosq
    lea _start(%rip), %rax
    lea _start(,%rax,4), %rax
    mov %gs:0, %rax
    mov %gs:8(%rip), %rax
    pushq $0x1234
    pushw $0x12
    pinsrw $1, %eax, %xmm0
    pshufb %xmm0, %xmm1
    palignr $3, %xmm0, %xmm1
    crc32b (%rax), %ecx
    movbe (%rax), %ecx
    vzeroupper
    vpshufd $1, %ymm0, %ymm1
    vpaddd (%rax), %ymm0, %ymm1
    vperm2f128 $1, %ymm0, %ymm1, %ymm2
    vpternlogd $1, 64(%rax), %zmm1, %zmm2
    vmovdqu64 0x40(%rsp), %zmm3
    kmovb %k1, %eax
    kshiftlb $1, %k1, %k2
    rorx $3, (%rax), %ecx
    endbr64
    pause
    nop
    nopw 0x0(%rax,%rax,1)
    rdrand %rax
    wrfsbase %rax
    invpcid (%rax), %rcx
    swapgs
    monitor
    vmcall
    clac
    fldcw (%rax)
    .byte 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0
.size _start, . - _start
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    (folder / "code.s").write_text(CODE)
    run(["gcc", "-nostdlib", "-static", "-no-pie", "-o", str(folder / "image"), "code.s"], folder)
    return folder / "image"


def test_forms(image):
    total, different = compare_decoders(image)
    assert total >= CODE.count("\n") - 8
    assert different == []


def test_constants_that_may_be_addresses(image):
    ffi, lib = load_native()
    start = min(one.address for one in disassemble(image))
    found = {}
    for one in disassemble(image):
        decoded = ffi.new("struct kcovdbg_instruction *")
        lib.kcovdbg_x86_decode(one.code, len(one.code), decoded)
        for index in range(decoded.operand_count):
            after = one.address + len(one.code) if decoded.is_relative[index] else 0
            found.setdefault(one.text.partition(" ")[0], []).append(after + decoded.operands[index])
    assert found["lea"] == [start, start]
    assert found["jmp"] == [start, start]


def test_ends_are_never_passed(image):
    """Of each instruction cut off at any byte, none is decoded but what it may begin with."""
    ffi, lib = load_native()
    for one in disassemble(image):
        for size in range(1, len(one.code)):
            decoded = ffi.new("struct kcovdbg_instruction *")
            lib.kcovdbg_x86_decode(ffi.from_buffer(one.code[:size]), size, decoded)
            assert 1 <= decoded.length <= size


def test_random_bytes(tmp_path):
    """Whatever objdump takes for a branch or a trap is one, and as long."""
    generator = random.Random(43)
    code = generator.randbytes(60000)
    (tmp_path / "code").write_bytes(code)
    ffi, lib = load_native()
    compared, wrong = 0, []
    for one in disassemble(tmp_path / "code", "-D", "-b", "binary", "-m", "i386:x86-64"):
        flow = flow_of(one)
        if "(bad)" in one.text or not one.text or flow == "NEXT":
            continue
        decoded = ffi.new("struct kcovdbg_instruction *")
        lib.kcovdbg_x86_decode(code[one.address :], len(code) - one.address, decoded)
        compared += 1
        # With the prefix 66, AMD's processors have displacements of 2 bytes, and Intel's of 4.
        if (FLOWS[decoded.flow], decoded.length) != (
            flow,
            len(one.code),
        ) and b"\x66" not in one.code[:3]:
            wrong.append(one)
    assert compared > 1500
    assert wrong == []
