# SPDX-License-Identifier: LGPL-2.1-or-later
"""The true state of a kernel as plain data: tasks, objects and sessions, without offsets and
addresses.
"""

from dataclasses import dataclass, field, replace

IRQ_WORDS = 1024
"""CONFIG_KCOV_IRQ_AREA_SIZE."""
IN_CTXSW = 1 << 30


@dataclass(frozen=True)
class Object:
    """One open of /sys/kernel/debug/kcov."""

    mode: str = ""
    """Name without prefix; empty: never initialised."""
    size: int = 0
    mapped: bool = True
    owner: int | None = None
    """The task that it is enabled for."""
    remote_size: int | None = None
    """Of a KCOV_REMOTE_ENABLE."""
    sequence: int = 1
    count: int = 0
    bitmap_words: int = 0


@dataclass(frozen=True)
class Session:
    """A session, or one that a softirq interrupted."""

    kcov: str
    area: str | None = None
    """Of a section, the area that it uses; None: the object's own, in a local session."""
    mode: str | None = None
    """Only if it differs from the object's."""
    word: int | None = None
    """The whole mode word where it is of another generation's kind."""
    sequence: int | None = None
    """Only if the object's has been incremented since."""


@dataclass(frozen=True)
class Task:
    """One thread."""

    tgid: int
    comm: str = "busy"
    cpu: int = 0
    session: Session | None = None
    softirq: bool = False
    """Whether the session is a softirq section's."""
    saved: Session | None = None
    """What that section interrupted."""
    owns: str | None = None
    """The object of a KCOV_REMOTE_ENABLE."""
    handle: int = 0
    sequence: int = 0
    """Left over from an earlier session."""
    files: str | None = None
    mm: str | None = None
    running: bool = False
    exiting: bool = False
    is_idle: bool = False
    ran: bool = True


@dataclass(frozen=True)
class Scenario:
    """A whole kernel."""

    tasks: dict[int, Task]
    objects: dict[str, Object]
    files: dict[str, str | None]
    """Of open files: which object, None for files that aren't KCOV's."""
    tables: dict[str, dict[int, str]]
    """Of file tables: descriptor -> file."""
    spaces: dict[str, dict[int, str]]
    """Of address spaces: start of a mapping -> file."""
    areas: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Areas in use: words and count."""
    cached: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of lists, ``task`` and ``irq``: words of each cached area."""
    handles: tuple[tuple[int, str], ...] = ()
    """(handle, object)."""
    cpus: int = 3


def usb(bus):
    return 1 << 56 | bus


def make_scenario(row):
    """Return a kernel with KCOV in every state that a generation can have."""
    trace, init = (name[len("KCOV_MODE_") :].upper() for name in (row.trace, row.init))
    objects = {
        "opened": Object(),
        "local": Object(trace, 512, owner=40, sequence=3, count=17),
        "full": Object(trace, 512, owner=42, count=511),
        "unmapped": Object(init, 1024, mapped=False),
        "stopped": Object(init, 1024, sequence=4, count=9),
        "mapping only": Object(init, 512, sequence=2, count=1),
        "shared": Object(init, 512),
        "orphan": Object(trace, 512, owner=43, count=2),
    }
    files: dict[str, str | None] = {
        name: name
        for name in ("opened", "local", "full", "unmapped", "stopped", "mapping only", "shared")
    }
    files |= {"tty": None, "null": None}
    tables = {
        "init": {0: "tty"},
        "fuzz": {
            0: "tty",
            3: "local",
            5: "full",
            6: "opened",
            70: "unmapped",
            71: "stopped",
            100: "null",
        },
        "parent": {0: "tty", 4: "shared", 9: "shared"},
        "child": {0: "null", 4: "shared"},
        "remote": {0: "tty", 3: "remote", 4: "idle remote"},
        "busy": {63: "tty", 64: "interrupted", 65: "second"},
    }
    spaces = {
        "init": {},
        "fuzz": {0x10000: "local", 0x40000: "full", 0x70000: "mapping only", 0x90000: "stopped"},
        "parent": {0x10000: "shared"},
        "child": {0x10000: "shared"},
        "remote": {},
        "busy": {0x20000: "second", 0x40000: "second"},
    }
    objects["interrupted"] = Object(trace, 2048, owner=60, count=7)
    objects["second"] = Object(trace, 512, owner=62, sequence=8, count=400)
    files |= {"interrupted": "interrupted", "second": "second"}
    tasks = {
        0: Task(0, "swapper/0", is_idle=True),
        1: Task(1, "init", files="init", mm="init"),
        2: Task(2, "kthreadd", cpu=1),
        40: Task(40, "executor", session=Session("local"), files="fuzz", mm="fuzz"),
        41: Task(40, "executor/1", files="fuzz", mm="fuzz", sequence=5),
        42: Task(40, "executor/2", cpu=1, session=Session("full"), files="fuzz", mm="fuzz"),
        43: Task(40, "executor/3", session=Session("orphan"), files="fuzz", mm="fuzz"),
        # It never ran: its mode word has no flag.
        44: Task(44, "child", files="child", mm="child", ran=False),
        45: Task(45, "parent", files="parent", mm="parent"),
        46: Task(46, "zombie", exiting=True),
        60: Task(
            60, "busy", cpu=1, session=Session("interrupted"), files="busy", mm="busy", running=True
        ),
        62: Task(60, "busy/2", session=Session("second"), files="busy", mm="busy"),
    }
    if row.has_comparisons:
        objects["compared"] = Object("TRACE_CMP", 512, owner=41, count=3)
        files["compared"] = "compared"
        tables["fuzz"][7] = "compared"
        tasks[41] = replace(tasks[41], session=Session("compared"), sequence=0)
    scenario = Scenario(tasks, objects, files, tables, spaces)
    if not row.has_remote:
        del files["tty"], tables["remote"], spaces["remote"]
        files["tty"] = None
        return scenario
    objects["remote"] = Object(trace, 1024, owner=50, remote_size=256, sequence=6, count=30)
    objects["idle remote"] = Object(trace, 512, owner=52, remote_size=0, sequence=2)
    files |= {"remote": "remote", "idle remote": "idle remote"}
    tasks |= {
        7: Task(7, "kworker/0:1", session=Session("remote", area="kworker")),
        8: Task(8, "kworker/1:2", session=Session("remote", area="stale", sequence=5)),
        50: Task(50, "owner", owns="remote", handle=0x42, files="remote", mm="remote"),
        51: Task(51, "owner's child", handle=0x42),
        52: Task(50, "owner/2", owns="idle remote", files="remote", mm="remote"),
    }
    scenario = replace(
        scenario,
        areas={"kworker": (256, 12), "stale": (256, 0)},
        cached={"task": (256, 256, 4096)},
        handles=(
            (usb(1), "remote"),
            (0x42, "remote"),
            *((usb(bus), "idle remote") for bus in range(2, 40)),
        ),
    )
    if not row.saved:
        return scenario
    # Softirqs on top of a local session, of a section, of nothing, and of an owner.
    tasks[60] = replace(
        tasks[60],
        session=Session("remote", area="irq 1"),
        softirq=True,
        saved=Session("interrupted"),
    )
    tasks[9] = Task(
        9,
        "kworker/2:0",
        cpu=2,
        session=Session("remote", area="irq 2"),
        softirq=True,
        saved=Session("remote", area="beneath"),
        running=True,
    )
    tasks[3] = Task(
        3, "idle work", cpu=0, session=Session("remote", area="irq 0"), softirq=True, running=True
    )
    scenario.areas.update(
        {
            "irq 0": (IRQ_WORDS, 0),
            "irq 1": (IRQ_WORDS, 5),
            "irq 2": (IRQ_WORDS, 6),
            "beneath": (256, 1),
        }
    )
    scenario.cached["irq"] = (IRQ_WORDS,) * 3
    if row.owner == "mode":
        # Owners have a mode of their own, so that it is saved like a session's.
        tasks[52] = replace(
            tasks[52], cpu=3, session=Session("remote", area="irq 3"), softirq=True, running=True
        )
        tasks[52] = replace(tasks[52], saved=Session("idle remote", mode="REMOTE"))
        scenario.areas["irq 3"] = (IRQ_WORDS, 0)
        scenario = replace(scenario, cpus=4)
    if row.owner == "member":
        # A local session beside the remote one, and a section for the task's own handle.
        objects["beside"] = Object(trace, 512, owner=50, count=44)
        files["beside"] = "beside"
        tables["remote"][5] = "beside"
        tasks[50] = replace(tasks[50], session=Session("beside"))
        tasks[52] = replace(tasks[52], session=Session("idle remote", area="own"))
        objects["idle remote"] = replace(objects["idle remote"], remote_size=2)
        scenario.areas["own"] = (2, 0)
    if row.saved == "task":
        # The kernel makes one for each possible CPU.
        used = sum(name.startswith("irq") for name in scenario.areas)
        scenario = replace(scenario, cpus=used + len(scenario.cached["irq"]))
    for number, (name, word) in enumerate(row.special.items()):
        pid = 200 + number
        mode = {16: "TRACE_UNIQ_PC", 32: "TRACE_UNIQ_EDGE"}.get(word, trace)
        mode = next(
            (full[len("KCOV_MODE_") :] for full, number in row.macros.items() if number == word),
            mode,
        )
        mode = {"both": "TRACE_UNIQ_PC|TRACE_UNIQ_EDGE", "uniq-cmp": "TRACE_UNIQ_CMP"}.get(
            name, mode
        )
        if name == "unique":
            mode = "UNIQUE_PC" if "KCOV_MODE_UNIQUE_PC" in row.modes else "TRACE_UNIQUE_PC"
        objects[name] = Object(
            mode, 1024, owner=pid, count=3, bitmap_words=64 if name == "unique" else 0
        )
        files[name] = name
        tables["fuzz"][10 + number] = name
        tasks[pid] = Task(40, name, session=Session(name, word=word), files="fuzz", mm="fuzz")
    return scenario
