# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs with coverage points, built before and after a patch; each writes its own trace and prints what it executed."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.symbols.table_builder import build_table

HEADER = """
#ifdef __clang__
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noinline, noclone))
#endif
void hit(const char *tag);
int clamp(int value);
int moved(int value);
static inline __attribute__((always_inline)) int helper(int value)
{
    if (value & 1) {
        hit("helper odd");
        return 1;
    }
    return value;
}
"""
# The callback itself is not instrumented.
MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
static uint64_t area[1 << 16];
int run(int value);
void __sanitizer_cov_trace_pc(void)
{
    if (area[0] < (1 << 16) - 1)
        area[++area[0]] = (uint64_t)__builtin_return_address(0);
}
void hit(const char *tag)
{
    puts(tag);
}
int main(int argc, char **argv)
{
    FILE *file = fopen(argv[1], "w");
    int index;
    for (index = 2; index < argc; index++)
        run(atoi(argv[index]));
    fwrite(area, 8, area[0] + 1, file);
    return fclose(file);
}
"""
BEFORE = {
    "src/calc.c": """
#include "src/calc.h"
NOINLINE int clamp(int value)
{
    if (value < 0) {
        hit("low");
        return 0;
    }
    if (value > 100) {
        hit("high");
        return 100;
    }
    return helper(value);
}
NOINLINE int moved(int value)
{
    int index, sum = 0;
    for (index = 0; index < value; index++) {
        hit("moved loop");
        sum += clamp(index);
    }
    if (value == 7) {
        hit("moved seven");
        sum++;
    }
    return sum;
}
static NOINLINE int old_name(int value)
{
    int sum = 0;
    while (value > 0) {
        hit("renamed loop");
        value -= 3;
        sum += clamp(value);
    }
    if (sum > 50) {
        hit("renamed large");
        return 50;
    }
    return sum;
}
static NOINLINE int removed(int value)
{
    hit("removed");
    return value * 3;
}
int run(int value)
{
    int sum = clamp(value) + moved(value);
    if (value == 9) {
        hit("nine");
        sum++;
    }
    return sum + old_name(value) + removed(value);
}
""",
    "src/other.c": """
#include "src/calc.h"
int other(int value)
{
    return helper(value);
}
""",
}
AFTER = {
    "src/calc.c": """
#include "src/calc.h"
/*
 * A comment,
 * so that all lines differ.
 */
NOINLINE int clamp(int value)
{
    if (value < 0) {
        hit("low");
        return 0;
    }
    if (value == 42) {
        hit("new answer");
        return 1;
    }
    if (value > 200) {
        hit("high");
        return 100;
    }
    return helper(value);
}
static NOINLINE int new_name(int value)
{
    int sum = 0;
    while (value > 0) {
        hit("renamed loop");
        value -= 3;
        sum += clamp(value);
    }
    if (sum > 50) {
        hit("renamed large");
        return 50;
    }
    return sum;
}
static NOINLINE int added(int value)
{
    hit("added");
    return value * 5;
}
int run(int value)
{
    int sum = clamp(value) + moved(value);
    if (value == 9) {
        hit("nine");
        sum++;
    }
    return sum + new_name(value) + added(value);
}
""",
    "src/other.c": """
#include "src/calc.h"
int other(int value)
{
    return helper(value);
}
NOINLINE int moved(int value)
{
    int index, sum = 0;
    for (index = 0; index < value; index++) {
        hit("moved loop");
        sum += clamp(index);
    }
    if (value == 7) {
        hit("moved seven");
        sum++;
    }
    return sum;
}
""",
}


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
        side = {"format": 1, "mode": "TRACE_PC", "word_size": 8, "byteorder": "little", "build_id": self.build_id}
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
    found = next(filter(None, map(shutil.which, (compiler, f"{compiler}-19", f"{compiler}-16", f"{compiler}-14"))), None)
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
        subprocess.run([found, *flags, *coverage, "-c", name, "-o", objects[-1]], cwd=folder, check=True)
    image = folder / "program"
    subprocess.run(["gcc", "-no-pie", "-Wl,--build-id=sha1", "-o", image, *objects], cwd=folder, check=True)
    build_table(image)
    return Built(folder, image, files)
