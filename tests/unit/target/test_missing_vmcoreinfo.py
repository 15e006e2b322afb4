# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finding a kernel in a stopped machine, and the VMCOREINFO of s390x kernels by the address in
their lowcore.
"""

import struct

import pytest

from kcovdbg.elf.header import make_note, parse_notes, parse_vmcoreinfo
from kcovdbg.errors import ReadError, TargetError
from kcovdbg.target import missing_vmcoreinfo
from kcovdbg.target.drgn import machines
from kcovdbg.target.missing_vmcoreinfo import CpuRegisters, MismatchError, read_lowcore_vmcoreinfo
from tests.support.page_tables import TableMemory

REGISTERS = (
    "\r\nCPU#0\r\nRAX=0000000000000000\r\nGDT=     fffffe7ae4708000 0000007f\r\nIDT=     "
    "fffffe0000000000 00000fff\r\n"
    "CR0=80050033 CR2=00007fffa7539f68 CR3=0000000000e53000 CR4=003106b0\r\n"
)
MTREE = """FlatView #1
 AS "I/O", root: io
 Root memory region: io
  0000000000000000-0000000000000007 (prio 0, i/o): dma-chan

FlatView #2
 AS "memory", root: system
 AS "cpu-memory-0", root: system
 Root memory region: system
  0000000000000000-00000000000c2fff (prio 0, ram): pc.ram
  00000000000c3000-00000000000e7fff (prio 0, rom): pc.ram @00000000000c3000
  00000000000f0000-00000000000fffff (prio 0, rom): pc.ram @00000000000f0000
  00000000febf8000-00000000febf8fff (prio 0, i/o): virtio-pci-common-virtio-rng
  0000000100000000-00000001000007ff (prio 0, ram): small
"""
LINK = 0xFFFF_FFFF_8100_1000
OFFSET = 0x3020_0000


def encode(physical, level):
    return physical | (0x63 if level is None else (0xE3 if level else 0x63) | 1 << 63)


def make_machine(handler=LINK + OFFSET, text=b"OSRELEASE=6.12.0\nKERNELOFFSET=30200000\n"):
    # The kernel's page table, and beside it the one that user space runs with.
    machine = TableMemory(0x10000, 0x20000, 4, encode)
    machine.write(machine.root + 4096, bytes(4096))
    idt, data = 0xFFFF_FE00_0000_0000, 0xFFFF_8880_0123_4FF0
    machine.map(idt, 0x1000)
    gate = struct.pack(
        "<HHHHII", handler & 0xFFFF, 0x10, 0x8E00, handler >> 16 & 0xFFFF, handler >> 32, 0
    )
    machine.write(0x1000, gate)
    # The image by a large page, the text of VMCOREINFO over two pages that are apart.
    machine.map(0xFFFF_FFFF_8220_0000 + OFFSET, 0x4000_0000, level=1)
    machine.write(0x4000_0000 + 0x100, struct.pack("<QQ", data, len(text)))
    machine.map(data & -4096, 0x5000)
    machine.map((data & -4096) + 4096, 0x9000)
    machine.write(0x5FF0, text[:16])
    machine.write(0x9000, text[16:])
    symbols = {
        "asm_exc_divide_error": LINK,
        "vmcoreinfo_data": 0xFFFF_FFFF_8220_0100,
        "vmcoreinfo_size": 0xFFFF_FFFF_8220_0108,
    }
    return machine, symbols, idt


def find(cpu, read, symbols, check=lambda offset, read: None):
    return CpuRegisters(*cpu).find_kernel("stub", read, symbols, check)


def test_registers_of_the_monitor():
    assert missing_vmcoreinfo.parse_registers(REGISTERS) == (
        0xFFFF_FE00_0000_0000,
        0xE53000,
        0x3106B0,
    )
    assert missing_vmcoreinfo.parse_registers("PC=0000 X00=0") is None


def test_memory_of_the_monitor():
    assert machines.find_ram(MTREE) == [range(0xE8000), range(0xF0000, 0x100000)]
    assert machines.find_ram("unknown command") == []


def test_the_kernel_is_found_whatever_the_cpu_did():
    machine, symbols, idt = make_machine()
    for cr3 in (machine.root, machine.root | 0x1000, machine.root | 0x1802):
        found = find((idt, cr3, 0x3106B0), machine.read, symbols)
        assert found.startswith(b"OSRELEASE=6.12.0\nKERNELOFFSET")


def test_a_page_table_at_an_odd_page_is_the_cpus_own():
    """Without page-table isolation, the page before it has any content, and may look like a page
    table.
    """
    machine, symbols, idt = make_machine()
    odd = machine.root + 4096
    machine.pages[odd] = machine.pages[machine.root]
    # Every entry leads to one page of text.
    machine.pages[machine.root] = bytearray(struct.pack("<Q", 0x77000 | 0x63) * 512)
    machine.pages[0x77000] = bytearray(struct.pack("<Q", 0x77000 | 0x63) * 512)
    found = find((idt, odd, 0), machine.read, symbols)
    assert found.startswith(b"OSRELEASE=")


def test_another_vmlinux():
    machine, symbols, idt = make_machine(handler=LINK + OFFSET + 0x40)
    with pytest.raises(TargetError, match="vmlinux does not match"):
        find((idt, machine.root, 0), machine.read, symbols)


def test_another_build_of_the_kernel():
    """Another kernel's tables may be where those of the vmlinux are; the release is found in the
    image.
    """
    machine, symbols, idt = make_machine()
    banner = 0xFFFF_FFFF_8100_2000 + OFFSET
    machine.map(banner & ~0x1F_FFFF, 0x6000_0000, level=1)
    text = b"Linux version %s\0 Linux version 5.4.1 (someone)\n\0"
    whole = bytearray(2 << 20)
    whole[0x2000 : 0x2000 + len(text)] = text

    def read(address, size):
        if 0x6000_0000 <= address < 0x6020_0000:
            return bytes(whole[address - 0x6000_0000 :][:size])
        return machine.read(address, size)

    def check(offset, read_image):
        assert offset == OFFSET
        assert read_image(banner, 13) == text[:13]
        raise MismatchError("no")

    with pytest.raises(MismatchError, match=r"5\.4\.1"):
        find((idt, machine.root, 0), read, symbols, check)


def test_a_kernel_without_vmcoreinfo():
    machine, symbols, idt = make_machine()
    banner, table = 0xFFFF_FFFF_8220_0200, 0xFFFF_FFFF_8220_3000
    machine.write(0x4000_0200, b"Linux version 6.12.0-rc1 (someone)\n".ljust(512, b"\0"))
    symbols = {"asm_exc_divide_error": LINK, "linux_banner": banner, "init_top_pgt": table}
    found = find((idt, machine.root, 0), machine.read, symbols)
    assert parse_vmcoreinfo(found) == {
        "OSRELEASE": "6.12.0-rc1",
        "PAGESIZE": "4096",
        "SYMBOL(swapper_pg_dir)": f"{table + OFFSET:x}",
        # As the kernel defines it: the physical address less what the address would have without
        # KASLR.
        "NUMBER(phys_base)": str(0x4000_3000 - (table + OFFSET - 0xFFFF_FFFF_8000_0000)),
        "NUMBER(pgtable_l5_enabled)": "0",
        "KERNELOFFSET": f"{OFFSET:x}",
    }


def test_registers_of_a_dump():
    """QEMUCPUState as QEMU 7.2 writes it."""
    state = bytearray(440)
    struct.pack_into("<II", state, 0, 1, 440)
    struct.pack_into("<Q", state, 384, 0xFFFF_FE00_0000_0000)
    struct.pack_into("<5Q", state, 392, 0x80050033, 0, 0x1234, 0xE53000, 0x3106B0)
    notes = (
        make_note("CORE", 1, bytes(336))
        + make_note("QEMU", 0, bytes(state))
        + make_note("QEMU", 0, bytes(100))
    )
    state[0] = 2
    notes += make_note("QEMU", 0, bytes(state))
    assert [*missing_vmcoreinfo.find_qemu_cpus(parse_notes(notes, "<"))] == [
        (0xFFFF_FE00_0000_0000, 0xE53000, 0x3106B0)
    ]


def test_a_kernel_that_hasnt_booted():
    machine, symbols, _ = make_machine()
    with pytest.raises(missing_vmcoreinfo.NotBootedError, match="interrupt descriptor table"):
        find((0, machine.root, 0), machine.read, symbols)
    machine.write(0x4000_0000 + 0x100, bytes(16))
    with pytest.raises(missing_vmcoreinfo.NotBootedError, match="VMCOREINFO"):
        find((0xFFFF_FE00_0000_0000, machine.root, 0), machine.read, symbols)


@pytest.mark.parametrize("handler", [0, 0x10_0000, LINK + 0x1000 + OFFSET])
def test_a_kernel_whose_interrupt_table_is_not_set_up(handler):
    """As while the kernel is unpacked, and until it has set up its traps."""
    machine, symbols, idt = make_machine(handler=handler)
    symbols["early_idt_handler_array"] = LINK + 0x1000
    with pytest.raises(missing_vmcoreinfo.NotBootedError):
        find((idt, machine.root, 0), machine.read, symbols)


def test_registers_before_the_kernel():
    assert missing_vmcoreinfo.is_before_kernel(
        "EAX=00000000 EBX=00000000\nEIP=0000fff0 EFL=00000002"
    )
    assert not missing_vmcoreinfo.is_before_kernel(REGISTERS)


def test_page_tables_that_lead_nowhere():
    machine, _, idt = make_machine()
    assert CpuRegisters(idt, machine.root, 0).translate(machine.read, 0xFFFF_9000_0000_0000) is None
    assert CpuRegisters(idt, 0x7000_0000, 0).translate(machine.read, idt) is None
    # Five levels are asked for, four are there.
    assert (
        CpuRegisters(idt, machine.root, 1 << 12).translate(machine.read, 0xFF11_0000_0000_0000)
        is None
    )


def test_pages_are_read_once():
    machine, _, _ = make_machine()
    reads = []

    def read(address, size):
        reads.append(address)
        return machine.read(address, size)

    memory = machines.CachedMemory(read)
    assert memory.read(0x5FF0, 8) == b"OSRELEAS"
    assert memory.read(0x5FF8, 8) == b"E=6.12.0"
    assert reads == [0x5000]
    with pytest.raises(ReadError):
        memory.read(0x5FF8, 16)


NOTE = 0x12345000


def reader(pointer, data):
    def read(address, size):
        if address == 0xE0C:
            return pointer.to_bytes(8, "big")
        if address == NOTE:
            return data.ljust(size, b"\0")
        raise ReadError(f"{address:#x}", address)

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
