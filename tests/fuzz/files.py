# SPDX-License-Identifier: LGPL-2.1-or-later
"""Damaged files: dumps, slices, images, traces with their side files, text traces, symbol tables.
Each case is a process.

The process is forked from one that opens nothing itself (drgn's threads don't survive a fork) and
has loaded the program's modules. It does what the command line does; its memory, its time and what
it may write are bounded.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
import zlib
from array import array
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import zstandard

from kcovdbg.abi.record import PC
from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Workspace
from kcovdbg.console.runner import run_line
from kcovdbg.console.text import escape
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import KcovdbgError, ReadError
from kcovdbg.frontends.cli import main as kcovdbg
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import CommandInputs, UserInputs
from kcovdbg.model.location import Frame
from kcovdbg.symbols.awaited_table import find_awaited_table
from kcovdbg.symbols.branches import open_code
from kcovdbg.symbols.code_proof import CodeProof
from kcovdbg.symbols.coverage_points import PointKind, find_file_points, find_points
from kcovdbg.symbols.dwarf_reader import read_comp_dir
from kcovdbg.symbols.location_table import LocationTable, TextRange
from kcovdbg.symbols.remote_calls import RemoteCalls
from kcovdbg.symbols.symbolizer import ImageText, Symbolizer, text_ranges
from kcovdbg.symbols.table_builder import build_table_file
from kcovdbg.symbols.table_cache import make_build_key, open_table, table_path
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.demo_files import find_demo
from kcovdbg.target.drgn import programs
from tests.fuzz.damage_kinds import EXTREME, HOSTILE
from tests.fuzz.run import Figures, gather
from tests.support.compiled_image import VARIANTS, compile_image
from tests.support.run_limits import RAW
from tests.support.state import make_layout, make_target
from tests.support.table_writer import TableWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kcovdbg.walk.state import StateReader

PROCESSOR = 20
"""Seconds of a processor that one case may take."""
SECONDS = 300
"""Wall time: a process that only waits hangs as well. On a busy machine, work takes longer."""
MEMORY = 2 << 30
"""Of address space, beyond what the program has before it opens anything."""
OUTPUT = 64 << 20
KINDS = (
    "trace, side file, text, kept, slice, zstd, flattened, kdump, notes, image, table, whole "
    "table, elf, script".split(", ")
)
BUILD_ID = "ab" * 20
# Where the directory of a location table begins.
_DIRECTORY = 80
_KERNEL = 0xFFFF_FFFF_8100_0000


_ODD_VALUES: tuple[object, ...] = (
    None, True, -1, 0, 3, 1 << 31, 1 << 64, 1e308, float("nan"), "", "0x", "0xzz", "1" * 5000, [], {}, [[[]]], "\ud800\udfff",
    ["\x1b[2J", None, {"a": 1}], "UNIQ_PC", "big", *(text.decode("latin-1") for text in HOSTILE),
    *(text.decode("utf-8", "surrogateescape").encode("utf-16", "surrogatepass").decode("latin-1") for text in HOSTILE),
)  # fmt: skip
"""Values of a side file's keys."""


def damage(data: bytes, random: Random) -> bytes:
    """Change bytes of a file in one way, or several."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        kind = random.randrange(8)
        at = random.randrange(len(changed) or 1)
        # Headers are at the start.
        if random.random() < 0.6:
            at %= 512
        if kind == 0:
            del changed[random.choice((0, 1, 7, 8, 15, at, len(changed) * 99 // 100)) :]
        elif kind == 1 and changed:
            changed[min(at, len(changed) - 1)] ^= 1 << random.randrange(8)
        elif kind == 2:
            word = random.choice((random.choice(EXTREME), random.getrandbits(64))) & (1 << 64) - 1
            changed[at & -8 : (at & -8) + 8] = word.to_bytes(8, random.choice(("little", "big")))
        elif kind == 3:
            changed[at : at + random.randrange(64)] = random.randbytes(random.randrange(64))
        elif kind == 4:
            changed[at:at] = random.choice(HOSTILE) * random.choice((1, 100))
        elif kind == 5:
            length = random.choice((8, 64, 4096))
            other = random.randrange(len(changed) or 1)
            changed[at : at + length] = changed[other : other + length]
        elif kind == 6:
            changed[at : at + 4] = struct.pack("<I", random.choice(EXTREME) & 0xFFFFFFFF)
        else:
            changed += random.choice((b"", b"\0" * 4096, changed[:4096]))
    return bytes(changed)


class Files:
    """Whole files of each kind, and what to do with damaged ones.

    :param folder: a scratch directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = self.scratch = folder
        place = find_demo()
        packed = (place / "demo.slice.zst").read_bytes()
        self.slice = zstandard.ZstdDecompressor().decompress(packed, max_output_size=1 << 28)
        self.packed = packed
        header = b"makedumpfile\0\0\0\0" + struct.pack(">qq", 1, 1)
        pieces = [(at, self.slice[at : at + 65536]) for at in range(0, len(self.slice), 65536)]
        self.flattened = header.ljust(4096, b"\0") + b"".join(
            struct.pack(">qq", at, len(piece)) + piece for at, piece in pieces
        )
        self.flattened += struct.pack(">qq", -1, -1)
        # The kernel's own debug info is unpacked once: indexing it is what takes time, and is
        # drgn's.
        self.image = dumpfile.unpack(next(place.glob("vmlinux*"))).path
        with self.image.open("rb") as file:
            self.image_head = file.read(1 << 16)
        random = Random(0)
        pcs = [_KERNEL + random.randrange(1 << 20) for _ in range(400)]
        self.trace = struct.pack(f"<{len(pcs) + 1}Q", len(pcs), *pcs)
        comparisons = [word for pc in pcs[:99] for word in (6, pc & 0xFFFF, pc >> 7, pc)]
        self.comparisons = struct.pack(f"<{len(comparisons) + 1}Q", 99, *comparisons)
        self.text = "".join(f"{pc:#x}\n" for pc in pcs).encode()
        self.side = {
            "format": 1,
            "mode": "TRACE_PC",
            "word_size": 8,
            "byteorder": "little",
            "release": "6.12.0",
            "build_id": "00" * 20,
            "kaslr_offset": "0x0",
            "pid": 41,
            "tid": 41,
            "comm": "work",
            "argv": ["work", "1"],
            "size": 512,
            "count": 400,
            "captured_at": "2026-01-01T00:00:00Z",
        }
        writer = TableWriter(BUILD_ID, [TextRange(_KERNEL, _KERNEL + (1 << 20), ".text")])
        for pc in sorted(set(pcs)):
            writer.add_frames(
                pc,
                PointKind(pc % 3),
                [Frame(f"f{pc % 7}", "a.c", pc % 100, None), Frame("g", "b.c", 1, 2)],
            )
        self.table = writer.to_bytes()
        self.images, self.whole_tables, self.own_traces = [], [], []
        for name, flags in VARIANTS.items():
            with suppress(pytest.skip.Exception, KcovdbgError):
                path = compile_image(
                    folder / "images" / name,
                    "gcc",
                    *flags,
                    "-mcmodel=kernel",
                    f"-Wl,-Ttext={_KERNEL:#x}",
                )
                self.images.append(path.read_bytes())
                built = build_table_file(path, folder=folder / "tables" / name)
                assert built is not None
                self.whole_tables.append(built.read_bytes())
                own = LocationTable(built).pcs()
                self.own_traces.append(struct.pack(f"<{len(own) + 1}Q", len(own), *own))

    def kinds(self) -> dict[str, Callable[[Random], list[str]]]:
        """The kinds of files; each method writes damaged files and returns the words of a command
        line.
        """
        return {name: getattr(self, f"_{name.replace(' ', '_')}") for name in KINDS}

    def _write(self, name: str, data: bytes) -> str:
        path = self.folder / name
        path.write_bytes(data)
        return str(path)

    def _ask_of_traces(self, random: Random, *names: str) -> list[str]:
        one, other = names[0], names[-1]
        pc = random.choice(([], ["--pc", "call"], ["--pc", "raw"]))
        return random.choice(
            (
                ["buffer", f"file:{one}", "-n", "20"],
                ["buffer", f"file:{one}", "--raw", "--json"],
                ["top", f"file:{one}", "--by", "pc", "--json"],
                ["trace", f"file:{one}"],
                ["diff", f"file:{one}", f"file:{other}", "--json"],
                ["diff", f"file:{one}", f"file:{other}", "--ordered"],
                ["view", "--text", f"file:{one}", f"file:{other}"],
                ["view", "--text", f"file:{one}"],
            )
        ) + (pc if random.random() < 0.2 else [])

    def _name(self, random: Random) -> str:
        """Return a file name, sometimes with terminal escapes."""
        if random.random() < 0.8:
            return "trace.kcov"
        return (
            random.choice(HOSTILE)
            .replace(b"/", b"")
            .replace(b"\0", b"")
            .decode(errors="surrogateescape")
            + ".kcov"
        )

    def _trace(self, random: Random) -> list[str]:
        whole = random.choice((self.trace, self.comparisons))
        path = self._write(self._name(random), damage(whole, random))
        if random.random() < 0.05:
            # A file that claims to be large, and takes no space.
            with Path(path).open("r+b") as file:
                file.truncate(random.choice((1 << 32, 1 << 33, 1 << 34, 1 << 40)))
        if random.random() < 0.5:
            side = self.side | {
                "mode": random.choice(("TRACE_PC", "TRACE_CMP", "UNIQ_EDGE", "TRACE_PC_EXT"))
            }
            self._write_side(path, json.dumps(side).encode())
        return self._ask_of_traces(random, path, self._write("other.kcov", self.trace))

    def _write_side(self, path: str, data: bytes) -> None:
        Path(path + ".json").write_bytes(data)

    def _side_file(self, random: Random) -> list[str]:
        path = self._write(self._name(random), random.choice((self.trace, self.comparisons)))
        side: dict[str, object] = dict(self.side)
        for key in random.sample(sorted(side), random.choice((0, 1, 3))):
            side[key] = random.choice(_ODD_VALUES)
        text = json.dumps(side).encode()
        if random.random() < 0.1:
            text = random.choice(
                (
                    b"[" * 100_000,
                    b'{"a":' * 100_000,
                    b"1" * 100_000,
                    b"\xef\xbb\xbf" + text,
                    text[:-1],
                    b"",
                )
            )
        elif random.random() < 0.4:
            text = damage(text, random)
        self._write_side(path, text)
        return self._ask_of_traces(random, path, self._write("other.kcov", self.trace))

    def _text(self, random: Random) -> list[str]:
        lines = self.text.splitlines(keepends=True)
        for _ in range(random.choice((0, 1, 5))):
            lines.insert(
                random.randrange(len(lines)),
                random.choice(
                    (
                        b"0x" + b"f" * 17,
                        b"-1",
                        b"0x",
                        b"nan",
                        b"9" * 100_000,
                        *HOSTILE,
                        b"\r",
                        b"# " + HOSTILE[0],
                    )
                )
                + b"\n",
            )
        data = b"".join(lines)
        if random.random() < 0.5:
            data = damage(data, random)
        return self._ask_of_traces(
            random,
            self._write(self._name(random) + ".txt", data),
            self._write("other.txt", self.text),
        )

    def _kept(self, random: Random) -> list[str]:
        path = self._write("trace.kcov", damage(self.trace, random))
        name = random.choice(
            ("@a", "@", "@@", "@\x1b[2J", "@" + "a" * 5000, "@a b", "@\u202e", "@a/../b", "a")
        )
        words = []
        for line in (
            f"keep '{name}' file:{path}",
            "keep",
            f"buffer '{name}' -n 3",
            f"diff '{name}' @b",
            f"top '{name}'",
        ):
            words += ["-e", line]
        return words

    def _slice(self, random: Random) -> list[str]:
        return self._ask_of_dump(random, self._write("damaged.slice", damage(self.slice, random)))

    def _zstd(self, random: Random) -> list[str]:
        return self._ask_of_dump(
            random, self._write("damaged.slice.zst", damage(self.packed, random))
        )

    def _flattened(self, random: Random) -> list[str]:
        return self._ask_of_dump(
            random, self._write("damaged.flat", damage(self.flattened, random))
        )

    def _kdump(self, random: Random) -> list[str]:
        """Headers of the compressed format, which drgn passes to libkdumpfile."""
        header = bytearray(random.choice((b"KDUMP   ", b"DISKDUMP"))) + struct.pack(
            "<i", random.choice((6, 5, 1, 0, -1, 1 << 30))
        )
        header += b"Linux".ljust(65, b"\0") * 6
        header = header.ljust(400, b"\0")
        for _ in range(20):
            header += struct.pack(
                "<i", random.choice((4096, 0, 1, -1, 1 << 30, random.getrandbits(31)))
            )
        data = bytes(header).ljust(4096, b"\0") + random.randbytes(random.choice((0, 4096, 65536)))
        return self._ask_of_dump(random, self._write("damaged.kdump", data))

    def _notes(self, random: Random) -> list[str]:
        """VMCOREINFO's lines: sizes, offsets and symbols that can't be."""
        start = self.slice.index(b"OSRELEASE=")
        end = self.slice.index(b"\0", start)
        lines = self.slice[start:end].split(b"\n")
        for _ in range(random.choice((1, 1, 3, 10))):
            index = random.randrange(len(lines))
            key = lines[index].split(b"=")[0]
            value = random.choice(
                (b"", b"0", b"-1", b"f" * 16, b"9" * 400, b"zz", b"\xff", *HOSTILE)
            )
            lines[index] = random.choice((key + b"=" + value, key, value, b"", lines[index] * 3))
        text = b"\n".join(lines)[: end - start].ljust(
            end - start, random.choice((b"\n", b"\0", b"A"))
        )
        return self._ask_of_dump(
            random, self._write("damaged.slice", self.slice[:start] + text + self.slice[end:])
        )

    def _image(self, random: Random) -> list[str]:
        """A vmlinux whose headers are damaged, or that ends early."""
        path = self.scratch / "vmlinux"
        if not path.exists() or path.stat().st_size != self.image.stat().st_size:
            path.write_bytes(self.image.read_bytes())
        at = struct.unpack_from("<Q", self.image_head, 40)[0]
        with self.image.open("rb") as file:
            tail = os.pread(file.fileno(), 4096, at)
        head = self.image_head
        if random.random() < 0.5:
            head = damage(head, random)[: len(head)].ljust(len(head), b"\0")
        else:
            # The section headers are behind everything else.
            tail = damage(tail, random)[: len(tail)].ljust(len(tail), b"\0")
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), head, 0)
            os.pwrite(file.fileno(), tail, at)
            if random.random() < 0.2:
                file.truncate(
                    random.choice(
                        (0, 1, 64, 4096, path.stat().st_size // 2, path.stat().st_size - 1)
                    )
                )
        return [str(path), self._write("demo.slice", self.slice), "-q", "-e", "info --json"]

    def _table(self, random: Random) -> list[str]:
        return [
            "\0table",
            self._write("damaged.table", damage(self.table, random)),
            self._write("trace.kcov", self.trace),
        ]

    def _whole_table(self, random: Random) -> list[str]:
        """A table with a right length and checksum."""
        whole = random.choice(self.whole_tables)
        at = _DIRECTORY
        body = bytearray(whole[at:])
        header = bytearray(whole[:at])
        for _ in range(random.choice((1, 1, 2, 5, 40))):
            kind = random.randrange(8)
            # The directory is at the start.
            place = random.randrange(16 * 15 if random.random() < 0.2 else len(body)) & -4
            if kind > 5:
                number = struct.unpack_from("<I", body, place)[0] + random.choice((-2, -1, 1))
                struct.pack_into("<I", body, place, number & 0xFFFFFFFF)
            elif kind < 3:
                number = random.choice(
                    (random.choice(EXTREME), random.randrange(64), random.getrandbits(32))
                )
                body[place : place + 4] = (number & 0xFFFFFFFF).to_bytes(4, "little")
            elif kind == 3:
                body[place] ^= 1 << random.randrange(8)
            elif kind == 4:
                other = random.randrange(len(body)) & -4
                body[place : place + 16] = body[other : other + 16]
            else:
                base = random.choice(
                    (0, 1, (1 << 64) - 1, (1 << 64) - (1 << 20), random.getrandbits(64))
                )
                struct.pack_into("<Q", header, 24, base)
        struct.pack_into("<Q", header, 16, at + len(body))
        struct.pack_into("<I", header, 72, zlib.crc32(body))
        trace = self._write("trace.kcov", random.choice(self.own_traces))
        output = str(self.folder / "out")
        line = random.choice(
            (
                f"top file:{trace} --by {random.choice(('function', 'file', 'pc'))} --json",
                f"source file:{trace} --json",
                f"buffer file:{trace} --json",
                f"trace file:{trace}",
                f"diff file:{trace} file:{trace} --ordered",
                f"view --text file:{trace}",
                f"points {random.choice(('first', 'src', 'src/second.c'))} file:{trace} --json",
                f"report file:{trace} -o {output}",
                *(
                    f"export {name} file:{trace} -o {output}"
                    for name in ("lcov", "jsonl", "modoff", "cobertura")
                ),
            )
        )
        return ["\0commands", self._write("damaged.table", bytes(header + body)), line]

    def _elf(self, random: Random) -> list[str]:
        """A small image, damaged in its headers, or in any of its contents."""
        whole = random.choice(self.images)
        data = bytearray(damage(whole, random))
        if random.random() < 0.6:
            # The section headers are at the end.
            data = bytearray(whole)
            table = struct.unpack_from("<Q", whole, 40)[0]
            for _ in range(random.choice((1, 1, 2, 5))):
                place = table + random.randrange(len(whole) - table) & -4
                number = random.choice(
                    (random.choice(EXTREME), random.randrange(64), random.getrandbits(32))
                )
                data[place : place + 4] = (number & 0xFFFFFFFF).to_bytes(4, "little")
        path = self._write("image", bytes(data))
        if random.random() < 0.5:
            return ["symbols", "build", path, "-o", str(self.folder / "out")]
        return ["\0image", path]

    def _script(self, random: Random) -> list[str]:
        """Lines of garbage: pasted text, or a file that is no script."""
        lines = [
            random.choice(HOSTILE),
            random.randbytes(40),
            b"tasks | ",
            b"buffer file:" + random.choice(HOSTILE),
            b"help '",
            b"'\"\\",
        ]
        random.shuffle(lines)
        return [self._write("script", b"\n".join(line.replace(b"!", b"") for line in lines))]

    def _ask_of_dump(self, random: Random, path: str) -> list[str]:
        # To index debug info takes a second; most damage is seen before.
        symbols = (
            ["-s", str(self.image)] if random.random() < 0.1 else ["-s", self._write("none", b"")]
        )
        return ["-q", "-c", path, *symbols, "-e", "info --json", "-e", "tasks", "-e", "check"]


def run_case(words: list[str]) -> tuple[int, str, str, float, int]:
    """Run the program in a process of its own.

    :return: how it ended, as os.wait4() says; what it wrote; seconds; kibibytes.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            _become(words, out.fileno(), err.fileno())
        pidfd = os.pidfd_open(child)
        try:
            ready, _, _ = select.select([pidfd], [], [], SECONDS)
            if not ready:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
        _, status, usage = os.wait4(child, 0)
        took = time.monotonic() - started
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "surrogateescape"))
    return status if ready else -1, texts[0], texts[1], took, usage.ru_maxrss


def _become(words: list[str], out: int, err: int) -> None:
    status = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR))
        resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT, OUTPUT))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        readers: dict[str, Callable[..., int]] = {
            "\0table": _read_table,
            "\0commands": _use_table,
            "\0image": _read_image,
        }
        own = readers.get(words[0])
        status = kcovdbg(words) if own is None else _run_own(own, words[1:])
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - whatever it is, this process goes no further
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    os._exit(status)


def _run_own(own: Callable[..., int], words: list[str]) -> int:
    try:
        return own(*words)
    except KcovdbgError as error:
        print(f"kcovdbg: {error}", file=sys.stderr)
        return 2


def _read_table(path: str, trace: str) -> int:
    """Use a symbol table as the symbolizer does."""
    pcs = struct.unpack_from(f"<{Path(trace).stat().st_size // 8}Q", Path(trace).read_bytes())[1:]
    folder = Path(path).parent
    Path(path).replace(table_path(make_build_key(BUILD_ID), folder))
    symbolizer = Symbolizer(table=find_awaited_table(BUILD_ID, None, folder=folder))
    for location in symbolizer.locate_all(pcs):
        print(escape(repr(location)))
    table = open_table(make_build_key(BUILD_ID), folder)
    if table is not None:
        print(len(table), escape(repr(table.files())))
        print(
            escape(repr((list(table.functions()), table.find(function="a"), table.text_ranges())))
        )
    return 0


def _read_image(path: str) -> int:
    """Read everything in an image that commands read."""
    pcs = range(_KERNEL, _KERNEL + 256)
    with ElfFile(path) as elf:
        print(elf.build_id, len(elf.symbols), read_comp_dir(elf))
        print(len(find_points(elf).pc), find_file_points(elf) if elf.is_relocatable else None)
        print(elf.symbols.find_at(_KERNEL), elf.symbols.find_each_before(array("Q", pcs)))
        proof = CodeProof(path, elf.build_id, 0, None)
        print(
            proof.judge(pcs, PC, elf.read),
            RemoteCalls(open_code(path, None, elf.build_id), 0).of_image(),
        )
        symbolizer = Symbolizer(text=ImageText(text_ranges(elf), path))
        print(escape(repr(symbolizer.locate_all(pcs))))
    return 0


def _no_state(_inputs: CommandInputs) -> StateReader:
    raise KcovdbgError("no state")


def _refuse_memory(address: int, _size: int) -> bytes:
    raise ReadError("no memory", address)


def _use_table(path: str, line: str) -> int:
    """Run a command for a kernel that has a location table alone."""
    start = SimpleNamespace(address=_KERNEL, size=0)
    target = make_target(kaslr_offset=0, symbol=lambda _name: start, read=_refuse_memory)
    workspace = Workspace(
        COMMANDS, UserInputs(Kernel(KernelOptions(lambda: target, table_file=path)))
    )
    workspace.inputs.kernel.memory.layout = make_layout()
    # This process runs one command; its kernel has no state to be read.
    CommandInputs.reader = property(_no_state)  # type: ignore[assignment,method-assign]
    return run_line(workspace, line, workspace.terminal())


# What Python says; a builder of tables passes on its last line.
_PYTHON_ERROR = re.compile(r"Traceback|internal error|\b[A-Z][A-Za-z]*(Error|Exception)\b")


def judge(status: int, out: str, err: str) -> tuple[str, str] | None:
    """Return what is wrong with the end of a case; None if nothing is."""
    said = (out + err)[-600:]
    if status == -1:
        return "hangs", f"no end within {SECONDS} s: {said!r}"
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return ("hangs" if name == "SIGXCPU" else "crashes"), f"ended by {name}: {said!r}"
    if _PYTHON_ERROR.search(err) or os.WEXITSTATUS(status) not in (0, 1, 2):
        return "crashes", f"status {os.WEXITSTATUS(status)}: {said!r}"
    found = RAW.search(out + err)
    if found is not None:
        at = found.start()
        return "raw", f"{found[0]!r} in {(out + err)[max(0, at - 60) : at + 20]!r}"
    return None


def run_files(
    cases: int, seed: int, seconds: float, say: Callable[[str], None], kinds: Sequence[str] = ()
) -> bool:
    """Run cases one after the other, and print failures and figures, as
    :func:`tests.fuzz.run.gather`.

    :param kinds: of files; all when it is empty.
    """
    # Loaded before the first fork.
    assert programs is not None
    with tempfile.TemporaryDirectory(prefix="kcovdbg-fuzz-") as directory:
        files = Files(Path(directory))
        chosen = {name: make for name, make in files.kinds().items() if not kinds or name in kinds}
        folder = files.folder = files.folder / "case"
        os.environ.update(XDG_CACHE_HOME=str(folder), TMPDIR=str(folder))

        def run(number: int) -> Figures:
            random = Random(number)
            kind = random.choice(sorted(chosen))
            folder.mkdir()
            words = chosen[kind](random)
            status, out, err, took, memory = run_case(words)
            figures = Figures(1, slowest=took, largest=memory, kinds=Counter([kind]))
            wrong = judge(status, out, err)
            if wrong is not None:
                getattr(figures, wrong[0]).append(f"seed {number} ({kind}): {words}: {wrong[1]}")
            elif os.WIFEXITED(status) and os.WEXITSTATUS(status) == 2:
                figures.refused = 1
            else:
                figures.answered = 1
            shutil.rmtree(folder)
            return figures

        return gather(map(run, range(seed, seed + cases)), seed, seconds, say)
