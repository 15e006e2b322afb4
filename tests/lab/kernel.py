# SPDX-License-Identifier: LGPL-2.1-or-later
"""Builds a recipe's kernel once, and returns the paths of a built kernel's files."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab import cache, requirements, rust_tools
from tests.lab.errors import LabError, UnavailableError
from tests.lab.process import DieWithOwner
from tests.lab.progress import Progress
from tests.lab.recipe import BUILD_REVISION, Recipe, option_of

# Constants, so that a recipe gives the same kernel on every machine and the kernel does not name
# that machine.
REPRODUCIBLE = {
    "KBUILD_BUILD_USER": "kcovlab",
    "KBUILD_BUILD_HOST": "kcovlab",
    "KBUILD_BUILD_TIMESTAMP": "Thu Jan  1 00:00:00 UTC 2026",
    "LC_ALL": "C",
}
# Directories that an external module's build reads as a whole, and single files it needs beside
# them.
MODULE_BUILD_TREES = ("include", "arch/{arch}/include", "scripts")
MODULE_BUILD_FILES = (
    ".config",
    "Kbuild",
    "Makefile",
    "Module.symvers",
    "System.map",
    "arch/{arch}/Makefile",
    "modules.builtin",
    "modules.order",
    "vmlinux",
)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A built kernel: the paths of its files."""

    recipe: Recipe
    directory: Path

    @classmethod
    def at(cls, directory: Path) -> Kernel:
        """Return the kernel in a directory of the cache."""
        recorded = json.loads((directory / "recipe.json").read_text())["recipe"]
        # JSON has no tuples.
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in recorded.items()
        }
        return cls(Recipe(**fields), directory)

    @property
    def key(self) -> str:
        return self.directory.name

    @property
    def vmlinux(self) -> Path:
        """The vmlinux with all debug info."""
        return self.directory / "vmlinux"

    @property
    def image(self) -> Path:
        """The kernel that boots."""
        return self.directory / Path(self.recipe.platform.image).name

    @property
    def config(self) -> Path:
        return self.directory / ".config"

    @functools.cached_property
    def symbols(self) -> list[tuple[int, str, str]]:
        """Address before KASLR, kind and name of each symbol of System.map."""
        lines = map(str.split, (self.directory / "System.map").read_text().splitlines())
        return [(int(address, 16), kind, name) for address, kind, name in lines]

    @property
    def linked_at(self) -> int:
        """Where _text is linked to."""
        return next(address for address, _, name in self.symbols if name == "_text")

    @property
    def tree(self) -> Path:
        """A tree to build modules against, with GDB's scripts and every source file that was
        compiled.
        """
        return self.directory / "build"

    @property
    def facts(self) -> dict[str, object]:
        """The content of recipe.json: the recipe, the exact source package, the compiler, the
        release.
        """
        loaded: dict[str, object] = json.loads((self.directory / "recipe.json").read_text())
        return loaded

    @property
    def release(self) -> str:
        return str(self.facts["release"])


def find(recipe: Recipe) -> Kernel | None:
    """Return a built kernel of this recipe, or one from another version of the package; None if
    there is none.
    """
    exact = _exact_directory(recipe)
    if exact is not None and exact.is_dir():
        return Kernel(recipe, exact)
    found = []
    for path in cache.root().glob("*/recipe.json"):
        facts = json.loads(path.read_text())
        if not path.parent.name.startswith(".") and facts.get("fingerprint") == recipe.fingerprint:
            found.append((facts["built_at"], path.parent))
    return Kernel(recipe, max(found)[1]) if found else None


def build(recipe: Recipe, jobs: int | None = None) -> Kernel:
    """Return the recipe's kernel, built unless it is in the cache."""
    if (exact := _exact_directory(recipe)) is not None and exact.is_dir():
        return Kernel(recipe, exact)
    requirements.ensure(requirements.for_build(recipe))
    if recipe.has_rust:
        rust_tools.install()
    exact = _exact_directory(recipe)
    if exact is None:
        # The tarball is there without its package, or the compiler cannot be run.
        raise UnavailableError(
            f"unknown version of {recipe.package} or of {recipe.compiler_program}",
            requirements.remedy([recipe.package, recipe.compiler_program]),
        )
    return Kernel(recipe, cache.make_whole(exact, lambda work: _Build(recipe, work, jobs).run()))


def _exact_directory(recipe: Recipe) -> Path | None:
    package = requirements.package_version(recipe.package) or requirements.package_candidate(
        recipe.package
    )
    compiler = requirements.compiler_version(recipe.compiler_program)
    if package is None or compiler is None:
        return None
    if recipe.has_rust:
        if (rust := rust_tools.version()) is None:
            return None
        compiler = f"{compiler}, {rust}"
    return cache.root() / recipe.key(package, compiler)


class _Build:
    """One build, in a directory that becomes the kernel's when the build has succeeded."""

    def __init__(self, recipe: Recipe, work: Path, jobs: int | None) -> None:
        self.recipe = recipe
        self.work = work
        self.jobs = jobs or os.cpu_count() or 1
        self.source = work / "source"

    def run(self) -> None:
        started = time.monotonic()
        self._unpack()
        self._configure()
        self._compile()
        self._keep()
        self._record(time.monotonic() - started)

    def _unpack(self) -> None:
        self.source.mkdir()
        with Progress(f"{self.recipe.name}: unpack {self.recipe.package}", 1):
            command = [
                "tar",
                "-xf",
                str(self.recipe.tarball),
                "--strip-components=1",
                "-C",
                str(self.source),
            ]
            self._run(command)
        applied = self.work / "applied.patch"
        for patch in self.recipe.patch_texts:
            applied.write_text(patch)
            self._run(["patch", "-p1", "--no-backup-if-mismatch", "-i", str(applied)])
            applied.unlink()

    def _configure(self) -> None:
        wanted = self.work / "wanted.config"
        wanted.write_text(self.recipe.configuration)
        self._run(self._make(f"KCONFIG_ALLCONFIG={wanted}", self.recipe.target))
        wanted.unlink()
        lost = lost_settings(self.recipe.configuration, (self.source / ".config").read_text())
        if lost:
            raise LabError(
                "the kernel's configuration did not take:\n"
                + "\n".join(f"  {line}" for line in lost)
            )

    def _compile(self) -> None:
        # Debug info and __FILE__ name the packaged source, not the build directory.
        mapping = f"-ffile-prefix-map={self.source}={self.recipe.source_name}"
        command = self._make(
            f"KCFLAGS={' '.join((mapping, *self.recipe.flags))}",
            f"KAFLAGS={mapping}",
            f"-j{self.jobs}",
            "all",
        )
        if self.recipe.has_rust:
            library = f"--remap-path-prefix={rust_tools.directory()}=/usr"
            command.append(
                f"KRUSTFLAGS=--remap-path-prefix={self.source}={self.recipe.source_name} {library}"
            )
        with Progress(f"{self.recipe.name}: build", self.recipe.lines) as progress:
            self._run(command, progress)

    def _keep(self) -> None:
        """Move what is needed after the build into `build`, and delete the rest, most of 3 GB."""
        tree = self.work / "build"
        platform = self.recipe.platform
        trees = [top.format(arch=platform.directory) for top in MODULE_BUILD_TREES]
        files = [
            name.format(arch=platform.directory)
            for name in (*MODULE_BUILD_FILES, *platform.module_files)
        ]
        kept = {path for top in trees for path in _files_below(self.source, top)}
        kept |= {name for name in files if (self.source / name).exists()}
        kept |= _compiled_sources(self.source)
        for name in kept:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).rename(tree / name)
        # kbuild's own link holds the path of this directory.
        (tree / "vmlinux-gdb.py").symlink_to("scripts/gdb/vmlinux-gdb.py")
        (self.source / platform.image).rename(self.work / Path(platform.image).name)
        for name in ("vmlinux", ".config", "System.map"):
            # GDB looks for vmlinux-gdb.py and its scripts in the tree itself.
            (self.work / name).symlink_to(f"build/{name}")
        shutil.rmtree(self.source)

    def _record(self, seconds: float) -> None:
        recipe = self.recipe
        facts = {
            "recipe": dataclasses.asdict(recipe),
            "revision": BUILD_REVISION,
            "fingerprint": recipe.fingerprint,
            "package": recipe.package,
            "package_version": requirements.package_version(recipe.package),
            "compiler_version": requirements.compiler_version(recipe.compiler_program),
            "release": (self.work / "build/include/config/kernel.release").read_text().strip(),
            "source_name": recipe.source_name,
            "built_at": int(time.time()),
            "build_seconds": round(seconds),
        }
        (self.work / "recipe.json").write_text(json.dumps(facts, indent=2) + "\n")

    def _make(self, *arguments: str) -> list[str]:
        return ["nice", "make", *self.recipe.make_arguments(), *arguments]

    def _run(self, command: Sequence[str], progress: Progress | None = None) -> None:
        run_logged(command, self.source, progress)


def run_logged(command: Sequence[str], directory: Path, progress: Progress | None = None) -> None:
    """Run a step of a build; its last lines are shown only if it fails."""
    # Environment variables of make and the compiler would build another kernel than the key says.
    keep = ("PATH", "HOME", "TMPDIR", "http_proxy", "https_proxy")
    environment = {name: os.environ[name] for name in keep if name in os.environ} | REPRODUCIBLE
    last: collections.deque[str] = collections.deque(maxlen=40)
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=DieWithOwner(),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            if progress is not None:
                progress.step()
    if process.returncode:
        raise LabError(f"`{' '.join(command)}` failed with {process.returncode}:\n{''.join(last)}")


def lost_settings(wanted: str, configuration: str) -> list[str]:
    """Return the wanted settings that a configuration lacks."""
    have = set(configuration.splitlines())
    options = {option_of(line) for line in have if "=" in line}
    lost = []
    for line in wanted.splitlines():
        stuck = line in have if "=" in line else option_of(line) not in options
        if not stuck:
            lost.append(line)
    return lost


def _files_below(source: Path, top: str) -> list[str]:
    found = []
    for path in (source / top).rglob("*"):
        if (path.is_symlink() or path.is_file()) and path.suffix not in (".o", ".cmd", ".a"):
            found.append(str(path.relative_to(source)))
    return found


def _compiled_sources(source: Path) -> set[str]:
    """Return each source file that the compiler read, as recorded by kbuild beside each object."""
    named: set[str] = set()
    for path in source.rglob(".*.o.cmd"):
        text = path.read_text(errors="replace")
        _, _, dependencies = text.partition("\nsource_")
        named.update(re.split(r"[\s\\]+", dependencies))
    # The object itself is listed as well. Each file is listed by a thousand objects, and examined
    # once.
    candidates = {
        os.path.normpath(n)
        for n in named
        if n and not n.startswith(("/", "$")) and not n.endswith(".o")
    }
    return {name for name in candidates if (source / name).is_file()}
