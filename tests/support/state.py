# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel's state made by hand, and a workspace that shows it: for tests of commands, which don't
walk.
"""

import io
import json
from dataclasses import dataclass, field, replace
from typing import Any

from kcovdbg.abi.generations import Generation
from kcovdbg.abi.mode import ModeNumbers
from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Frontend, Workspace
from kcovdbg.console.json_schema import schema_of
from kcovdbg.console.terminal import THEME, Color, Painter, Terminal
from kcovdbg.errors import MissingSymbolError, ReadError
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import CommandInputs, UserInputs
from kcovdbg.model.kcov import Kcov, KcovFields, Reference
from kcovdbg.model.remote import Area, RemoteHandle
from kcovdbg.model.state import KernelFacts, Lack, Part, Source, State
from kcovdbg.model.task import Role, SavedState, Session, Syscall, Task, TaskFields, TaskSyscall
from kcovdbg.series.table import traits_of
from kcovdbg.target.connection import Connection
from kcovdbg.target.target import Target
from kcovdbg.walk.layout import Layout
from tests.support.stub import make_stub

KCOV = 0xFFFF888003A51C00
REMOTE_KCOV = 0xFFFF888003A51D00
BUFFER = 0xFFFFC90000200000
MODES = {
    "KCOV_MODE_DISABLED": 0,
    "KCOV_MODE_INIT": 1,
    "KCOV_MODE_TRACE_PC": 2,
    "KCOV_MODE_TRACE_CMP": 3,
    "KCOV_MODE_REMOTE": 4,
}


def make_fields(pid=41, comm="syz-executor", **values):
    defaults = {
        **dict.fromkeys(
            (
                "kcov_remote",
                "saved_mode",
                "saved_size",
                "saved_area",
                "saved_kcov",
                "saved_sequence",
            )
        ),
        **dict.fromkeys(("flags", "cpu", "mm", "files", "kcov_handle", "kcov_softirq"), 0),
        "tgid": pid,
        "on_cpu": False,
        "kcov_mode": 0x40000002,
        "kcov_size": 0x10000,
        "kcov_area": BUFFER,
        "kcov": KCOV,
        "kcov_sequence": 1,
    }
    return TaskFields(0xFFFF888004000000 + pid * 0x1000, pid, comm=comm, **{**defaults, **values})


def make_task(
    pid=41, comm="syz-executor", *, mode="TRACE_PC", role=Role.LOCAL, beneath=None, **values
):
    result: dict[str, Any] = {
        "in_ctxsw": True,
        "owns_remote": False,
        "count": 11,
        "capacity": 65535,
        "full": False,
        "saved": None,
        "errors": (),
    }
    result |= {name: values.pop(name) for name in tuple(values) if name in result}
    fields = make_fields(pid, comm, **values)
    session = Session(
        fields.address,
        False,
        mode,
        fields.kcov_size,
        fields.kcov_area,
        fields.kcov,
        fields.kcov_sequence,
        role=role,
    )
    interrupted = None if beneath is None else session._replace(is_saved=True, role=beneath)
    return Task(fields=fields, session=session, interrupted=interrupted, **result)


def make_kcov(address=KCOV, references=(), **values):
    fields = {
        "refcount": 2,
        "is_locked": False,
        "mode": 2,
        "size": 0x10000,
        "area": BUFFER,
        "task": 0xFFFF888004029000,
        "remote": False,
        "remote_size": 0,
        "sequence": 1,
    }
    return Kcov(
        fields=KcovFields(address, **{**fields, **values}),
        address=address,
        mode="TRACE_PC",
        pid=41,
        comm="syz-executor",
        count=11,
        capacity=65535,
        full=False,
        references=references,
        found_by=("fd",),
    )


TASKS = (
    make_task(
        1,
        "init",
        mode="DISABLED",
        role=Role.NONE,
        kcov=0,
        kcov_mode=0x40000000,
        kcov_area=0,
        kcov_size=0,
        count=None,
    ),
    make_task(),
    make_task(
        42,
        "syz-executor",
        kcov=REMOTE_KCOV,
        count=65535,
        full=True,
        owns_remote=True,
        kcov_handle=0x2A,
    ),
    make_task(
        7,
        "kworker/0:1",
        role=Role.SOFTIRQ_SECTION,
        beneath=Role.REMOTE_SECTION,
        kcov_handle=1 << 56 | 1,
        kcov_softirq=1,
    ),
    make_task(
        66,
        "evil\x1b[2J\u202e\n",
        role=None,
        count=None,
        errors=("buffer 0xdead: it can't be read",),
    ),
)
OBJECTS = {
    KCOV: make_kcov(
        references=(Reference("task", 1, 41), Reference("fd", 1, 41, 3, 0xFFFF888005000000))
    ),
    REMOTE_KCOV: make_kcov(
        REMOTE_KCOV,
        references=(
            Reference("vma", 1, 42, start=0x7F0000000000, file=0xFFFF888005000100),
            *(Reference("remote", 0, handle=1 << 56 | number) for number in range(1, 6)),
        ),
        remote=True,
        refcount=3,
    ),
}


SYSCALLS = {
    41: TaskSyscall(Syscall(0, "read", (3, 0x7F0000001000, 512))),
    66: TaskSyscall(None, "system call unknown: it can't be read"),
}


@dataclass
class StubReader:
    """Answers as a StateReader does, with a state made by hand."""

    all: tuple[Task, ...] = TASKS
    objects: dict[int, Kcov] = field(default_factory=lambda: OBJECTS)
    lists_vmas: bool = True
    remote: tuple[RemoteHandle, ...] = (
        RemoteHandle(0xFFFF888006000000, 1 << 56 | 1, 5, REMOTE_KCOV, 42, "syz-executor"),
    )
    areas: tuple[Area, ...] = (
        Area(0xFFFFC90000300000, 65536, "task", "cached"),
        Area(BUFFER, 512, "irq", "in-use", 7, 1),
    )
    saved: tuple[SavedState, ...] = (
        SavedState(
            "cpu", 1, 0xFFFF888004007000, 7, "kworker/0:1", 0x40000002, 65536, BUFFER, KCOV, 3
        ),
        SavedState(
            "cpu",
            0,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            ("the current task of CPU 0 can't be read",),
        ),
    )
    said: tuple[str, ...] = ()

    def read(self, parts, *, stacks=(), syscalls=()):
        read = {
            "task_fields": tuple(task.fields for task in self.all),
            "devices": (),
            "tasks": tuple(task for task in self.all if task.mode != "DISABLED"),
            "all_tasks": self.all,
            "current": {},
            "saved": self.saved,
            "cpu_states": {},
            "handles": self.remote,
            "buckets": 16,
            "areas": self.areas,
            "objects": self.objects,
            "lists_vmas": self.lists_vmas,
            "vmalloc": None,
        }
        calls = {fields.address: SYSCALLS.get(fields.pid, TaskSyscall(None)) for fields in syscalls}
        return State(
            make_facts(), read, {Source.TASKS: Lack(self.said)}, dict.fromkeys(stacks), calls, parts
        )

    def recall(self):
        return self.read(~Part.NOTHING)

    def kcov(self, address):
        if address not in self.objects:
            raise ReadError("there is none", address)
        return self.objects[address].fields


def make_facts(**values):
    defaults = {
        "generation": Generation("E9a", (), frozenset({"remote", "softirq"})),
        **dict.fromkeys(
            ("big_endian", "counts_mappings", "has_prefix", "leaves_saved_state", "live", "is_rt"),
            False,
        ),
        "word_size": 8,
        "buffer_word": 8,
        "page_size": 4096,
        "kernel_range": (0xFFFF800000000000, (1 << 64) - 1),
        "kaslr_offset": 0x1200000,
        "cpus": (0, 1),
        "modes": MODES,
        "mode_flags": 1 << 30,
        "mode_numbers": ModeNumbers(frozenset(MODES.values()), 0, are_complete=True),
        "buffers": 1,
        "size_limit": (1 << 28) - 1,
    }
    return KernelFacts(**{**defaults, **values})


def no_symbol(name):
    raise MissingSymbolError(f"the kernel has no symbol {name}")


def make_target(**values):
    defaults = {
        **dict.fromkeys(("memory_problem", "lines", "code")),
        "name": "vmcore",
        "release": "6.12.1",
        "machine": "x86_64",
        "build_id": "ab" * 20,
        "pointer_tag": 0,
        "kaslr_offset": 0x1200000,
        "live": False,
        "state": lambda: None,
        "is_gone": lambda: False,
        "connection": Connection(),
        "notes": (),
        "files": (),
        "damage": (),
        "word_size": 8,
        "big_endian": False,
        "symbol": no_symbol,
    }
    return make_stub(Target, **{**defaults, **values})


def make_layout():
    names = {number: name.removeprefix("KCOV_MODE_") for name, number in MODES.items()}
    return make_stub(
        Layout,
        generation=Generation(
            "E9a",
            ("KCOV_TRACE_PC_EXT (2026)",),
            frozenset({"remote", "softirq"}),
            ("struct kcov.new",),
        ),
        modes=MODES,
        traits=traits_of(()),
        buffer_word=8,
        mode_names=tuple(names.values()),
        mode_name=lambda word, _=None: names[word & 0xFFFF],
        object_mode_name=lambda word, _=None: names[word & 0xFFFF],
        mode_of_saved=lambda saved: None if saved.mode is None else names[saved.mode & 0xFFFF],
    )


class Streams:
    """A terminal, or none, that keeps what it is sent."""

    def __init__(self, width=None, color=Color.AUTO):
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        self.width = width
        self.error_width = None
        self.color = color

    def find(self, _color=Color.AUTO):
        painter = Painter(THEME if self.color is Color.ALWAYS else None)
        return Terminal(
            self.stdout, self.stderr, self.width, painter, painter, self.color, self.error_width
        )

    def take(self):
        """Return what was written since the last time, to both streams."""
        taken = self.stdout.getvalue(), self.stderr.getvalue()
        for stream in (self.stdout, self.stderr):
            stream.seek(0)
            stream.truncate()
        return taken


def make_workspace(
    streams, monkeypatch, *, reader=None, target=None, commands=COMMANDS, layout=None
):
    workspace = Workspace(
        commands,
        UserInputs(Kernel(KernelOptions(lambda: target or make_target()))),
        Frontend(streams.find),
    )
    workspace.inputs.kernel.memory.layout = layout or make_layout()
    shared = reader or StubReader()
    monkeypatch.setattr(CommandInputs, "reader", property(lambda _self: shared))
    return workspace


def set_options(kernel, **changes):
    """Change what the user gave for a kernel of a test."""
    kernel.options = kernel.memory._options = replace(kernel.options, **changes)
    kernel._sources = None


def strict_schema(name):
    """Return the JSON Schema of what a command writes, without the keys of later versions."""
    text = json.dumps(schema_of(name, COMMANDS.find(name).row_types))
    return json.loads(text.replace('"additionalProperties": true', '"additionalProperties": false'))
