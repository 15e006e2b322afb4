# SPDX-License-Identifier: LGPL-2.1-or-later
"""The writes at which `catch` stops, on a kernel in memory with scripted watchpoints."""

from __future__ import annotations

import pytest

from kcovdbg.abi.generations import KCOV, TASK
from kcovdbg.catch.write_catch import WatchedField, catch_write
from kcovdbg.check.kcov_functions import find_kcov_writer, is_context_switch, is_innocent
from kcovdbg.errors import CapabilityError, UsageError
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.state import Part
from kcovdbg.target.watchpoints import RunEnd
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E9A


def frames(*functions):
    return [
        StackFrame(0xFFFF_FFFF_8100_0000 + 16 * number, name, None, None, None, False)
        for number, name in enumerate(functions)
    ]


class Script:
    """Watchpoints of a machine that makes some writes, each with a stack."""

    cpu = 0
    pc = 0

    def __init__(self, kernel, writes, others=()):
        self.kernel = kernel
        self.writes = list(writes)
        self.others = others
        self.now = ()
        self.spans = []

    def run(self, spans, is_wanted, seconds):
        self.spans.append(tuple(spans))
        while self.writes:
            data, *self.now = self.writes.pop(0)
            self.kernel.target.write(spans[0].address, data)
            self.kernel.target.names[self.pc - 1] = self.now[0]
            if is_wanted():
                return RunEnd.WRITE
        return RunEnd.TIME

    def stack(self):
        return frames(*self.now)

    def stack_problem(self):
        return None

    def other_stacks(self):
        yield from enumerate((frames(*stack) for stack in self.others), 1)


@pytest.fixture
def kernel(monkeypatch):
    found = Kernel(E9A)
    found.target.names = {}
    monkeypatch.setattr(
        type(found.target), "symbol_name", lambda target, address: target.names.get(address)
    )
    return found


def tracing_task(kernel):
    reader = kernel.reader()
    task = next(
        task
        for task in reader.read(Part.TASKS).tasks
        if task.session.is_local and task.mode == "TRACE_PC"
    )
    return reader.layout, task.fields


def run(kernel, writes, others=(), field="kcov_mode"):
    layout, fields = tracing_task(kernel)
    kernel.target.watchpoints = script = Script(kernel, writes, others)
    watched = WatchedField(TASK, fields.address, field, fields.pid, fields.comm)
    return catch_write(kernel.target, layout, watched, 1), script


def word(value):
    return value.to_bytes(4, "little")


FLAG = 1 << 30
SCHEDULER = ("__schedule", "schedule")
KCOV_ITSELF = ("kcov_stop", "kcov_ioctl", "do_syscall_64")
SOMEBODY = ("scribble", "asm_sysvec_apic_timer_interrupt", "kcov_ioctl", "do_syscall_64")


def test_legal_writes_pass(kernel):
    _, fields = tracing_task(kernel)
    mode = fields.kcov_mode & ~FLAG
    writes = [
        (word(mode | FLAG), *SCHEDULER),
        (word(mode), "finish_task_switch", "__schedule"),
        # Half of what KCOV does: the object is still there.
        (word(0), *KCOV_ITSELF),
        (word(mode), "list_add", "kcov_remote_start", "worker_thread"),
        # The same value.
        (word(mode), *SOMEBODY),
        (word(mode | FLAG), *SCHEDULER),
    ]
    catch, script = run(kernel, writes)
    assert catch.caught is None
    assert catch.end is RunEnd.TIME
    assert catch.writes == 6
    assert [span.size for span in script.spans[0]] == [4]
    assert catch.broken_after == ()


@pytest.mark.parametrize(("value", "rule"), [(0, "T1"), (7, "T5"), (3, "T2")])
def test_a_write_that_breaks_a_rule(kernel, value, rule):
    _, fields = tracing_task(kernel)
    catch, _ = run(
        kernel,
        [
            (word(fields.kcov_mode ^ FLAG), *SCHEDULER),
            (word(value), *SOMEBODY),
            (word(2), *SOMEBODY),
        ],
    )
    assert catch.caught is not None
    assert (catch.caught.old, catch.caught.new, catch.writes) == (fields.kcov_mode ^ FLAG, value, 2)
    assert rule in {finding.rule for finding in catch.caught.findings}
    assert catch.caught.stack[0].function == "scribble"
    assert catch.caught.reason is None


def test_what_was_broken_before_is_not_this_writes_doing(kernel):
    layout, fields = tracing_task(kernel)
    kernel.target.write(fields.address + layout.task.offset("kcov_mode"), word(9))
    kernel.target.watchpoints = Script(kernel, [(word(8), *SOMEBODY)])
    watched = WatchedField(TASK, fields.address, "kcov_mode", fields.pid, fields.comm)
    catch = catch_write(kernel.target, layout, watched, 1)
    assert catch.caught is None
    assert "T5" in {finding.rule for finding in catch.broken_before}


@pytest.mark.parametrize("own", [SCHEDULER, KCOV_ITSELF])
def test_two_cpus_at_once(kernel, own):
    """The CPU that stopped is KCOV's or the scheduler's, but neither writes such a value."""
    catch, _ = run(
        kernel, [(word(7), *own)], others=[("default_idle", "do_idle"), ("scribble", "vfs_write")]
    )
    assert catch.caught is not None
    assert catch.caught.stack[0].function == "scribble"
    assert catch.caught.cpu == 2
    assert catch.caught.reason is not None


def test_a_freed_object_ends_it(kernel):
    layout, fields = tracing_task(kernel)
    kernel.target.watchpoints = Script(
        kernel, [(word(1), "kcov_put", "kcov_disable"), (word(0), "kcov_put", "kcov_close")]
    )
    catch = catch_write(kernel.target, layout, WatchedField(KCOV, fields.kcov, "refcount"), None)
    assert catch.caught is None
    assert "freed" in catch.reason


def test_refusals(kernel):
    layout, fields = tracing_task(kernel)
    watched = WatchedField(TASK, fields.address, "kcov_mode", fields.pid, fields.comm)
    kernel.target.watchpoints = None
    with pytest.raises(CapabilityError):
        catch_write(kernel.target, layout, watched, None)
    kernel.target.watchpoints = Script(kernel, [])
    with pytest.raises(UsageError) as caught:
        catch_write(kernel.target, layout, watched._replace(field="comm"), None)
    assert "kcov_mode" in caught.value.hint


def test_writers():
    assert find_kcov_writer(frames("refcount_dec_and_test", "kcov_put", "kcov_close")) == "kcov_put"
    assert find_kcov_writer(frames("kcovlab_scribble", "vfs_write")) is None
    assert (
        find_kcov_writer(frames("kcovlab_scribble", "handle_softirqs", "kcov_remote_start")) is None
    )
    assert is_context_switch("finish_task_switch.isra.0")
    assert not is_context_switch(None)
    assert is_innocent(frames("default_idle", "do_idle"))
    assert not is_innocent(frames("scribble", "vfs_write"))
