# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel with incomplete debug info gives the remaining answers: none is wrong, and what is
missing is named.
"""

import re
from dataclasses import replace

import pytest

from kcovdbg.abi import generations
from kcovdbg.series.table import SERIES
from kcovdbg.walk import layout
from tests.support.kernels.asker import Asker, ask_everything
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E7, E9B, ROWS
from tests.support.memory_target import Structure

# Members that alone identify a generation: without them the types are exactly those of another one.
TELLING = {
    ("struct kcov_percpu_data", "lock"),
    ("struct task_struct", "kcov_remote"),
    ("enum kcov_mode", "KCOV_MODE_REMOTE"),
    ("struct task_struct", "kcov_df_seq"),
}
# A kernel for one processor has no CPU numbers. Without the number of a mode, its bit is called
# unknown.
MAY_LACK = {"KCOV_TRACE_PC_EXT", "cpu", "on_cpu", "thread_info", "stack", "struct thread_info"}


def without(target, type_name, name):
    """Take a member or an enumerator out of the debug info; return how to put it back."""
    if type_name in target.enums:
        before = target.enums[type_name]
        target.enums[type_name] = {key: value for key, value in before.items() if key != name}
        return lambda: target.enums.__setitem__(type_name, before)
    before = target.types[type_name]
    target.types[type_name] = Structure(
        before.size, {key: value for key, value in before.members.items() if key != name}
    )
    return lambda: target.types.__setitem__(type_name, before)


def members_of(target):
    for type_name, structure in target.types.items():
        yield from ((type_name, name) for name in structure.members)
    for type_name, enumerators in target.enums.items():
        yield from ((type_name, name) for name in enumerators)


def is_true(value, truth, key):
    """Return whether a value is the true one, or null."""
    if value is None or value == truth or key == "errors":
        return True
    if key == "references":
        # Which of the places that show a file counts depends on which are seen.
        return all(
            any(
                is_part({**one, "counts": 0}, {**other, "counts": 0}) or is_lone_file(one, other)
                for other in truth
            )
            for one in value
        )
    if key == "devices":
        return all(any(is_part(one, other) for other in truth) for one in value)
    if key == "counted":
        return value <= truth
    if key == "size" and value > truth:
        # Of an area that only the vmalloc list tells, these are whole pages.
        return value * 8 == -(-truth * 8 // 4096) * 4096
    if (value, truth) == ("TRACE_PC", "TRACE_PC_EXT"):
        # Nothing else shows that records have the extended format.
        return True
    # A mode without a name is shown by its number.
    return key in ("kcov_mode", "mode", "saved_mode") and str(value).startswith("0x")


def is_lone_file(reference, truth):
    """Return whether a reference is a file that was found in the slab caches, so that its holder is
    unknown.
    """
    return (
        reference["fd"] is reference["pid"] is None
        and reference["file"] is not None
        and reference["file"] == truth["file"]
    )


def is_part(row, truth):
    return row.keys() == truth.keys() and all(is_true(row[key], truth[key], key) for key in row)


def is_unread(row):
    """Return whether a row stands for rows that could not be read."""
    return not any(value for key, value in row.items() if key != "errors")


def check(answers, truth, what, problems):
    """Collect all wrong values; return whether anything is missing."""
    changed = False
    for command, rows in answers.items():
        if command == "info":
            continue
        for row in rows:
            if row in truth[command]:
                continue
            changed = True
            if is_unread(row):
                continue
            if not any(is_part(row, other) for other in truth[command]):
                near = max(
                    truth[command],
                    key=lambda other: sum(row[key] == other[key] for key in row),
                    default={},
                )
                wrong = {
                    key: (row[key], near.get(key))
                    for key in row
                    if not is_true(row[key], near.get(key), key)
                }
                problems.append(f"{what}: {command} has {wrong or row}")
        changed = changed or len(rows) != len(truth[command])
    return changed


def list_buffers(kernel):
    """One buffer of each kind: a task's and an object's by what it records, a section's, a saved
    one.
    """
    truth, found = kernel.truth, {}
    for pid, task in truth.tasks.items():
        if task.session is not None:
            kcov = truth.objects[task.session.kcov]
            found.setdefault(
                (
                    "task",
                    kcov.mode,
                    bool(kcov.bitmap_words),
                    task.session.area is None,
                    task.softirq,
                ),
                f"buffer {pid}",
            )
        elif task.owns:
            found.setdefault("owner", f"buffer {pid}")
        if task.saved is not None:
            found.setdefault(("saved", task.saved.mode), f"buffer saved:{task.cpu}")
    for name in kernel.buffers:
        kcov = truth.objects[name]
        found.setdefault(
            ("object", kcov.mode, bool(kcov.bitmap_words)), f"buffer kcov:{kernel.objects[name]:#x}"
        )
    return list(found.values())


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_any_member(row, sample):
    """No answer is wrong, buffers have no invented record, and no finding of check is certain."""
    kernel = Kernel(row)
    target, asker = kernel.target, Asker(kernel.target)
    truth, _ = ask_everything(target)
    buffers = {command: asker.rows(command) for command in list_buffers(kernel)}
    assert asker.rows("check")[0] == []
    problems = []
    for type_name, name in sample(members_of(target)):
        restore = without(target, type_name, name)
        what, is_telling = f"{row.name} without {type_name}.{name}", (type_name, name) in TELLING
        answers, said = ask_everything(target)
        if "internal error" in said:
            problems.append(f"{what}: {said}")
        if not is_telling or row.era.startswith("E9"):
            changed = check(answers, truth, what, problems)
            if changed and name not in MAY_LACK and not re.search(rf"\b{name}\b", said):
                problems.append(f"{what}: it isn't named: {said.split()}")
            era = answers["info"][0]["generation"]
            if era != truth["info"][0]["generation"] and not is_telling:
                problems.append(f"{what}: it is called {era}")
        # Members of other structures are the same in all of them.
        if not is_telling and ("kcov" in type_name or "kcov" in name or row is E9B):
            problems += (f"{what}: {problem}" for problem in check_buffers(Asker(target), buffers))
        restore()
    assert problems == []


def check_buffers(asker, truth):
    """Yield what is wrong with the answers about buffers, and with those of check."""
    for command, (whole, said_before) in truth.items():
        rows, said = asker.rows(command)
        if "internal error" in said or any(found not in whole for found in rows):
            yield f"{command}: {said or rows}"
        elif rows != whole and not said.replace(said_before, ""):
            yield f"{command}: nothing is said of what is missing"
    rows, said = asker.rows("check")
    yield from (
        f"{found['rule']} {found['message']}"
        for found in rows
        if found["certainty"] not in ("unsure", "unknown")
    )
    if "internal error" in said:
        yield f"check: {said}"


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_any_structure_or_symbol(row, sample):
    kernel = Kernel(row)
    target = kernel.target
    truth, _ = ask_everything(target)
    problems = []
    tables = (
        target.types,
        target.enums,
        target.symbols,
        target.variables,
        target.per_cpu_addresses,
    )
    for where, name in sample((table, name) for table in tables for name in table):
        before = where.pop(name)
        answers, said = ask_everything(target)
        where[name] = before
        what = f"{row.name} without {name}"
        if "internal error" in said:
            problems.append(f"{what}: {said}")
        changed = check(answers, truth, what, problems)
        # What it consists of is as good as its name: task_struct.tasks.next is not there without
        # struct list_head.
        named = any(re.search(rf"\b{re.escape(one)}\b", said) for one in (name, *parts_of(before)))
        if changed and name not in MAY_LACK and not named:
            problems.append(f"{what}: it isn't named: {said.split()}")
    assert problems == []


def parts_of(removed):
    """Return the names of a structure's members, or of an enumeration's enumerators."""
    if isinstance(removed, Structure):
        return tuple(removed.members)
    return (
        tuple(removed)
        if isinstance(removed, dict) and all(isinstance(key, str) for key in removed)
        else ()
    )


def test_nothing_is_left_in():
    """Every member that the walkers know is in some row, and is removed there."""
    every = (found for row in ROWS for found in members_of(Kernel(row).target))
    removed = {
        (type_name, name) for type_name, name in every if "kcov" in type_name or "kcov" in name
    }

    def names_of(type_name):
        return {name for found, name in removed if found == type_name}

    assert names_of(generations.TASK) == layout.known_members(generations.TASK)
    assert names_of(generations.KCOV) == layout.known_members(generations.KCOV)
    assert {name.upper() for name in names_of(generations.MODE)} == {
        f"KCOV_MODE_{name}" for name in layout.known_modes()
    }
    for type_name in (generations.REMOTE, generations.AREA, generations.PERCPU):
        assert layout.known_members(type_name) <= names_of(type_name), type_name
    for member in (member for series in SERIES for member in series.members):
        assert {path.split(".")[0] for path in member.paths} <= names_of(member.type_name), member
    # Members that moved into a structure of their own, in both of its versions.
    state = {"size", "area", "trace_size", "trace", "bitmap_size", "bitmap", "sequence"}
    assert names_of("struct kcov_state") == state | {"mode", "s"}
    assert names_of("struct kcov_state_s") == state


def test_what_is_new():
    row = replace(
        E9B,
        task=E9B.task + "int kcov_future; ",
        kcov=E9B.kcov.replace("int sequence;", "int sequence; void *later;"),
        modes={**E9B.modes, "KCOV_MODE_TRACE_FUTURE": 77},
    )
    target = Kernel(row).target
    answers, _ = ask_everything(target)
    (info,) = answers["info"]
    assert info["generation"] == "E9b"
    named = ("struct task_struct.kcov_future", "struct kcov.later", "KCOV_MODE_TRACE_FUTURE")
    assert len(info["errors"]) == len(named)
    assert [
        name
        for name, error in zip(named, info["errors"], strict=True)
        if not error.startswith(name)
    ] == []


def test_members_in_an_anonymous_structure():
    # Between randomized_struct_fields_start and _end all members are in one.
    kernel = Kernel(E9B)
    truth, _ = ask_everything(kernel.target)
    whole = kernel.target.types["struct task_struct"]
    kernel.target.types["anonymous"] = whole
    kernel.target.types["struct task_struct"] = Structure(whole.size, {}, ((0, "anonymous"),))
    assert ask_everything(kernel.target)[0] == truth


def test_member_under_another_name():
    target = Kernel(E7).target
    whole = target.types["struct task_struct"]
    members = {
        "kcov_buffer" if name == "kcov_area" else name: member
        for name, member in whole.members.items()
    }
    target.types["struct task_struct"] = replace(whole, members=members)
    answers, said = ask_everything(target)
    (info,) = answers["info"]
    assert info["generation"] == "E7"
    assert any("struct task_struct.kcov_buffer" in error for error in info["errors"])
    assert any("struct task_struct.kcov_area" in error for error in info["errors"])
    assert "internal error" not in said
