# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program that tries the C code, and the debug info that it damages."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.symbols.dwarf_reader import SECTIONS, DwarfReader
from tests.support.compiled_image import VARIANTS, compile_image, find_compilers

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "distinct_pcs",
    "chains",
    "seqdiff",
    "locations",
    "branches",
    "arm64_switch",
    "table_rows",
    "dwarf",
    "x86_decoder",
    "blocks",
    "block_states",
    "source_lines",
    "calls",
)
# Those that include what they try, and what that needs.
INPUTS = ("follow_input", "inject_input")
# What others of them call.
_PARTS = ("arm64_switch", "block_states", "source_lines", "calls")
TARGETS = (*(name for name in SOURCES if name not in _PARTS), "follow", "inject")
# Reads what takes longest to try.
LARGEST = "dwarf"
# Of libFuzzer: sources beside this file, and in native/.
LIBFUZZER = {
    "dwarf": (("driver",), SOURCES),
    "follow": (("follow_input",), ("inject", "collector")),
    "inject": (("inject_input",), ()),
}
# Memory of the process, and of one allocation: damage must not take more.
_OPTIONS = "hard_rss_limit_mb=1500:max_allocation_size_mb=1024:detect_leaks=1:abort_on_error=0"


_FOLDERS = (f"-I{ROOT / 'native'}", f"-I{Path(__file__).parent}")


def _find_sources(own: Sequence[str], tried: Sequence[str]) -> list[str]:
    folder = Path(__file__).parent
    return [
        *(str(folder / f"{name}.c") for name in own),
        *(str(ROOT / "native" / f"{name}.c") for name in tried),
    ]


def compile_libfuzzer(folder: Path, target: str) -> Path | None:
    """Compile a target for libFuzzer; return None where there is no clang with it."""
    if shutil.which("clang") is None:
        return None
    path = folder / f"libfuzzer-{target}"
    command = [
        "clang",
        "-std=gnu11",
        "-O1",
        "-g",
        "-DLIBFUZZER",
        "-fsanitize=fuzzer,address,undefined",
        *_FOLDERS,
    ]
    command += [
        "-Wno-unused-function",
        "-Wno-unused-macros",
        "-fno-sanitize-recover=all",
        "-o",
        str(path),
    ]
    built = subprocess.run(
        [*command, *_find_sources(*LIBFUZZER[target]), "-lpthread"], capture_output=True, text=True
    )
    if "libclang_rt.fuzzer" in built.stderr:
        return None
    assert built.returncode == 0, built.stderr
    return path


def run_libfuzzer(seconds: int, seed: int, say: Callable[[str], None]) -> bool:
    """Run libFuzzer on each target for an equal share of the time; return whether none found
    anything.
    """
    folder = Path(tempfile.mkdtemp(prefix="kcovdbg-libfuzzer-"))
    is_clean = True
    for target in LIBFUZZER:
        program = compile_libfuzzer(folder, target)
        if program is None:
            say("skipped: libFuzzer needs clang")
            return True
        corpus = folder / target
        corpus.mkdir()
        if target == "dwarf":
            make_corpus(corpus)
        share = max(seconds // len(LIBFUZZER), 1)
        options = [
            f"-max_total_time={share}",
            f"-seed={seed or 1}",
            "-max_len=65536",
            "-rss_limit_mb=1500",
            "-timeout=30",
        ]
        done = subprocess.run(
            [program, *options, "-print_final_stats=1", corpus],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        counts = [
            line.split()[-1]
            for line in done.stderr.splitlines()
            if "number_of_executed_units" in line
        ]
        say(f"{target}: {(counts or ['?'])[0]} executions, status {done.returncode}")
        if done.returncode:
            say(f"{target}: see {folder}: {done.stderr[-4000:]}")
            is_clean = False
    return is_clean


def compile_driver(folder: Path) -> Path:
    """Compile the program with sanitizers; skip the test where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    path = folder / "driver"
    warnings = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    sanitizers = [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ]
    sources = _find_sources(("driver", *INPUTS), (*SOURCES, "collector"))
    command = [
        "gcc",
        "-O1",
        "-g",
        *warnings,
        *sanitizers,
        *_FOLDERS,
        "-o",
        str(path),
        *sources,
        "-lpthread",
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr:
        pytest.skip("needs gcc's sanitizers")
    assert built.returncode == 0, built.stderr
    return path


def make_corpus(folder: Path) -> list[Path]:
    """Write the debug info of small images, by compilers that are installed: gcc, clang, and one
    for a big-endian machine.
    """
    made = []
    found = find_compilers()
    for compiler in (
        "gcc",
        *[name for name in found if name.startswith("clang")][-1:],
        "s390x-linux-gnu-gcc",
    ):
        for variant, flags in VARIANTS.items():
            name = f"{compiler} {variant}"
            try:
                image = compile_image(folder / name, compiler, *flags)
            except pytest.skip.Exception:
                continue
            path = folder / f"{name}.sections"
            with ElfFile(image) as elf:
                data = bytes([elf.header.big_endian])
                for section_name in SECTIONS:
                    section = elf.section(f".debug_{section_name}")
                    part = b"" if section is None else elf.read_section(section)
                    data += struct.pack("<I", len(part)) + part
                if len(DwarfReader(elf)) < 2:
                    continue
            path.write_bytes(data)
            made.append(path)
    return made


def run(
    program: Path, target: str, seed: int, seconds: int, corpus: Sequence[Path], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a target; what it read last is in the file ``last`` of the folder.

    :param seconds: of work.
    """
    return subprocess.run(
        [program, target, str(seed), str(seconds), *corpus],
        cwd=folder,
        env={"ASAN_OPTIONS": _OPTIONS, "UBSAN_OPTIONS": "print_stacktrace=1"},
        capture_output=True,
        text=True,
        timeout=seconds + 300,
        check=False,
    )


def run_all(seconds: int, seed: int, workers: int, say: Callable[[str], None]) -> bool:
    """Run all targets, half of the time that which reads debug info; return whether none found
    anything.

    :param workers: processes.
    """
    folder = Path(tempfile.mkdtemp(prefix="kcovdbg-native-"))
    program, corpus = compile_driver(folder), make_corpus(folder)
    say(f"{len(corpus)} files of debug info; work in {folder}")
    share = seconds * workers // (2 * len(TARGETS) - 2)
    jobs = [(target, share) for target in TARGETS if target != LARGEST] + [
        (LARGEST, seconds // 2)
    ] * workers

    def run_one(number: int, target: str, time: int) -> bool:
        own = folder / str(number)
        own.mkdir()
        done = run(program, target, seed + number * 10**9, time, corpus, own)
        say(
            done.stdout.strip()
            if done.returncode == 0
            else f"{target}: status {done.returncode}, see {own}: {done.stderr[-4000:]}"
        )
        return done.returncode == 0

    with ThreadPoolExecutor(workers) as pool:
        return all(list(pool.map(lambda item: run_one(item[0], *item[1]), enumerate(jobs))))
