# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs with coverage points, built before and after a patch; each writes its own trace and
prints what it executed.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_builder import build_table_file
from kcovdbg.symbols.table_cache import link_table, make_build_key

_PROGRAMS = Path(__file__).with_name("programs")
HEADER = (_PROGRAMS / "calc.h").read_text()
MAIN = (_PROGRAMS / "main.c").read_text()
BEFORE, AFTER = (
    {f"src/{name}": (_PROGRAMS / build / name).read_text() for name in ("calc.c", "other.c")}
    for build in ("before", "after")
)


class Built(NamedTuple):
    """A program."""

    folder: Path
    image: Path
    files: dict[str, str]

    @property
    def build_id(self):
        return ElfFile(self.image).build_id

    def run(self, name, *values):
        """Run it; return the name of its trace and the tags that it printed."""
        trace = self.folder / f"{name}.kcov"
        words = [str(self.image), str(trace), *map(str, values)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        side = {
            "format": 1,
            "mode": "TRACE_PC",
            "word_size": 8,
            "byteorder": "little",
            "build_id": self.build_id,
        }
        trace.with_name(f"{trace.name}.json").write_text(json.dumps(side))
        return f"file:{trace}", set(done.stdout.splitlines())

    def tag(self, frame):
        """Return the tag that a frame's line prints, if it prints one."""
        name = str(Path(frame["file"]))
        lines = (self.files | {"src/calc.h": HEADER})[name].splitlines()
        line = lines[frame["line"] - 1]
        return line.split('"')[1] if "hit(" in line and '"' in line else None


def build_program(folder, files, compiler="gcc", *more):
    """Build a program and its location table in the user's cache."""
    found = next(
        filter(
            None,
            map(shutil.which, (compiler, f"{compiler}-19", f"{compiler}-16", f"{compiler}-14")),
        ),
        None,
    )
    if found is None:
        pytest.skip(f"needs {compiler}")
    (folder / "src").mkdir(parents=True)
    for name, text in {**files, "src/calc.h": HEADER, "src/main.c": MAIN}.items():
        (folder / name).write_text(text)
    flags = ["-g", "-O1", "-I.", "-fno-pie", *more]
    objects = []
    for name in (*files, "src/main.c"):
        coverage = [] if name == "src/main.c" else ["-fsanitize-coverage=trace-pc"]
        objects.append(f"{name}.o")
        subprocess.run(
            [found, *flags, *coverage, "-c", name, "-o", objects[-1]], cwd=folder, check=True
        )
    image = folder / "program"
    subprocess.run(
        ["gcc", "-no-pie", "-Wl,--build-id=sha1", "-o", image, *objects], cwd=folder, check=True
    )
    table = build_table_file(image)
    # As symbols build does.
    with ElfFile(image) as elf:
        link_table(LocationTable(table), [make_build_key(elf.build_id or "")])
    return Built(folder, image, files)
