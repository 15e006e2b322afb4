# SPDX-License-Identifier: LGPL-2.1-or-later
"""A small image with coverage points, inlined functions and two units, compiled in every way that a
kernel may be.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

HEADER = """
static inline __attribute__((always_inline)) int twice(int number) { return number > 7 ? number * 2 : number; }
static inline __attribute__((always_inline)) int chained(int number)
{
    if (number & 1)
        return twice(number) + 1;
    return twice(number - 1);
}
"""
FIRST = """
#include "sub/inlined.h"
__attribute__((no_sanitize_coverage, noinline, used)) void __sanitizer_cov_trace_pc(void) { __asm__ volatile("" ::: "memory"); }
int second(int number);
static __attribute__((noinline, cold)) int rare(int number) { return chained(number) ^ 5; }
__attribute__((noinline)) int first(int number)
{
    if (__builtin_expect(number == 3, 0))
        return rare(number);
    return chained(number) + second(number);
}
volatile int input, output;
void _start(void) { for (;;) output = first(input); }
"""
SECOND = """
#include "sub/inlined.h"
__attribute__((noinline)) int second(int number)
{
    int i, sum = 0;
    for (i = 0; i < number; i++)
        sum += chained(i);
    return sum;
}
"""

# Flags of the compiler and the linker.
VARIANTS = {
    "DWARF 4": ("-gdwarf-4",),
    "DWARF 5": ("-gdwarf-5",),
    "LTO": ("-gdwarf-5", "-flto"),
    "thin LTO": ("-gdwarf-5", "-flto=thin"),
    "split DWARF 4": ("-gdwarf-4", "-gsplit-dwarf"),
    "split DWARF 5": ("-gdwarf-5", "-gsplit-dwarf"),
    "type units": ("-gdwarf-5", "-fdebug-types-section"),
    "64-bit DWARF": ("-gdwarf-5", "-gdwarf64"),
}


def find_compilers() -> list[str]:
    """Return the C compilers in PATH: every version of gcc and clang, and gcc for other
    machines.
    """
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    names = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir()}
    return sorted(
        name
        for name in names
        if re.fullmatch(r"(gcc|clang)(-\d+)?|(aarch64|riscv64|s390x)-linux-gnu-gcc", name)
    )


def compile_image(folder: Path, compiler: str = "gcc", *flags: str) -> Path:
    """Compile and link the image; skip the test where the compiler is missing or does not know a
    flag.
    """
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    # As in a kernel, no source file is in the directory itself: drgn shows such with their whole
    # paths.
    for name, text in (("sub/inlined.h", HEADER), ("src/first.c", FIRST), ("src/second.c", SECOND)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sanitize = "-fsanitize-coverage=trace-pc"
    common = ["-g", *(flags or VARIANTS["DWARF 5"]), "-O2", "-fno-pie"]
    for name in ("first", "second"):
        run(
            [compiler, *common, "-ffunction-sections", "-I.", sanitize, "-c", f"src/{name}.c"],
            folder,
        )
    image = folder / "image"
    is_clang = compiler.startswith("clang")
    linker = [] if is_clang else [sanitize]
    if is_clang and any("lto" in flag for flag in flags):
        linker.append(f"-fuse-ld={find_lld(compiler)}")
    # gcc's linker compiles again, and clang's optimizes for the last time, with the flags of the
    # first time. clang would link a runtime for coverage of programs.
    linker += ["-no-pie", "-nostdlib", "-static", "-Wl,--build-id=sha1"]
    run([compiler, *common, *linker, "-o", str(image), "first.o", "second.o"], folder)
    return image


def find_lld(clang: str) -> str:
    """Return the linker that clang's own link-time optimization needs: of its version, where there
    are several.
    """
    return "lld" + clang.removeprefix("clang")


def run(command: Sequence[str], folder: Path) -> None:
    """Run a compiler; skip the test where it cannot do what it is asked for."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(
            f"{command[0]}: "
            f"{next((line for line in done.stderr.splitlines() if 'error' in line), 'failed')}"
        )
