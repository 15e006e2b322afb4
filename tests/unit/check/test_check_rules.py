# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each rule of `check` on kernels in memory: it is silent on healthy ones, reports damage, and does
not report a near miss.

A near miss is legal, and differs in one detail from what the rule reports: no rule may report it.
"""

from array import array
from dataclasses import dataclass, replace

import pytest

from kcovdbg.abi.record import PC, make_encoding
from kcovdbg.check.runner import check, find_rule, list_rules
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.kcov import name_kcov
from kcovdbg.model.memory import VmallocArea
from kcovdbg.model.state import BufferContents, KernelFacts, State
from kcovdbg.target.target import Member, Vma
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.state import StateReader
from tests.support.kernels.build import PF_EXITING, PF_KTHREAD, Kernel
from tests.support.kernels.device import LOCAL, WORDS
from tests.support.kernels.rows import (
    D2,
    E1,
    E2,
    E3,
    E5,
    E6,
    E7,
    E8,
    E9A,
    E9B,
    P1,
    P2,
    ROWS,
    X1,
    J,
    K,
)
from tests.support.kernels.scenario import IN_CTXSW, usb
from tests.support.memory_target import MemorySlab, MemoryVmalloc, MemoryVmas, Structure
from tests.support.stub import make_stub

NOWHERE = 0xFFFF88800DEAD000
WRONG = 0xFFFFFFFF81001231
EXTRA = 0xFFFFC90010000000
WORD = 1 << 64
PF_USER_WORKER = 0x4000
STOPPED = {"kcov": 0, "kcov_mode": 0, "kcov_size": 0, "kcov_area": 0}


class MadeUpProof:
    """Code in which 0 and WRONG are no points; the address after WRONG is unreadable, the next one
    is a comparison's point.
    """

    def problem(self):
        return None

    def judge(self, pcs, codec, read):
        wrong = dict.fromkeys(
            {0, WRONG} if codec.has_operands else {0, WRONG, WRONG + 2}, "no call ends there"
        )
        return {pc: wrong[pc] for pc in pcs if pc in wrong}, {WRONG + 2} & {*pcs} & {*wrong}


def prove(kernel):
    kernel.find_proof = MadeUpProof


def look(kernel, *, advice=False, wanted=()):
    return check(
        StateReader(
            kernel.target, detect_layout(kernel.target), getattr(kernel, "find_proof", None)
        ),
        advice=advice,
        wanted=wanted,
        pause=lambda _seconds: None,
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize(("word", "big_endian"), [(8, False), (4, False), (8, True), (4, True)])
def test_silent_on_healthy_kernels(row, word, big_endian):
    report = look(Kernel(row, word=word, big_endian=big_endian))
    assert report.findings == ()
    assert report.applied >= 20


# Changes to a kernel.


def change(function):
    """Return the function that makes changes: of all arguments but the first one, which is the
    kernel to change.
    """
    return lambda *values, **named: lambda kernel: function(kernel, *values, **named)


def changes_of(type_name, find):
    """Return the function that makes changes to structures of a type: of a key, and new values of
    members.

    :param find: from a kernel and the key to the structure's address.
    """

    def make(*key, **values):
        return lambda kernel: kernel.target.put(
            find(kernel, *key),
            type_name,
            {name.replace("__", "."): resolve(kernel, value) for name, value in values.items()},
        )

    return make


task = changes_of("struct task_struct", lambda kernel, pid: kernel.tasks[pid])
entry = changes_of("struct kcov_remote", lambda kernel, handle: kernel.handles[handle])
percpu = changes_of(
    "struct kcov_percpu_data",
    lambda kernel, cpu: kernel.target.per_cpu_addresses["kcov_percpu_data"][cpu],
)
cached = changes_of(
    "struct kcov_remote_area", lambda kernel, kind, index: kernel.cached[kind][index][0]
)
map_of = changes_of("struct kcov_map", lambda kernel, name, member="map": kernel.maps[name, member])
device_object = changes_of("struct kcov_dataflow", lambda kernel, name: kernel.device.objects[name])
device_handle = changes_of("struct kcov_df_remote", lambda kernel: kernel.device.entry)
open_file = changes_of("struct file", lambda kernel, name: kernel.files[name])
run_queue = changes_of("struct rq", lambda kernel, cpu: kernel.run_queues[cpu])


@change
def kcov(kernel, name, **values):
    """Change members of an object; ``references`` are a difference of its refcount."""
    address, count = (
        kernel.objects[name],
        "refcount.counter" if "atomic_t refcount" in kernel.row.kcov else "refcount.refs.counter",
    )
    if "references" in values:
        before = kernel.target.read(address + kernel.offset("struct kcov", count), 4)
        values["refcount"] = int.from_bytes(before, kernel.order) + values.pop("references")
    special = {
        "refcount": count,
        **{key: kernel._path("kcov", key) for key in ("mode", "size", "area", "sequence")},
    }
    changed = {special.get(key, key): resolve(kernel, value) for key, value in values.items()}
    kernel.target.put(address, "struct kcov", changed)


@change
def together(kernel, *changes):
    for each in changes:
        each(kernel)


@change
def session(kernel, pid, name, mode=IN_CTXSW | 2):
    """Make a task collect into an object, as KCOV_ENABLE does it."""
    truth = kernel.truth.objects[name]
    values = {
        "kcov": kernel.objects[name],
        "kcov_mode": mode,
        "kcov_size": truth.size,
        "kcov_area": kernel.buffers[name],
    }
    if kernel.row.has_remote:
        values["kcov_sequence"] = truth.sequence
    kernel.target.put(kernel.tasks[pid], "struct task_struct", values)


def enable(name, pid):
    """Do a KCOV_ENABLE."""
    return together(kcov(name, mode=2, t=a_task(pid), references=1), session(pid, name))


def disable(name, pid):
    """Do a KCOV_DISABLE."""
    return together(
        kcov(
            name,
            mode=1,
            t=0,
            references=-1,
            sequence=lambda kernel: kernel.truth.objects[name].sequence + 1,
        ),
        task(pid, **STOPPED),
    )


def move(name, old, new):
    """Let another task have an object enabled."""
    return together(task(old, **STOPPED), session(new, name), kcov(name, t=a_task(new)))


def own(name, pid, mode=0, size=16):
    """Do a KCOV_REMOTE_ENABLE without handles."""
    return together(
        kcov(name, mode=2, t=a_task(pid), remote=1, remote_size=size, references=1),
        task(pid, kcov=an_object(name), kcov_mode=mode),
    )


def allocate(kernel, size, caller, *, room=None):
    """Make a vmalloc area at the end, of which only some memory may be there."""
    address = (
        max(area.start + area.size for area in kernel.target.vmalloc.for_each_vmalloc_area()) + 4096
    )
    kernel.target.segments[address] = bytearray(room or size)
    area = VmallocArea(address, size, caller, caller in ("kcov_ioctl", "kcov_mmap"))
    kernel.target.vmalloc = MemoryVmalloc((*kernel.target.vmalloc.for_each_vmalloc_area(), area))
    return address


def change_area(kernel, address, **changes):
    """Change the description of a vmalloc area."""
    areas = kernel.target.vmalloc.for_each_vmalloc_area()
    changed = [area._replace(**changes) if area.start == address else area for area in areas]
    kernel.target.vmalloc = MemoryVmalloc(changed)


def move_area(kernel, start):
    """Move a vmalloc area with its content; return where it is then."""
    before = kernel.target.vmalloc
    old = next(area for area in before.for_each_vmalloc_area() if area.start == start)
    new = allocate(kernel, old.size, old.caller)
    kernel.target.write(new, kernel.target.read(start, old.size))
    kernel.target.vmalloc = before
    change_area(kernel, start, start=new)
    return new


@change
def relocate(kernel, name, **changes):
    """Move an object's buffer to another vmalloc area, or change the description of its present
    one.
    """
    if changes:
        change_area(kernel, kernel.buffers[name], **changes)
    else:
        kernel.buffers[name] = move_area(kernel, kernel.buffers[name])
        kernel.put(kernel.objects[name], "struct kcov", area=kernel.buffers[name])


@change
def new_area(kernel, name):
    """Move an area of a section, and update the task that uses it."""
    kernel.areas.update({name: move_area(kernel, kernel.areas[name])})


@change
def put_back(kernel, kind, name):
    """Put a section's area on a list of free ones."""
    size = kernel.truth.areas[name][0]
    kernel.target.write(kernel.areas[name], bytes(24))
    kernel.put(kernel.areas[name], "struct kcov_remote_area", size=size)
    kernel.cached[kind].append((kernel.areas[name], size))
    relink(kind, *(address for address, _ in kernel.cached[kind]))(kernel)


@change
def take(kernel, kind, index, pid, name):
    """Let a section use a free area instead of its own, which becomes free."""
    taken, _ = kernel.cached[kind].pop(index)
    kernel.target.write(taken, bytes(24))
    put_back(kind, name)(kernel)
    kernel.target.put(kernel.tasks[pid], "struct task_struct", {"kcov_area": taken})


@change
def add_area(kernel, kind, words, caller="kcov_remote_start"):
    """Make a free area, of which only the head is in memory."""
    address = allocate(kernel, -(-words * 8 // 4096) * 4096, caller, room=4096)
    kernel.put(address, "struct kcov_remote_area", size=words)
    kernel.cached[kind].append((address, words))
    relink(kind, *(address for address, _ in kernel.cached[kind]))(kernel)


@change
def add_handle(kernel, handle, name):
    """Register a handle."""
    head = (
        kernel.target.symbols["kcov_remote_map"].address + kernel.find_bucket(handle) * kernel.word
    )
    entry = kernel.allocate_type("struct kcov_remote")
    kernel.push(head, entry, "struct kcov_remote", handle=handle, kcov=kernel.objects[name])


def other_handle(*, is_same):
    """Return the function from a kernel to a handle of the bucket of ``usb:2``, or of another
    one.
    """

    def find(kernel):
        wanted = kernel.find_bucket(usb(2))
        return next(
            other
            for other in range(usb(102), usb(1000))
            if (kernel.find_bucket(other) == wanted) is is_same
        )

    return find


@change
def reverse_chain(kernel, handle):
    """Turn the order of a bucket's entries around: any order is right."""
    hnode = kernel.offset("struct kcov_remote", "hnode")
    bucket = kernel.find_bucket(handle)
    nodes = [
        entry + hnode for key, entry in kernel.handles.items() if kernel.find_bucket(key) == bucket
    ]
    assert len(nodes) > 1
    last = kernel.target.symbols["kcov_remote_map"].address + bucket * kernel.word
    for node in nodes:
        kernel.write_word(last, node)
        kernel.write_word(node + kernel.word, last)
        last = node
    kernel.write_word(last, 0)


def end_softirq(kernel):
    """End the softirq section on top of task 60: the interrupted session continues."""
    session(60, "interrupted", mode=2)(kernel)
    kcov("remote", references=-1)(kernel)
    if kernel.row.saved == "cpu":
        percpu(1, saved_mode=0, saved_size=0, saved_area=0, saved_kcov=0, saved_sequence=0)(kernel)
        task(60, kcov_softirq=0)(kernel)
    else:
        task(60, kcov_softirq=0, **SAVED)(kernel)
        put_back("irq", "irq 1")(kernel)


@change
def descriptor(kernel, table, fd, name):
    """Make a descriptor lead to another file."""
    fdt = kernel.tables[table] + kernel.offset("struct files_struct", "fdtab")
    member = kernel.target.member("struct fdtable", "fd")
    array = kernel.read_word(fdt + member.offset)
    kernel.write_word(array + fd * kernel.word, kernel.files[name])


@change
def fill(kernel, place, count, comparisons=False):
    """Write records, and their count."""
    address = resolve(kernel, place)
    kernel.write_word(address, count)
    for index in range(count):
        words = (7, index, index, kernel.text + index) if comparisons else (kernel.text + index,)
        for number, value in enumerate(words):
            kernel.write_word(address + 8 * (1 + len(words) * index + number), value)


@change
def sessions(kernel, name, *parts):
    """Let sessions write to an object's buffer as the kernel does, without a reset of the count
    between them.

    :param parts: the comparisons and then the PCs of each: ``(9, 3)`` are two sessions.
    """
    address = kernel.buffers[name]
    kernel.target.write(address, bytes(512 * 8))
    count = 0
    for comparisons, pcs in parts:
        for _ in range(comparisons):
            for number, value in enumerate((6, WRONG, 7, WRONG + 2)):
                kernel.write_word(address + 8 * (1 + 4 * count + number), value)
            count += 1
        for _ in range(pcs):
            kernel.write_word(address + 8 * (1 + count), kernel.text + 8)
            count += 1
    kernel.write_word(address, count)


@change
def mapping(kernel, space, start, end, pgoff, name):
    """Add a mapping to a process."""
    mappings = dict(kernel.target.vmas._by_mm)
    mm = kernel.spaces[space]
    mappings[mm] = [*mappings[mm], Vma(start, end, pgoff, 0, kernel.files[name])]
    kernel.target.vmas = MemoryVmas(mappings)


@change
def serving(kernel, cpu, count):
    """Give a CPU a preemption count, as x86 keeps it."""
    addresses = kernel.target.per_cpu_addresses.setdefault("__preempt_count", {})
    for number in range(kernel.truth.cpus):
        addresses.setdefault(number, kernel.allocate(4))
        kernel.write_word(addresses[number], count if number == cpu else 0x100, 4)


@change
def new_member(kernel, name, pid, value):
    """Give tasks a further member."""
    kind = kernel.target.types["struct task_struct"]
    members = {name: Member(kind.members["last"].offset, 4, "int"), **kind.members}
    kernel.target.types["struct task_struct"] = replace(kind, members=members)
    kernel.target.put(kernel.tasks[pid], "struct task_struct", {name: value})


def serving_softirqs(*counts):
    """Let tasks count their softirqs, as PREEMPT_RT does."""
    pids = (60, 3, 9, 52)
    return [
        preempt_rt,
        *ENOUGH_FOR_RT,
        *(new_member("softirq_disable_cnt", *pair) for pair in zip(pids, counts, strict=True)),
    ]


def resolve(kernel, value):
    return value(kernel) if callable(value) else value


def place_in(table):
    """Return the function from a key to the function from a kernel to an address."""
    return lambda key: lambda kernel: getattr(kernel, table)[key]


an_object, a_buffer, a_task, an_area = map(place_in, ("objects", "buffers", "tasks", "areas"))


def a_cached(kind, index):
    return lambda kernel: kernel.cached[kind][index][0]


@change
def word(kernel, place, number, value):
    """Write a word of a buffer or an area."""
    kernel.write_word(resolve(kernel, place) + 8 * number, value)


@change
def move_map(kernel, name, member):
    """Move a map with its content."""
    old, size = kernel.maps[name, member], kernel.target.type_size("struct kcov_map")
    new = kernel.maps[name, member] = kernel.allocate(size)
    kernel.target.write(new, kernel.target.read(old, size))
    kernel.put(kernel.objects[name], "struct kcov", **{member: new})


@change
def remember(kernel, name, place, member="map", bucket=None, **values):
    """Add an entry to a map, in a place of its memory."""
    kernel.add_entry(
        kernel.maps[name, member], place, bucket, **({"ent": kernel.text + 0x900} | values)
    )


@change
def chain(kernel, name, place, to, member="map"):
    """Make an entry lead to another place of the map's memory."""
    offset = kernel.offset("struct kcov_map", "mem")
    mem = kernel.read_word(kernel.maps[name, member] + offset)
    node = kernel.offset("struct kcov_entry", "node")
    entry = mem + place * kernel.chunk()
    kernel.put(entry, "struct kcov_entry", node__next=mem + to * kernel.chunk() + node)


@change
def dataflow(kernel, pid, owner):
    """Let a task trace data flow, with an object that is enabled for some task."""
    df = kernel.device.objects["local"]
    kernel.put(kernel.tasks[LOCAL], "struct task_struct", kcov_df=0, kcov_df_area=0)
    kernel.put(df, "struct kcov_dataflow", t=kernel.tasks[owner])
    kernel.device.session(pid, "local", kernel.device.areas["local"], WORDS, 0)


def section(pid, area, depth=1):
    """Let a task be in a section of kcov_dataflow."""
    return of_device(
        lambda kernel, device: device.session(pid, "remote", area(device), 1 << 20, depth)
    )


def set_free(*areas):
    """Add areas to the list of free ones of kcov_dataflow."""
    return of_device(
        lambda kernel, device: device.set_free([*device.free, *(area(device) for area in areas)])
    )


def a_section(*size, **caller):
    """Allocate memory for a section of kcov_dataflow."""
    return lambda device: device.allocate_section(*size, **caller)


@change
def publish(kernel, name, handle):
    """Register a handle of kcov_dataflow."""
    kernel.device.publish(name, handle, 5)


def of_device(change):
    """Change something of the device of kcov_dataflow."""
    return lambda kernel: change(kernel, kernel.device)


@change
def symbol(kernel, name, *numbers, end=None):
    """Make a global of 32-bit numbers; a second symbol marks its end."""
    address = kernel.add_symbol(name, 4 * len(numbers))
    for index, number in enumerate(numbers):
        kernel.write_word(address + 4 * index, number, 4)
    if end:
        kernel.add_symbol(end, 0, address + 4 * len(numbers))


@change
def split(kernel, name, pid, words, inner=""):
    """Divide a buffer between bitmap and trace as KCOV_UNIQUE_ENABLE does, in the object and in its
    task.
    """
    area, size = kernel.buffers[name], kernel.truth.objects[name].size
    state = {"trace": area + words * kernel.word, "trace_size": size - words}
    state |= {"bitmap": area if words else 0, "bitmap_size": words * 8 * kernel.word}
    kernel.target.put(
        kernel.objects[name],
        "struct kcov",
        {f"state.{inner}{key}": value for key, value in state.items()},
    )
    if pid is not None:
        values = {f"kcov_state.{inner}{key}": value for key, value in state.items()}
        kernel.target.put(kernel.tasks[pid], "struct task_struct", values)
    kernel.write_word(area + words * kernel.word, 0)


@change
def relink(kernel, kind, *areas):
    """Make other areas the elements of a list."""
    head = kernel.target.symbols["kcov_remote_areas"].address + (16 if kind == "irq" else 0)
    kernel.link(head, [resolve(kernel, area) for area in areas])


stack = change(Kernel.give_stack)


@change
def vmalloc(kernel, size, caller, user=True, array=False):
    """Allocate memory that nothing refers to."""
    area = VmallocArea(EXTRA, size, caller, user, array)
    kernel.target.vmalloc = MemoryVmalloc((*kernel.target.vmalloc.for_each_vmalloc_area(), area))


def no_other_files(kernel):
    """Make a slab cache of files without further files."""
    kernel.target.slab = MemorySlab({}, ())


def hold_remote_lock(kernel):
    kernel.add_symbol("kcov_remote_lock", 4)
    kernel.write_word(kernel.target.symbols["kcov_remote_lock"].address, 1, 4)


def preempt_rt(kernel):
    types = kernel.target.types
    types["struct rt_mutex_base"] = Structure(16, {"owner": Member(8, 8, "struct task_struct *")})
    types["spinlock_t"] = Structure(24, {"lock": Member(0, 16, "struct rt_mutex_base")})


@change
def without(kernel, capability):
    setattr(kernel.target, capability, None)


ANOTHER_SECTION = [section(45, a_section()), device_object("remote", refcount=3)]
# Of areas for softirqs, where they can be preempted.
ENOUGH_FOR_RT = [add_area("irq", 1024, "kcov_init") for _ in range(7)]
# The lock has an owner with lock debugging.
E6_DEBUG = replace(
    E6, name="E6 with lock debugging", more="local_lock_t { struct task_struct *owner; };" + E6.more
)
EXITING = {"flags": PF_EXITING | PF_KTHREAD}
CMP_WRAPS = (1 << 59) - 1
SWITCHED = IN_CTXSW | 2
SAVED = {f"kcov_saved_{name}": 0 for name in ("mode", "size", "area", "kcov", "sequence")}
# The object "remote" is disabled while sections are in flight: legal, they are of an earlier
# sequence then.
REMOTE_DISABLED = [
    kcov("remote", mode=1, t=0, remote=0, remote_size=0, sequence=7, references=-1),
    entry(usb(1), kcov=an_object("idle remote")),
    entry(0x42, kcov=an_object("idle remote")),
    task(52, kcov_handle=0x42),
]


@dataclass(frozen=True)
class Case:
    """Damage that a rule reports, and a legal near miss: a change, or a list of changes."""

    damage: object
    near: object = None
    """None where the same change is legal in another generation."""
    row: object = E9A
    near_row: object = None
    """The generation of the near miss, where it is not that of the damage."""
    unsure: tuple = ()
    """Other rules that report the near miss, since it is not legal in every respect."""
    held: bool = False
    """Whether the near miss is legal only for a moment: it is reported as transient."""


LATER = [kcov("local", sequence=2), task(40, kcov_sequence=2)]

CASES = {
    "K1": Case(kcov("local", refcount=3), kcov("local", refcount=3, lock=1), held=True),
    "K1 too few": Case(
        kcov("remote", references=-1),
        [kcov("remote", references=-1), end_softirq, kcov("remote", references=1)],
    ),
    "K1 closed": Case(
        [descriptor("fuzz", 7, "null"), no_other_files], descriptor("fuzz", 7, "null")
    ),
    "K2": Case(kcov("local", mode=4), [kcov("local", mode=3), task(40, kcov_mode=IN_CTXSW | 3)]),
    "K2 bits": Case(
        kcov("opened", mode=16),
        [kcov("uniq", mode=48), task(200, kcov_mode=IN_CTXSW | 48)],
        near_row=J,
    ),
    "K3": Case(kcov("stopped", size=1), [kcov("stopped", size=2), word(a_buffer("stopped"), 0, 1)]),
    "K3 no mode": Case(kcov("opened", size=64), kcov("opened", size=64, mode=1), E5),
    "K3 no size": Case(kcov("unmapped", size=0), kcov("unmapped", size=0, mode=0), E5),
    "K3 too large": Case(kcov("unmapped", size=1 << 28), kcov("unmapped", size=(1 << 28) - 1), E5),
    "K4": Case(kcov("opened", mode=1, size=64), near_row=E5),
    "K4 elsewhere": Case(kcov("stopped", area=NOWHERE), relocate("stopped")),
    "K4 unknown": Case(
        kcov("stopped", area=NOWHERE), [kcov("stopped", area=NOWHERE), without("vmalloc")]
    ),
    "K4 too small": Case(kcov("stopped", size=1025), kcov("stopped", size=1023)),
    "K4 not for users": Case(
        relocate("stopped", has_user_pages=False), relocate("stopped", caller="kcov_ioctl.isra.0")
    ),
    "K4 never initialised": Case(
        [vmalloc(4096, "kcov_ioctl"), kcov("opened", area=EXTRA)],
        [vmalloc(4096, "kcov_ioctl"), kcov("opened", area=EXTRA, mode=1, size=512)],
    ),
    "K5": Case([kcov("local", t=0, references=-1), task(40, **STOPPED)], near_row=E1),
    "K5 the other way": Case(
        [enable("stopped", 44), kcov("stopped", mode=1)], enable("stopped", 44)
    ),
    "K6": Case([move("local", 40, 44), kcov("local", t=NOWHERE)], move("local", 40, 44)),
    "K7": Case(kcov("stopped", remote_size=5), kcov("idle remote", remote_size=5)),
    "K7 handles": Case(
        entry(usb(1), kcov=an_object("local")), entry(usb(1), kcov=an_object("idle remote"))
    ),
    "K7 not enabled": Case([own("stopped", 44, 4), kcov("stopped", t=0)], own("stopped", 44, 4)),
    "K8": Case(kcov("stopped", sequence=0), kcov("stopped", sequence=0x7FFFFFFF)),
    "K9": Case(
        kcov("idle remote", remote_size=0), kcov("idle remote", remote_size=1), E9B, near_row=E9A
    ),
    "K10": Case(kcov("stopped", area=a_buffer("local")), relocate("stopped")),
    "K10 free": Case(kcov("stopped", area=a_cached("task", 0)), add_area("task", 1024)),
    "K10 of a CPU": Case(kcov("stopped", area=an_area("irq 0")), relocate("stopped"), E6),
    "K11": Case(
        open_file("opened", private_data=an_object("local")), descriptor("fuzz", 6, "local")
    ),
    "K11 no object": Case(
        open_file("opened", private_data=0x1234), open_file("opened", private_data=NOWHERE)
    ),
    "T1": Case(task(40, **STOPPED), disable("local", 40)),
    "T1 in between": Case(
        task(40, **STOPPED), [task(40, **STOPPED), kcov("local", lock=1)], held=True
    ),
    "T1 local": Case(kcov("local", t=a_task(44)), move("local", 40, 44)),
    "T1 nothing": Case(task(44, kcov=an_object("stopped")), own("stopped", 44), near_row=E6),
    "T1 no address": Case(task(44, kcov=0x1234), task(44, kcov=NOWHERE)),
    "T2": Case(task(40, kcov_size=500), [task(40, kcov_size=500), kcov("local", size=500)]),
    "T2 flags": Case(
        task(40, kcov_mode=IN_CTXSW | 3), task(40, kcov_mode=IN_CTXSW | 1 << 29 | 2), near_row=K
    ),
    "T2 sequence": Case(
        task(40, kcov_sequence=4), [task(40, kcov_sequence=4), kcov("local", sequence=4)]
    ),
    "T3": Case(
        task(1, kcov_area=a_buffer("stopped")), [task(1, kcov_mode=2), task(44, kcov_sequence=5)]
    ),
    "T3 too old for a self-test": Case(task(1, kcov_mode=2), row=E6, near_row=E7),
    "T4": Case(task(50, kcov=0), [task(50, kcov=0, kcov_handle=0), *REMOTE_DISABLED], E6),
    "T4 mode": Case(task(50, kcov_mode=IN_CTXSW), task(50, kcov_mode=4)),
    "T4 mode of v6.9": Case(task(50, kcov_mode=IN_CTXSW | 2), task(50, kcov_mode=0), E6),
    "T4 member": Case(task(50, kcov_remote=0), disable("beside", 50), E9B),
    "T4 member of others": Case(
        task(44, kcov_remote=an_object("remote")),
        [
            task(50, kcov_remote=0),
            kcov("remote", t=a_task(44)),
            task(44, kcov_remote=an_object("remote"), kcov_handle=0x42),
        ],
        E9B,
    ),
    "T5": Case(task(40, kcov_mode=IN_CTXSW | 1), task(40, kcov_mode=IN_CTXSW | 1 << 29 | 2)),
    "T5 owner": Case(task(44, kcov_mode=4), own("stopped", 44, 4)),
    "T6": Case(task(7, kcov_size=128), task(8, kcov_size=128)),
    "T6 mode": Case(task(7, kcov_mode=IN_CTXSW | 3), task(8, kcov_mode=IN_CTXSW | 3)),
    "T6 ahead": Case(task(7, kcov_sequence=7), task(7, kcov_sequence=4)),
    "T6 wrapped": Case(
        [kcov("remote", sequence=-(2**31)), task(7, kcov_sequence=-(2**31) + 1)],
        # Then K8 sees the wrap.
        [
            kcov("remote", sequence=-(2**31)),
            *(task(pid, kcov_sequence=2**31 - 1) for pid in (3, 7, 8, 9, 60)),
            task(9, kcov_saved_sequence=2**31 - 1),
        ],
        unsure=["K8"],
    ),
    "T6 own": Case(
        task(50, kcov_mode=SWITCHED, kcov_area=an_area("kworker"), kcov_size=256, kcov_sequence=6),
        task(52, kcov_sequence=1),
        near_row=E9B,
    ),
    "T7": Case(task(43, kcov_softirq=1), task(3, kcov_softirq=1, **EXITING)),
    "T7 preempted": Case(
        run_queue(1, curr=a_task(44)), [preempt_rt, run_queue(1, curr=a_task(44)), *ENOUGH_FOR_RT]
    ),
    "T7 flag": Case(task(60, kcov_softirq=7), end_softirq),
    "T7 of another CPU": Case(
        task(60, kcov_area=an_area("irq 2")),
        [
            new_area("irq 1"),
            percpu(1, irq_area=an_area("irq 1")),
            task(60, kcov_area=an_area("irq 1")),
        ],
        E6,
    ),
    "T7 free": Case(task(60, kcov_area=a_cached("irq", 0)), take("irq", 0, 60, "irq 1")),
    "T7 no softirq": Case(serving(1, 0x200), serving(1, 0x301)),
    "T7 no softirq on PREEMPT_RT": Case(
        serving_softirqs(0x200, 0x100, 0x100, 0x100), serving_softirqs(0x300, 0x100, 0x100, 0x100)
    ),
    "T7 made for something else": Case(
        task(60, kcov_area=an_area("kworker")), [take("irq", 1, 60, "irq 1"), serving(1, 0x101)]
    ),
    "T7 size": Case(task(60, kcov_size=512), end_softirq),
    "T7 nothing": Case(task(60, kcov_mode=0), end_softirq),
    "T8": Case(task(51, kcov_handle=usb(1)), task(51, kcov_handle=0x7777)),
    "T8 reserved": Case(task(51, kcov_handle=1 << 40 | 1), task(51, kcov_handle=0xFFFFFFFF)),
    "T9": Case(
        [task(60, kcov_mode=SWITCHED), stack(60, "ksys_write")],
        [task(60, kcov_mode=SWITCHED), stack(60, "__schedule", "schedule")],
        E7,
    ),
    "T9 the other way": Case(task(40, kcov_mode=2), task(40, kcov_mode=2, on_cpu=1), E7),
    "T10": Case(
        [enable("stopped", 44), own("shared", 44, 4)],
        [
            enable("stopped", 44),
            kcov("shared", mode=2, t=a_task(44), remote=1, references=1),
            task(44, kcov_remote=an_object("shared")),
        ],
        near_row=E9B,
    ),
    "T11": Case(task(46, kcov=an_object("stopped")), task(3, **EXITING)),
    "T11 dead": Case(
        [task(8, flags=PF_EXITING), new_member("exit_state", 8, 32)],
        [task(8, flags=PF_EXITING), new_member("exit_state", 8, 0)],
    ),
    "T12": Case(task(40, flags=PF_KTHREAD), task(40, flags=PF_USER_WORKER)),
    "T12 open": Case(
        stack(7, "schedule", "worker_thread", "kthread"),
        stack(7, "schedule", "process_one_work", "worker_thread"),
    ),
    "T14": Case(dataflow(40, 44), dataflow(40, 40), D2),
    "D1 shared": Case(
        section(1, lambda device: device.areas["remote"]),
        section(1, lambda device: device.areas["section"], 3),
        D2,
    ),
    "D1 size": Case(task(1, kcov_df_size=512), task(1, kcov_df_remote_depth=2), D2),
    "D1 twice": Case(
        [section(45, lambda device: device.areas["section"]), device_object("remote", refcount=3)],
        ANOTHER_SECTION,
        D2,
    ),
    "D2 leak": Case(device_object("remote", refcount=3), ANOTHER_SECTION, D2),
    "D2 early": Case(
        device_object("remote", refcount=1),
        [
            task(1, kcov_df=0, kcov_df_area=0, kcov_df_remote_depth=0),
            device_object("remote", refcount=1),
            set_free(lambda device: device.areas["section"]),
        ],
        D2,
    ),
    "D3 unlisted": Case(
        device_object("idle", remote_handle=0x99),
        [device_object("idle", remote_handle=0x99), publish("idle", 0x99)],
        D2,
    ),
    "D3 other": Case(
        device_object("remote", remote_handle=0x98),
        [device_object("remote", remote_handle=0x98), device_handle(handle=0x98)],
        D2,
    ),
    "D3 stale": Case(
        publish("idle", 0x99),
        [publish("idle", 0x99), device_object("idle", remote_handle=0x99)],
        D2,
    ),
    "D4": Case(
        [device_object("local", remote_handle=0x99), publish("local", 0x99)],
        [device_object("idle", remote_handle=0x99), publish("idle", 0x99)],
        D2,
    ),
    "D5": Case(
        of_device(lambda kernel, device: kernel.write_word(device.pool_count, 3)),
        set_free(a_section()),
        D2,
    ),
    "D6": Case(
        device_object("idle", t=a_task(45)),
        [
            device_object("idle", t=a_task(45)),
            of_device(
                lambda kernel, device: device.session(45, "idle", device.areas["idle"], WORDS, 0)
            ),
            device_object("idle", refcount=2),
        ],
        D2,
    ),
    "D7 area": Case(
        of_device(lambda _, device: device.allocate_section()),
        of_device(lambda kernel, device: device.allocate_section(caller="kcov_df_open")),
        D2,
    ),
    "D7 buffer": Case(
        of_device(lambda kernel, device: device.allocate_section(4096, "kcov_df_ioctl")),
        device_object("idle", size=4),
        D2,
    ),
    "D8 used": Case(section(45, lambda device: device.free[0]), ANOTHER_SECTION, D2),
    "D8 small": Case(set_free(a_section(8 << 19)), set_free(a_section(8 << 20)), D2),
    "D8 foreign": Case(
        set_free(lambda device: device.areas["idle"]),
        of_device(lambda kernel, device: device.set_free(device.free[::-1])),
        D2,
    ),
    "T14 size": Case(
        [dataflow(40, 40), task(40, kcov_df_size=5)],
        [dataflow(40, 40), task(44, kcov_df_size=5)],
        D2,
    ),
    "T14 area": Case([dataflow(40, 40), task(40, kcov_df_area=NOWHERE)], ANOTHER_SECTION, D2),
    "S1": Case(percpu(0, saved_mode=2), row=E6, near_row=P2),
    "S1 size": Case(percpu(0, saved_size=5), end_softirq, E6),
    "S2": Case(task(60, kcov_softirq=0), end_softirq, E6),
    "S3": Case(task(60, kcov_saved_size=1), task(60, kcov_saved_mode=SWITCHED)),
    "S3 per CPU": Case(percpu(1, saved_size=1), percpu(1, saved_mode=SWITCHED), E6),
    "S3 section": Case(task(9, kcov_saved_sequence=9), task(9, kcov_saved_sequence=2)),
    "S3 mode": Case(task(60, kcov_saved_mode=1), task(52, kcov_saved_mode=IN_CTXSW | 4)),
    "S4": Case(
        [
            kcov("stopped", sequence=4),
            task(43, kcov_saved_kcov=an_object("stopped"), kcov_saved_mode=2),
        ],
        [task(9, **SAVED), kcov("remote", references=-1), put_back("task", "beneath")],
    ),
    "S4 no object": Case(task(44, kcov_saved_size=7), task(44, kcov_sequence=7)),
    "S5": Case(
        percpu(0, irq_area=an_area("irq 1")),
        [
            new_area("irq 0"),
            percpu(0, irq_area=an_area("irq 0")),
            task(3, kcov_area=an_area("irq 0")),
        ],
        E6,
    ),
    "S5 none": Case(
        percpu(0, irq_area=0),
        # Before kcov_init() no CPU has one.
        [*(percpu(cpu, irq_area=0) for cpu in range(3)), without("vmalloc")],
        E6,
    ),
    "S6": Case(
        [percpu(1, **{"lock.owner": a_task(60)}), stack(60, "ksys_write")],
        [percpu(1, **{"lock.owner": a_task(60)}), stack(60, "kcov_remote_start", "hub_event")],
        E6_DEBUG,
    ),
    "S6 nobody": Case(
        percpu(1, **{"lock.owner": NOWHERE}),
        [percpu(1, **{"lock.owner": a_task(60)}), stack(60, "kcov_remote_stop", "hub_event")],
        E6_DEBUG,
    ),
    "R1": Case(entry(usb(1), hnode__pprev=NOWHERE), reverse_chain(usb(1))),
    "R1 in between": Case(
        entry(usb(1), hnode__pprev=NOWHERE),
        [entry(usb(1), hnode__pprev=NOWHERE), hold_remote_lock],
        held=True,
    ),
    "R1 loop": Case(
        lambda kernel: entry(usb(1), hnode__next=kernel.handles[usb(1)] + 16)(kernel),
        reverse_chain(usb(2)),
    ),
    "R1 too many": Case(
        [add_handle(usb(number), "idle remote") for number in range(100, 100 + 258 - 38)],
        [add_handle(usb(number), "idle remote") for number in range(100, 100 + 257 - 38)],
    ),
    "R2": Case(
        entry(usb(2), handle=other_handle(is_same=False)),
        entry(usb(2), handle=other_handle(is_same=True)),
    ),
    "R3": Case(entry(usb(2), handle=usb(1)), entry(usb(2), handle=other_handle(is_same=True))),
    "R4": Case(
        add_handle(1 << 40 | usb(99), "idle remote"), add_handle(2 << 56 | 99, "idle remote")
    ),
    "R4 common": Case(add_handle(0, "idle remote"), add_handle(usb(0), "idle remote")),
    "R5": Case(
        kcov("remote", t=0),
        [
            task(50, **STOPPED),
            kcov("remote", t=a_task(44)),
            task(44, kcov=an_object("remote"), kcov_mode=4, kcov_handle=0x42),
        ],
    ),
    "R5 no object": Case(entry(usb(2), kcov=0x1234), entry(usb(2), kcov=NOWHERE)),
    "R6": Case(task(50, kcov_handle=0x43), task(51, kcov_handle=0x43)),
    "R6 two": Case(add_handle(0x43, "remote"), add_handle(usb(0x43), "remote")),
    "R7": Case(
        [entry(usb(bus), kcov=an_object("remote")) for bus in range(2, 40)],
        [entry(usb(bus), kcov=an_object("remote")) for bus in range(3, 40)],
    ),
    "R8": Case(entry(usb(2), kcov=0x6B6B6B6B6B6B6B6B), entry(usb(2), kcov=0xFFFF88806B6B6B68)),
    "A1": Case(
        cached("task", 1, list__prev=NOWHERE),
        relink("task", *(a_cached("task", n) for n in (2, 1, 0))),
    ),
    "A1 cut": Case(
        cached("task", 0, list__next=0), relink("task", *(a_cached("task", n) for n in (1, 0, 2)))
    ),
    "A2": Case(cached("task", 0, size=513), cached("task", 0, size=512)),
    "A2 of softirqs": Case(relink("task", a_cached("irq", 0)), add_area("task", 1024)),
    "A2 elsewhere": Case(
        cached("task", 0, size=8192), [cached("task", 0, size=8192), without("vmalloc")]
    ),
    "A3": Case(task(7, kcov_area=a_cached("task", 0)), take("task", 0, 7, "kworker")),
    "A4": Case(task(8, kcov_area=an_area("kworker")), take("task", 0, 8, "stale")),
    "A4 buffer": Case(task(7, kcov_area=a_buffer("stopped")), take("task", 1, 7, "kworker")),
    "A5": Case(relink("irq", a_cached("irq", 0)), take("irq", 2, 3, "irq 0")),
    "A5 too many": Case(add_area("irq", 1024, "kcov_init"), [preempt_rt, *ENOUGH_FOR_RT]),
    "A5 size": Case(cached("irq", 0, size=512), cached("task", 0, size=512)),
    "A6": Case(add_area("task", 9 << 20), add_area("task", 7 << 20)),
    "A7": Case(
        lambda kernel: relink("task", kernel.areas["irq 0"])(kernel), add_area("task", 1024), E6
    ),
    "B1": Case(word(a_buffer("local"), 0, 512), word(a_buffer("local"), 0, 511)),
    "B1 of bitmaps": Case(
        word(a_buffer("local"), 0, 10**6), word(a_buffer("stopped"), 0, 10**6), P2
    ),
    "B2": Case(
        word(a_buffer("compared"), 0, CMP_WRAPS), fill(a_buffer("compared"), 127, comparisons=True)
    ),
    "B2 not enabled": Case(
        word(a_buffer("compared"), 0, 128), fill(a_buffer("compared"), 126, comparisons=True)
    ),
    "B3": Case(fill(an_area("kworker"), 256), fill(an_area("kworker"), 255)),
    "B4": Case(word(an_area("kworker"), 3, 0x1234), word(an_area("kworker"), 12, 0)),
    "B4 of user space": Case(word(a_buffer("full"), 3, 0x1234), word(a_buffer("local"), 3, 0x1234)),
    "B5": Case(word(a_buffer("compared"), 1, 9), word(a_buffer("compared"), 1, 6)),
    "B6": Case(
        [word(a_buffer("compared"), 1, 1), word(a_buffer("compared"), 2, 0x1FF)],
        [word(a_buffer("compared"), 1, 1), word(a_buffer("compared"), 2, 0xFFFFFFFFFFFFFF80)],
    ),
    "B9": Case(
        word(a_buffer("ext"), 2, 5 << 60 | 0xFFFFFF81000010),
        word(a_buffer("ext"), 2, 0x10FFFFFF81000010),
        X1,
    ),
    "B9 not code": Case(
        word(a_buffer("ext"), 1, 0x1234), word(a_buffer("ext"), 1, 0x00FFFFFF81000010), X1
    ),
    "B12": Case(
        [prove, word(a_buffer("full"), 3, WRONG)], [prove, word(a_buffer("full"), 3, WRONG + 1)]
    ),
    "B12 of a section": Case(
        [prove, fill(an_area("kworker"), 9), word(an_area("kworker"), 8, WRONG)],
        # The count is raised before the last one is written.
        [prove, fill(an_area("kworker"), 9), word(an_area("kworker"), 9, WRONG)],
    ),
    "B12 of a comparison": Case(
        [prove, word(a_buffer("compared"), 4, WRONG)],
        [prove, word(a_buffer("compared"), 4, WRONG + 2)],
    ),
    "B12 in a later session": Case(
        [prove, *LATER, fill(a_buffer("local"), 20), word(a_buffer("local"), 10, WRONG)],
        # A comparison that an earlier session left: the last of its four words is the address.
        [prove, *LATER, sessions("local", (16, 0), (0, 4))],
    ),
    "B12 after a gap": Case(
        [prove, *LATER, sessions("local", (0, 42)), word(a_buffer("local"), 10, WRONG)],
        # The comparisons counted words that none of them wrote, and later PCs are where they were.
        [prove, *LATER, sessions("local", (0, 4), (4, 38))],
    ),
    "B12 after a comparison in part": Case(
        [prove, *LATER, sessions("local", (0, 9)), word(a_buffer("local"), 3, WRONG)],
        # What is left of a comparison lost its address to PCs, and was counted once more by the
        # next comparisons.
        [prove, *LATER, sessions("local", (8, 4), (2, 20), (30, 4))],
    ),
    "M1": Case(kcov("stopped", map_edge=0), move_map("stopped", "map_edge"), J),
    "M1 half made": Case(map_of("stopped", pool=0), map_of("stopped", pool=NOWHERE), J),
    "M1 of another": Case(
        map_of("stopped", area=a_buffer("local")),
        [relocate("stopped"), map_of("stopped", area=a_buffer("stopped"))],
        J,
    ),
    "M2": Case(kcov("stopped", size=512), kcov("stopped", size=1023), J),
    "M2 edges": Case(
        lambda kernel: map_of("stopped", "map_edge", area=allocate(kernel, 4096, "kcov_map_init"))(
            kernel
        ),
        [
            without("vmalloc"),
            lambda kernel: map_of("stopped", "map_edge", area=kernel.allocate(8192))(kernel),
        ],
        J,
    ),
    "M3": Case(
        lambda kernel: kernel.write_word(kernel.maps["uniq", "map"], NOWHERE),
        remember("uniq", 3),
        J,
    ),
    "M3 loop": Case(chain("uniq", 1, 1), remember("uniq", 3, bucket=11), J),
    "M3 between": Case(
        lambda kernel: (
            chain("uniq", 1, 0)(kernel)
            or kernel.write_word(kernel.maps["uniq", "map"] + 8, kernel.text)
        ),
        remember("uniq", 3, bucket=1),
        J,
    ),
    "M4": Case(remember("uniq", 4), [remember("uniq", 4), remember("uniq", 3)], J),
    "M4 in between": Case(
        remember("edges", 4, "map_edge"),
        [
            remember("edges", 4, "map_edge"),
            end_softirq,
            task(60, on_cpu=0, kcov_mode=SWITCHED),
            run_queue(1, curr=a_task(201)),
            task(201, on_cpu=1, kcov_mode=32),
        ],
        J,
    ),
    "M5": Case(word(a_buffer("uniq"), 0, 4), word(a_buffer("uniq"), 0, 2), J),
    "M5 full": Case(
        word(a_buffer("both"), 0, 4), [remember("both", 3), word(a_buffer("both"), 0, 3)], J
    ),
    "M6": Case(
        word(a_buffer("uniq"), 2, 0xFFFFFFFF81000999),
        # The last one may be about to be written.
        word(a_buffer("uniq"), 3, 0xFFFFFFFF81000999),
        J,
    ),
    "M6 twice": Case(
        word(a_buffer("uniq"), 2, 0xFFFFFFFF81000000),
        [
            word(a_buffer("uniq"), 1, 0xFFFFFFFF81000010),
            word(a_buffer("uniq"), 2, 0xFFFFFFFF81000000),
        ],
        J,
    ),
    "M6 comparison": Case(word(a_buffer("uniq-cmp"), 2, 5), word(a_buffer("uniq-cmp"), 10, 5), J),
    "U1": Case(
        kcov("unique", **{"state.bitmap": 0}),
        [split("unique", 200, 32), word(a_buffer("unique"), 0, 0)],
        P2,
    ),
    "U1 of another mode": Case(
        split("local", 40, 8),
        [
            split("unique", 200, 0),
            kcov("unique", mode=1, t=0, references=-1, sequence=2),
            task(
                200,
                kcov=0,
                kcov_mode=0,
                **{f"kcov_state.{name}": 0 for name in ("size", "area", "trace", "trace_size")},
            ),
        ],
        P2,
    ),
    "U1 elsewhere": Case(
        kcov("unique", **{"state.s.bitmap": a_buffer("local")}),
        [split("unique", 200, 16, "s."), word(a_buffer("unique"), 0, 0)],
        P1,
    ),
    "U2": Case(
        kcov("unique", **{"state.trace_size": 959}),
        [split("unique", 200, 65), word(a_buffer("unique"), 0, 0)],
        P2,
    ),
    "U2 bits": Case(
        kcov("unique", **{"state.bitmap_size": 4095}),
        [split("unique", 200, 63), word(a_buffer("unique"), 0, 0)],
        P2,
    ),
    "U2 gap": Case(
        kcov("unique", **{"state.trace": lambda kernel: kernel.buffers["unique"] + 65 * 8}),
        [split("unique", 200, 1), word(a_buffer("unique"), 0, 0)],
        P2,
    ),
    "U3": Case(
        [split("unique", None, 32), word(a_buffer("unique"), 0, 0)],
        [split("unique", 200, 32), word(a_buffer("unique"), 0, 0)],
        P2,
    ),
    "U3 left over": Case(
        task(44, **{"kcov_state.trace_size": 7}), task(44, **{"kcov_state.sequence": 7}), P2
    ),
    "U4": Case(word(a_buffer("unique"), 0, 0xD), word(a_buffer("unique"), 0, 0x1C), P2),
    "U4 highest": Case(symbol("kcov_guard_max_index", 2), symbol("kcov_guard_max_index", 3), P2),
    "U5": Case(word(a_buffer("unique"), 0, 0x1E), word(a_buffer("unique"), 0, 0x6), P2),
    "U6": Case(
        [
            symbol("kcov_guard_max_index", 3),
            symbol("__start___sancov_guards", 1, 2, 2, 0, end="__stop___sancov_guards"),
        ],
        [
            symbol("kcov_guard_max_index", 3),
            symbol("__start___sancov_guards", 0, 3, 2, 0, end="__stop___sancov_guards"),
        ],
        P2,
    ),
    "U6 beyond": Case(
        [
            symbol("kcov_guard_max_index", 3),
            symbol("__start___sancov_guards", 4, end="__stop___sancov_guards"),
        ],
        [
            symbol("kcov_guard_max_index", 3),
            symbol("__start___sancov_guards", 3, end="__stop___sancov_guards"),
        ],
        P2,
    ),
    "F1": Case([kcov("ext", mode=3), task(200, kcov_mode=IN_CTXSW | 3)], disable("ext", 200), X1),
    "F1 task": Case(task(41, kcov_ext_format=1), task(44, kcov_ext_format=1), X1),
    "F1 never initialised": Case(
        kcov("opened", kcov_ext_format=1), kcov("stopped", kcov_ext_format=1), X1
    ),
    "F2": Case(
        percpu(0, saved_kcov_ext_format=1),
        [percpu(1, saved_kcov_ext_format=1), kcov("interrupted", kcov_ext_format=1)],
        X1,
    ),
    "F3": Case(
        task(40, kcov_ext_format=1),
        [task(40, kcov_ext_format=1), kcov("local", kcov_ext_format=1)],
        X1,
    ),
    "F3 section": Case(task(7, kcov_ext_format=1), task(8, kcov_ext_format=1), X1),
    "F3 saved": Case(
        kcov("interrupted", kcov_ext_format=1),
        [percpu(1, saved_kcov_ext_format=1), kcov("interrupted", kcov_ext_format=1)],
        X1,
    ),
    "B8": Case(cached("task", 2, size=1), cached("task", 2, size=4095)),
    "X1": Case(kcov("stopped", refcount=0), descriptor("child", 0, "stopped")),
    "X2": Case(vmalloc(4096, "kcov_ioctl"), vmalloc(4096, "dup_task_struct")),
    "X2 of maps": Case(
        vmalloc(4096, "kcov_map_init"),
        [kcov("stopped", map=0), vmalloc(4096, "kcov_map_init")],
        J,
        unsure=["M1"],
    ),
    "X2 page array": Case(
        vmalloc(16384, "kcov_remote_start", user=False),
        vmalloc(16384, "kcov_remote_start", user=False, array=True),
    ),
    "X2 area": Case(
        vmalloc(4096, "kcov_remote_start.part.0", False),
        [
            vmalloc(4096, "kcov_remote_start", False),
            stack(2, "vmalloc_noprof", "kcov_remote_start"),
        ],
        held=True,
    ),
    "X3": Case(
        [
            descriptor("remote", 4, "tty"),
            no_other_files,
            kcov("idle remote", t=0),
            task(52, kcov=0),
        ],
        [descriptor("remote", 4, "tty"), kcov("idle remote", references=-1)],
        E6,
    ),
    "X4": Case(task(43, kcov=an_object("local")), move("local", 40, 44), E2),
    "X5": Case(
        mapping("parent", 0x40000, 0x42000, 0, "shared"),
        mapping("parent", 0x40000, 0x41000, 0, "shared"),
    ),
    "X5 part": Case(
        mapping("parent", 0x40000, 0x41000, 2, "stopped"),
        mapping("parent", 0x40000, 0x41000, 1, "stopped"),
    ),
    "X5 window": Case(mapping("parent", 0x40000, 0x42000, 2, "stopped"), near_row=J),
    "X5 not initialised": Case(
        mapping("fuzz", 0xA0000, 0xA1000, 0, "opened"),
        mapping("fuzz", 0xA0000, 0xA2000, 0, "unmapped"),
        E5,
    ),
    "X6": Case(
        [kcov("local", mode=1 << 27 | 2), task(40, kcov_mode=IN_CTXSW | 1 << 27 | 2)],
        # This one has a known meaning where an object does not have it.
        task(40, kcov_mode=IN_CTXSW | 1 << 29 | 2),
    ),
}


def apply(row, changes):
    kernel = Kernel(row)
    for change in changes if isinstance(changes, list) else [changes]:
        change(kernel)
    return kernel


def state_of(kernel):
    """Return the whole memory of a kernel, for comparison."""
    target = kernel.target
    areas = None if target.vmalloc is None else tuple(target.vmalloc.for_each_vmalloc_area())
    memory = {start: bytes(data) for start, data in target.segments.items()}
    return (
        memory,
        areas,
        target.stacks,
        target.vmas and target.vmas._by_mm,
        dict(target.types),
        dict(target.symbols),
    )


@pytest.mark.parametrize("name", CASES)
def test_fires(name):
    rule = name.split()[0]
    kernel = apply(CASES[name].row, CASES[name].damage)
    assert is_changed(kernel)
    found = [finding for finding in look(kernel, advice=True).findings if finding.rule == rule]
    assert found
    assert all(
        finding.severity.is_violation or finding.severity is find_rule(rule).severity
        for finding in found
    )
    assert all(finding.object and finding.message for finding in found)


@pytest.mark.parametrize("name", CASES)
def test_does_not_fire(name):
    """No rule reports a near miss; its own rule gives no advice either."""
    tested, rule = CASES[name], name.split()[0]
    kernel = apply(tested.near_row or tested.row, tested.near or tested.damage)
    assert is_changed(kernel)
    found = look(kernel, advice=True).findings
    mine = [finding for finding in found if finding.rule == rule]
    if tested.held:
        assert {finding.severity for finding in mine} == {Severity.TRANSIENT}
    elif find_rule(rule).severity is not Severity.ADVICE:
        assert [
            finding
            for finding in mine
            if finding.severity not in (Severity.ADVICE, Severity.UNKNOWN)
        ] == []
    else:
        assert [finding for finding in mine if finding.severity is not Severity.UNKNOWN] == []
    violations = {
        finding.rule: finding.message for finding in found if finding.severity.is_violation
    }
    assert violations.keys() <= set(tested.unsure), violations


def test_modules_below_an_image_that_is_linked_low():
    """The image of s390x is linked to 1 MiB, and what modules below it record is negative."""
    low, offset = 0x100000, 0x3FFFF73C000
    words = [low + 0x10, WORD - 0x1000, low + (1 << 32), WORD - (1 << 32), low]
    buffer = Buffer("41", make_encoding(PC, 8, True), array("Q", words), len(words))
    kernel = make_stub(KernelFacts, kaslr_offset=offset, word_size=8)
    state = make_stub(
        State, kernel=kernel, text=(low + offset, None), buffers=(BufferContents(buffer, NOWHERE),)
    )
    (violation,) = find_rule("B4").check(state)
    assert dict(violation.values)["records"] == f"2: {words[2]:#x}, 3: {words[3]:#x}"


HEALTHY = {}


def is_changed(kernel):
    """Return whether a kernel differs from the undamaged one."""
    name = kernel.row.name
    HEALTHY[name] = HEALTHY.get(name) or state_of(Kernel(kernel.row))
    return state_of(kernel) != HEALTHY[name]


def test_a_wrong_pointer_is_not_missing_memory():
    for pointer, certainty in ((0x1234, Certainty.CERTAIN), (NOWHERE, Certainty.UNKNOWN)):
        kernel = apply(E9A, [entry(usb(1), hnode__next=pointer)])
        assert {finding.certainty for finding in look(kernel, wanted=("R1",)).findings} == {
            certainty
        }


def test_every_rule_is_described_and_has_a_case():
    """Each case has damage and a near miss; the tests above see that neither is the undamaged
    kernel.
    """
    names = [rule.name for rule in list_rules()]
    assert len(names) == len(set(names))
    assert {name.split()[0] for name in CASES} == set(names)
    assert all(rule.sentence and rule.guaranteed_by and rule.kernels for rule in list_rules())


# Legal state that looks odd (kcov-abi.md 11 and 12), besides the near misses above. The healthy
# kernels of every generation hold more: bit 30 in every task that is switched out, no
# kcov_percpu_data, sections on top of nothing, duplicated descriptors.
ODDITIES = {
    "an owner's kcov_sequence means nothing": (E7, [task(50, kcov_sequence=99)]),
    "a handle is inherited, and its owner is gone": (E9A, [task(44, kcov_handle=0x999)]),
    "an owner without a common handle of its own carries an inherited one": (
        E9A,
        [task(52, kcov_handle=0x999)],
    ),
    "a failed KCOV_REMOTE_ENABLE took an inherited handle away, and counted a session": (
        E7,
        [task(51, kcov_handle=0), kcov("stopped", sequence=5)],
    ),
    "an object is closed while it is enabled": (
        E9A,
        [descriptor("fuzz", 7, "null"), kcov("compared", references=-1)],
    ),
    "a task has a local session and owns a remote one": (E8, [task(52, kcov_handle=0x55)]),
    "from v7.2 an owner is in a section for its own handle": (E9B, [fill(an_area("own"), 1)]),
    "a section outlives a disable": (
        E9A,
        [task(50, kcov=0, kcov_mode=0, kcov_handle=0), *REMOTE_DISABLED],
    ),
    "remote coverage without a handle": (E9A, [own("stopped", 44, 4)]),
    "remote coverage into areas of no size": (E9A, [own("stopped", 44, 4, size=0)]),
    "many sizes of areas are kept": (
        E9A,
        [add_area("task", words) for words in (2, 3, 1000, 5000)],
    ),
    "a USB handle of a bus that doesn't exist": (E9A, [add_handle(usb(0xC0FFEE), "idle remote")]),
    "words after the last record are old": (
        E9A,
        [word(a_buffer("full"), 0, 5), word(a_buffer("full"), 6, 0x1234)],
    ),
    "a merge left a part of a comparison behind the last one": (
        E9A,
        [word(a_buffer("compared"), 13, 99), word(a_buffer("compared"), 14, 98)],
    ),
    "records of a module that is gone": (
        E9A,
        [word(a_buffer("full"), 3, 0xFFFFFFFFC0001234 - 0x40000000)],
    ),
    "a buffer is full": (E9A, [fill(a_buffer("compared"), 127, comparisons=True)]),
    "a saved session was switched out": (E9A, [task(9, kcov_saved_mode=SWITCHED)]),
    "a never-run task has no flag": (E7, [task(45, kcov_mode=0)]),
    "a flag of a series that was posted": (K, [task(60, kcov_mode=1 << 29 | 2)]),
    "a mapping in two parts": (
        E9A,
        [
            mapping("child", 0x50000, 0x51000, 0, "stopped"),
            mapping("child", 0x52000, 0x53000, 1, "stopped"),
        ],
    ),
    "a file in flight, where slab caches can't be searched": (
        E9A,
        [descriptor("fuzz", 70, "null"), without("slab")],
    ),
    "the oldest remote kernels have no softirq sections": (E3, [task(7, kcov_sequence=5)]),
}


@pytest.mark.parametrize("name", ODDITIES)
def test_legal_oddities_are_never_reported(name):
    row, changes = ODDITIES[name]
    kernel = apply(row, changes)
    assert is_changed(kernel)
    found = [
        finding for finding in look(kernel).findings if finding.severity is not Severity.UNKNOWN
    ]
    assert found == []


def test_a_count_that_comparisons_went_on_behind_is_told_from_one_that_nothing_explains():
    """The object is not enabled any more: its last mode is unknown."""

    def say(count):
        findings = look(apply(E9A, [word(a_buffer("stopped"), 0, count)])).findings
        (found,) = [finding for finding in findings if finding.rule == "B1"]
        return found.reason

    assert say(CMP_WRAPS + 1) == say(CMP_WRAPS + 100) != say(CMP_WRAPS)
    assert say(CMP_WRAPS) == say(CMP_WRAPS + 100_000) == say(1 << 40)


def test_a_count_that_pcs_left_is_told_from_one_that_nothing_explains():
    """Of 512 words, 127 comparisons fit, and 511 PCs."""

    def say(count):
        findings = look(apply(E9A, [word(a_buffer("compared"), 0, count)])).findings
        (found,) = [finding for finding in findings if finding.rule == "B2"]
        return found.severity, found.certainty, found.reason

    assert say(128) == say(511)
    assert say(511)[:2] == say(512)[:2]
    assert say(511)[2] != say(512)[2]
    # Where the bound of older kernels wraps, they go on inside the buffer.
    assert say(CMP_WRAPS)[0] is Severity.ERROR
    assert say(CMP_WRAPS + 1)[0] is say(CMP_WRAPS + 127)[0] is Severity.WARNING


def test_only_records_that_are_asked_about_are_compared(monkeypatch):
    kernel = Kernel(E9A)
    word(a_buffer("full"), 3, WRONG)(kernel)
    word(a_buffer("local"), 3, WRONG)(kernel)
    judged = []

    def judge(proof, pcs, codec, read):
        judged.append(WRONG in pcs)
        return {pc: "no call ends there" for pc in pcs if pc == WRONG}, ()

    monkeypatch.setattr(MadeUpProof, "judge", judge)
    reader = StateReader(kernel.target, detect_layout(kernel.target), MadeUpProof)
    about = name_kcov(kernel.objects["full"])
    (finding,) = check(reader, wanted=["B12"], about=[about]).findings
    assert finding.object == about
    assert judged == [True]
    # A question about one object leaves nothing out of a later check.
    found = {one.object for one in check(reader, wanted=["B12"]).findings}
    assert found == {about, name_kcov(kernel.objects["local"])}
    assert judged.count(True) == 3
    assert judged.count(False) > 1


def test_a_second_init_trace_is_named():
    """As posted in January 2025, it replaces both maps and the buffer before it is refused
    (kcov-abi.md 5).
    """
    kernel = Kernel(J)
    room = 512 * 8
    old = [kernel.maps["stopped", member] for member in ("map", "map_edge")]
    for member in ("map", "map_edge"):
        new = kernel.maps["stopped", member] = kernel.allocate_type("struct kcov_map")
        area, mem = (
            allocate(kernel, room, "kcov_map_init"),
            allocate(kernel, 8 * room, "kcov_map_init"),
        )
        kernel.put(new, "struct kcov_map", area=area, mem=mem, pool=kernel.allocate(64))
        kernel.put(kernel.objects["stopped"], "struct kcov", **{member: new})
        if member == "map":
            kernel.put(kernel.objects["stopped"], "struct kcov", area=area)
    found = [finding for finding in look(kernel).findings if finding.severity.is_violation]
    leaked = {kernel.buffers["stopped"]} | {
        kernel.read_word(one + kernel.offset("struct kcov_map", name))
        for one in old
        for name in ("mem", "area")
    }
    assert {finding.object for finding in found if finding.rule == "X2"} == {
        f"buffer {area:#x}" for area in leaked
    }
    assert {finding.rule for finding in found} == {"K4", "M2", "X2"}
    for finding in found:
        assert "a second KCOV_INIT_TRACE" in finding.cause


@pytest.mark.parametrize(
    ("size", "end", "pgoff", "area", "expected"),
    [
        (4096, 0x41000, 1, 4096, {}),
        (65536, 0x50000, 0, 65536, {}),
        # Whole pages of the kernel's, where those of 4 KiB would be too many.
        (4096, 0x50000, 0, 4096, {"X5"}),
        (65536, 0x50000, 1, 65536, {"X5"}),
        (4096, 0x41000, 0, 65536, {"B8"}),
        (65536, 0x50000, 0, 3 * 65536, {"B8"}),
    ],
)
def test_pages_of_other_sizes(size, end, pgoff, area, expected):
    """A mapping is counted in the kernel's pages, and memory is allocated in whole ones."""
    kernel = Kernel(E9A)
    kernel.target.page_size = size
    mapping("parent", 0x40000, end, pgoff, "stopped")(kernel)
    start = kernel.cached["task"][0][0]
    change_area(kernel, start, size=area)
    assert {finding.rule for finding in look(kernel, wanted=("X5", "B8")).findings} == set(expected)
