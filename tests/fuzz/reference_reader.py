# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads the demo kernel's memory without any of kcovdbg's code: offsets from GDB, page tables
walked and lists followed here.

It knows one kernel: x86-64, KCOV's generation E9a. kcovdbg's answers about damaged memory are
compared with it.
"""

from __future__ import annotations

import functools
import re
import struct
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

PAGE = 4096
LINE = 64
# A ring that goes on is broken; the demo has less than a hundred tasks.
_MAX_STEPS = 5000
_ADDRESS = 0x000F_FFFF_FFFF_F000

# Structure -> how its fields' bytes read -> fields; behind an equals sign, what GDB knows one by.
_DECLARED = {
    "task_struct": {
        "i": "pid tgid kcov_sequence saved_sequence=kcov_saved_sequence",
        "16s": "comm",
        "I": "cpu=thread_info.cpu kcov_mode kcov_size kcov_softirq saved_mode=kcov_saved_mode "
        "saved_size=kcov_saved_size",
        "Q": "files signal kcov_area kcov kcov_handle saved_area=kcov_saved_area "
        "saved_kcov=kcov_saved_kcov "
        "tasks_next=tasks.next thread_next=thread_node.next thread_prev=thread_node.prev",
    },
    "kcov": {
        "i": "refcount=refcount.refs.counter sequence",
        "I": "mode size remote_size",
        "Q": "area t",
        "B": "remote",
    },
    "kcov_remote": {"Q": "handle kcov next=hnode.next"},
    "kcov_remote_area": {"Q": "next=list.next prev=list.prev", "I": "size"},
    "file": {"Q": "f_op private_data"},
    "files_struct": {"Q": "fdt"},
    "fdtable": {"I": "max_fds", "Q": "fd open_fds"},
    "signal_struct": {"Q": "thread_next=thread_head.next"},
    "rq": {"Q": "idle curr"},
}
# Structure -> field -> (expression behind the structure's address, how its bytes read).
FIELDS = {
    name: {
        word.partition("=")[0]: (word.rpartition("=")[2], code)
        for code, words in kinds.items()
        for word in words.split()
    }
    for name, kinds in _DECLARED.items()
}
SYMBOLS = (
    "init_task",
    "kcov_remote_map",
    "kcov_remote_areas",
    "kcov_fops",
    "__per_cpu_offset",
    "runqueues",
)


class Facts(NamedTuple):
    """Offsets and addresses from the debug info, by GDB; without the KASLR offset."""

    offsets: Mapping[str, Mapping[str, int]]
    symbols: Mapping[str, int]


def ask_gdb(vmlinux: str) -> Facts:
    """Ask GDB for all offsets at once.

    :raises RuntimeError: when it doesn't know one.
    """
    wanted = [
        (name, field, expression)
        for name, fields in FIELDS.items()
        for field, (expression, _) in fields.items()
    ]
    command = ["gdb", "-nx", "-batch", vmlinux]
    for name, _, expression in wanted:
        command += ["-ex", f"print/u (unsigned long)&((struct {name} *)0)->{expression}"]
    for symbol in SYMBOLS:
        command += ["-ex", f"print/u (unsigned long)&{symbol}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    values = [int(value) for value in re.findall(r"^\$\d+ = (\d+)$", done.stdout, re.MULTILINE)]
    if len(values) != len(wanted) + len(SYMBOLS):
        raise RuntimeError(f"GDB doesn't know all of it: {done.stderr}")
    offsets: dict[str, dict[str, int]] = {}
    for (name, field, _), value in zip(wanted, values, strict=False):
        offsets.setdefault(name, {})[field] = value
    return Facts(offsets, dict(zip(SYMBOLS, values[len(wanted) :], strict=True)))


def parse_vmcoreinfo(notes: bytes) -> dict[str, str]:
    """Find the lines of VMCOREINFO among ELF notes."""
    text = notes[notes.index(b"OSRELEASE=") :].split(b"\0", 1)[0].decode(errors="replace")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


class Decoded(dict[str, Any]):
    """The fields of one structure; None is one that can't be read."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Record:
    """Decodes one kind of structure."""

    def __init__(self, offsets: Mapping[str, int], fields: Mapping[str, tuple[str, str]]) -> None:
        self.fields = [
            (name, offsets[name], struct.Struct("<" + code)) for name, (_, code) in fields.items()
        ]
        self.start = min(offset for _, offset, _ in self.fields)
        self.size = max(offset + code.size for _, offset, code in self.fields) - self.start

    def offset(self, field: str) -> int:
        return next(offset for name, offset, _ in self.fields if name == field)


class Reader:
    """Virtual memory of the demo kernel.

    :param read_page: returns a physical page, None where there is none.
    :param read_healthy_page: the same as it was before any damage.
    :param damaged: the lines of physical memory that aren't what they were.
    """

    def __init__(
        self,
        facts: Facts,
        vmcoreinfo: Mapping[str, str],
        read_page: Callable[[int], bytes | None],
        read_healthy_page: Callable[[int], bytes | None],
        damaged: Callable[[], frozenset[int]],
    ) -> None:
        self._read_page = read_page
        self._damaged = damaged
        shift = int(vmcoreinfo["KERNELOFFSET"], 16)
        self.symbols = {
            # A per-CPU symbol is an offset, which isn't relocated.
            name: address + shift if address >= 1 << 63 else address
            for name, address in facts.symbols.items()
        }
        self.symbols["swapper_pg_dir"] = int(vmcoreinfo["SYMBOL(swapper_pg_dir)"], 16)
        if vmcoreinfo.get("NUMBER(pgtable_l5_enabled)", "0") != "0":
            raise RuntimeError("five levels of page tables aren't known here")
        self._root = (
            self.symbols["swapper_pg_dir"]
            - 0xFFFF_FFFF_8000_0000
            + int(vmcoreinfo["NUMBER(phys_base)"])
        ) & (1 << 64) - 1
        self.records = {
            name: Record(facts.offsets[name], fields) for name, fields in FIELDS.items()
        }

        # Damage leads to any number of addresses.
        @functools.lru_cache(1 << 14)
        def read_healthy(address: int, size: int) -> tuple[bytes | None, frozenset[int]]:
            used: set[int] = set()
            return self._read(address, size, used, read_healthy_page), frozenset(used)

        self._read_healthy = read_healthy
        self._decode_healthy = functools.lru_cache(1 << 14)(self._decode)

    def translate(
        self, address: int, used: set[int], read_page: Callable[[int], bytes | None] | None = None
    ) -> int | None:
        """Return the physical address, None where none is mapped.

        :param used: takes the lines of the tables.
        :param read_page: reads a physical page, by default as it is now.
        """
        if address >> 47 != (1 << 17) - 1:
            return None
        table = self._root
        for level in (39, 30, 21, 12):
            page = (read_page or self._read_page)(table)
            at = (address >> level & 511) * 8
            used.add((table + at) // LINE)
            if page is None:
                return None
            entry = int.from_bytes(page[at : at + 8], "little")
            # In a top-level entry the bit for a large page must be zero (Intel SDM, 3A): the
            # processor refuses it.
            if not entry & 1 or (level == 39 and entry & 0x80):
                return None
            if level == 12 or (level in (30, 21) and entry & 0x80):
                size = 1 << level
                return (entry & _ADDRESS & -size) | (address & size - 1)
            table = entry & _ADDRESS
        return None

    def read(self, address: int, size: int) -> bytes | None:
        """Read memory as it is now, None where any of it can't be read."""
        data, lines = self._read_healthy(address, size)
        return (
            data
            if lines.isdisjoint(self._damaged())
            else self._read(address, size, set(), self._read_page)
        )

    def is_touched(self, address: int, size: int) -> bool:
        """Return whether bytes differ from the healthy state."""
        return self.read(address, size) != self._read_healthy(address, size)[0]

    def _read(
        self, address: int, size: int, used: set[int], read_page: Callable[[int], bytes | None]
    ) -> bytes | None:
        data = b""
        while size:
            here = self.translate(address, used, read_page)
            if here is None:
                return None
            length = min(size, PAGE - here % PAGE)
            used.update(range(here // LINE, (here + length - 1) // LINE + 1))
            page = read_page(here & -PAGE)
            if page is None:
                return None
            piece = page[here % PAGE :][:length]
            data += piece
            address, size = address + len(piece), size - len(piece)
        return data

    def word(self, address: int) -> int | None:
        data = self.read(address, 8)
        return None if data is None else int.from_bytes(data, "little")

    def span(self, kind: str, address: int) -> tuple[int, int]:
        """Where the bytes are that :meth:`decode` reads."""
        record = self.records[kind]
        return address + record.start, record.size

    def decode(self, kind: str, address: int) -> Decoded:
        """Decode a structure, member by member where it can't be read whole."""
        data, lines = self._read_healthy(*self.span(kind, address))
        is_healthy = data is not None and lines.isdisjoint(self._damaged())
        return self._decode_healthy(kind, address) if is_healthy else self._decode(kind, address)

    def _decode(self, kind: str, address: int) -> Decoded:
        record = self.records[kind]
        block = self.read(address + record.start, record.size)
        if block is not None:
            return Decoded(
                (name, code.unpack_from(block, offset - record.start)[0])
                for name, offset, code in record.fields
            )
        found = Decoded()
        for name, offset, code in record.fields:
            data = self.read(address + offset, code.size)
            found[name] = None if data is None else code.unpack(data)[0]
        return found

    def leaders(self) -> Iterator[int]:
        """Follow the list of processes forwards, as far as it goes."""
        offset = self.records["task_struct"].offset("tasks_next")
        head = node = self.symbols["init_task"] + offset
        for _ in range(_MAX_STEPS):
            yield node - offset
            following = self.word(node)
            if following in (None, head):
                return
            node = following or 0

    def threads(self, leader: int) -> Iterator[int]:
        """Follow a process's threads forwards."""
        record = self.records["task_struct"]
        offset = record.offset("thread_next")
        task = self.decode("task_struct", leader)
        yield leader
        if not task.signal:
            return
        head = task.signal + self.records["signal_struct"].offset("thread_next")
        node = task.thread_next
        for _ in range(_MAX_STEPS):
            if node is None or node == leader + offset:
                return
            if node == head:
                # The leader is the first on it: what precedes it is the head.
                if task.thread_prev == head:
                    return
            else:
                yield node - offset
            node = self.word(node)

    def cpu_tasks(self, cpus: Iterable[int]) -> Iterator[int]:
        """Idle tasks and current ones."""
        for cpu in cpus:
            shift = self.word(self.symbols["__per_cpu_offset"] + 8 * cpu)
            if shift is None:
                continue
            queue = self.decode("rq", self.symbols["runqueues"] + shift & (1 << 64) - 1)
            yield from (address for address in (queue.idle, queue.curr) if address)

    def all_tasks(self, cpus: Iterable[int]) -> list[int]:
        """Every task, once."""
        found: dict[int, None] = {}
        for leader in self.leaders():
            found.update(dict.fromkeys(self.threads(leader)))
        found.update(dict.fromkeys(self.cpu_tasks(cpus)))
        return list(found)

    def chains(self) -> Iterator[tuple[int, int]]:
        """The hash of handles: bucket and address of each entry."""
        offset = self.records["kcov_remote"].offset("next")
        for bucket in range(16):
            node = self.word(self.symbols["kcov_remote_map"] + 8 * bucket)
            seen: set[int] = set()
            while node and node not in seen and len(seen) < _MAX_STEPS:
                seen.add(node)
                yield bucket, node - offset
                node = self.word(node)

    def area_list(self, index: int, *, backwards: bool = False) -> list[int]:
        """The areas on a free list, forwards or backwards."""
        head = self.symbols["kcov_remote_areas"] + 16 * index
        way = 8 if backwards else 0
        found: list[int] = []
        seen = {head}
        node = self.word(head + way)
        while node is not None and node not in seen and len(found) < _MAX_STEPS:
            seen.add(node)
            found.append(node)
            node = self.word(node + way)
        return found

    def descriptors(self, files: int) -> Iterator[tuple[int, int]]:
        """Open descriptors of KCOV's files in a table: number and ``struct file``."""
        table = self.decode("files_struct", files)
        if not table.fdt:
            return
        fdt = self.decode("fdtable", table.fdt)
        if fdt.max_fds is None or not 0 < fdt.max_fds <= 1 << 16 or None in (fdt.fd, fdt.open_fds):
            return
        bitmap = self.read(fdt.open_fds, fdt.max_fds // 8)
        if bitmap is None:
            return
        for fd in range(fdt.max_fds):
            if bitmap[fd // 8] >> fd % 8 & 1:
                file = self.word(fdt.fd + 8 * fd)
                if file and self.is_kcov(file):
                    yield fd, file

    def is_kcov(self, file: int) -> bool:
        """Return whether a file is one of KCOV's."""
        return bool(self.decode("file", file).f_op == self.symbols["kcov_fops"])
