# SPDX-License-Identifier: LGPL-2.1-or-later
"""An initramfs with kcovdbg and everything that it needs, for kernels that cannot mount the host's
files: most have no 9p.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.lab.cpio import CpioWriter
from tests.lab.errors import LabError
from tests.lab.initramfs import Userland
from tests.lab.kcovdbg_run import ROOT
from tests.lab.kernel import Kernel

# The same as in the workload's host.c.
PACKED = Path("/packed")
PROGRAMS = ("ls", "cat", "sleep", "true", "gzip", "pidof", "grep", "rm")
# Large parts of Python's library that the guest does not need.
_LEFT_OUT = (
    "test",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "tkinter",
    "turtledemo",
    "site-packages",
    "pydoc_data",
    "distutils",
)
_PACKAGES = ("drgn", "_drgn*", "cffi", "_cffi_backend*", "wcwidth")


def pack(
    path: Path,
    kernel: Kernel,
    userland: Userland,
    programs: Iterable[Path],
    files: Mapping[Path, Path] | None = None,
) -> None:
    """Write the archive: the workload's with the host's files in a directory of their own.

    :param programs: go into the exchange directory.
    :param files: by their paths there, in place of the host's.
    """
    files = {file: file for file in _host_files(kernel)} if files is None else dict(files)
    for program in programs:
        files[Path("/tmp/exchange") / program.name] = program
    with path.open("wb") as stream:
        shutil.copyfileobj(userland.image.open("rb"), stream)
        # The kernel unpacks several archives in a row, each aligned to four bytes.
        stream.write(bytes(-stream.tell() % 4))
        writer = CpioWriter(stream)
        for name in ("dev", "proc", "sys"):
            writer.directory(PACKED / name)
        for path, source in sorted(files.items()):
            status = source.stat()
            # Python compares the times of its caches and their sources.
            writer.file(
                f"{PACKED}{path}", _content(source), status.st_mode & 0o777, int(status.st_mtime)
            )
        writer.close()


def foreign_files(root: Path, native: Path) -> dict[Path, Path]:
    """Return what kcovdbg needs for collecting, of another architecture, each with the file that it
    comes from.

    :param root: has that architecture's Python with cffi, as debootstrap unpacks it.
    :param native: the native module for it.
    """
    found: dict[Path, Path] = {}
    for name in (*PROGRAMS, "sh", "python3"):
        for place in ("bin", "usr/bin"):
            found[Path("/", place, name)] = _within(root, root / place / name)
    for pattern in ("lib/ld-linux-*", "lib/*-linux-gnu/*.so*", "usr/lib/*-linux-gnu/*.so*"):
        for path in root.glob(pattern):
            found[Path("/") / path.relative_to(root)] = _within(root, path)
    for folder in root.glob("usr/lib/python3*"):
        for path in _tree(folder):
            parts = path.relative_to(folder).parts
            if not set(parts) & set(_LEFT_OUT) and not parts[0].startswith("config-"):
                found[Path("/") / path.relative_to(root)] = _within(root, path)
    for path in _tree(ROOT / "kcovdbg"):
        if ".so" not in path.suffixes:
            found[path] = path
    found[ROOT / "kcovdbg" / "_native.abi3.so"] = native
    return {name: path for name, path in found.items() if path.is_file()}


def foreign_libraries(root: Path, program: Path) -> dict[Path, Path]:
    """Return the loader and the libraries of a program for another architecture, each with the file
    that it comes from.
    """
    found: dict[Path, Path] = {}
    waiting = [program]
    while waiting:
        shown = subprocess.run(
            ["readelf", "-dlW", waiting.pop()], capture_output=True, text=True, check=True
        ).stdout
        patterns = [
            path.lstrip("/") for path in re.findall(r"program interpreter: ([^\]]+)\]", shown)
        ]
        patterns += [
            f"**/*-linux-gnu/{name}" for name in re.findall(r"\(NEEDED\).*\[([^\]]+)\]", shown)
        ]
        for pattern in patterns:
            path = next(root.glob(pattern), None)
            if path is None:
                raise LabError(f"{root}: no {pattern}")
            name = Path("/") / path.relative_to(root)
            if name not in found:
                found[name] = _within(root, path)
                waiting.append(found[name])
    return found


def _within(root: Path, path: Path) -> Path:
    """Follow a link as it is meant in a root."""
    while path.is_symlink():
        target = path.readlink()
        path = root / target.relative_to("/") if target.is_absolute() else path.parent / target
    return path


def _content(path: Path) -> bytes:
    """Return the content of a file; of a library without symbols and debug info, which are most of
    it.
    """
    if ".so" in path.suffixes and path.stat().st_size > 1 << 20 and shutil.which("strip"):
        # A file of another architecture stays as it is.
        with tempfile.TemporaryDirectory() as folder:
            stripped = Path(folder) / path.name
            if not subprocess.run(
                ["strip", "--strip-unneeded", "-o", stripped, path], capture_output=True
            ).returncode:
                return stripped.read_bytes()
    return path.read_bytes()


def _host_files(kernel: Kernel) -> set[Path]:
    programs = [
        Path("/bin/sh"),
        *(Path(program) for name in PROGRAMS if (program := shutil.which(name))),
    ]
    found = {Path(sys.executable), *programs, kernel.vmlinux, *_tree(ROOT / "kcovdbg")}
    if (settings := Path(sys.prefix) / "pyvenv.cfg").exists():
        found.add(settings)
    library = Path(sysconfig.get_path("stdlib"))
    for path in library.iterdir():
        if path.name not in _LEFT_OUT and not path.name.startswith("config-"):
            found.update(_tree(path))
    for package in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for pattern in _PACKAGES:
            for path in Path(package).glob(pattern):
                found.update(_tree(path))
    return found | set(
        libraries(
            [path for path in found if ".so" in path.suffixes] + [Path(sys.executable), *programs]
        )
    )


def _tree(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (file for file in path.rglob("*") if file.is_file() and file.suffix != ".zst")
    else:
        yield path


def libraries(programs: Iterable[Path | str]) -> Iterator[Path]:
    """Return the libraries that the dynamic loader opens for programs, and the loader."""
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        for word in line.split():
            if word.startswith("/") and not word.endswith(":"):
                yield Path(word)
