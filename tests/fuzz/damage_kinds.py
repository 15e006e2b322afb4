# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kinds of damage to the memory that kcovdbg walks; each takes its choices from a random
generator.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from drgn import FaultError

from kcovdbg.errors import KcovdbgError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from kcovdbg.model.state import State
    from tests.fuzz.damaged_target import DamagedTarget
    from tests.fuzz.reference_reader import Reader

PAGE = 4096
EXTREME = (0, 1, 2, 3, 0x7F, 0xFF, 0x7FFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 31, 1 << 32, 1 << 47, 1 << 63,
           (1 << 64) - 1, 0x5555555555555555, 0x6B6B6B6B6B6B6B6B, 0xDEAD000000000100)  # fmt: skip
HOSTILE = (b"\x1b[2J\x1b]0;x\x07", b"a\nb\rc\td", b"\xe2\x80\xae\xe2\x81\xa6evil", b"\xff\xfe\x80\x9b31m", b"\x9b2J\xc2\x9bX",
           b"\x7f\x08\x08\x00", b"%n%s{}'\"<&>", b"\xed\xa0\x80\xf4\x90\x80\x80")  # fmt: skip


class Places:
    """The addresses of structures before any damage.

    :param target: undamaged.
    :param snapshot: of it.
    """

    def __init__(self, target: DamagedTarget, snapshot: State) -> None:
        self.target = target
        size = {
            name: target.type_size(f"struct {name}")
            for name in ("task_struct", "kcov", "kcov_remote", "file")
        }
        self.tasks = [task.fields.address for task in snapshot.all_tasks]
        self.tids = [task.fields.pid for task in snapshot.all_tasks if task.fields.pid]
        self.pages: list[int] = []
        """Physical pages that some command reads."""
        self.tables: list[int] = []
        """Physical pages of page tables."""
        self.used_entries: list[int] = []
        """Lines of them, by physical address over 64, that lead to KCOV's structures."""
        self.kcovs = [address for address in snapshot.objects if address]
        self.entries = [entry.address for entry in snapshot.handles]
        self.areas = [area.address for area in snapshot.areas]
        self.buffers = [
            kcov.fields.area
            for kcov in snapshot.objects.values()
            if kcov.fields and kcov.fields.area
        ]
        self.files = sorted(
            {ref.file for kcov in snapshot.objects.values() for ref in kcov.references if ref.file}
        )
        self.globals = []
        for name, length in (
            ("kcov_remote_map", 128),
            ("kcov_remote_areas", 32),
            ("kcov_remote_lock", 4),
        ):
            with contextlib.suppress(KcovdbgError):
                self.globals.append((target.symbol(name).address, length))
        first = target.member("struct task_struct", "kcov_mode").offset
        last = target.member("struct task_struct", "kcov_saved_sequence").offset + 4
        self.spans = [
            *((task + first, last - first) for task in self.tasks),
            *((kcov, size["kcov"]) for kcov in self.kcovs),
            *((entry, size["kcov_remote"]) for entry in self.entries),
            *((area, 64) for area in self.areas),
            *((buffer, 64) for buffer in self.buffers),
            *((file, size["file"]) for file in self.files),
            *self.globals,
        ]
        self.pointers = [
            *self.tasks,
            *self.kcovs,
            *self.entries,
            *self.areas,
            *self.buffers,
            *self.files,
        ]
        self.links = [
            *(task + target.member("struct task_struct", path).offset for task in self.tasks
              for path in ("tasks.next", "tasks.prev", "thread_node.next", "thread_node.prev")),
            *(entry + target.member("struct kcov_remote", "hnode").offset for entry in self.entries),
            *(area + offset for area in self.areas for offset in (0, 8)),
            *(start + 8 * index for start, length in self.globals for index in range(length // 8)),
        ]  # fmt: skip

    def add_more(self, reader: Reader) -> None:
        """Add structures that kcovdbg walks without showing them: page tables, file tables, thread
        lists, per-CPU pointers.

        :param reader: of healthy memory.
        """
        lines: set[int] = set()
        for start, _ in self.spans:
            reader.translate(start, lines)
        self.tables = sorted({line * 64 & -PAGE for line in lines})
        self.used_entries = sorted(lines)
        more: list[tuple[int, int]] = []
        for address in self.tasks:
            task = reader.decode("task_struct", address)
            if task.signal:
                more.append(reader.span("signal_struct", task.signal))
            if task.files:
                more.append(reader.span("files_struct", task.files))
                table = reader.decode("files_struct", task.files)
                more.append(reader.span("fdtable", table.fdt))
                fdt = reader.decode("fdtable", table.fdt)
                more += [(fdt.fd, 64), (fdt.open_fds, 8)]
        more += [
            (reader.symbols["__per_cpu_offset"], 16),
            (reader.symbols["swapper_pg_dir"] + 2048, 2048),
        ]
        self.spans += sorted(set(more))


def flip_bits(target: DamagedTarget, places: Places, random: Random) -> None:
    """Flip some bits of one structure."""
    start, length = random.choice(places.spans)
    for _ in range(random.choice((1, 1, 2, 8))):
        address = start + random.randrange(length)
        target.write(address, bytes([target.read(address, 1)[0] ^ 1 << random.randrange(8)]))


def change_words(target: DamagedTarget, places: Places, random: Random) -> None:
    """Write extreme or random words into one structure."""
    start, length = random.choice(places.spans)
    for _ in range(random.choice((1, 1, 2, 4))):
        offset = random.randrange(0, max(length - 3, 1), 4)
        width = random.choice((4, 8))
        value = random.choice(
            (random.choice(EXTREME), random.getrandbits(64), random.choice(places.pointers))
        )
        target.write(start + offset, (value & (1 << 8 * width) - 1).to_bytes(width, "little"))


def cross_links(target: DamagedTarget, places: Places, random: Random) -> None:
    """Cut a list, loop it, or let it continue in another one."""
    link = random.choice(places.links)
    value = random.choice(
        (
            0,
            link,
            random.choice(places.links),
            random.choice(places.pointers),
            random.choice(EXTREME),
        )
    )
    target.write_word(link, value + random.choice((0, 0, 0, 1, 8)))


def fill_structure(target: DamagedTarget, places: Places, random: Random) -> None:
    """Overwrite a whole structure."""
    start, length = random.choice(places.spans)
    kind = random.randrange(3)
    data = (
        bytes([random.choice((0, 0x6B, 0xFF))]) * length if kind == 0 else random.randbytes(length)
    )
    if kind == 2:
        other, size = random.choice(places.spans)
        data = target.read(other, size)[:length]
    target.write(start, data)


def remove_pages(target: DamagedTarget, places: Places, random: Random) -> None:
    """Remove pages: those of a structure, or any that is read."""
    for _ in range(random.choice((1, 1, 3, 20))):
        page = random.choice(places.pages)
        if random.random() < 0.5:
            page = target.physical(random.choice(places.spans)[0]) & -PAGE
        target.memory.removed.add(page)


def zero_pages(target: DamagedTarget, places: Places, random: Random) -> None:
    """Zero pages, as makedumpfile may."""
    for _ in range(random.choice((1, 3))):
        address, _ = random.choice(places.spans)
        target.write(address & -PAGE, bytes(PAGE))


def damage_any_page(target: DamagedTarget, places: Places, random: Random) -> None:
    """Change words in any page that is read: page tables, the tree of vmalloc areas, maple trees,
    slabs.
    """
    page = random.choice(places.pages)
    for _ in range(random.choice((1, 4, 32))):
        offset = random.randrange(0, PAGE, 8)
        value = random.choice((random.choice(EXTREME), random.getrandbits(64)))
        target.memory.write(page + offset, (value & (1 << 64) - 1).to_bytes(8, "little"))


def damage_page_tables(target: DamagedTarget, places: Places, random: Random) -> None:
    """Let entries of page tables lead elsewhere: to other pages, in circles, out of memory,
    nowhere.
    """
    page = random.choice(places.tables)
    for _ in range(random.choice((1, 1, 4, 64))):
        entry = page + random.randrange(0, PAGE, 8)
        if random.random() < 0.7:
            entry = 64 * random.choice(places.used_entries) + random.randrange(0, 64, 8)
            page = entry & -PAGE
        before = int.from_bytes(target.memory.read(entry, 8), "little")
        if not before:
            # Most entries of most tables are empty.
            entry = page + next(
                (at for at in range(0, PAGE, 8) if any(target.memory.read(page + at, 8))), 0
            )
            before = int.from_bytes(target.memory.read(entry, 8), "little")
        value = random.choice(
            (
                0,
                before & ~1,
                before ^ 0x80,
                before ^ 1 << random.randrange(64),
                random.choice(places.pages) | 0x63,
                page | 0x63,
                random.choice(places.tables) | 0x63,
                random.getrandbits(64),
                (1 << 64) - 1,
            )
        )
        target.memory.write(entry, (value & (1 << 64) - 1).to_bytes(8, "little"))


def cross_lists(target: DamagedTarget, places: Places, random: Random) -> None:
    """Exchange two links: each list continues in the other one, and both still end."""
    one, other = random.choice(places.links), random.choice(places.links)
    first, second = target.read(one, 8), target.read(other, 8)
    target.write(one, second)
    target.write(other, first)


def unlink_node(target: DamagedTarget, places: Places, random: Random) -> None:
    """Remove an element from its list correctly, so that only its absence shows it."""
    task = random.choice(places.tasks)
    offset = target.member("struct task_struct", random.choice(("tasks", "thread_node"))).offset
    following, before = (
        int.from_bytes(target.read(task + offset + 8 * index, 8), "little") for index in (0, 1)
    )
    target.write_word(before, following)
    target.write_word(following + 8, before)


def hostile_names(target: DamagedTarget, places: Places, random: Random) -> None:
    """Give tasks names with terminal escapes."""
    member = target.member("struct task_struct", "comm")
    for _ in range(random.choice((1, 8))):
        text = random.choice((random.choice(HOSTILE), random.randbytes(16)))[:16]
        target.write(random.choice(places.tasks) + member.offset, text.ljust(16, b"\0"))


def extreme_sizes(target: DamagedTarget, places: Places, random: Random) -> None:
    """Claim absurd sizes and counts."""
    value = random.choice(EXTREME)
    kcov = random.choice(places.kcovs)
    for name in random.sample(
        ("size", "mode", "remote_size", "sequence", "refcount.refs.counter"), 2
    ):
        target.put(kcov, "struct kcov", name, value)
    task = random.choice(places.tasks)
    for name in random.sample(
        ("kcov_size", "kcov_mode", "kcov_softirq", "kcov_saved_size", "flags", "pid", "tgid"), 2
    ):
        target.put(task, "struct task_struct", name, value)
    target.write_word(random.choice(places.buffers), random.choice(EXTREME))


DAMAGES: tuple[Callable[[DamagedTarget, Places, Random], None], ...] = (
    flip_bits,
    change_words,
    cross_links,
    fill_structure,
    remove_pages,
    zero_pages,
    damage_any_page,
    damage_page_tables,
    cross_lists,
    unlink_node,
    hostile_names,
    extreme_sizes,
)


def do_damage(target: DamagedTarget, places: Places, random: Random) -> str:
    """Damage memory in one way, or several.

    :return: in which.
    """
    names = []
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        damage = random.choice(DAMAGES)
        names.append(damage.__name__)
        # Damaged structures may be in a page that was removed.
        with contextlib.suppress(KcovdbgError, FaultError, LookupError):
            damage(target, places, random)
    return ", ".join(names)
