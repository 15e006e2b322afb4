# SPDX-License-Identifier: LGPL-2.1-or-later
"""Symbols: the table beside addr2line, llvm-symbolizer and drgn."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from kcovdbg.symbols.build import build_table
from kcovdbg.symbols.elf import ElfFile
from kcovdbg.symbols.points import find_points
from kcovdbg.symbols.resolve import Symbolizer, open_symbolizer, read_text_ranges
from kcovdbg.symbols.table import Table
from kcovdbg.target.drgn_source import frames_at, open_image
from tests.bench.measure import Result, at_most, best, bounded, faster
from tests.lab.kernel import Kernel

PCS = 6000


def _run(command: list[str], addresses: list[int], folder: Path) -> None:
    names = folder / "addresses"
    names.write_text("".join(f"{address:#x}\n" for address in addresses))
    with names.open() as file:
        subprocess.run(command, stdin=file, stdout=subprocess.DEVNULL, check=True)


def run(kernel: Kernel, traces: dict[str, array[int]], rounds: int) -> Iterator[Result]:
    image = kernel.vmlinux
    pcs = sorted(random.Random(1).sample(sorted({pc for trace in traces.values() for pc in trace}), PCS))
    addresses = [pc - 1 for pc in pcs]
    llvm = shutil.which("llvm-symbolizer")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with closing(ElfFile(image)) as elf:
            build_id = elf.build_id
            text = sum(section.size for section in elf.text_sections())
            scan = best(lambda: find_points(elf), max(1, rounds // 2))
        yield bounded("find all points, per 10 MiB of text", scan * (10 << 20) / text, 1, "s (no goal)")

        number = 0

        def build() -> Path:
            nonlocal number
            number += 1
            path = build_table(image, folder=scratch / str(number), symbolizer=llvm)
            assert path is not None
            return path

        build_time = best(build, max(1, rounds // 2))
        folder = scratch / "1"
        if llvm is not None:
            every = [pc - 1 for pc in Table(folder / f"{build_id}.1").pcs()]
            command = [llvm, f"--obj={image}", "--inlines", "--functions=short"]
            theirs = best(lambda: _run(command, every, scratch), max(1, rounds // 2))
            yield at_most(f"build the table, {len(every)} PCs", build_time, theirs, "llvm-symbolizer", 2.5)

        def look_up() -> None:
            symbolizer = open_symbolizer(0, build_id=build_id, image=image, folder=folder)
            assert len(symbolizer.locate_all(pcs)) == PCS

        mine = best(look_up, rounds)
        what = f"look up {PCS} PCs, table opened anew"
        command = ["addr2line", "-afi", "-e", str(image)]
        yield faster(what, mine, best(lambda: _run(command, addresses, scratch), rounds), "addr2line -afi", 20)
        if llvm is not None:
            command = [llvm, f"--obj={image}", "--inlines"]
            yield faster(what, mine, best(lambda: _run(command, addresses, scratch), rounds), "llvm-symbolizer", 10)
        ranges = read_text_ranges(image)
        program = open_image(image, min(part.start for part in ranges), max(part.end for part in ranges))
        theirs = best(lambda: [program.source_location(address) for address in addresses], max(1, rounds // 2))
        yield faster(what, mine, theirs, "drgn source_location", 50)

        some = pcs[:: PCS // 200]

        def first_lines() -> None:
            for pc in some:
                symbolizer = Symbolizer(text=ranges, fallback=lambda address: frames_at(program, address))
                assert symbolizer.locate(pc).frames

        def by_drgn() -> None:
            for pc in some:
                assert [(location.name(), *location) for location in program.source_location(pc - 1)]

        yield at_most("first line without a table (200 times)", best(first_lines, rounds), best(by_drgn, rounds), "drgn", 1.1)
