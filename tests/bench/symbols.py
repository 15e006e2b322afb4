# SPDX-License-Identifier: LGPL-2.1-or-later
"""Symbols: the table beside addr2line, llvm-symbolizer and drgn."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from kcovdbg.elf.file import ElfFile
from kcovdbg.symbols.awaited_table import AwaitedTable, find_awaited_table
from kcovdbg.symbols.coverage_points import find_points
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import ImageText, Symbolizer, text_ranges
from kcovdbg.symbols.table_builder import build_table_file
from kcovdbg.symbols.table_cache import find_table_key, table_path
from kcovdbg.target.drgn.lines import frames_at, open_image_program
from tests.bench.measure import Result, at_most, best, best_of_each, bounded, faster
from tests.lab.kernel import Kernel

PCS = 6000


def _run(command: list[str], addresses: list[int], folder: Path) -> None:
    names = folder / "addresses"
    names.write_text("".join(f"{address:#x}\n" for address in addresses))
    with names.open() as file:
        subprocess.run(command, stdin=file, stdout=subprocess.DEVNULL, check=True)


def run(kernel: Kernel, traces: dict[str, array[int]], rounds: int) -> Iterator[Result]:
    image = kernel.vmlinux
    # As many as a trace comes to that has that many.
    pcs = sorted(list(dict.fromkeys(traces["mixed-a"]))[:PCS])
    addresses = [pc - 1 for pc in pcs]
    llvm = shutil.which("llvm-symbolizer")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with ElfFile(image) as elf:
            build_id = elf.build_id
            assert build_id is not None
            text = sum(section.size for section in elf.text_sections())
            scan = best(lambda: find_points(elf), max(1, rounds // 2))
        # An absolute time, unlike all others here: the issue gives it, for a quiet machine.
        yield bounded(
            "find all points, per 10 MiB of text", scan * (10 << 20) / text, 0.2, "seconds"
        )

        number = 0

        def build() -> Path:
            nonlocal number
            number += 1
            path = build_table_file(image, folder=scratch / str(number))
            assert path is not None
            return path

        build()
        folder = scratch / "1"
        if llvm is not None:
            every = [
                pc - 1
                for pc in LocationTable(table_path(find_table_key(image) or "", folder)).pcs()
            ]
            command = [llvm, f"--obj={image}", "--inlines", "--functions=short"]
            mine, time = best_of_each(
                build, partial(_run, command, every, scratch), rounds=max(1, rounds // 2)
            )
            yield at_most(f"build the table, {len(every)} PCs", mine, time, "llvm-symbolizer", 1.0)

        def look_up() -> None:
            symbolizer = Symbolizer(table=find_awaited_table(build_id, image, folder=folder))
            assert len(symbolizer.locate_all(pcs)) == PCS

        def look_up_again() -> None:
            # By a symbolizer that hasn't named any yet.
            assert len(Symbolizer(table=AwaitedTable(table)).locate_all(pcs)) == PCS

        table = LocationTable(table_path(find_table_key(image) or "", folder))
        look_up_again()
        with ElfFile(image) as elf:
            ranges = text_ranges(elf)
        program = open_image_program(
            image, min(part.start for part in ranges), max(part.end for part in ranges)
        )
        others: dict[str, tuple[Callable[[], Any], int]] = {
            "addr2line -afi": (
                partial(_run, ["addr2line", "-afi", "-e", str(image)], addresses, scratch),
                20,
            ),
            "drgn source_location": (
                lambda: [program.source_location(address) for address in addresses],
                50,
            ),
        }
        if llvm is not None:
            command = [llvm, f"--obj={image}", "--inlines"]
            others["llvm-symbolizer"] = (partial(_run, command, addresses, scratch), 10)
        ways: list[Callable[[], Any]] = [
            look_up_again,
            *[look_up] * 3,
            *(way for way, _ in others.values()),
        ]
        again, *mine_and_others = best_of_each(*ways, rounds=rounds)
        mine, theirs = min(mine_and_others[:3]), mine_and_others[3:]
        for (other, (_, times)), time in zip(others.items(), theirs, strict=True):
            yield faster(f"look up {PCS} PCs, table opened anew", mine, time, other, times)
            yield faster(f"look up {PCS} PCs, table opened before", again, time, other, times)

        some = pcs[:: PCS // 200]

        def first_lines() -> None:
            for pc in some:
                symbolizer = Symbolizer(
                    text=ImageText(ranges), fallback=lambda address: frames_at(program, address)
                )
                assert symbolizer.locate(pc).frames

        def by_drgn() -> None:
            for pc in some:
                assert [
                    (location.name(), *location) for location in program.source_location(pc - 1)
                ]

        mine, time = best_of_each(first_lines, by_drgn, rounds=2 * rounds)
        yield at_most("first line without a table (200 times)", mine, time, "drgn", 1.1)
