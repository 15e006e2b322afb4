# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bugs that the fuzzer found, caused directly: its seeds mean other damage as soon as its list of
damage kinds changes.
"""

import json
import re

import pytest

from kcovdbg.errors import KcovdbgError, ReadError
from kcovdbg.model.state import Part, Reading
from kcovdbg.records.side_file import SUFFIX
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.target.drgn.drgn_messages import walking
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.state import StateReader
from kcovdbg.walk.structure_cache import StructureCache
from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E9A


@pytest.mark.parametrize("member", ["pid", "comm"])
def test_an_owner_whose_name_cannot_be_read(member, monkeypatch):
    """The rows about objects and handles say why there is no owner."""
    kernel = Kernel(E9A)
    target = kernel.target
    entry = next(
        row for row in Asker(target).rows("remote")[0] if None not in (row["pid"], row["comm"])
    )
    healthy = next(row for row in Asker(target).rows("objects")[0] if row["kcov"] == entry["kcov"])
    assert healthy["errors"] == entry["errors"] == []
    owner = int(healthy["t"], 16)
    layout = detect_layout(target)
    healthy_fields = StructureCache(target, layout).tasks.found
    # As after a walk with that page missing.
    damaged = tuple(
        fields._replace(**{member: None}) if fields.address == owner else fields
        for fields in healthy_fields
    )
    monkeypatch.setattr(StructureCache, "tasks", Reading(damaged))
    state = StateReader(target, layout).read(Part.OBJECTS | Part.REMOTE)
    address = int(entry["kcov"], 16)
    for row in (state.objects[address], next(row for row in state.handles if row.kcov == address)):
        assert getattr(row, member) is None
        assert any(f"t {owner:#x}" in error and member in error for error in row.errors)


def test_a_trace_of_terabytes(tmp_path):
    """A sparse file takes no space on disk, but reading it would take all memory."""
    path = tmp_path / "huge.kcov"
    with path.open("wb") as file:
        file.write((1 << 40).to_bytes(8, "little"))
        file.truncate(1 << 42)
    with pytest.raises(KcovdbgError, match="trace-size"):
        read_trace(path)


def test_a_side_file_nested_too_deep(tmp_path):
    """Python's parser recurses for each bracket."""
    path = tmp_path / "a.kcov"
    path.write_bytes((1).to_bytes(8, "little") + (0xFFFFFFFF81000000).to_bytes(8, "little"))
    side = path.with_name(path.name + SUFFIX)
    side.write_text(json.dumps({"format": 1}))
    assert read_trace(path).count == 1
    for text in ("[" * 100_000, '{"a":' * 100_000):
        side.write_text(text)
        with pytest.raises(KcovdbgError, match=re.escape(str(side))):
            read_trace(path)


def test_an_area_of_a_task_without_a_mode():
    """An area that a task refers to is not unclaimed, even if the task's mode collects nothing."""
    kernel = Kernel(E9A)
    target = kernel.target
    used = next(row for row in Asker(target).rows("areas")[0] if row["state"] == "in-use")
    healthy = next(row for row in Asker(target).rows("tasks -a")[0] if row["pid"] == used["pid"])
    assert healthy["kcov_area"] == used["area"]
    target.put(int(healthy["task"], 16), "struct task_struct", {"kcov_mode": 0, "kcov_softirq": 0})
    (row,) = [row for row in Asker(target).rows("areas")[0] if row["area"] == used["area"]]
    assert (row["state"], row["pid"]) == (None, used["pid"])
    (error,) = row["errors"]
    assert f"task {used['pid']} " in error


def test_what_drgn_has_no_type_for_is_an_error_of_reading():
    """drgn raises this for debug info without saved_command_line, by which it finds the direct
    mapping.
    """
    with (
        pytest.raises(ReadError, match="the slab caches: could not find variable"),
        walking("the slab caches"),
    ):
        raise Exception("could not find variable in direct mapping")  # noqa: TRY002
    with pytest.raises(ZeroDivisionError), walking("the slab caches"):
        raise ZeroDivisionError
