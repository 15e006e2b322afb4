# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernels that the lab can build. A recipe is data: all that goes into a kernel, and so
into its key.

config/recipes.ini has them, and config/architectures.ini the architectures that they are for.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from pathlib import Path

from tests.lab import rust_tools
from tests.support.ini_tables import read_table

HERE = Path(__file__).parent

# Counts up whenever kernel.py changes what it makes of a recipe, so that kernels built the old way
# aren't taken.
BUILD_REVISION = 1


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How to build for it, and the machine of QEMU's that its guests are."""

    # As `uname -m` says.
    name: str
    # The kernel's directory under arch/, and what boots, from the top of its build.
    directory: str
    image: str
    qemu: str
    qemu_package: str
    # The machine, and a CPU that doesn't change with QEMU's version.
    machine: tuple[str, ...]
    cpu: str
    # How virtio's devices are attached: virtio-rng-<bus>.
    virtio: str
    # The first serial port, as the kernel's command line names it.
    console: str
    # What makes the character device `truth` a port of the guest's that no kernel message gets
    # into.
    truth: tuple[str, ...]
    # Where _text is linked to.
    linked_at: int
    # In QEMU's `g` packet, up to the program counter: all of 64 bits.
    registers: tuple[str, ...]
    # The prefix of compiler and binutils; empty: the host's own.
    tools: str = ""
    # Arguments for make.
    make: tuple[str, ...] = ()
    # Program or file -> package, on top of what every build takes.
    packages: dict[str, str] = dataclasses.field(default_factory=dict)
    # Of words in its memory and of its registers, as struct has it.
    byte_order: str = "<"
    # How the guest hands VMCOREINFO to whoever dumps the machine; none where that is not possible.
    vmcoreinfo: tuple[str, ...] = ("-device", "vmcoreinfo")
    # Whether the machine has no seed for KASLR in its device tree.
    lacks_seed: bool = False
    # What external modules need of a kernel's build, beside what all need.
    module_files: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A kernel: the source package it is made from and everything done to it."""

    name: str
    # Files under config/, later ones override earlier ones.
    fragments: tuple[str, ...]
    # The Debian package that ships /usr/src/<package>.tar.xz.
    package: str = "linux-source-6.12"
    # Files under generations/, applied in this order.
    patches: tuple[str, ...] = ()
    compiler: str = "gcc"
    # A name of ARCHITECTURES.
    architecture: str = "x86_64"
    # Further arguments for make, such as LLVM=1.
    make: tuple[str, ...] = ()
    # Further flags for the compiler.
    flags: tuple[str, ...] = ()
    # What the kernel must be told when it boots. It is the same kernel without. By kcovlab.kcov=
    # the workload is told of its KCOV: it never tries numbers that mean something else elsewhere.
    command_line: str = ""
    # make's target that completes the fragments: with allnoconfig an option that none of them sets
    # is off, with alldefconfig it has its default.
    target: str = "allnoconfig"
    # How much memory its guests need at least.
    memory_mib: int = 128
    # Seconds until all of its states stand, at most.
    boot_seconds: int = 600
    # Lines that make prints in a whole build: only the progress display cares.
    lines: int = 2000
    # For one that is tested in each situation: as `info` names it, the row of
    # kcovdbg.abi.generations's table.
    era: str = ""
    # The posted series in it, as `info` names them.
    variants: tuple[str, ...] = ()
    # Where its slice is taken: a name of situation.SITUATIONS.
    situation: str = "softirq-over-local"
    # Names of section.STATES that this kernel is never in.
    never: tuple[str, ...] = ()
    # What it is called as a generation, if not by its name.
    label: str = ""
    # Objects whose debug info a slice of it comes with.
    debug_info_of: tuple[str, ...] = ()
    # Whether a slice of it is committed; otherwise its kernel is there to be built by hand only.
    kept: bool = True
    # How many bytes its directory may take.
    limit: int = 3 << 19

    @property
    def platform(self) -> Architecture:
        """What it is built for."""
        return ARCHITECTURES[self.architecture]

    @property
    def compiler_program(self) -> str:
        """The compiler as it is called: one that makes code for another architecture bears its
        name.
        """
        return f"{self.platform.tools}{self.compiler}"

    @property
    def has_shadow_memory(self) -> bool:
        """Whether KASAN maps a byte for each 8 bytes of all addresses."""
        return "CONFIG_KASAN=y" in self.configuration.splitlines()

    @property
    def has_rust(self) -> bool:
        """Whether it takes a Rust compiler."""
        return "CONFIG_RUST=y" in self.configuration.splitlines()

    @property
    def tarball(self) -> Path:
        """Where the package puts the source."""
        return Path("/usr/src") / f"{self.package}.tar.xz"

    @property
    def source_name(self) -> str:
        """The directory that debug info names: one that is nobody's home, the same wherever the
        kernel was built.
        """
        return f"/usr/src/{self.package}"

    def make_arguments(self) -> list[str]:
        """What each call of make takes, for the kernel as for its modules."""
        arguments = [*self.platform.make, *self.make]
        if self.compiler != "gcc" and not any(
            argument.startswith("LLVM") for argument in self.make
        ):
            arguments.append(f"CC={self.compiler}")
        return [*arguments, *rust_tools.make_arguments()] if self.has_rust else arguments

    # Files are read once, as a build takes minutes, and its key must be of what it was made from.

    @functools.cached_property
    def configuration(self) -> str:
        """All fragments as one; where two set the same option, only the last setting is left."""
        settings: dict[str, str] = {}
        for name in self.fragments:
            for line in (HERE / "config" / name).read_text().splitlines():
                if (option := option_of(line)) is not None:
                    settings.pop(option, None)
                    settings[option] = line.strip()
        return "".join(f"{line}\n" for line in settings.values())

    @functools.cached_property
    def patch_texts(self) -> list[str]:
        return [(HERE / "generations" / name).read_text() for name in self.patches]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of what is ours in the recipe; the package's and the compiler's versions come on
        top in the key.
        """
        content = {
            "revision": BUILD_REVISION,
            "package": self.package,
            "configuration": self.configuration,
            "patches": self.patch_texts,
            "compiler": self.compiler,
            "make": self.make,
        }
        if self.flags:
            content["flags"] = self.flags
        if self.platform.make:
            content["architecture"] = self.platform.make
        if self.target != "allnoconfig":
            content["target"] = self.target
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def key(self, package_version: str, compiler_version: str) -> str:
        """The name of the kernel's directory in the cache."""
        digest = hashlib.sha256(
            json.dumps([self.fingerprint, package_version, compiler_version]).encode()
        )
        return f"{self.name}-{digest.hexdigest()[:16]}"


def option_of(line: str) -> str | None:
    """The option that a line of a configuration sets or unsets."""
    line = line.strip()
    if line.startswith("CONFIG_") and "=" in line:
        return line.partition("=")[0]
    if line.startswith("# CONFIG_") and line.endswith(" is not set"):
        return line.split()[1]
    return None


ARCHITECTURES = read_table(Architecture, HERE / "config" / "architectures.ini")
RECIPES = read_table(Recipe, HERE / "config" / "recipes.ini")
# KCOV's generations that the lab can build, by the names of their directories under
# tests/golden/generations/.
GENERATIONS = {recipe.label or recipe.name: recipe for recipe in RECIPES.values() if recipe.era}
