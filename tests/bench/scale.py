# SPDX-License-Identifier: LGPL-2.1-or-later
"""What work on the coverage of a whole kernel costs, each part in processes of its own, beside what
one would run instead.

python -m tests.bench.scale VMLINUX [--core DUMP] [--source-dir TREE] [--other NAME=COMMAND]...

syzkaller's own reader, built with go from its source, writes into the current directory:

--other "syz-cover=sh -c 'cd /tmp/cover && syz-cover -force -config manager.cfg {rawcover}'"

The trace has every point of the image, in order. Without a dump, commands run on the image alone.
Memory is the sum of the resident memory of all processes, at its highest.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_cache import find_table_key, open_table

_LOOK = 0.02
_ROOT = Path(__file__).parents[2]


class Cost(NamedTuple):
    """What a command took."""

    seconds: float
    processor: float
    """Processor seconds of all its processes."""
    mib: float
    """Resident memory of all its processes at its highest."""
    written: int
    """Bytes of its output."""


class Line(NamedTuple):
    """A part of the work, and its goal at 1.32 million points on two cores."""

    name: str
    arguments: Sequence[str]
    goal: str = ""
    output: str | None = None
    """What the command writes, in the scratch folder; None for standard output."""


def _resident(group: int) -> int:
    """Return the resident memory of the processes of a process group in bytes; shared pages count
    once for each.
    """
    total = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            total += int(fields[21]) * os.sysconf("SC_PAGESIZE")
    return total


def measure(
    command: Sequence[str], output: Path, *, stdin: Path | None = None, written: Path | None = None
) -> Cost:
    """Run a command and its processes.

    :raises subprocess.CalledProcessError: when it fails.
    """
    highest = 0
    before = os.times()
    started = time.perf_counter()
    with output.open("wb") as out, (stdin or Path(os.devnull)).open("rb") as given:
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        # An installed package has its modules compiled.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            command,
            stdin=given,
            stdout=out,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
        errors: list[bytes] = []
        assert process.stderr is not None
        reader = threading.Thread(
            target=lambda stream: errors.append(stream.read()), args=(process.stderr,)
        )
        reader.start()
        while process.poll() is None:
            highest = max(highest, _resident(process.pid))
            time.sleep(_LOOK)
        seconds = time.perf_counter() - started
        reader.join()
    after = os.times()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=b"".join(errors))
    processor = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return Cost(seconds, processor, highest / (1 << 20), (written or output).stat().st_size)


def _commands(trace: Path, scratch: Path, source_dir: str | None) -> Iterator[Line]:
    name = f"file:{trace}"
    yield Line("tasks", ["-e", "tasks"])
    yield Line("top", ["-e", f"top {name}"], "3 s, 400 MB")
    for export in ("lcov", "funccover"):
        yield Line(f"export {export}", ["-e", f"export {export} {name}"], "6 s, 500 MB")
    for export in ("rawcover", "jsonl"):
        yield Line(f"export {export}", ["-e", f"export {export} {name}"])
    tree = [] if source_dir is None else ["--source-dir", source_dir]
    yield Line(
        "report",
        [*tree, "-e", f"report {name} -o {scratch}/report.html"],
        "12 s, 700 MB",
        "report.html",
    )


def _file_name(line: str) -> str:
    """Return a name without spaces, which another reader's command may contain unquoted."""
    return f"{line.replace(' ', '-')}.out"


def _write_trace(table: LocationTable, scratch: Path) -> tuple[Path, Path, int]:
    """Write a trace of all points, and their addresses for a symbolizer."""
    pcs = table.pcs()
    trace, addresses = scratch / "all.kcov", scratch / "addresses"
    trace.write_bytes(struct.pack("=Q", len(pcs)) + pcs.tobytes())
    addresses.write_text("".join(f"{pc - 1:#x}\n" for pc in pcs))
    return trace, addresses, len(pcs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.scale", description="measure work on a whole kernel's coverage"
    )
    parser.add_argument("image", metavar="VMLINUX")
    parser.add_argument(
        "--core",
        help="a dump of this kernel; without one, commands that need no memory are measured",
    )
    parser.add_argument("--source-dir", help="its source tree, for the report's text")
    parser.add_argument(
        "--other",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another reader, such as syzkaller's: {image}, {rawcover} and {trace} are replaced",
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="also measure building the location table, into a scratch folder",
    )
    options = parser.parse_args(arguments)
    python = [sys.executable, "-m"]
    with tempfile.TemporaryDirectory(prefix="kcovdbg-scale-") as folder, ElfFile(options.image):
        scratch = Path(folder)
        build = [*python, "kcovdbg.symbols.table_builder", options.image]
        rows: list[tuple[str, Cost, str]] = []
        if options.table:
            rows.append(
                (
                    "build table",
                    measure([*build, "--folder", f"{scratch}/tables"], scratch / "out"),
                    "",
                )
            )
        key = find_table_key(options.image)
        if key is None or open_table(key) is None:
            subprocess.run(build, check=True)
        table = open_table(key or "")
        if table is None:
            parser.error(f"no location table of {options.image} could be built")
        trace, addresses, count = _write_trace(table, scratch)
        kcovdbg = [
            *python,
            "kcovdbg",
            *(("--image",) if options.core is None else ("-c", options.core)),
            "-s",
            options.image,
        ]
        for line in _commands(trace, scratch, options.source_dir):
            if line.name == "tasks" and options.core is None:
                continue
            output = None if line.output is None else scratch / line.output
            cost = measure(
                [*kcovdbg, *line.arguments], scratch / _file_name(line.name), written=output
            )
            rows.append((line.name, cost, line.goal))
        symbolizer = shutil.which("llvm-symbolizer")
        if symbolizer is not None:
            command = [symbolizer, f"--obj={options.image}", "--inlines", "--functions=short"]
            rows.append(
                ("llvm-symbolizer", measure(command, scratch / "llvm.out", stdin=addresses), "")
            )
        for other in options.other:
            name, _, text = other.partition("=")
            replaced = {
                "image": options.image,
                "rawcover": str(scratch / _file_name("export rawcover")),
                "trace": str(trace),
            }
            command = [word.format(**replaced) for word in shlex.split(text)]
            try:
                rows.append((name, measure(command, scratch / "other.out"), ""))
            except subprocess.CalledProcessError as error:
                print(f"{name}: {error.stderr.decode(errors='replace').strip()}", file=sys.stderr)
    base = next((cost for name, cost, _ in rows if name == "llvm-symbolizer"), None)
    print(
        f"{count} points of {options.image}, {len(os.sched_getaffinity(0))} cores, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    print(
        f"{'':<20} {'seconds':>8} {'CPU':>8} {'MiB':>8} {'written':>12} {'of llvm':>8}  goal "
        f"at 1.32 million points"
    )
    for name, cost, goal in rows:
        ratio = "" if base is None else f"{cost.processor / base.processor:.2f}"
        print(
            f"{name:<20} {cost.seconds:>8.2f} {cost.processor:>8.2f} {cost.mib:>8.0f} "
            f"{cost.written:>12} {ratio:>8}  {goal}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
