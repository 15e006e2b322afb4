# SPDX-License-Identifier: LGPL-2.1-or-later
"""Unread is not none: kernels that lack a page, and every command that answers about their state.

The undamaged kernel gives the right answer. Without a page, each of its rows is there, or the
answer says that something is missing; no sentence says that there is none, no status that all is
well, no rule that it is kept or violated.
"""

import pytest

from kcovdbg.check.runner import list_rules
from kcovdbg.commands import COMMANDS
from kcovdbg.console.command import Count, Topic
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.gdb.link import Link
from kcovdbg.frontends.gdb.server import Server
from kcovdbg.model.finding import Severity
from kcovdbg.model.state import Extent, Lack, Part, Source, State, sources_of
from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import D2, E3, E6, E9A, E9B, J
from tests.support.kernels.scenario import Scenario, Task, make_scenario
from tests.support.stub import make_stub

ROWS = (E3, E6, E9B, J, D2)
# What an answer about a task, a handle or an object may say instead of the right one.
UNKNOWN_CODES = {
    *("unknown", "object-unreadable", "count-unreadable", "carriers-incomplete", "search-limited"),
}
# Identify a row.
KEYS = {
    "tasks": "task",
    "tasks -a": "task",
    "objects": "kcov",
    "remote": "handle",
    "areas": "area",
    "saved": "saved_area",
}
BUFFERS = {"buffer all": "pc", "top all --by pc": "pc"}
CLAIMS = ("error", "warning")


def list_state_commands():
    """Return the lines of all commands that list the kernel's state and can be asked without an
    argument.
    """
    for command in COMMANDS:
        needs_words = any(
            argument.count in (Count.ONE, Count.SOME, None) and not argument.is_option
            for argument in command.arguments
        )
        if (
            command.topic is Topic.STATE
            and any(row_type.unread for row_type in command.row_types)
            and not needs_words
        ):
            yield command.name


def make_kernel(row):
    """Return a kernel with the lock of its handles, and with what says that a task is dead."""
    kernel = Kernel(row)
    kernel.add_symbol("kcov_remote_lock", 4)
    return kernel


def make_empty(row):
    """Return a kernel on which nobody uses KCOV."""
    # The device of kcov_dataflow is always in use.
    row = E9A if row.has_device else row
    truth = make_scenario(row)
    tasks = {pid: task for pid, task in truth.tasks.items() if task.is_idle}
    tasks[1] = Task(1, "init", files="init", mm="init")
    return Kernel(
        row, Scenario(tasks, {}, {"tty": None}, {"init": {0: "tty"}}, {"init": {}}, cpus=truth.cpus)
    )


def ask(kernel, line):
    """Return rows, status and remarks of a line."""
    asker = Asker(kernel.target)
    rows, said = asker.rows(line)
    assert "internal error" not in said, (line, said)
    return rows, asker.status, said


def is_unread(row):
    return not any(value for key, value in row.items() if key != "errors")


def pieces_of(kernel):
    """Yield what a dump may lack: each piece of memory."""
    return [
        (start, start + len(segment)) for start, segment in kernel.target.segments.items() if start
    ]


def holes_of(kernel):
    """Yield each piece of memory, and its halves."""
    for start, end in pieces_of(kernel):
        middle = (start + end) // 2
        yield from ((start, end), (start, middle), (middle, end))


def subjects_of(kernel):
    """Yield what can be asked about: tasks, handles and objects of every kind."""
    yield from (str(pid) for pid in (1, 7, 40, 45, 50, 60) if pid in kernel.tasks)
    yield from ("usb:1", "usb:77", "common:0x42") if kernel.row.has_remote else ()
    yield from (
        hex(kernel.objects[name])
        for name in ("local", "shared", "remote")
        if name in kernel.objects
    )


def test_every_list_is_swept():
    """A new list of state is swept without a change here, as soon as it says what identifies its
    rows.
    """
    assert {*list_state_commands()} == {line for line in KEYS if " " not in line}


@pytest.mark.parametrize("row", [E3, E9B], ids=lambda row: row.name)
def test_handles_in_a_page_of_zeros(row, monkeypatch):
    """A page that a dump left out may read as zeros: a map without handles has neighbors."""
    kernel = make_kernel(row)
    page = kernel.target.symbols["kcov_remote_map"].address & -4096
    read = kernel.target.read

    def read_zeros(address, size):
        is_inside = page <= address and address + size <= page + 4096
        return bytes(size) if is_inside else read(address, size)

    monkeypatch.setattr(kernel.target, "read", read_zeros)
    (row,), status, _ = ask(kernel, "remote")
    assert status == 2
    assert is_unread(row)
    assert "kcov_remote_map" in row["errors"][0]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_lists(row, sample):
    kernel = make_kernel(row)
    truth = {line: ask(kernel, line)[0] for line in KEYS}
    none = {line: Asker(make_empty(row).target).ask(line)[0].strip() for line in KEYS}
    for hole in sample(holes_of(kernel)):
        kernel.target.holes = [hole]
        for line, key in KEYS.items():
            rows, status, said = ask(kernel, line)
            where = (line, [hex(end) for end in hole], rows[:2], status, said)
            assert status in (0, 2), where
            known = {row[key] for row in rows}
            lost = [row for row in truth[line] if row[key] not in known]
            assert not lost or status or said or any(row["errors"] for row in rows), where
            assert not truth[line] or rows, where
            if all(map(is_unread, rows)) and truth[line]:
                assert all(row["errors"] for row in rows), where
                text, _ = Asker(kernel.target).ask(line)
                assert none[line] not in text.splitlines(), where
                assert "unknown" in text, where


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_check(row, sample):
    """A page that is missing breaks no rule; and the rules that rest on it are not kept either."""
    kernel = make_kernel(row)
    assert ask(kernel, "check")[:2] == ([], 0)
    for hole in sample(holes_of(kernel)):
        kernel.target.holes = [hole]
        rows, status, said = ask(kernel, "check")
        where = ([hex(end) for end in hole], rows[:3], status, said)
        assert not [row for row in rows if row["severity"] in CLAIMS], where
        reader = kernel.reader()
        state = reader.read(~Part.NOTHING)
        rules = [rule for rule in list_rules() if rule.applies(state.kernel.generation)]
        stacks = [task for rule in rules if rule.stacks is not None for task in rule.stacks(state)]
        state = reader.read(~Part.NOTHING, stacks=stacks)
        lacks = [
            line
            for rule in rules
            if rule.severity is not Severity.ADVICE
            for line in rule.unread(state)
        ]
        assert status == (3 if lacks else 0), (where, lacks)
        assert bool(rows) == bool(lacks), where
        text, _ = Asker(kernel.target).ask("check")
        assert ("could not be judged" in text) == bool(lacks), where


@pytest.mark.parametrize("row", [E6, E9B], ids=lambda row: row.name)
def test_why(row, sample):
    kernel = make_kernel(row)
    truth = {subject: ask(kernel, f"why {subject}")[0] for subject in subjects_of(kernel)}
    for hole in sample(holes_of(kernel)):
        kernel.target.holes = [hole]
        for subject, right in truth.items():
            rows, status, said = ask(kernel, f"why {subject}")
            where = (subject, [hex(end) for end in hole], rows, status, said)
            codes = {row["code"] for row in right}
            assert {row["code"] for row in rows} <= codes | UNKNOWN_CODES, where
            assert status in (0, 2), where
            if {row["code"] for row in rows} != codes:
                assert status or any(row["code"] in UNKNOWN_CODES for row in rows) or said, where
            if status == 2 and not rows:
                assert "unknown" in said or "unreadable" in said or "read" in said, where


@pytest.mark.parametrize("row", [E6, E9B], ids=lambda row: row.name)
@pytest.mark.parametrize("line", BUFFERS)
def test_all_buffers(row, line, sample):
    """A buffer that cannot be read, or whose object cannot, is named: totals without it are not
    whole.
    """
    kernel = Kernel(row)
    (truth, _, before), key = ask(kernel, line), BUFFERS[line]
    for hole in sample(holes_of(kernel)):
        kernel.target.holes = [hole]
        rows, status, said = ask(kernel, line)
        lost = len(truth) != len(rows) or {row[key] for row in rows} != {row[key] for row in truth}
        assert not lost or status == 2 or said.replace(before, ""), (
            line,
            [hex(end) for end in hole],
            said,
        )


def test_a_task_that_may_be_among_those_that_could_not_be_read():
    kernel = Kernel(E9A)
    assert ask(kernel, "tasks 45")[1] == 0
    start = kernel.tasks[45]
    kernel.target.holes = [(start, start + len(kernel.target.segments[start]))]
    for line in ("tasks 45", "why 45", "buffer 45", "last 45"):
        _, status, said = ask(kernel, line)
        assert status == 2, line
        assert f"{start:#x}" in said, (line, said)


def test_every_source_is_swept():
    """Each source that is in the kernel's memory is lost in one of the sweeps."""
    lost = set()
    for row in (E6, D2, J):
        kernel = make_kernel(row)
        for hole in pieces_of(kernel):
            kernel.target.holes = [hole]
            lost |= {
                source
                for source, lack in kernel.reader()
                .read(~Part.NOTHING & ~Part.PROOF)
                .lacking.items()
                if lack.lines
            }
    # Those of a kernel in memory are not in its memory.
    assert {*Source} - lost == {
        Source.VMALLOC,
        Source.PROOF,
        Source.STACKS,
        Source.CARRIERS,
        Source.EXITS,
        Source.SOFTIRQS,
    }


@pytest.mark.parametrize(
    "part", [part for part in Part if part is not Part.NOTHING], ids=lambda part: part.name
)
def test_parts_name_their_sources(part):
    """Asking for a part reads each source that the part rests on."""
    for row in ROWS:
        reader = Kernel(row).reader()
        state = reader.read(part)
        assert state.extent(part) is Extent.WHOLE
        assert not state.unread(part)


def test_extents():
    kernel = Kernel(E9A).reader().facts
    part = Lack(("a chain is broken",))
    total = Lack(("the buckets are missing",), is_total=True)
    for lack, extent in ((Lack(), Extent.WHOLE), (part, Extent.PART), (total, Extent.NONE)):
        assert lack.extent is extent
        assert State(kernel, {}, {Source.REMOTE: lack}).extent(Part.REMOTE) is extent
    assert (
        State(kernel, {}, {Source.TASKS: Lack(), Source.REMOTE: total}).extent(Part.OBJECTS)
        is Extent.PART
    )
    assert Source.REMOTE in sources_of(Part.OBJECTS, kernel)


@pytest.mark.parametrize(
    ("name", "member"), [("kcov", "kcov"), ("kcov_area", "kcov_area"), ("kcov_mode", "kcov_mode")]
)
def test_functions_of_gdb(name, member):
    """``$kcov(41)`` is no 0 where the member could not be read."""
    kernel = Kernel(E9A)
    workspace = Asker(kernel.target).workspace
    fields = kernel.reader().read(Part.TASKS).tasks_with_state[kernel.tasks[40]].fields
    server = Server(make_stub(Link))
    assert server._value_of(name, fields, workspace)
    with pytest.raises(KcovdbgError, match=member):
        server._value_of(name, fields._replace(**{member: None}), workspace)
