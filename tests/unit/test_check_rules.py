# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each rule of `check` on made-up kernels: silent on healthy ones, damage in which it fires, and a near miss in which not."""

from dataclasses import replace

import pytest

from kcovdbg.analysis.check.looking import RULES, check
from kcovdbg.model.finding import Severity
from kcovdbg.target import Member, StackFrame, VmallocArea
from kcovdbg.target.memory import MemoryStacks, MemoryVmalloc, Structure
from kcovdbg.walk.census import Census
from kcovdbg.walk.layout import detect_layout
from tests.unit.kernels.build import PF_EXITING, PF_KTHREAD, Kernel
from tests.unit.kernels.rows import E1, E2, E2_ENUM, E6, E7, E9A, E9B, P2, ROWS, J
from tests.unit.kernels.scenario import IN_CTXSW, usb

NOWHERE = 0xFFFF88800DEAD000


def look(kernel, *, advice=False, wanted=()):
    layout = detect_layout(kernel.target)
    return check(
        kernel.target, layout, Census(kernel.target, layout), advice=advice, wanted=wanted, pause=lambda _seconds: None
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize(("word", "big_endian"), [(8, False), (4, False), (8, True), (4, True)])
def test_silent_on_healthy_kernels(row, word, big_endian):
    report = look(Kernel(row, word=word, big_endian=big_endian))
    assert report.findings == ()
    assert report.applied >= 20


# What is done to a kernel.


def task(pid, **values):
    return lambda kernel: kernel.target.put(
        kernel.tasks[pid], "struct task_struct", {name: resolve(kernel, value) for name, value in values.items()}
    )


def kcov(name, **values):
    def change(kernel):
        count = values.pop("refcount", None)
        named = {
            kernel._path("kcov", key) if key in ("mode", "size", "area", "sequence") else key: value
            for key, value in values.items()
        }
        if count is not None:
            named["refcount.refs.counter"] = count
        kernel.target.put(kernel.objects[name], "struct kcov", {key: resolve(kernel, value) for key, value in named.items()})

    return change


def entry(key, **values):
    return lambda kernel: kernel.target.put(
        kernel.handles[key],
        "struct kcov_remote",
        {name.replace("__", "."): resolve(kernel, value) for name, value in values.items()},
    )


def percpu(cpu, **values):
    return lambda kernel: kernel.target.put(
        kernel.target.per_cpu_addresses["kcov_percpu_data"][cpu],
        "struct kcov_percpu_data",
        {name: resolve(kernel, value) for name, value in values.items()},
    )


def resolve(kernel, value):
    return value(kernel) if callable(value) else value


def an_object(name):
    return lambda kernel: kernel.objects[name]


def a_buffer(name):
    return lambda kernel: kernel.buffers[name]


def a_task(pid):
    return lambda kernel: kernel.tasks[pid]


def an_area(name):
    return lambda kernel: kernel.areas[name]


def a_cached(kind, index):
    return lambda kernel: kernel.cached[kind][index][0]


def file(name, leads_to):
    return lambda kernel: kernel.put(kernel.files[name], "struct file", private_data=kernel.objects[leads_to])


def word(place, number, value):
    """Write a word of a buffer or an area."""
    return lambda kernel: kernel.write_word(resolve(kernel, place) + 8 * number, value)


def cached(kind, index, **values):
    return lambda kernel: kernel.put(
        kernel.cached[kind][index][0],
        "struct kcov_remote_area",
        **{name: resolve(kernel, value) for name, value in values.items()},
    )


def relink(kind, *areas):
    """Make other areas the elements of a list."""

    def change(kernel):
        head = kernel.target.symbols["kcov_remote_areas"].address + (16 if kind == "irq" else 0)
        kernel.link(head, [resolve(kernel, area) for area in areas])

    return change


def stack(pid, *functions):
    """Give a task a stack, innermost function first."""

    def change(kernel):
        frames = [StackFrame(kernel.text, function, None, None, None, False) for function in functions]
        kernel.target.stacks = MemoryStacks({kernel.tasks[pid]: frames})

    return change


def vmalloc(size, caller, user=True, array=False):
    """Allocate what nothing refers to."""

    def change(kernel):
        area = VmallocArea(0xFFFFC90010000000, size, caller, user, array)
        kernel.target.vmalloc = MemoryVmalloc((*kernel.target.vmalloc.for_each_vmalloc_area(), area))

    return change


def preempt_rt(kernel):
    types = kernel.target.types
    types["struct rt_mutex_base"] = Structure(16, {"owner": Member(8, 8, "struct task_struct *")})
    types["spinlock_t"] = Structure(24, {"lock": Member(0, 16, "struct rt_mutex_base")})


def without(capability):
    return lambda kernel: setattr(kernel.target, capability, None)


def nothing(_kernel):
    pass


STOPPED = {"kcov": 0, "kcov_mode": 0, "kcov_size": 0, "kcov_area": 0}
# The lock has an owner with lock debugging.
E6_DEBUG = replace(E6, name="E6 with lock debugging", more="local_lock_t { struct task_struct *owner; };" + E6.more)
EXITING = {"flags": PF_EXITING}
CMP_WRAPS = (1 << 59) - 1

# Rule: (generation, what is done, generation, what is done and legal).
CASES = {
    "K1": (E9A, [kcov("local", refcount=3)], E9A, [kcov("local", refcount=3, lock=1)]),
    "K1 too few": (E9A, [kcov("remote", refcount=2)], E9A, []),
    "K2": (E9A, [kcov("stopped", mode=4)], E9A, [kcov("stopped", mode=3, t=a_task(41))]),
    "K3": (E9A, [kcov("stopped", size=1)], E9A, [kcov("stopped", size=2)]),
    "K3 no mode": (E9A, [kcov("opened", size=64)], E9A, []),
    "K3 too large": (E9A, [kcov("stopped", size=1 << 30)], E9A, [kcov("stopped", size=(1 << 28) - 1)]),
    "K4": (E9A, [kcov("stopped", area=0)], E6, [kcov("stopped", area=0)]),
    "K4 elsewhere": (E9A, [kcov("stopped", area=NOWHERE)], E9A, [kcov("stopped", area=NOWHERE), without("vmalloc")]),
    "K4 too small": (E9A, [kcov("stopped", size=1 << 20)], E9A, [kcov("stopped", size=1023)]),
    "K5": (E9A, [kcov("local", t=0)], E1, [kcov("local", t=0)]),
    "K5 the other way": (E9A, [kcov("stopped", t=a_task(41))], E1, []),
    "K6": (E9A, [kcov("local", t=NOWHERE)], E9A, [kcov("local", t=a_task(46))]),
    "K7": (E9A, [kcov("stopped", remote_size=5)], E9A, [kcov("remote", remote_size=0)]),
    "K7 handles": (E9A, [entry(usb(1), kcov=an_object("local"))], E9A, [entry(usb(1), kcov=an_object("idle remote"))]),
    "K8": (E9A, [kcov("stopped", sequence=0)], E9A, [kcov("stopped", sequence=0x7FFFFFFF)]),
    "K9": (E9A, [kcov("remote", remote_size=0)], E9A, [kcov("idle remote", remote_size=2)]),
    "K10": (E9A, [kcov("stopped", area=a_buffer("local"))], E9A, [kcov("stopped", area=0)]),
    "K10 free": (E9A, [kcov("stopped", area=a_cached("task", 0))], E9A, []),
    "K11": (E9A, [file("opened", "local")], E9A, []),
    "T1": (E9A, [task(40, **STOPPED)], E9A, [task(40, **STOPPED), kcov("local", lock=1)]),
    "T1 local": (E9A, [kcov("local", t=a_task(42))], E9A, []),
    "T1 nothing": (E9A, [task(44, kcov=an_object("stopped"))], E6, []),
    "T2": (E9A, [task(40, kcov_size=1024)], E9A, [task(40, kcov_mode=IN_CTXSW | 2)]),
    "T2 sequence": (E9A, [task(40, kcov_sequence=2)], E2, []),
    "T3": (E9A, [task(1, kcov_area=a_buffer("stopped"))], E9A, [task(1, kcov_mode=2), task(44, kcov_sequence=5)]),
    "T3 too old for a self-test": (E6, [task(1, kcov_mode=2)], E7, [task(1, kcov_mode=2)]),
    "T4": (E6, [task(50, kcov=0)], E6, []),
    "T4 mode": (E9A, [task(50, kcov_mode=IN_CTXSW)], E6, [task(50, kcov_mode=IN_CTXSW)]),
    "T4 member": (E9B, [task(50, kcov_remote=0)], E9B, []),
    "T4 member of others": (E9B, [task(44, kcov_remote=an_object("remote"))], E9B, []),
    "T5": (E9A, [task(40, kcov_mode=IN_CTXSW | 1)], E9A, [task(40, kcov_mode=IN_CTXSW | 1 << 29 | 2)]),
    "T5 owner": (E9A, [task(44, kcov_mode=4)], E9A, []),
    "T6": (E9A, [task(7, kcov_size=128)], E9A, [task(8, kcov_size=128)]),
    "T6 ahead": (E9A, [task(7, kcov_sequence=7)], E9A, [task(7, kcov_sequence=4)]),
    "T6 wrapped": (
        E9A,
        [kcov("remote", sequence=-(2**31)), task(7, kcov_sequence=-(2**31) + 1)],
        E9A,
        [kcov("remote", sequence=-(2**31)), task(7, kcov_sequence=2**31 - 1), task(8, kcov_sequence=2**31 - 1)],
    ),
    "T7": (
        E9A,
        [task(43, kcov_softirq=1)],
        E9A,
        [preempt_rt, task(7, kcov_softirq=1, kcov_area=an_area("irq 0"), kcov_size=1024)],
    ),
    "T7 flag": (E9A, [task(60, kcov_softirq=7)], E9A, []),
    "T7 of another CPU": (E6, [task(60, kcov_area=an_area("irq 2"))], E6, []),
    "T7 free": (E9A, [task(60, kcov_area=a_cached("irq", 0))], E9A, []),
    "T8": (E9A, [task(51, kcov_handle=usb(1))], E9A, [task(51, kcov_handle=0x7777)]),
    "T9": (
        E7,
        [task(60, kcov_mode=IN_CTXSW | 2), stack(60, "ksys_write")],
        E7,
        [task(60, kcov_mode=IN_CTXSW | 2), stack(60, "__schedule", "schedule")],
    ),
    "T9 the other way": (E7, [task(40, kcov_mode=2)], E2_ENUM, []),
    "T10": (E9A, [kcov("full", t=a_task(40))], E9B, []),
    "T11": (E9A, [task(46, kcov=an_object("stopped"))], E9A, [task(60, **EXITING)]),
    "T12": (E9A, [task(40, flags=PF_KTHREAD)], E9A, [stack(7, "schedule", "process_one_work", "worker_thread")]),
    "T12 open": (E9A, [stack(7, "schedule", "worker_thread", "kthread")], E9A, [stack(2, "schedule", "worker_thread")]),
    "S1": (E6, [percpu(0, saved_size=5)], P2, [percpu(0, saved_mode=2)]),
    "S2": (E6, [task(60, kcov_softirq=0)], E6, []),
    "S3": (E9A, [task(60, kcov_saved_size=1)], E9A, [task(60, kcov_saved_mode=IN_CTXSW | 2)]),
    "S3 per CPU": (E6, [percpu(1, saved_size=1)], E6, [percpu(1, saved_mode=IN_CTXSW | 2)]),
    "S3 section": (E9A, [task(9, kcov_saved_sequence=9)], E9A, [task(9, kcov_saved_sequence=2)]),
    "S4": (
        E9A,
        [task(43, kcov_saved_kcov=an_object("stopped"), kcov_saved_mode=2)],
        E9A,
        [task(9, kcov_saved_kcov=0, kcov_saved_mode=0, kcov_saved_size=0, kcov_saved_area=0, kcov_saved_sequence=0)],
    ),
    "S5": (
        E6,
        [percpu(0, irq_area=lambda kernel: kernel.areas["irq 1"])],
        E6,
        [percpu(cpu, irq_area=0) for cpu in range(3)],
    ),
    "S5 none": (E6, [percpu(0, irq_area=0)], E6, []),
    "S6": (
        E6_DEBUG,
        [percpu(1, **{"lock.owner": a_task(60)}), stack(60, "ksys_write")],
        E6_DEBUG,
        [percpu(1, **{"lock.owner": a_task(60)}), stack(60, "kcov_remote_start", "hub_event")],
    ),
    "S6 nobody": (E6_DEBUG, [percpu(1, **{"lock.owner": NOWHERE})], E6_DEBUG, []),
    "R1": (E9A, [entry(usb(1), hnode__pprev=NOWHERE)], E9A, []),
    "R1 loop": (E9A, [lambda kernel: entry(usb(1), hnode__next=kernel.handles[usb(1)] + 16)(kernel)], E9A, []),
    "R2": (E9A, [entry(0x42, handle=0x47)], E9A, [entry(0x42, handle=lambda kernel: same_bucket(kernel, 0x42))]),
    "R3": (E9A, [entry(usb(2), handle=usb(1))], E9A, [entry(usb(2), handle=0x2)]),
    "R4": (E9A, [entry(usb(2), handle=1 << 40 | usb(2))], E9A, [entry(usb(2), handle=2 << 56 | 2)]),
    "R4 common": (E9A, [entry(usb(2), handle=0)], E9A, [entry(usb(2), handle=usb(0))]),
    "R5": (E9A, [kcov("remote", t=0)], E9A, [kcov("remote", remote_size=0)]),
    "R5 no object": (E9A, [entry(usb(2), kcov=0x1234)], E9A, []),
    "R6": (E9A, [task(50, kcov_handle=0x43)], E9A, [task(51, kcov_handle=0x43)]),
    "R7": (
        E9A,
        [entry(usb(bus), kcov=an_object("remote")) for bus in range(2, 40)],
        E9A,
        [entry(usb(bus), kcov=an_object("remote")) for bus in range(3, 40)],
    ),
    "R8": (E9A, [entry(usb(2), kcov=0x6B6B6B6B6B6B6B6B)], E9A, [entry(usb(2), kcov=0xFFFF88806B6B6B68)]),
    "A1": (E9A, [cached("task", 1, list__prev=NOWHERE)], E9A, [relink("task")]),
    "A1 cut": (E9A, [cached("task", 0, list__next=0)], E9A, []),
    "A2": (E9A, [cached("task", 0, size=8192)], E9A, [cached("task", 0, size=8192), without("vmalloc")]),
    "A2 of softirqs": (E9A, [relink("task", a_cached("irq", 0))], E9A, []),
    "A3": (E9A, [task(7, kcov_area=a_cached("task", 0))], E9A, []),
    "A4": (E9A, [task(8, kcov_area=an_area("kworker"))], E9A, []),
    "A4 buffer": (E9A, [task(7, kcov_area=a_buffer("stopped"))], E9A, []),
    "A5": (E9A, [relink("irq", a_cached("irq", 0))], E9A, []),
    "A5 size": (E9A, [cached("irq", 0, size=512)], E9A, [cached("task", 0, size=512)]),
    "A6": (E9A, [cached("task", 0, size=1 << 24)], E9A, [cached("task", 0, size=1 << 20)]),
    "A7": (E6, [lambda kernel: relink("task", kernel.areas["irq 0"])(kernel)], E6, []),
    "B1": (E9A, [word(a_buffer("local"), 0, 10**6)], E9A, [word(a_buffer("local"), 0, 511)]),
    "B1 of bitmaps": (P2, [word(a_buffer("local"), 0, 10**6)], P2, [word(a_buffer("stopped"), 0, 10**6)]),
    "B2": (E9A, [word(a_buffer("compared"), 0, CMP_WRAPS)], E9A, [word(a_buffer("compared"), 0, 127)]),
    "B3": (E9A, [word(an_area("kworker"), 0, 1000)], E9A, [task(7, kcov_mode=IN_CTXSW), word(an_area("kworker"), 0, 1000)]),
    "B4": (E9A, [word(an_area("kworker"), 3, 0x1234)], E9A, [word(an_area("kworker"), 12, 0)]),
    "B4 of user space": (E9A, [word(a_buffer("full"), 3, 0x1234)], E9A, [word(a_buffer("local"), 3, 0x1234)]),
    "B5": (E9A, [word(a_buffer("compared"), 1, 9)], E9A, [word(a_buffer("compared"), 1, 6)]),
    "B6": (
        E9A,
        [word(a_buffer("compared"), 1, 1), word(a_buffer("compared"), 2, 0x1FF)],
        E9A,
        [word(a_buffer("compared"), 1, 1), word(a_buffer("compared"), 2, 0xFFFFFFFFFFFFFF80)],
    ),
    "B8": (E9A, [cached("task", 2, size=1)], E9A, [cached("task", 2, size=4095)]),
    "X1": (E9A, [kcov("stopped", refcount=0)], E9A, []),
    "X2": (E9A, [vmalloc(4096, "kcov_ioctl")], E9A, [vmalloc(4096, "dup_task_struct")]),
    "X2 of maps": (J, [vmalloc(4096, "kcov_map_init")], J, [kcov("stopped", map=0), vmalloc(4096, "kcov_map_init")]),
    "X2 page array": (
        E9A,
        [vmalloc(16384, "kcov_remote_start", user=False)],
        E9A,
        [vmalloc(16384, "kcov_remote_start", user=False, array=True)],
    ),
    "X2 area": (
        E9A,
        [vmalloc(4096, "kcov_remote_start.part.0", False)],
        E9A,
        [vmalloc(4096, "kcov_remote_start", False), stack(2, "vmalloc_noprof", "kcov_remote_start")],
    ),
    "X3": (
        E6,
        [kcov("idle remote", t=0), task(52, kcov=0), file("idle remote", "remote")],
        E6,
        [kcov("idle remote", t=0), task(52, kcov=0)],
    ),
    "X4": (E2, [task(43, kcov=an_object("local"))], E9A, []),
}


def same_bucket(kernel, handle):
    wanted = kernel.find_bucket(handle)
    return next(other for other in range(handle + 1, handle + 1000) if kernel.find_bucket(other) == wanted)


def apply(row, changes):
    kernel = Kernel(row)
    for change in changes:
        change(kernel)
    return kernel


@pytest.mark.parametrize("case", CASES)
def test_fires(case):
    row, changes, _, _ = CASES[case]
    rule = case.split()[0]
    found = [finding for finding in look(apply(row, changes), advice=True).findings if finding.rule == rule]
    assert found
    for finding in found:
        assert finding.severity.is_violation or finding.severity is next(r for r in RULES if r.name == rule).severity
        assert finding.object
        assert finding.message


@pytest.mark.parametrize("case", CASES)
def test_does_not_fire(case):
    _, _, row, changes = CASES[case]
    rule = case.split()[0]
    report = look(apply(row, changes), advice=case[0:2] in ("K9", "R7", "A6"))
    found = [finding for finding in report.findings if finding.rule == rule and finding.severity is not Severity.TRANSIENT]
    assert found == []


def test_every_rule_is_tested():
    assert {case.split()[0] for case in CASES} == {rule.name for rule in RULES}


def test_rules_are_told_apart():
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names)) == 55
    for rule in RULES:
        assert rule.sentence
        assert rule.guarantee
        assert rule.eras
