# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers of binutils and LLVM, which kcovdbg's are compared with."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


def output_of(*command: object, stdin: str = "", cwd: Path | None = None) -> str:
    """Run a program that must succeed; return what it prints.

    Skip the test where the program is missing.
    """
    words = [str(word) for word in command]
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    return subprocess.run(
        words, input=stdin, cwd=cwd, capture_output=True, text=True, check=True
    ).stdout


def addr2line(
    image: Path, addresses: Iterable[int], tools: str = "", *, section: str | None = None
) -> list[list[tuple[str, str, int]]]:
    """Return function, file and line, 0 where it is unknown, of each frame of each address, the
    innermost first.

    :param tools: the prefix of the image's binutils.
    :param section: the one that addresses count from; None where they are as linked.
    """
    options = () if section is None else ("-j", section)
    text = output_of(
        f"{tools}addr2line",
        "-e",
        image,
        "-f",
        "-i",
        "-a",
        *options,
        stdin="".join(f"{pc:#x}\n" for pc in addresses),
    )
    found = []
    for answer in re.split(r"^0x[0-9a-f]+\n", text, flags=re.MULTILINE)[1:]:
        lines = answer.splitlines()
        places = (place.rpartition(":") for place in lines[1::2])
        numbers = ((file, int(line.split()[0].replace("?", "0"))) for file, _, line in places)
        found.append(
            [
                (function, file, line)
                for function, (file, line) in zip(lines[::2], numbers, strict=True)
            ]
        )
    return found


def ask_llvm(image: Path, addresses: Iterable[int], *options: str) -> list[list[dict[str, Any]]]:
    """Return llvm-symbolizer's frames of each address."""
    text = "".join(f"{address:#x}\n" for address in addresses)
    shown = output_of(
        "llvm-symbolizer", "--output-style=JSON", f"--obj={image}", *options, stdin=text
    )
    return [json.loads(line)["Symbol"] for line in shown.splitlines()]


def list_functions(image: Path) -> dict[str, list[range]]:
    """Return the code of each function, by nm."""
    found: dict[str, list[range]] = {}
    for line in output_of("nm", "-S", image).splitlines():
        words = line.split()
        if len(words) == 4 and words[2] in "tT":
            start = int(words[0], 16)
            found.setdefault(words[3], []).append(range(start, start + int(words[1], 16)))
    return found


def split_image(image: Path) -> tuple[Path, Path]:
    """Return a copy with the debug info of an image alone, and one with its code alone."""
    debug_file, stripped = (
        image.with_name(f"{image.name}.debug"),
        image.with_name(f"{image.name}.stripped"),
    )
    output_of("objcopy", "--only-keep-debug", image, debug_file)
    output_of("strip", "-o", stripped, image)
    return debug_file, stripped


def find_points(image: Path, symbol: str) -> set[int]:
    """Return the return addresses of a function's calls of the callback for PCs, by objdump."""
    listing = output_of("objdump", "-d", f"--disassemble={symbol}", "--no-show-raw-insn", image)
    return {
        int(pc, 16)
        for pc in re.findall(r"call .*<__sanitizer_cov_trace_pc>\n *([0-9a-f]+):", listing)
    }
