# SPDX-License-Identifier: LGPL-2.1-or-later
"""The architectures that the lab builds and boots kernels for: all in which they differ, as data."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How to build for it, and the machine of QEMU's that its guests are."""

    # As `uname -m` says.
    name: str
    # The kernel's directory under arch/, and what boots, from the top of its build.
    directory: str
    image: str
    # The prefix of compiler and binutils; empty: the host's own.
    tools: str
    # Arguments for make.
    make: tuple[str, ...]
    # Program or file -> package, on top of what every build takes.
    packages: dict[str, str]
    qemu: str
    qemu_package: str
    # The machine, and a CPU that doesn't change with QEMU's version.
    machine: tuple[str, ...]
    cpu: str
    # How virtio's devices are attached: virtio-rng-<bus>.
    virtio: str
    # The first serial port, as the kernel's command line names it.
    console: str
    # What makes the character device `truth` a port of the guest's that no kernel message gets into.
    truth: tuple[str, ...]
    # Where _text is linked to.
    linked_at: int
    # In QEMU's `g` packet, up to the program counter: all of 64 bits.
    registers: tuple[str, ...]
    # Of words in its memory and of its registers, as struct has it.
    byte_order: str = "<"
    # How the guest hands VMCOREINFO to whoever dumps the machine; none where that is not possible.
    vmcoreinfo: tuple[str, ...] = ("-device", "vmcoreinfo")
    # Whether the machine has no seed for KASLR in its device tree.
    lacks_seed: bool = False
    # What external modules need of a kernel's build, beside what all need.
    module_files: tuple[str, ...] = ()
    # Its own among the objects whose debug info is looked at: see generation.py.
    debug_info_of: tuple[str, ...] = ()


ARCHITECTURES = {
    architecture.name: architecture
    for architecture in [
        Architecture(
            name="x86_64",
            directory="x86",
            image="arch/x86/boot/bzImage",
            tools="",
            make=(),
            packages={},
            qemu="qemu-system-x86_64",
            qemu_package="qemu-system-x86",
            machine=("-machine", "pc,accel=tcg,usb=off,vmport=off"),
            # With the protections that users' machines have, and with an instruction for random numbers so that nothing
            # waits for the kernel's pool.
            cpu="qemu64,+rdrand,+rdseed,+fsgsbase,+smap,+smep",
            virtio="pci",
            console="ttyS0",
            truth=("-serial", "chardev:truth"),
            linked_at=0xFFFFFFFF81000000,
            registers=("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", *(f"r{n}" for n in range(8, 16)), "pc"),
            module_files=("tools/objtool/objtool",),
            debug_info_of=(
                "arch/x86/kernel/cpu/common.o",
                "arch/x86/kernel/head64.o",
                "arch/x86/kernel/process.o",
                "arch/x86/kernel/setup_percpu.o",
                "arch/x86/mm/init_64.o",
            ),
        ),
        Architecture(
            name="aarch64",
            directory="arm64",
            image="arch/arm64/boot/Image",
            tools="aarch64-linux-gnu-",
            make=("ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-"),
            packages={
                "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
                "aarch64-linux-gnu-ld": "binutils-aarch64-linux-gnu",
                "/usr/aarch64-linux-gnu/include/stdio.h": "libc6-dev-arm64-cross",
            },
            qemu="qemu-system-aarch64",
            qemu_package="qemu-system-arm",
            # The device tree that this machine comes with has a seed for KASLR.
            machine=("-machine", "virt,accel=tcg,gic-version=3"),
            # Pointer authentication by an algorithm of QEMU's own: the architecture's takes most of the time there is.
            cpu="max,pauth-impdef=on,sve=off,sme=off,lpa2=off",
            virtio="device",
            console="ttyAMA0",
            truth=("-device", "virtio-serial-device", "-device", "virtconsole,chardev=truth"),
            linked_at=0xFFFF800080000000,
            registers=(*(f"x{n}" for n in range(31)), "sp", "pc"),
            debug_info_of=(
                "arch/arm64/kernel/process.o",
                "arch/arm64/kernel/setup.o",
                "arch/arm64/kernel/smp.o",
                "arch/arm64/mm/init.o",
                "arch/arm64/mm/mmu.o",
                # Where the CPUs have their data, which x86 sets up itself.
                "mm/percpu.o",
                # By saved_command_line drgn finds the direct mapping.
                "init/main.o",
            ),
        ),
        Architecture(
            name="riscv64",
            directory="riscv",
            image="arch/riscv/boot/Image",
            tools="riscv64-linux-gnu-",
            make=("ARCH=riscv", "CROSS_COMPILE=riscv64-linux-gnu-"),
            packages={
                "riscv64-linux-gnu-gcc": "gcc-riscv64-linux-gnu",
                "riscv64-linux-gnu-ld": "binutils-riscv64-linux-gnu",
                "/usr/riscv64-linux-gnu/include/stdio.h": "libc6-dev-riscv64-cross",
            },
            qemu="qemu-system-riscv64",
            qemu_package="qemu-system-misc",
            # Its firmware is a package of its own, opensbi.
            machine=("-machine", "virt,accel=tcg"),
            cpu="rv64",
            virtio="device",
            console="ttyS0",
            truth=("-device", "virtio-serial-device", "-device", "virtconsole,chardev=truth"),
            linked_at=0xFFFFFFFF80002000,
            registers=(*(f"x{n}" for n in range(32)), "pc"),
            # QEMU 7.2 makes this machine's fw_cfg after its devices.
            vmcoreinfo=(),
            lacks_seed=True,
            debug_info_of=(
                "arch/riscv/kernel/process.o",
                "arch/riscv/kernel/setup.o",
                "arch/riscv/kernel/smp.o",
                "arch/riscv/mm/init.o",
                # Where the CPUs have their data.
                "mm/percpu.o",
            ),
        ),
        Architecture(
            name="s390x",
            directory="s390",
            image="arch/s390/boot/bzImage",
            tools="s390x-linux-gnu-",
            make=("ARCH=s390", "CROSS_COMPILE=s390x-linux-gnu-"),
            packages={
                "s390x-linux-gnu-gcc": "gcc-s390x-linux-gnu",
                "s390x-linux-gnu-ld": "binutils-s390x-linux-gnu",
                "/usr/s390x-linux-gnu/include/stdio.h": "libc6-dev-s390x-cross",
            },
            qemu="qemu-system-s390x",
            qemu_package="qemu-system-misc",
            machine=("-machine", "s390-ccw-virtio,accel=tcg"),
            cpu="qemu",
            virtio="ccw",
            console="ttysclp0",
            truth=("-device", "virtio-serial-ccw", "-device", "virtconsole,chardev=truth"),
            linked_at=0x100000,
            registers=("mask", "pc"),
            byte_order=">",
            # The kernel leaves its address in the lowest page.
            vmcoreinfo=(),
            debug_info_of=(
                # By vmemmap_populate() drgn finds the array of struct page.
                "arch/s390/mm/vmem.o",
                # Where the CPUs have their data.
                "arch/s390/mm/init.o",
            ),
        ),
    ]
}
