# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compiles the guest's static init and the lab's modules, and packs them into an initramfs."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from tests.lab import cache, requirements
from tests.lab.cpio import CpioWriter
from tests.lab.kernel import Kernel, run_logged

HERE = Path(__file__).parent
WORKLOAD = HERE / "workload"
MODULES = HERE / "modules"
COMPILE = ("-static", "-O2", "-Wall", "-Wextra", "-pthread")


@dataclasses.dataclass(frozen=True)
class Userland:
    """What a guest runs: the archive to boot, and the debug info of the programs and modules in
    it.
    """

    directory: Path

    @property
    def key(self) -> str:
        return self.directory.name

    @property
    def image(self) -> Path:
        return self.directory / "initramfs.cpio"

    @property
    def init(self) -> Path:
        return self.directory / "init"

    @property
    def modules(self) -> list[Path]:
        """With their debug info; the guest loads these same files."""
        return sorted(self.directory.glob("*.ko"))


def make_userland(kernel: Kernel, workload: Path = WORKLOAD, modules: Path = MODULES) -> Userland:
    """Return the workload and the modules for a kernel, compiled unless they are in the cache."""
    platform = kernel.recipe.platform
    requirements.ensure(requirements.for_userland(platform))
    compile_init = (f"{platform.tools}gcc", *COMPILE)
    sources = sorted(workload.glob("*.[ch]"))
    module_sources = sorted(
        path for path in modules.glob("*") if path.suffix in (".c", ".h") or path.name == "Kbuild"
    )
    # The kernel is part of the key, since modules fit one kernel only.
    digest = hashlib.sha256(f"{kernel.key} {compile_init}".encode())
    for path in (*sources, *module_sources, Path(__file__), HERE / "cpio.py"):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")

    def fill(work: Path) -> None:
        compiled = [str(path) for path in sources if path.suffix == ".c"]
        run_logged([*compile_init, "-o", str(work / "init"), *compiled], work)
        built = _build_modules(kernel, module_sources, work)
        files = {f"modules/{path.name}": path.read_bytes() for path in built}
        with (work / "initramfs.cpio").open("wb") as stream:
            write_initramfs(stream, (work / "init").read_bytes(), files)

    return Userland(cache.make_whole(cache.root() / f"userland-{digest.hexdigest()[:16]}", fill))


def make_modules(kernel: Kernel, modules: Path) -> list[Path]:
    """Return the modules of a directory for a kernel, compiled unless they are in the cache."""
    sources = sorted(modules.iterdir())
    digest = hashlib.sha256(f"{kernel.key} ".encode())
    for path in (*sources, Path(__file__)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")

    def fill(work: Path) -> None:
        _build_modules(kernel, sources, work)

    made = cache.make_whole(cache.root() / f"modules-{digest.hexdigest()[:16]}", fill)
    return sorted(made.glob("*.ko"))


def write_initramfs(stream: BinaryIO, init: bytes, files: Mapping[str, bytes]) -> None:
    """Write an archive with a program as /init, and files."""
    writer = CpioWriter(stream)
    for name in ("dev", "proc", "sys", "tmp", "mnt"):
        writer.directory(name)
    # For init's standard streams: devtmpfs isn't mounted yet when the kernel opens them.
    writer.character_device("dev/console", 5, 1)
    writer.file("init", init)
    for name, content in files.items():
        writer.file(name, content)
    writer.close()


def _build_modules(kernel: Kernel, sources: list[Path], work: Path) -> list[Path]:
    """Build the modules from a copy of the sources, since kbuild leaves its objects beside them."""
    if not sources:
        return []
    build = work / "modules"
    build.mkdir()
    for path in sources:
        shutil.copy(path, build)
    # As in the kernel's own debug info, no directory of the machine that built it.
    mapping = (
        f"KCFLAGS=-ffile-prefix-map={build}=modules "
        f"-ffile-prefix-map={kernel.tree}={kernel.facts['source_name']}"
    )
    # Modules have debug info even where the kernel's objects have none.
    make = ["make", "-C", str(kernel.tree), *kernel.recipe.make_arguments(), "DEBUG_INFO_OF="]
    run_logged([*make, f"M={build}", mapping, "modules"], work)
    built = [path.rename(work / path.name) for path in sorted(build.glob("*.ko"))]
    shutil.rmtree(build)
    return built
