# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which kernels the lab knows how to build. A recipe is data: all that goes into a kernel, and so into its key."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from tests.lab import rust_tools
from tests.lab.architecture import ARCHITECTURES, Architecture

HERE = Path(__file__).parent

# Counts up whenever kernel.py changes what it makes of a recipe, so that kernels built the old way aren't taken.
BUILD_REVISION = 1


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A kernel: the source package it is made from and everything done to it."""

    name: str
    # The Debian package that ships /usr/src/<package>.tar.xz.
    package: str
    # Files under config/, later ones override earlier ones.
    fragments: tuple[str, ...]
    # Files under generations/, applied in this order.
    patches: tuple[str, ...] = ()
    compiler: str = "gcc"
    # A name of architecture.ARCHITECTURES.
    architecture: str = "x86_64"
    # Further arguments for make, such as LLVM=1.
    make: tuple[str, ...] = ()
    # Further flags for the compiler.
    flags: tuple[str, ...] = ()
    # What the kernel must be told when it boots. It is the same kernel without.
    command_line: str = ""
    # make's target that completes the fragments: with allnoconfig an option that none of them sets is off, with alldefconfig it
    # has its default.
    target: str = "allnoconfig"
    # How much memory its guests need at least.
    memory_mib: int = 128
    # Seconds until all of its states stand, at most.
    boot_seconds: int = 120
    # Lines that make prints in a whole build: only the progress display cares.
    lines: int = 2000

    @property
    def platform(self) -> Architecture:
        """What it is built for."""
        return ARCHITECTURES[self.architecture]

    @property
    def compiler_program(self) -> str:
        """The compiler as it is called: one that makes code for another architecture bears its name."""
        return f"{self.platform.tools}{self.compiler}"

    @property
    def has_shadow_memory(self) -> bool:
        """Whether KASAN maps a byte for each 8 bytes of all addresses."""
        return "CONFIG_KASAN=y" in self.configuration().splitlines()

    @property
    def has_rust(self) -> bool:
        """Whether it takes a Rust compiler."""
        return "CONFIG_RUST=y" in self.configuration().splitlines()

    @property
    def tarball(self) -> Path:
        """Where the package puts the source."""
        return Path("/usr/src") / f"{self.package}.tar.xz"

    @property
    def source_name(self) -> str:
        """The directory that debug info names: one that is nobody's home, the same wherever the kernel was built."""
        return f"/usr/src/{self.package}"

    def fragment_paths(self) -> list[Path]:
        return [HERE / "config" / name for name in self.fragments]

    def patch_paths(self) -> list[Path]:
        return [HERE / "generations" / name for name in self.patches]

    def make_arguments(self) -> list[str]:
        """What each call of make takes, for the kernel as for its modules."""
        arguments = [*self.platform.make, *self.make]
        if self.compiler != "gcc" and not any(argument.startswith("LLVM") for argument in self.make):
            arguments.append(f"CC={self.compiler}")
        return [*arguments, *rust_tools.make_arguments()] if self.has_rust else arguments

    def configuration(self) -> str:
        """All fragments as one; where two set the same option, only the last setting is left."""
        settings: dict[str, str] = {}
        for path in self.fragment_paths():
            for line in path.read_text().splitlines():
                if (option := option_of(line)) is not None:
                    settings.pop(option, None)
                    settings[option] = line.strip()
        return "".join(f"{line}\n" for line in settings.values())

    def read(self) -> RecipeContent:
        """Return the recipe with what its files say now."""
        return RecipeContent(self, self.configuration(), tuple(path.read_text() for path in self.patch_paths()))


@dataclasses.dataclass(frozen=True)
class RecipeContent:
    """A recipe and its files' content at one moment: a build takes minutes, and its key must be of what it was made from."""

    recipe: Recipe
    # All fragments as one.
    configuration: str
    # In the order in which they are applied.
    patches: tuple[str, ...]

    def fingerprint(self) -> str:
        """A hash of what is ours in the recipe; the package's and the compiler's versions come on top in the key."""
        recipe = self.recipe
        digest = hashlib.sha256()
        content = {
            "revision": BUILD_REVISION,
            "package": recipe.package,
            "configuration": self.configuration,
            "patches": self.patches,
            "compiler": recipe.compiler,
            "make": recipe.make,
        }
        if recipe.flags:
            content["flags"] = recipe.flags
        if recipe.platform.make:
            content["architecture"] = recipe.platform.make
        if recipe.target != "allnoconfig":
            content["target"] = recipe.target
        digest.update(json.dumps(content, sort_keys=True).encode())
        return digest.hexdigest()

    def key(self, package_version: str, compiler_version: str) -> str:
        """The name of the kernel's directory in the cache."""
        digest = hashlib.sha256(json.dumps([self.fingerprint(), package_version, compiler_version]).encode())
        return f"{self.recipe.name}-{digest.hexdigest()[:16]}"


def option_of(line: str) -> str | None:
    """The option that a line of a configuration sets or unsets."""
    line = line.strip()
    if line.startswith("CONFIG_") and "=" in line:
        return line.partition("=")[0]
    if line.startswith("# CONFIG_") and line.endswith(" is not set"):
        return line.split()[1]
    return None


RECIPES = {
    recipe.name: recipe
    for recipe in [
        Recipe(name="default", package="linux-source-6.12", fragments=("base.config", "kcov.config")),
        Recipe(
            name="demo",
            package="linux-source-6.12",
            fragments=("base.config", "kcov.config", "demo.config"),
            # Where variables live while a function runs is most of the debug info, and nothing here asks for it.
            flags=("-fno-var-tracking", "-gno-statement-frontiers"),
        ),
        # What tests/integration/gdb needs a kernel of its own for: page-table isolation and kgdb. As small as the demo's.
        Recipe(
            name="pti",
            package="linux-source-6.12",
            fragments=("base.config", "kcov.config", "demo.config", "pti.config", "kgdb.config"),
            flags=("-fno-var-tracking", "-gno-statement-frontiers"),
        ),
        # What syzbot fuzzes, in shape and size. It takes more than an hour of two cores and is built by hand only.
        Recipe(
            name="syzbot-gcc",
            package="linux-source-6.12",
            fragments=("base.config", "kcov.config", "syzbot.config"),
            # Where variables live while a function runs takes the compiler long, and nothing here asks for it.
            flags=("-fno-var-tracking",),
            target="alldefconfig",
            # Shadow memory and quarantine.
            memory_mib=2048,
            boot_seconds=900,
            lines=4000,
        ),
        # The same by clang, whose coverage points lie elsewhere and whose KASAN lays out stacks in its own way.
        Recipe(
            name="syzbot-clang",
            package="linux-source-6.12",
            fragments=("base.config", "kcov.config", "syzbot.config"),
            compiler="clang-19",
            target="alldefconfig",
            # Shadow memory and quarantine.
            memory_mib=2048,
            boot_seconds=900,
            lines=4000,
        ),
        # For tests/lab/test_kdump.py: a kernel that panics by a hung task, a soft lockup or a report of KASAN's.
        Recipe(
            name="lockups",
            package="linux-source-6.12",
            fragments=("base.config", "kcov.config", "demo.config", "lockups.config"),
            flags=("-fno-var-tracking", "-gno-statement-frontiers"),
            # Shadow memory and quarantine.
            memory_mib=256,
            boot_seconds=300,
        ),
        # For tests/lab/test_two_kernels.py: the default kernel after a patch whose effect is known.
        Recipe(
            name="patched",
            package="linux-source-6.12",
            fragments=("base.config", "kcov.config"),
            patches=("getpriority.patch",),
        ),
        # To compare traces of: the default kernel in another release, and by another compiler; built by hand only. All of
        # their objects have debug info, unlike the generations'.
        Recipe(
            name="6.1",
            package="linux-source-6.1",
            fragments=("base.config", "kcov.config", "linux-6.1.config", "release-6.1.config"),
        ),
        Recipe(name="6.12-clang", package="linux-source-6.12", fragments=("base.config", "kcov.config"), compiler="clang-14"),
        # The default kernel without ORC; built by hand, and tests/lab/test_stacks.py asks it with KCOVDBG_LAB_RECIPE.
        Recipe(
            name="frame-pointers",
            package="linux-source-6.12",
            fragments=("base.config", "kcov.config", "frame-pointers.config"),
        ),
        # Clang's sanitizers beside KCOV; built by hand, and all of tests/lab asks them with KCOVDBG_LAB_RECIPE.
        Recipe(
            name="kmsan",
            package="linux-source-6.12",
            fragments=("base.config", "kcov.config", "kmsan.config"),
            compiler="clang-19",
            # The ACPI tables' interrupt routing takes longer to interpret than Linux allows, 30 s; the BIOS has set lines up.
            command_line="acpi=noirq",
            # Shadow and origin of each byte.
            memory_mib=1024,
            boot_seconds=400,
        ),
        Recipe(
            name="kcsan",
            package="linux-source-6.12",
            fragments=("base.config", "kcov.config", "kcsan.config"),
            compiler="clang-14",
            memory_mib=256,
            boot_seconds=400,
        ),
    ]
}
