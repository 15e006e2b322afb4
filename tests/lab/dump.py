# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps of a guest in each format that users meet, each with what the guest printed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.lab import requirements
from tests.lab.errors import LabError
from tests.lab.guest import Guest


@dataclasses.dataclass(frozen=True)
class Format:
    """The format in which QEMU writes it, and makedumpfile's conversion."""

    name: str
    paging: bool = False
    qemu: str = "elf"
    # Arguments for makedumpfile; None to use QEMU's file.
    makedumpfile: tuple[str, ...] | None = None


FORMATS = {
    f.name: f
    for f in [
        # Physical memory only.
        Format("elf"),
        # With the virtual memory of the CPUs' page tables, for GDB.
        Format("elf-paging", paging=True),
        # QEMU writes it flattened, and without the architecture's name in it.
        Format("kdump", qemu="kdump-zlib"),
        # As distributions' kdump services write them: without zero, cache, user and free pages.
        Format("filtered", makedumpfile=("-c", "-d", "31")),
        Format("filtered-elf", makedumpfile=("-E", "-d", "31")),
        Format("flattened", makedumpfile=("-F", "-c", "-d", "31")),
        # The format of a filtered dump with all content: only pages of zeros are left out.
        Format("unzeroed", makedumpfile=("-c", "-d", "1")),
    ]
}


def write_dump(guest: Guest, path: Path, name: str = "elf") -> None:
    """Dump a guest's memory. The file gets its name only when it is complete."""
    wanted = FORMATS[name]
    if wanted.makedumpfile is not None:
        requirements.ensure(requirements.FILTER)
    with _scratch(path) as work:
        raw = work / "raw"
        guest.qmp.dump(raw, paging=wanted.paging, dump_format=wanted.qemu)
        # QEMU makes the file readable by its owner only, and not writable.
        raw.chmod(0o644)
        if wanted.makedumpfile is not None:
            raw = _filter(raw, wanted.makedumpfile)
        raw.replace(path)


def convert(elf: Path, path: Path, name: str) -> None:
    """Convert QEMU's ELF file without paging by makedumpfile."""
    arguments = FORMATS[name].makedumpfile
    if arguments is None:
        raise LabError(f"{name} is not made from another dump")
    requirements.ensure(requirements.FILTER)
    with _scratch(path) as work:
        # A copy, since its headers are changed.
        shutil.copyfile(elf, work / "raw")
        _filter(work / "raw", arguments).replace(path)


def truth_about(guest: Guest, section: dict[str, Any] | None = None) -> dict[str, Any]:
    """Everything that is known about a guest without kcovdbg."""
    facts = guest.kernel.facts
    return {
        "recipe": facts["recipe"],
        "kernel": guest.kernel.key,
        "package": facts["package"],
        "package_version": facts["package_version"],
        "compiler_version": facts["compiler_version"],
        "release": facts["release"],
        "userland": guest.userland.key,
        "machine": dataclasses.asdict(guest.machine),
        "linked_at": guest.kernel.linked_at,
        "lines": guest.truth.lines(),
        "damaged": guest.truth.damaged,
        "section": section,
    }


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Make a directory beside a file, on the same file system, so that files can be renamed into
    place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as work:
        yield Path(work)


def _filter(raw: Path, arguments: tuple[str, ...]) -> Path:
    program = requirements.find_program("makedumpfile")
    if program is None:
        raise LabError("makedumpfile is gone")
    move_program_headers(raw)
    filtered = raw.with_name("filtered")
    # Temporary bitmaps go beside the file: in /tmp, several makedumpfiles at once would use the
    # same ones.
    environment = os.environ | {"TMPDIR": str(raw.parent)}
    command = [program, *arguments, str(raw)]
    with filtered.open("wb") as stream, raw.with_name("said").open("w+b") as said:
        # The flattened format is for pipes.
        is_flattened = "-F" in arguments
        if not is_flattened:
            command += ["-f", str(filtered)]
        done = subprocess.run(
            command,
            check=False,
            stdout=stream if is_flattened else said,
            stderr=said,
            env=environment,
        )
        said.seek(0)
        text = said.read().decode(errors="replace")
    if done.returncode:
        raise LabError(f"`{' '.join(command)}` failed with {done.returncode}:\n{text}")
    return filtered


def move_program_headers(path: Path) -> None:
    """Put the program headers of QEMU's ELF file right behind its ELF header, where makedumpfile
    expects them.

    QEMU has a section table there since 6.2. makedumpfile 1.7.2 reads that as program headers,
    finds no PT_LOAD, and gives up. Nothing needs the sections: there are two, the empty one and the
    names'.
    """
    header = struct.Struct("<16sHHIQQQIHHHHHH")
    with path.open("r+b") as file:
        fields = list(header.unpack(file.read(header.size)))
        entry_size, number = fields[9], fields[10]
        # With more segments, their number is in the section table.
        if number == 0xFFFF:
            raise LabError(f"{path} has too many segments to be without sections")
        file.seek(fields[5])
        program_headers = file.read(entry_size * number)
        fields[5] = header.size
        # No sections: neither table, nor count, nor index of the names.
        fields[6] = fields[12] = fields[13] = 0
        file.seek(0)
        file.write(header.pack(*fields) + program_headers)
