# SPDX-License-Identifier: LGPL-2.1-or-later
"""Damaged kernels: with any memory content there are answers after bounded work, and they say what
is missing.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcovdbg.target import struct_layout
from kcovdbg.target.target import Member, Symbol
from kcovdbg.walk import remote, tasks
from kcovdbg.walk.files import FileWalk
from kcovdbg.walk.layout import detect_layout
from tests.support.kernels.asker import Asker, ask_everything
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E0, E3, E4, E7, E9B, P2, ROWS, X1
from tests.support.memory_target import MemoryTarget

ALL = ("json", "text", "csv")
ROW_IDS = [row.name for row in ROWS]
# More reads than a walk needs over kernels of two dozen tasks, damaged or not.
MAX_READS = 20_000
LOW = 0x10000
POISON = 0x6B6B6B6B6B6B6B6B
BAD = (0x10, 0x1238, 0x1235, POISON, 0xFFFFFFFFFFFFFFF8, 0xFFFF_F000_0000_1000)


def ask(kernel, formats=("json",)):
    """Run all commands; assert that their reads are bounded and within the kernel's addresses."""
    target = kernel.target
    target.reads.clear()
    answers, said = ask_everything(target, formats)
    assert "internal error" not in said, said
    assert len(target.reads) < MAX_READS * len(formats)
    low = [(address, size) for address, size in target.reads if address < LOW]
    assert low == []
    return answers, said


def pointers_of(kernel):
    """Yield (what, address) of the words that a walk follows."""
    target = kernel.target
    places = {
        "struct task_struct": [
            kernel.tasks[pid] for pid in (0, 1, 40, 42, 60) if pid in kernel.tasks
        ],
        "struct kcov": [kernel.objects["local"], kernel.objects["shared"]],
        "struct file": [kernel.files["local"], kernel.files["tty"]],
        "struct files_struct": [kernel.tables["fuzz"]],
        "struct rq": [kernel.run_queues[1]],
        "struct kcov_remote": list(kernel.handles.values())[:3],
        "struct kcov_remote_area": [area for areas in kernel.cached.values() for area, _ in areas][
            :4
        ],
        "struct kcov_percpu_data": list(
            target.per_cpu_addresses.get("kcov_percpu_data", {}).values()
        )[:2],
    }
    places["struct task_struct"] += [kernel.tasks[pid] for pid in (7, 9, 50) if pid in kernel.tasks]
    for type_name, addresses in places.items():
        for address in addresses:
            yield from (
                (f"{type_name}.{path}", address + offset)
                for path, offset in words_of(target, type_name)
            )
    for name in ("kcov_remote_map", "kcov_remote_areas"):
        if name in target.symbols:
            symbol = target.symbols[name]
            yield from (
                (name, symbol.address + offset) for offset in range(0, symbol.size, 5 * kernel.word)
            )


def is_shown(what, value, answers, truth):
    """Return whether an answer shows a value that the walk does not follow, and that no other fact
    contradicts.
    """
    if what.endswith("saved_area"):
        return hex(value) in {row["saved_area"] for row in answers["percpu"]}
    if value >> 60 != 0xF:
        return False
    if what.endswith("irq_area"):
        return hex(value) in {row["area"] for row in answers["areas"]}
    if what.endswith("f_op"):
        # A file with other operations is not a KCOV file: it is missing from the references, and
        # nothing else changes.
        return without_references(answers) == without_references(truth)
    return False


def without_references(answers):
    return {
        **answers,
        "objects": [{**row, "references": None, "counted": None} for row in answers["objects"]],
    }


def words_of(target, type_name, prefix="", start=0):
    for name, member in target.types[type_name].members.items():
        if member.type_name.endswith("*") and name not in ("stack", "last"):
            yield prefix + name, start + member.offset
        elif member.type_name in target.types:
            yield from words_of(target, member.type_name, f"{prefix}{name}.", start + member.offset)


@pytest.mark.parametrize("row", [E0, E3, E4, E9B], ids=lambda row: row.name)
def test_any_pointer(row, sample):
    kernel = Kernel(row)
    truth, _ = ask(kernel)
    for what, address in sample(pointers_of(kernel)):
        before = kernel.target.read(address, kernel.word)
        for value in BAD:
            kernel.write_word(address, value)
            answers, said = ask(kernel)
            quiet = [one for one in said.splitlines() if one and "no remote handles" not in one]
            assert answers == truth or quiet or is_shown(what, value, answers, truth), (
                f"{what} is {value:#x}, and nobody says so"
            )
        kernel.target.write(address, before)


@pytest.mark.parametrize("row", [E4, E9B], ids=lambda row: row.name)
def test_any_pointer_that_leads_elsewhere(row, sample):
    kernel = Kernel(row)
    places = tuple(pointers_of(kernel))
    some = random.Random(7)
    for _, address in sample(places):
        before = kernel.target.read(address, kernel.word)
        for value in (0, address, some.choice(places)[1], kernel.tasks[40], kernel.objects["full"]):
            kernel.write_word(address, value)
            ask(kernel)
        kernel.target.write(address, before)


@pytest.mark.parametrize("row", [E0, E3, E4, E7, E9B, P2, X1], ids=lambda row: row.name)
def test_any_missing_page(row, sample):
    kernel = Kernel(row)
    target = kernel.target
    truth, _ = ask(kernel)
    for start, segment in sample(target.segments.items()):
        for hole in (
            (start, start + len(segment)),
            (start, start + len(segment) // 2),
            (start + len(segment) // 2, start + 2**16),
        ):
            target.holes = [hole]
            answers, said = ask(kernel)
            quiet = [one for one in said.splitlines() if one and "no remote handles" not in one]
            assert without_cpu(answers) == without_cpu(truth) or quiet, (
                f"{hole[0]:#x} to {hole[1]:#x} is missing, and nobody says so"
            )
            for command, rows in answers.items():
                if command in ("tasks -a", "objects"):
                    check_rows(rows, truth[command])


def without_cpu(answers):
    """Leave out the CPU at the base of a task's stack in old kernels; many kernels do not have
    it.
    """
    tasks = [{**row, "cpu": None} for row in answers["tasks -a"]]
    return (
        {**answers, "tasks -a": tasks}
        if answers["info"][0]["generation"] in ("E0", "E1")
        else answers
    )


def check_rows(rows, truth):
    """A value of a row with a missing page is the true one, or none."""
    for row in rows:
        key = "task" if "task" in row else "kcov"
        if row[key] is None:
            # Nothing could be read.
            assert row["errors"]
            continue
        (true,) = [other for other in truth if other[key] == row[key]]
        for name, value in row.items():
            if name not in ("errors", "references", "counted"):
                assert value in (None, true[name]), (name, value, true)


@pytest.mark.parametrize("formats", ALL)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes(formats, data):
    row = data.draw(st.sampled_from((E0, E3, E4, E7, E9B)))
    kernel = Kernel(
        row, big_endian=data.draw(st.booleans()), word=data.draw(st.sampled_from((4, 8)))
    )
    segments = sorted(start for start in kernel.target.segments if start)
    interesting = st.sampled_from((0, 1, 2**31, 2**32 - 1, 2**64 - 1, POISON, 0x1000, *segments))
    for _ in range(data.draw(st.integers(1, 12))):
        start = data.draw(st.sampled_from(segments))
        room = len(kernel.target.segments[start]) - 8
        if room < 0:
            continue
        offset = data.draw(st.integers(0, min(room, 4096) // 4)) * 4
        kernel.write_word(start + offset, data.draw(interesting | st.integers(0, 2**64 - 1)), 8)
    ask(kernel, (formats,))


def leader_link(kernel, pid, way="next"):
    return kernel.tasks[pid] + kernel.offset("struct task_struct", f"tasks.{way}")


def pids(answers):
    return {row["pid"] for row in answers["tasks -a"]}


def test_a_cut_task_list_is_read_from_its_other_end():
    kernel = Kernel(E9B)
    everybody = pids(ask(kernel)[0])
    kernel.write_word(leader_link(kernel, 45), POISON)
    answers, said = ask(kernel)
    assert "the task list is broken" in said
    assert pids(answers) == everybody


@pytest.mark.parametrize("to", [2, 45, 46], ids=["backwards", "itself", "forwards"])
def test_a_looped_task_list(to):
    kernel = Kernel(E9B)
    everybody = pids(ask(kernel)[0])
    kernel.write_word(leader_link(kernel, 45), leader_link(kernel, to))
    answers, said = ask(kernel)
    assert pids(answers) == everybody
    assert ("the task list is broken" in said) == (
        to != 46 or list(kernel.groups).index(46) != list(kernel.groups).index(45) + 1
    )


def test_a_task_list_looped_in_both_directions():
    kernel = Kernel(E9B)
    kernel.write_word(leader_link(kernel, 45), leader_link(kernel, 2))
    kernel.write_word(leader_link(kernel, 46, "prev"), leader_link(kernel, 60))
    answers, said = ask(kernel)
    assert {40, 44, 45, 46} <= pids(answers)
    assert said.count("the task list is broken") >= 2


def test_a_task_list_that_crosses_into_threads():
    kernel = Kernel(E9B)
    everybody = pids(ask(kernel)[0])
    kernel.write_word(
        leader_link(kernel, 45),
        kernel.tasks[41] + kernel.offset("struct task_struct", "thread_node"),
    )
    answers, said = ask(kernel)
    assert pids(answers) == everybody
    assert "the task list is broken" in said


def test_a_thread_list_with_a_wrong_signal():
    kernel = Kernel(E9B)
    everybody = pids(ask(kernel)[0])
    kernel.put(kernel.tasks[40], "struct task_struct", signal=kernel.tasks[1] + 64)
    answers, said = ask(kernel)
    assert pids(answers) <= everybody
    assert {41, 42, 43} <= pids(answers)
    assert "thread list of process 40 is broken" in said


def test_a_leader_without_a_readable_id_is_named_by_its_address(monkeypatch):
    kernel = Kernel(E9B)
    leader = kernel.tasks[40]
    # Its links to other processes are on the first page, its id and links to its threads on the
    # second.
    monkeypatch.setattr(struct_layout, "PAGE_SIZE", 64)
    kernel.target.holes = [(leader + 64, leader + 128)]
    said = ask(kernel)[1]
    assert f"threads of task {leader:#x}" in said
    assert "None" not in said


def test_zeroed_pages_are_no_tasks():
    # makedumpfile leaves pages out that then read as zeros.
    kernel = Kernel(E9B)
    start = kernel.tasks[45]
    kernel.target.segments[start][:] = bytes(len(kernel.target.segments[start]))
    answers, said = ask(kernel)
    assert 45 not in pids(answers)
    assert f"the task list is broken: {start:#x}," in said


def test_a_looped_hash_chain():
    kernel = Kernel(E9B)
    hnode = kernel.offset("struct kcov_remote", "hnode")
    first, second = [
        kernel.handles[handle] for handle in kernel.handles if kernel.find_bucket(handle) == 0
    ][:2]
    kernel.write_word(first + hnode, second + hnode)
    kernel.write_word(second + hnode, first + hnode)
    answers, said = ask(kernel)
    assert "of kcov_remote_map is broken" in said
    assert len(answers["remote"]) >= len(kernel.handles) - 3


def test_a_cut_area_list_is_read_from_its_other_end():
    kernel = Kernel(E9B)
    areas = [area for area, _ in kernel.cached["task"]]
    kernel.write_word(areas[0], POISON)
    answers, said = ask(kernel)
    assert [row["area"] for row in answers["areas"]][: len(areas)] == [
        hex(areas[0]),
        *(hex(area) for area in areas[:0:-1]),
    ]
    assert "list of task areas is broken" in said


def test_crossed_area_lists():
    kernel = Kernel(E9B)
    kernel.write_word(kernel.cached["task"][0][0], kernel.cached["irq"][0][0])
    answers, said = ask(kernel)
    assert {
        row["area"] for row in answers["areas"] if row["list"] == "irq" and row["state"] == "cached"
    } == {hex(area) for area, _ in kernel.cached["irq"]}
    assert "links back to" in said


@pytest.mark.parametrize("max_fds", [0, 1, 63, 2**24 + 64, 2**31, 2**32 - 1])
def test_absurd_file_tables(max_fds):
    kernel = Kernel(E9B)
    table = kernel.tables["fuzz"] + kernel.offset("struct files_struct", "fdtab")
    kernel.put(table, "struct fdtable", max_fds=max_fds)
    _, said = ask(kernel)
    assert "the file table of process 40 " in said


def test_a_file_table_of_garbage():
    kernel = Kernel(E9B)
    table = kernel.tables["fuzz"] + kernel.offset("struct files_struct", "fdtab")
    garbage = kernel.allocate(1 << 20)
    kernel.target.segments[garbage][:] = random.Random(1).randbytes(1 << 20)
    kernel.put(table, "struct fdtable", max_fds=1 << 16, fd=garbage, open_fds=garbage)
    _, said = ask(kernel)
    assert "the file table of process 40 is damaged" in said
    assert len(said) < 100_000


@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize("max_fds", [1 << 16, 1])
def test_a_process_that_exits_while_its_files_are_read(is_live, max_fds):
    """The process's file table was freed and its memory reused; in a running kernel that is no
    damage.
    """
    kernel = Kernel(E9B)
    kernel.target.live = is_live
    found = list(tasks.TaskWalk(kernel.target, detect_layout(kernel.target)))
    table = kernel.tables["fuzz"] + kernel.offset("struct files_struct", "fdtab")
    garbage = kernel.allocate(1 << 20)
    kernel.target.segments[garbage][:] = random.Random(1).randbytes(1 << 20)
    kernel.put(table, "struct fdtable", max_fds=max_fds, fd=garbage, open_fds=garbage)
    for task in found:
        if task.files == kernel.tables["fuzz"]:
            kernel.put(task.address, "struct task_struct", files=0)
    walk = FileWalk(kernel.target)
    before = len(
        list(
            walk.for_each_descriptor(task for task in found if task.files != kernel.tables["fuzz"])
        )
    )
    assert not walk.remarks
    walk = FileWalk(kernel.target)
    assert len(list(walk.for_each_descriptor(found))) == before
    assert bool(walk.remarks) == (not is_live)


def test_a_freed_owner():
    kernel = Kernel(E9B)
    freed = kernel.allocate_type("struct task_struct")
    kernel.target.segments[freed][:] = bytes([0x6B]) * len(kernel.target.segments[freed])
    kernel.put(kernel.objects["shared"], "struct kcov", t=freed)
    answers, _ = ask(kernel)
    (row,) = [row for row in answers["objects"] if row["kcov"] == hex(kernel.objects["shared"])]
    assert (row["pid"], row["comm"]) == (None, None)
    (error,) = row["errors"]
    assert f"t {freed:#x} " in error


def test_a_freed_object():
    kernel = Kernel(E9B)
    address = kernel.objects["local"]
    kernel.target.segments[address][:] = bytes([0x6B]) * len(kernel.target.segments[address])
    answers, _ = ask(kernel)
    (row,) = [row for row in answers["tasks -a"] if row["pid"] == 40]
    assert row["role"] is None
    assert f"kcov {address:#x} " in row["errors"][0]
    assert str(0x6B6B6B6B) in row["errors"][0]


def test_hostile_names():
    kernel = Kernel(E9B)
    comm = b"\x1b]0;\x07\xff\xe2\x80\xae\n\r\t\"'\\"
    kernel.put(kernel.tasks[40], "struct task_struct", comm=comm[:15] + b"\0")
    answers, _ = ask(kernel, ALL)
    assert pids(answers) == pids(ask(Kernel(E9B))[0])
    out, _ = Asker(kernel.target).ask("tasks -a")
    assert not any(character in out for character in "\x1b\x07\u202e\r")


@pytest.mark.parametrize("size", [0, 1, 2, 2**28 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("count", [0, 1, 2**63, 2**64 - 1])
def test_absurd_buffers(size, count):
    kernel = Kernel(E9B)
    kernel.put(kernel.tasks[40], "struct task_struct", kcov_size=size)
    kernel.put(kernel.objects["local"], "struct kcov", size=size)
    kernel.write_word(kernel.buffers["local"], count)
    ask(kernel, ALL)
    asker = Asker(kernel.target)
    for line in (
        "buffer 40",
        "buffer 40 --json",
        f"buffer kcov:{kernel.objects['local']:#x} --csv",
        "top 40",
    ):
        kernel.target.reads.clear()
        _, said = asker.ask(line)
        assert "internal error" not in said, said
        assert len(kernel.target.reads) < 10_000


@pytest.mark.parametrize("row", ROWS, ids=ROW_IDS)
def test_every_buffer(row):
    kernel = Kernel(row)
    asker = Asker(kernel.target)
    for what in (
        *kernel.truth.tasks,
        *(f"kcov:{address:#x}" for address in kernel.objects.values()),
    ):
        for line in (f"buffer {what}", f"buffer {what} --json"):
            _, said = asker.ask(line)
            assert "internal error" not in said, said
    filled = {
        name: kcov
        for name, kcov in kernel.truth.objects.items()
        if name in kernel.buffers and kcov.count
    }
    assert filled
    for name, kcov in filled.items():
        rows, _ = asker.rows(f"buffer kcov:{kernel.objects[name]:#x}")
        # Beside addresses there may be edges.
        own = [row for row in rows if row["kind"] != "edge" or name == "edges"]
        assert len(own) == (3 if name == "text" else kcov.count), name


class Moving(MemoryTarget):
    """A live kernel, in which something else changes before each read."""

    places = ()
    some = None

    def read(self, address, size):
        data = super().read(address, size)
        if self.places:
            place, size = self.some.choice(self.places)
            self.write(
                place,
                bytes(
                    self.some.choice(
                        (bytes(size), self.some.randbytes(size), super().read(place, size))
                    )
                ),
            )
        return data


@pytest.mark.parametrize("row", [E3, E7, E9B], ids=lambda row: row.name)
@pytest.mark.parametrize("seed", range(10))
def test_a_live_kernel_moves(row, seed):
    kernel = Kernel(row, live=True, target_class=Moving)
    target = kernel.target
    target.some = random.Random(seed)
    places = []
    for pid in (40, 42, 60, 7):
        for name in ("kcov_mode", "kcov_size", "kcov_area", "kcov", "kcov_sequence"):
            member: Member = target.member("struct task_struct", name)
            places.append((kernel.tasks[pid] + member.offset, member.size))
    places += [(address, 16) for address in kernel.objects.values()]
    places += [(address, 16) for address in kernel.handles.values()]
    target.places = tuple(places)
    ask(kernel, ALL)


@pytest.mark.parametrize(("count", "whole"), [(0, False), (1 << 31, False), (5000, True)])
def test_a_kernel_with_very_many_tasks_says_so(monkeypatch, count, whole):
    """Beyond the bound, the kernel's count of threads decides: a large machine is shown, an endless
    list is not.
    """
    kernel = Kernel(E9B)
    shown, said = ask(kernel)
    assert "the task list" not in said
    monkeypatch.setattr(tasks, "_MAX_TASKS", 5)
    address = kernel.allocate(8)
    kernel.target.symbols["nr_threads"] = Symbol("nr_threads", address, 4)
    kernel.target.write(address, count.to_bytes(4, "little"))
    answers, said = ask(kernel)
    assert ("the task list is broken: it has more than 5 " in said) is not whole
    assert (answers["tasks -a"] == shown["tasks -a"]) is whole


def test_all_chains_together_are_bounded(monkeypatch):
    kernel = Kernel(E9B)
    entries, _ = Asker(kernel.target).rows("remote")
    monkeypatch.setattr(remote, "MAX_ENTRIES", 3)
    found, said = Asker(kernel.target).rows("remote")
    assert len(entries) > 3 == len(found)
    assert "of kcov_remote_map is broken: " in said
