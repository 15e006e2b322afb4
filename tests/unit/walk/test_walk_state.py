# SPDX-License-Identifier: LGPL-2.1-or-later
"""The State is read by parts: the cost of each part, absent parts, sessions, and preemption
counts.
"""

import pytest

from kcovdbg.check.runner import check, list_rules
from kcovdbg.errors import ReadError
from kcovdbg.model.state import Part, Source
from kcovdbg.model.task import Role
from kcovdbg.target.target import Member, Symbol
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.saved import is_serving_softirq
from kcovdbg.walk.state import read_state
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E2, E7, E9A, E9B, P2, J
from tests.support.memory_target import MemorySlab, MemoryStacks, MemoryTarget, Structure


class CountedStacks(MemoryStacks):
    """Counts the stacks that are unwound."""

    def __init__(self):
        super().__init__({})
        self.unwound = []

    def stack_trace(self, task):
        self.unwound.append(task)
        return super().stack_trace(task)


@pytest.fixture
def kernel():
    kernel = Kernel(E9A)
    kernel.target.stacks = CountedStacks()
    return kernel


def reader_of(kernel):
    reader = kernel.reader()
    kernel.target.reads.clear()
    return reader


def touches(kernel, type_name, addresses):
    """Whether anything of these structures was read."""
    length = kernel.target.type_size(type_name)
    return any(
        start < address + length and address < start + size
        for address in addresses
        for start, size in kernel.target.reads
    )


def test_tasks_read_no_file_tables(kernel):
    reader = reader_of(kernel)
    reader.read(Part.TASKS | Part.ALL_TASKS)
    assert touches(kernel, "struct task_struct", kernel.tasks.values())
    assert not touches(kernel, "struct files_struct", kernel.tables.values())
    assert kernel.target.stacks.unwound == []
    reader.read(Part.FILES)
    assert touches(kernel, "struct files_struct", kernel.tables.values())


def test_references_unwind_no_stack(kernel):
    assert check(reader_of(kernel), wanted=("K1",)).findings == ()
    assert kernel.target.stacks.unwound == []
    # Only a violation makes it look for a task that may be about to resolve it.
    kernel.put(kernel.objects["local"], "struct kcov", t=0)
    assert check(reader_of(kernel), wanted=("K1",)).findings != ()
    assert kernel.target.stacks.unwound != []


@pytest.mark.parametrize(
    ("counter", "dead", "alive"),
    [("f_count", 0, 1), ("f_ref", 0xE000000000000000, 0)],
    ids=["f_count", "file_ref_t"],
)
def test_a_file_that_was_freed_holds_nothing(kernel, counter, dead, alive):
    """The slab allocator may keep freed files: KASAN in its quarantine, others for
    CONFIG_SLUB_RCU_DEBUG.
    """
    target = kernel.target
    whole = target.types["struct file"]
    target.types["atomic64_t"] = Structure(8, {"counter": Member(0, 8, "s64")})
    target.types["file_ref_t"] = Structure(8, {"refcnt": Member(0, 8, "atomic64_t")})
    added = Member(0, 8, "atomic64_t" if counter == "f_count" else "file_ref_t")
    target.types["struct file"] = Structure(whole.size, {**whole.members, counter: added})
    freed = kernel.allocate_type("struct file")
    operations = target.symbols["kcov_fops"].address
    kernel.put(freed, "struct file", f_op=operations, private_data=kernel.objects["local"])
    # The slab is searched for further references.
    target.slab = MemorySlab({}, (*kernel.files.values(), freed))
    kernel.put(kernel.objects["full"], "struct kcov", **{"refcount.refs.counter": 9})
    for file in kernel.files.values():
        kernel.write_word(file, alive, 8)

    def holders():
        objects = kernel.reader().read(Part.OBJECTS).objects
        return {reference.file for reference in objects[kernel.objects["local"]].references}

    kernel.write_word(freed, alive, 8)
    assert freed in holders()
    kernel.write_word(freed, dead, 8)
    assert freed not in holders()


class CutSlab(MemorySlab):
    """Slab memory with a part missing."""

    def for_each_file(self):
        yield from super().for_each_file()
        raise ReadError("pages are missing", 0)


def test_files_in_a_slab_cache_that_is_incomplete(kernel):
    target = kernel.target
    unlisted = kernel.allocate_type("struct file")
    kernel.put(
        unlisted,
        "struct file",
        f_op=target.symbols["kcov_fops"].address,
        private_data=kernel.objects["local"],
    )
    target.slab = CutSlab({}, (unlisted,))
    kernel.put(kernel.objects["full"], "struct kcov", **{"refcount.refs.counter": 9})
    state = kernel.reader().read(Part.OBJECTS)
    assert unlisted in {
        reference.file for reference in state.objects[kernel.objects["local"]].references
    }
    assert state.lacks(Source.SLAB)


class UnpreparedTarget(MemoryTarget):
    """A target on which preparing the search of slab memory fails the test."""

    @property
    def slab(self):
        raise AssertionError

    @slab.setter
    def slab(self, _):
        pass


def test_the_search_of_slab_memory_is_prepared_where_something_is_missing(kernel):
    kernel.target.__class__ = UnpreparedTarget
    assert check(reader_of(kernel), wanted=("K1", "X2")).findings == ()
    kernel.put(kernel.objects["full"], "struct kcov", **{"refcount.refs.counter": 9})
    with pytest.raises(AssertionError):
        check(reader_of(kernel), wanted=("K1",))


def test_a_part_is_read_once(kernel):
    reader = reader_of(kernel)
    first = reader.read(Part.TASKS | Part.OBJECTS)
    kernel.target.reads.clear()
    again = reader.read(Part.TASKS | Part.OBJECTS | Part.FILES)
    assert kernel.target.reads == []
    assert again.objects is first.objects
    reader.renew().read(Part.TASKS)
    assert kernel.target.reads != []


def test_what_was_not_asked_for_is_absent(kernel):
    state = reader_of(kernel).read(Part.TASKS)
    with pytest.raises(LookupError, match="objects"):
        _ = state.objects
    with pytest.raises(LookupError):
        state.lacks(Source.FILES)
    with pytest.raises(LookupError):
        _ = state.stacks[kernel.tasks[40]]


@pytest.mark.parametrize("row", [E2, E7, E9A, E9B, J, P2], ids=lambda row: row.name)
def test_rules_read_what_they_name(row):
    kernel = Kernel(row)
    layout = detect_layout(kernel.target)
    for rule in list_rules():
        if rule.applies(layout.generation):
            state = read_state(kernel.target, layout, rule.needs)
            stacks = [] if rule.stacks is None else list(rule.stacks(state))
            state = read_state(kernel.target, layout, rule.needs, stacks=stacks)
            tuple(rule.check(state))


def test_a_missing_page_is_data(kernel):
    table = next(iter(kernel.tables.values()))
    kernel.target.holes.append((table, table + kernel.target.type_size("struct files_struct")))
    state = reader_of(kernel).read(Part.FILES)
    assert state.lacks(Source.FILES)
    assert state.notes


def session_of(kernel, pid):
    state = kernel.reader().read(Part.TASKS)
    return next(task for task in state.tasks if task.fields.pid == pid)


def test_an_owner_with_another_area_is_local_in_doubt(kernel):
    """The object names the task: then an area that is not the object's is damage, and no
    section.
    """
    healthy = session_of(kernel, 40)
    assert (healthy.role, healthy.session.is_certain) == (Role.LOCAL, True)
    kernel.target.put(
        kernel.tasks[40], "struct task_struct", {"kcov_area": kernel.buffers["shared"]}
    )
    damaged = session_of(kernel, 40)
    assert (damaged.session.role, damaged.session.is_certain) == (Role.LOCAL, False)
    assert damaged.role is None
    assert hex(kernel.buffers["shared"]) in damaged.errors[0]
    assert {finding.rule for finding in check(reader_of(kernel), wanted=("T2",)).findings} == {"T2"}


def test_a_softirq_section_in_the_objects_own_buffer_is_in_doubt(kernel):
    kernel.target.put(kernel.tasks[40], "struct task_struct", {"kcov_softirq": 1})
    damaged = session_of(kernel, 40)
    assert damaged.session.is_local
    assert damaged.role is None


LOWCORES, SECOND, TASK = 0x1000, 0x8000, 0x9000


@pytest.mark.parametrize(
    ("count", "serving"), [(0x100, True), (0x8000_0100, True), (0x200, False), (0x1_0000, False)]
)
def test_s390_has_it_in_each_cpus_lowcore(count, serving):
    target = MemoryTarget(big_endian=True)
    target.types["struct lowcore"] = Structure(
        8192, {"preempt_count": Member(0x3A8, 4, "__s32", True, None)}
    )
    # One in the task, as other machines have it, would mislead.
    target.types["struct thread_info"] = Structure(
        16, {"preempt_count": Member(8, 4, "int", True, None)}
    )
    target.types["struct task_struct"] = Structure(
        16, {"thread_info": Member(0, 16, "struct thread_info", False, None)}
    )
    target.symbols["lowcore_ptr"] = Symbol("lowcore_ptr", LOWCORES, 16)
    target.segments[LOWCORES] = bytearray((0x4000).to_bytes(8, "big") + SECOND.to_bytes(8, "big"))
    target.segments[SECOND + 0x3A8] = bytearray(count.to_bytes(4, "big"))
    target.segments[TASK] = bytearray(16)
    assert is_serving_softirq(target, TASK, 1) is serving
    # The first CPU's is not in the dump.
    with pytest.raises(ReadError):
        is_serving_softirq(target, TASK, 0)
