# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV's generations that the lab can build: a kernel for each, and what is to be found in it.

Each has a recipe (its patches are under generations/) and the row of kcovdbg's table that it must be recognised as. What
`python -m tests.lab generations` makes of it is kept under tests/golden/generations/, and tested from there without building.
"""

from __future__ import annotations

import dataclasses

from tests.lab.architecture import ARCHITECTURES
from tests.lab.recipe import RECIPES, Recipe

# The objects whose debug info kcovdbg and drgn's helpers look at: types of what is walked, and variables that lead there.
DEBUG_INFO_OF = (
    "fs/file.o",
    "init/init_task.o",
    "init/version-timestamp.o",
    "kernel/cpu.o",
    "kernel/kcov.o",
    "kernel/module/main.o",
    "kernel/module/sysfs.o",
    "kernel/panic.o",
    "kernel/pid.o",
    "kernel/sched/core.o",
    "kernel/smp.o",
    "lib/maple_tree.o",
    "mm/init-mm.o",
    "mm/slab_common.o",
    "mm/slub.o",
    "mm/sparse.o",
    "mm/vmalloc.o",
)
# Where variables live while a function runs is most of the debug info, and nothing here asks for it.
GCC_FLAGS = ("-fno-var-tracking", "-gno-statement-frontiers")
FRAGMENTS = ("base.config", "kcov.config", "demo.config", "generation.config")
# What a release calls otherwise than 6.12, by its package.
RELEASE_FRAGMENTS = {"linux-source-6.1": ("linux-6.1.config",), "linux-source-7.3": ("linux-7.3.config",)}
PATCHES = ("few-debug-info.patch",)
MAKE = (f"DEBUG_INFO_OF={' '.join((*ARCHITECTURES['x86_64'].debug_info_of, *DEBUG_INFO_OF))}",)
# There are no tables of ACPI's that would say where QEMU's configuration device is, which takes VMCOREINFO.
COMMAND_LINE = "qemu_fw_cfg.ioport=12@0x510:0:1:4"


@dataclasses.dataclass(frozen=True)
class Generation:
    """A kernel that keeps KCOV's state in one way."""

    recipe: Recipe
    # As `info` names it: the row of kcovdbg.abi.generations's table.
    era: str
    # The posted series in it, as `info` names them.
    variants: tuple[str, ...] = ()
    # Where its slice is taken: a name of situation.SITUATIONS.
    situation: str = "softirq-over-local"
    # Names of section.STATES that this kernel is never in.
    never: tuple[str, ...] = ()
    # What it is called, if not by its recipe's name.
    label: str = ""
    # What the workload can't do in this kernel, by the name of the state that it then says to be missing.
    lacking: tuple[str, ...] = ()
    # Objects with debug info, beside those that all of them have.
    debug_info_of: tuple[str, ...] = ()
    # Whether a slice of it is committed; otherwise its kernel is there to be built by hand only.
    kept: bool = True
    # How many bytes its directory may take.
    limit: int = 3 << 19

    @property
    def name(self) -> str:
        return self.label or self.recipe.name

    def situations(self) -> list[str]:
        """Where it is compared with the truth."""
        # section.py takes offsets with drgn, which one can build without.
        from tests.lab import situation

        return [name for name in situation.SITUATIONS if name not in (*self.never, situation.CRASHED)]


def recipe(
    name: str,
    *,
    package: str = "linux-source-6.12",
    fragments: tuple[str, ...] = (),
    patches: tuple[str, ...] = (),
    compiler: str = "gcc",
    make: tuple[str, ...] = (),
    told: str = "",
    memory_mib: int = 128,
    debug_info_of: tuple[str, ...] = (),
) -> Recipe:
    """A recipe with what all generations have in common.

    :param told: what the workload is told of this kernel's KCOV: it never tries numbers that mean something else elsewhere.
    :param debug_info_of: further objects with debug info.
    """
    return Recipe(
        name=name,
        package=package,
        fragments=(*FRAGMENTS, *RELEASE_FRAGMENTS.get(package, ()), *fragments),
        patches=PATCHES + patches,
        compiler=compiler,
        make=(*(f"{word} {' '.join(debug_info_of)}" if debug_info_of else word for word in MAKE), *make),
        flags=GCC_FLAGS if compiler == "gcc" else (),
        command_line=f"{COMMAND_LINE} kcovlab.kcov={told}" if told else COMMAND_LINE,
        memory_mib=memory_mib,
        lines=1340,
    )


PATCHED = ("pci.config",)
# Of dataflow.patch: the device, and the functions that it records.
DATAFLOW = ("drivers/usb/core/message.o", "kernel/kcov_dataflow.o", "kernel/sys.o")
DATAFLOW_V1 = ("kernel/sys.o",)
# What is new in these kernels is a device, whose sections, if it has any, are those of hub_event().
OTHER_SECTIONS = ("vhost-section", "softirq-over-local", "softirq-over-none", "softirq-over-section", "softirq-over-idle")


GENERATIONS = {
    generation.name: generation
    for generation in [
        # The kernel that all of the lab's tests are about.
        Generation(RECIPES["default"], era="E9a", label="6.12-gcc"),
        # Spinlocks of 64 bytes: every member behind one lies elsewhere.
        Generation(recipe("6.1-gcc-locks", package="linux-source-6.1", fragments=("locks.config",)), era="E9a"),
        # Clang's debug info has the members in the order that they were given.
        Generation(
            recipe("6.12-clang-randstruct", fragments=("randstruct.config",), compiler="clang-16", make=("LLVM=-16",)),
            era="E9a",
        ),
        # A kernel of syzbot's shape. It boots for minutes, so that it is compared in three situations only.
        Generation(
            RECIPES["syzbot-gcc"],
            era="E9a",
            never=("vhost-section", "softirq-over-none", "softirq-over-section", "softirq-over-idle"),
            # It has three times the functions of the others.
            limit=7 << 19,
        ),
        # Another architecture: the kernel and the lab's programs by Debian's cross compiler, a machine without PCI.
        Generation(
            Recipe(
                name="6.12-arm64",
                package="linux-source-6.12",
                fragments=(*FRAGMENTS, "arm64.config", "arm64-kdump.config"),
                # All of its debug info, as PCs are looked up in it.
                flags=GCC_FLAGS,
                architecture="aarch64",
                lines=1400,
            ),
            era="E9a",
        ),
        # KASAN by software tags: pointers to objects and areas with a tag in the top byte.
        Generation(
            Recipe(
                name="6.12-arm64-tags",
                package="linux-source-6.12",
                fragments=(*FRAGMENTS, "arm64.config", "arm64-tags.config"),
                flags=GCC_FLAGS,
                architecture="aarch64",
                # Shadow memory.
                memory_mib=384,
                boot_seconds=400,
                lines=1400,
            ),
            era="E9a",
            kept=False,
        ),
        # The largest pages and addresses, on CPUs that have all of their bits and on those that have not. With QEMU's mte=on,
        # pointers have KASAN's tags as well.
        Generation(
            Recipe(
                name="6.12-arm64-52bit",
                package="linux-source-6.12",
                fragments=(*FRAGMENTS, "arm64.config", "arm64-52bit.config"),
                flags=GCC_FLAGS,
                architecture="aarch64",
                # The workload's buffers are counted in pages.
                memory_mib=1024,
                boot_seconds=240,
                lines=1400,
            ),
            era="E9a",
            kept=False,
        ),
        # Calls of two instructions or one, and page tables that drgn does not walk.
        Generation(
            Recipe(
                name="6.12-riscv64",
                package="linux-source-6.12",
                fragments=(*FRAGMENTS, "riscv64.config"),
                flags=GCC_FLAGS,
                architecture="riscv64",
                # QEMU 7.2 describes its CPUs in the old way only.
                command_line="riscv_isa_fallback",
                boot_seconds=240,
                lines=1400,
            ),
            era="E9a",
        ),
        # The highest byte first.
        Generation(
            Recipe(
                name="6.12-s390x",
                package="linux-source-6.12",
                fragments=(*FRAGMENTS, "s390x.config"),
                flags=GCC_FLAGS,
                architecture="s390x",
                lines=1400,
            ),
            era="E9a",
            limit=1 << 20,
        ),
        Generation(
            recipe("6.12-gcc-rt", fragments=("rt.config",)),
            era="E9a",
            situation="softirq-over-none",
            # Softirqs of USB run in ksoftirqd nearly always, never in the idle task, and seldom in another one that enables
            # softirqs again: hub_event()'s worker was met in minutes, the task that makes the traffic not in 1,713 stops.
            never=("softirq-over-local", "softirq-over-idle"),
        ),
        Generation(
            recipe(
                "6.1-clang-fixed",
                package="linux-source-6.1",
                fragments=("fixed.config",),
                compiler="clang-16",
                make=("LLVM=-16",),
            ),
            era="E9a",
        ),
        # The newest release that Debian has. The kernel is as large as 6.12-gcc's, with all of its debug info, so that
        # KCOVDBG_LAB_RECIPE=7.3-gcc gives it to any test of the lab.
        Generation(
            Recipe(
                name="7.3-gcc",
                package="linux-source-7.3",
                fragments=("base.config", "kcov.config", "linux-7.3.config"),
                flags=GCC_FLAGS,
                command_line="kcovlab.kcov=owner-member",
                lines=2100,
            ),
            era="E9b",
        ),
        # Functions are inlined across files. All of its debug info, as PCs are looked up in it.
        Generation(
            Recipe(
                name="7.3-clang-lto",
                package="linux-source-7.3",
                fragments=(*FRAGMENTS, "linux-7.3.config", "thin-lto.config"),
                compiler="clang-19",
                make=("LLVM=-19",),
                command_line=f"{COMMAND_LINE} kcovlab.kcov=owner-member",
                lines=1340,
            ),
            era="E9b",
            # Compilation units refer to types in others, so that few of them are no debug info.
            kept=False,
        ),
        # Drivers in Rust. All of its debug info, as PCs are looked up in it.
        Generation(
            Recipe(
                name="7.3-rust",
                package="linux-source-7.3",
                fragments=(*FRAGMENTS, "linux-7.3.config", "rust.config"),
                compiler="clang-19",
                make=("LLVM=-19",),
                command_line=f"{COMMAND_LINE} kcovlab.kcov=owner-member",
                lines=1400,
            ),
            era="E9b",
            kept=False,
        ),
        Generation(
            recipe(
                "7.3-gcc-kasan",
                package="linux-source-7.3",
                fragments=("kasan.config",),
                told="owner-member",
                # Shadow memory and quarantine.
                memory_mib=256,
            ),
            era="E9b",
        ),
        Generation(
            recipe("7.3-gcc-rt", package="linux-source-7.3", fragments=("rt.config",), told="owner-member"),
            era="E9b",
            situation="softirq-over-none",
            # In all of 1,078 stops, softirqs of USB ran in ksoftirqd, ktimers or rcuc.
            never=("softirq-over-local", "softirq-over-section", "softirq-over-idle"),
        ),
        # What no packaged source has, by patches of our own.
        Generation(
            recipe(
                "saved-per-cpu",
                fragments=PATCHED,
                patches=("saved-per-cpu.patch", "owner-without-mode.patch"),
                told="owner-without-mode",
            ),
            era="E5-E6",
        ),
        Generation(recipe("mode-remote", fragments=PATCHED, patches=("saved-per-cpu.patch",)), era="E7"),
        Generation(
            recipe(
                "owner-member", fragments=PATCHED, patches=("saved-per-cpu.patch", "owner-member.patch"), told="owner-member"
            ),
            era="E8",
        ),
        Generation(
            # Each object of this series takes a megabyte, and 128 bytes more for each word of its buffer.
            recipe(
                "unique-maps",
                fragments=PATCHED,
                patches=("saved-per-cpu.patch", "unique-maps.patch"),
                told="unique-maps",
                memory_mib=384,
            ),
            era="E7",
            variants=("UNIQ_PC/UNIQ_EDGE/UNIQ_CMP (January 2025)",),
        ),
        Generation(
            recipe(
                "unique-bitmap",
                fragments=(*PATCHED, "unique.config"),
                patches=("saved-per-cpu.patch", "unique-bitmap.patch"),
                told="unique-bitmap",
            ),
            era="E7",
            variants=("KCOV_UNIQUE_ENABLE v2-v4 (2025)",),
        ),
        Generation(
            recipe(
                "ext-records",
                fragments=(*PATCHED, "ext-records.config"),
                patches=("saved-per-cpu.patch", "ext-records.patch"),
                told="ext-records",
            ),
            era="E7",
            variants=("KCOV_TRACE_PC_EXT v1 (2026)",),
        ),
        # The series leaves no trace in types.
        Generation(recipe("paused-flag", fragments=PATCHED, patches=("paused-flag.patch",)), era="E9a", kept=False),
        # Two series that leave KCOV's own layout alone. KCOV_PAUSED leaves no trace in types.
        Generation(
            recipe(
                "dataflow",
                fragments=PATCHED,
                patches=("paused-flag.patch", "dataflow.patch"),
                told="dataflow",
                memory_mib=192,
                debug_info_of=DATAFLOW,
            ),
            era="E9a",
            variants=("kcov_dataflow in its own file (2026)",),
            situation="hub-section",
            never=OTHER_SECTIONS,
            debug_info_of=DATAFLOW,
        ),
        # The first posting of that series: no remote sections, and records that do not say how many values they have.
        Generation(
            recipe(
                "dataflow-v1",
                fragments=PATCHED,
                patches=("dataflow-v1.patch",),
                told="dataflow-v1",
                memory_mib=192,
                debug_info_of=DATAFLOW_V1,
            ),
            era="E9a",
            variants=("kcov_dataflow in kcov.c (2026)",),
            situation="standing",
            never=OTHER_SECTIONS,
            debug_info_of=DATAFLOW_V1,
        ),
    ]
}


def all_recipes() -> dict[str, Recipe]:
    """Every kernel that can be built, by name: the lab's own and the generations'."""
    return RECIPES | {generation.recipe.name: generation.recipe for generation in GENERATIONS.values()}
