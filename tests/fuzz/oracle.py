# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide whether answers about damaged memory are true: each row is compared with what the damaged
bytes say.

The bytes are read by :mod:`tests.fuzz.reference_reader`. An answer may report what the bytes say,
or report that something is missing, and nothing else; what is not damaged may neither change nor
vanish silently. docs/robustness.md lists what is covered.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.fuzz.reference_reader import Reader, ask_gdb, parse_vmcoreinfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.fuzz.damaged_target import DamagedTarget
    from tests.fuzz.reference_reader import Decoded

Row = dict[str, Any]

_FLAGS = 1 << 30 | 1 << 29
_MODES = {0: "DISABLED", 1: "INIT", 2: "TRACE_PC", 3: "TRACE_CMP", 4: "REMOTE"}
_TRACING = (2, 3)
_REMOTE_MODE = 4


def show_comm(data: bytes) -> str:
    """Show a task's name as JSON may: what isn't UTF-8 byte by byte."""
    text, rest = "", data.split(b"\0", 1)[0]
    while rest:
        for size in (1, 2, 3, 4):
            try:
                text += rest[:size].decode()
            except UnicodeDecodeError:
                continue
            rest = rest[size:]
            break
        else:
            text, rest = text + f"\\x{rest[0]:02x}", rest[1:]
    return text


def _is_unread(row: Row) -> bool:
    """Return whether a row stands for rows that could not be read."""
    return not any(value for key, value in row.items() if key != "errors")


class Oracle:
    """Checks the answers of one case.

    :param target: healthy yet.
    :param ask: runs a command with ``--json`` and returns its rows.
    """

    def __init__(self, target: DamagedTarget, ask: Callable[[str], list[Row]]) -> None:
        self.cpus = target.cpus()
        facts, memory = ask_gdb(target.vmlinux), target.memory
        vmcoreinfo = parse_vmcoreinfo(target.notes_of_dump)
        self.reader = Reader(
            facts, vmcoreinfo, memory.page, memory.healthy_page, lambda: memory.damaged
        )
        self.healthy = {
            name: ask(name) for name in ("tasks -a", "objects", "remote", "areas", "saved")
        }
        self._tasks = {int(row["task"], 16): row for row in self.healthy["tasks -a"]}
        self._objects = {int(row["kcov"], 16): row for row in self.healthy["objects"]}
        # The healthy answers are true.
        self.take_tasks(self.healthy["tasks -a"])
        if problems := [
            problem for name, rows in self.healthy.items() for problem in self.judge(name, rows, ())
        ]:
            raise AssertionError("\n".join(problems))

    def judge(self, name: str, rows: Sequence[Row], remarks: Sequence[str]) -> list[str]:
        """Check the rows of one command.

        :param remarks: what it says is missing of the walk that these rows come from.
        :return: what is wrong.
        """
        judge = getattr(self, f"_judge_{name.split()[0]}")
        known = [row for row in rows if not _is_unread(row)]
        # The row in place of those that could not be read says what is missing.
        said = [*remarks, *(error for row in rows if _is_unread(row) for error in row["errors"])]
        return [f"{name}: {problem}" for problem in judge(known, said)]

    # Tasks.

    def _judge_tasks(self, rows: Sequence[Row], remarks: Sequence[str]) -> Iterable[str]:
        shown = Counter(int(row["task"], 16) for row in rows)
        for address, number in shown.items():
            if number > 1:
                yield f"task {address:#x} is shown {number} times"
        if not remarks:
            there = set(self.reader.all_tasks(self.cpus))
            for address in there - set(shown):
                yield (
                    f"task {address:#x} is on the lists, isn't shown, and nothing is said to be "
                    f"missing"
                )
            for address in set(shown) - there:
                yield f"task {address:#x} is shown, and is on no list"
        for row in rows:
            address = int(row["task"], 16)
            if address in self._tasks and not self._is_task_touched(address):
                before = self._tasks[address]
                if row["syscall"] is None:
                    # Its stack may be damaged, which is not part of the task.
                    before, row = _without_syscall(before), _without_syscall(row)
                if row != before:
                    yield (
                        f"task {address:#x} is not damaged, and reads otherwise: "
                        f"{_difference(before, row)}"
                    )
            else:
                yield from self._judge_task(address, row)

    def _is_task_touched(self, address: int) -> bool:
        """Return whether anything is damaged that a task's row shows."""
        row, task = self._tasks[address], self.reader.decode("task_struct", address)
        areas = [task.kcov_area, int(row["kcov_area"] or "0", 16)]
        spans = [self.reader.span("task_struct", address)]
        for pointer in (int(row["kcov"] or "0", 16), task.kcov, task.saved_kcov):
            if pointer:
                spans.append(self.reader.span("kcov", pointer))
                areas.append(self.reader.decode("kcov", pointer).area)
        return self._is_touched(spans, areas)

    def _is_touched(self, spans: Iterable[tuple[int, int]], areas: Iterable[int | None]) -> bool:
        return any(
            self.reader.is_touched(*span)
            for span in (*spans, *((area, 8) for area in areas if area))
        )

    def _judge_task(self, address: int, row: Row) -> Iterable[str]:
        task = self.reader.decode("task_struct", address)
        wanted = {
            "pid": task.pid,
            "tgid": task.tgid,
            "comm": None if task.comm is None else show_comm(task.comm),
            "cpu": task.cpu,
            "kcov": _hex(task.kcov),
            "kcov_mode_raw": _hex(task.kcov_mode),
            "kcov_size": task.kcov_size,
            "kcov_area": _hex(task.kcov_area),
            "kcov_sequence": task.kcov_sequence,
            "kcov_handle": _hex(task.kcov_handle),
            "kcov_softirq": task.kcov_softirq,
            "in_ctxsw": None if task.kcov_mode is None else bool(task.kcov_mode & 1 << 30),
        }
        yield from _compare(f"task {address:#x}", row, wanted)
        yield from _compare_mode(f"task {address:#x}", row, "kcov_mode", task.kcov_mode)
        where = f"task {address:#x}"
        role = self._role(task.kcov_mode, task.kcov, task.kcov_area)
        if task.kcov_softirq == 1:
            role = "softirq-section"
        yield from _compare_derived(
            where, row, "role", role if task.kcov_softirq in (0, 1) else None
        )
        beneath = (
            self._role(task.saved_mode, task.saved_kcov, task.saved_area)
            if _has_saved(task)
            else None
        )
        if row["beneath"] is not None:
            yield from _compare_derived(where, row, "beneath", beneath)
        if row["owns_remote"] is not None:
            yield from _compare_derived(where, row, "owns_remote", self._owns_remote(address, task))
        yield from self._judge_count(where, row, task)

    def _role(self, mode: int | None, kcov: int | None, area: int | None) -> str | None:
        if mode is None or _plain(mode) not in _MODES:
            return None
        if _plain(mode) not in _TRACING:
            return "none"
        if kcov is None:
            return None
        if not kcov:
            return "none"
        owned = self.reader.decode("kcov", kcov).area
        if area is None or owned is None:
            return None
        return "local" if owned == area else "remote-section"

    def _owns_remote(self, address: int, task: Decoded) -> bool:
        if any(
            mode is not None and _plain(mode) == _REMOTE_MODE
            for mode in (task.kcov_mode, task.saved_mode)
        ):
            return True
        for pointer in (task.kcov, task.saved_kcov):
            if pointer:
                kcov = self.reader.decode("kcov", pointer)
                if kcov.remote and kcov.t == address:
                    return True
        return False

    def _judge_count(self, where: str, row: Row, task: Decoded) -> Iterable[str]:
        mode, area, size = task.kcov_mode, task.kcov_area, task.kcov_size
        if row["count"] is None:
            if area and task.kcov_mode is not None and _plain(mode) in _MODES and not row["errors"]:
                yield f"{where} has a buffer and no count, and nothing is said of it"
            return
        if area == 0:
            owners = [
                self.reader.decode("kcov", pointer)
                for pointer in (task.kcov, task.saved_kcov)
                if pointer
            ]
            counts = [self.reader.word(kcov.area) for kcov in owners if kcov.area]
            if row["count"] not in counts:
                yield f"{where}: count is {row['count']}, the buffers of its objects say {counts}"
            return
        count = None if area is None else self.reader.word(area)
        yield from _compare(where, row, {"count": count})
        if mode is not None and size is not None and count is not None:
            yield from _compare_full(where, row, _plain(mode), size, count)

    # Objects.

    def _is_object_touched(self, address: int) -> bool:
        """Return whether anything is damaged that an object's row shows, except its references."""
        row, kcov = self._objects[address], self.reader.decode("kcov", address)
        tasks = (
            self.reader.span("task_struct", task)
            for task in (kcov.t, int(row["t"] or "0", 16))
            if task
        )
        return self._is_touched(
            (self.reader.span("kcov", address), *tasks), (kcov.area, int(row["area"] or "0", 16))
        )

    def _judge_objects(self, rows: Sequence[Row], remarks: Sequence[str]) -> Iterable[str]:
        shown = {int(row["kcov"], 16): row for row in rows}
        if len(shown) < len(rows):
            yield "an object is shown twice"
        for address, row in shown.items():
            where = f"kcov {address:#x}"
            if address in self._objects and not self._is_object_touched(address):
                before = self._objects[address]
                plain = [
                    key
                    for key in row
                    if key not in ("counted", "references", "errors", "pid", "comm")
                ]
                if any(row[key] != before[key] for key in plain):
                    yield f"{where} isn't damaged, and reads otherwise: {_difference(before, row)}"
                elif (row["pid"], row["comm"]) != (before["pid"], before["comm"]) and not row[
                    "errors"
                ]:
                    yield (
                        f"{where} isn't damaged, and its owner reads otherwise: "
                        f"{_difference(before, row)}"
                    )
            else:
                yield from self._judge_object(where, address, row)
            yield from self._judge_references(where, address, row)
        yield from self._judge_roads(shown, remarks)

    def _judge_object(self, where: str, address: int, row: Row) -> Iterable[str]:
        kcov = self.reader.decode("kcov", address)
        unreadable = [name for name, value in kcov.items() if value is None]
        if row["size"] is None and (unreadable or address % 8):
            # An object is read whole or not at all, and where none can be not either.
            if not row["errors"]:
                yield f"{where} can't be read, and nothing is said of it"
            return
        wanted = {
            "refcount": kcov.refcount,
            "size": kcov.size,
            "area": _hex(kcov.area),
            "t": _hex(kcov.t),
            "remote": None if kcov.remote is None else bool(kcov.remote),
            "remote_size": kcov.remote_size,
            "sequence": kcov.sequence,
        }
        yield from _compare(where, row, wanted)
        yield from _compare_mode(where, row, "mode", kcov.mode, flags=0)
        yield from self._judge_owner(where, row, kcov.t)
        if row["count"] is None:
            if kcov.area and not row["errors"]:
                yield f"{where} has a buffer and no count, and nothing is said of it"
        elif kcov.area:
            yield from _compare(where, row, {"count": self.reader.word(kcov.area)})
            if kcov.mode is not None and kcov.size is not None:
                yield from _compare_full(where, row, _plain(kcov.mode, 0), kcov.size, row["count"])
        else:
            yield f"{where} has no buffer, and a count of {row['count']}"

    def _judge_owner(self, where: str, row: Row, task: int | None) -> Iterable[str]:
        """Compare pid and comm with those of the task that is an object's ``t``."""
        if not task:
            if (row["pid"], row["comm"]) != (None, None):
                yield f"{where} has no owner, and shows {row['pid']} {row['comm']!r}"
            return
        owner = self.reader.decode("task_struct", task)
        if row["pid"] is None:
            if not row["errors"]:
                yield f"{where}: its owner isn't shown, and nothing is said of it"
            return
        yield from _compare(
            where,
            row,
            {"pid": owner.pid, "comm": None if owner.comm is None else show_comm(owner.comm)},
        )

    def _judge_references(self, where: str, address: int, row: Row) -> Iterable[str]:
        references = row["references"]
        if row["counted"] != sum(reference["counts"] for reference in references):
            yield f"{where}: counted is {row['counted']}, which isn't what its references sum up to"
        for reference in references:
            kind = reference["kind"]
            if kind in ("fd", "vma"):
                file = self.reader.decode("file", int(reference["file"], 16))
                if file.f_op != self.reader.symbols["kcov_fops"] or file.private_data != address:
                    yield f"{where}: the file {reference['file']} doesn't refer to it"
            elif kind == "section" and not any(
                task.kcov == address for task in self._with_pid(reference["pid"])
            ):
                yield f"{where}: no task {reference['pid']} has a section of it"
            elif kind == "saved" and not any(
                task.saved_kcov == address for task in self._with_pid(reference["pid"])
            ):
                yield f"{where}: no task {reference['pid']} has a saved session of it"
            elif kind == "remote" and not any(
                (entry.kcov, _hex(entry.handle)) == (address, reference["handle"])
                for _, _, entry in self._entries()
            ):
                yield f"{where}: no entry of the hash has {reference['handle']} for it"
            elif kind == "task":
                owner = self.reader.decode("kcov", address).t
                pid = self.reader.decode("task_struct", owner).pid if owner else None
                if not owner or reference["pid"] not in (pid, None):
                    yield f"{where}: it isn't enabled for task {reference['pid']}"

    def _with_pid(self, pid: int | None) -> list[Decoded]:
        return [task for _, task in self.shown_tasks if task.pid == pid]

    shown_tasks: Sequence[tuple[int, Decoded]] = ()
    """The tasks that the case's answer has, decoded."""

    def take_tasks(self, rows: Sequence[Row]) -> None:
        """Record the tasks in the case's answer."""
        self.shown_tasks = [
            (address, self.reader.decode("task_struct", address))
            for address in (int(row["task"], 16) for row in rows if not _is_unread(row))
        ]

    def _judge_roads(self, shown: Mapping[int, Row], remarks: Sequence[str]) -> Iterable[str]:
        """Check that every object that a shown row refers to has a row."""
        for address, task in self.shown_tasks:
            for pointer in (task.kcov, task.saved_kcov):
                if pointer and pointer not in shown:
                    yield f"task {address:#x} refers to kcov {pointer:#x}, which isn't shown"
        if remarks:
            return
        for bucket, address, entry in self._entries():
            if entry.kcov is not None and entry.kcov not in shown:
                yield (
                    f"entry {address:#x} of bucket {bucket} refers to kcov {entry.kcov:#x}, which "
                    f"isn't shown"
                )
        by_file = {
            (reference["pid"], reference["fd"]): int(row["kcov"], 16)
            for row in shown.values()
            for reference in row["references"]
            if reference["kind"] == "fd" and reference["fd"] is not None
        }
        seen: set[int] = set()
        for _, task in self.shown_tasks:
            if not task.files or task.files in seen:
                continue
            seen.add(task.files)
            for fd, file in self.reader.descriptors(task.files):
                kcov = self.reader.decode("file", file).private_data
                if by_file.get((task.tgid, fd)) != kcov:
                    yield (
                        f"descriptor {fd} of process {task.tgid} refers to kcov {kcov:#x}, and "
                        f"isn't among its references"
                    )

    # Handles.

    def _entries(self) -> list[tuple[int, int, Decoded]]:
        return [
            (bucket, address, self.reader.decode("kcov_remote", address))
            for bucket, address in self.reader.chains()
        ]

    def _judge_remote(self, rows: Sequence[Row], remarks: Sequence[str]) -> Iterable[str]:
        entries = Counter(
            (bucket, _hex(entry.handle), _hex(entry.kcov)) for bucket, _, entry in self._entries()
        )
        shown = Counter((row["bucket"], row["handle"], row["kcov"]) for row in rows)
        for key in shown - entries:
            yield f"{key} is shown, and isn't in the hash"
        if not remarks:
            for key in entries - shown:
                yield f"{key} is in the hash, isn't shown, and nothing is said to be missing"
        for row in rows:
            kcov = self.reader.decode("kcov", int(row["kcov"], 16))
            where = f"handle {row['handle']}"
            if None in kcov.values():
                if not row["errors"] and row["pid"] is None:
                    yield f"{where}: its object can't be read, and nothing is said of it"
            else:
                yield from self._judge_owner(where, row, kcov.t)

    # Areas.

    def _judge_areas(self, rows: Sequence[Row], remarks: Sequence[str]) -> Iterable[str]:
        for index, name in enumerate(("task", "irq")):
            forwards = [*self.reader.area_list(index)]
            backwards = [*self.reader.area_list(index, backwards=True)]
            cached = Counter(
                int(row["area"], 16)
                for row in rows
                if (row["list"], row["state"]) == (name, "cached")
            )
            for address, number in cached.items():
                if number > 1 or address not in (*forwards, *backwards):
                    yield (
                        f"area {address:#x} isn't on the list of {name} areas, or is shown "
                        f"{number} times"
                    )
            if not remarks and set(cached) != set(forwards):
                yield (
                    f"the list of {name} areas has {len(forwards)} areas, {len(cached)} are shown, "
                    f"nothing is said"
                )
        for row in rows:
            address = int(row["area"], 16)
            if row["state"] == "cached":
                size = self.reader.decode("kcov_remote_area", address).size
                yield from _compare(f"area {address:#x}", row, {"size": size})
            elif row["state"] == "in-use" and not any(
                (task.kcov_area, task.kcov_size, task.pid, task.cpu)
                == (address, row["size"], row["pid"], row["cpu"])
                for _, task in self.shown_tasks
            ):
                yield f"area {address:#x} is shown in use, and no such task uses it"
            elif row["state"] == "saved" and not any(
                (task.saved_area, task.saved_size, task.pid) == (address, row["size"], row["pid"])
                for _, task in self.shown_tasks
            ):
                yield f"area {address:#x} is shown as saved, and no such task has saved it"
            elif row["state"] == "unclaimed" and any(
                address == task.kcov_area for _, task in self.shown_tasks
            ):
                yield f"area {address:#x} is shown as unclaimed, and a task has it"

    # Saved sessions.

    def _judge_saved(self, rows: Sequence[Row], remarks: Sequence[str]) -> Iterable[str]:
        wanted = Counter(
            (
                *(
                    task.pid,
                    None if task.comm is None else show_comm(task.comm),
                    task.cpu,
                    _hex(task.saved_mode),
                ),
                *(
                    task.saved_size,
                    _hex(task.saved_area),
                    _hex(task.saved_kcov),
                    task.saved_sequence,
                ),
            )
            for _, task in self.shown_tasks
            if _has_saved(task)
        )
        shown = Counter(
            (
                *(row["pid"], row["comm"], row["cpu"], row["saved_mode_raw"]),
                *(row["saved_size"], row["saved_area"], row["saved_kcov"], row["saved_sequence"]),
            )
            for row in rows
        )
        for key in wanted - shown:
            yield f"{key} is saved, and isn't shown"
        for key in shown - wanted:
            yield f"{key} is shown, and isn't saved"

    # Buffers.

    def judge_buffer(self, address: int, rows: Sequence[Row], limit: int) -> Iterable[str]:
        """Compare the raw records of an object's buffer with its words.

        :param limit: how many records were asked for.
        """
        kcov = self.reader.decode("kcov", address)
        if not kcov.area:
            return
        words = 4 if any(row.get("size") is not None for row in rows) else 1
        for row in rows[:limit]:
            first = kcov.area + 8 * (1 + words * row["index"])
            record = [self.reader.word(first + 8 * index) for index in range(words)]
            if None in record:
                if row["pc"] not in (None, "0x0"):
                    yield (
                        f"record {row['index']} of {address:#x} can't be read, and is shown as "
                        f"{row['pc']}"
                    )
                continue
            wanted = {"pc": _hex(record[-1])}
            if words > 1:
                wanted |= {"arg1": _hex(record[1]), "arg2": _hex(record[2])}
            for key, value in wanted.items():
                if row[key] != value:
                    yield (
                        f"record {row['index']} of {address:#x}: {key} is {row[key]}, the buffer "
                        f"says {value}"
                    )


def _has_saved(task: Decoded) -> bool:
    return bool(
        task.saved_mode
        or task.saved_size
        or task.saved_area
        or task.saved_kcov
        or task.saved_sequence
    )


def _hex(value: int | None) -> str | None:
    return None if value is None else hex(value)


def _compare(where: str, row: Row, wanted: Mapping[str, object]) -> Iterable[str]:
    for key, value in wanted.items():
        if row[key] is None and value is None and not row["errors"]:
            yield f"{where}: {key} can't be read, and nothing is said of it"
        elif row[key] != value:
            yield f"{where}: {key} is {row[key]!r}, memory says {value!r}"


def _plain(word: int, flags: int = _FLAGS) -> int:
    """Return the mode in a word, without one or two bits that no mode has: high ones, or any beside
    a mode.
    """
    value = word & ~flags
    mode, others = value & 7, value & ~7
    if others & 1 << 30:
        # In an object's mode, where the flag of a switch never is.
        return value
    is_high = not others & 0xFF
    return mode if mode in _MODES and others.bit_count() <= 2 and (is_high or mode) else value


def _compare_mode(
    where: str, row: Row, key: str, word: int | None, flags: int = _FLAGS
) -> Iterable[str]:
    if word is None:
        yield from _compare(where, row, {key: None})
        return
    name = _MODES.get(_plain(word, flags))
    if name is not None and word & ~flags not in _MODES and not row["errors"]:
        yield f"{where}: {word:#x} has a bit that is unknown, and nothing is said of it"
    # What has no name is shown as what it is.
    if (name is not None and row[key] != name) or (name is None and row[key] in _MODES.values()):
        yield f"{where}: {key} is {row[key]!r}, memory says {word:#x}"


def _compare_derived(where: str, row: Row, key: str, value: object) -> Iterable[str]:
    """Check a value that depends on several members: it may be unknown with a remark, but never
    wrong.
    """
    if row[key] is None:
        if not row["errors"]:
            yield f"{where}: {key} isn't told, and nothing is said of it"
    elif row[key] != value:
        yield f"{where}: {key} is {row[key]!r}, and it should be {value!r}"


def _compare_full(where: str, row: Row, mode: int, size: int, count: int) -> Iterable[str]:
    if mode not in _TRACING or row["full"] is None or not size:
        return
    capacity = (size - 1) // (1 if mode == _TRACING[0] else 4)
    if row["full"] != (count >= capacity):
        yield f"{where}: full is {row['full']}, with {count} of {capacity}"
    if row.get("capacity", capacity) != capacity:
        yield f"{where}: capacity is {row['capacity']}, and it should be {capacity}"


def _without_syscall(row: Row) -> Row:
    errors = [error for error in row["errors"] if not error.startswith("system call")]
    return {**row, "syscall": None, "errors": errors}


def _difference(before: Row, after: Row) -> str:
    return ", ".join(
        f"{key} {before[key]!r} -> {after[key]!r}"
        for key in before
        if before[key] != after.get(key)
    )
