# SPDX-License-Identifier: LGPL-2.1-or-later
"""`why` on a real kernel: a guest causes each reason, and the answer is compared with what the
guest printed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from tests.lab.conftest import StateDumpMaker
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import Userland
from tests.lab.kcovdbg_run import ask
from tests.lab.kernel import Kernel
from tests.lab.section import kaslr_offset, read_layout
from tests.support.programs import find_points

PUZZLES = ("exist", "nosize", "toolarge", "skb", "stale")


class Puzzled(NamedTuple):
    """A guest in which coverage is missing for many reasons: the states that it printed, and every
    answer about them.
    """

    states: dict[str, dict[str, Any]]
    answers: dict[str, dict[str, list[str]]]
    offset: int

    def about(self, question: object, *evidence: str) -> str:
        """Return the only answer whose evidence begins with this; its sentence names tasks and
        functions.
        """
        answers = self.answers[str(question)]
        found = [
            text for text, shown in answers.items() if tuple(shown[: len(evidence)]) == evidence
        ]
        assert len(found) == 1, (evidence, answers)
        return found[0]

    def evidence(self, question: object, first: str) -> list[str]:
        """Return the evidence of the only answer whose first value has this name."""
        found = [
            shown
            for shown in self.answers[str(question)].values()
            if shown and shown[0].partition("=")[0] == first
        ]
        assert len(found) == 1, (first, self.answers[str(question)])
        return found[0]

    def values(self, question: object) -> set[str]:
        """Return the names of all values in the evidence."""
        return {
            value.partition("=")[0]
            for shown in self.answers[str(question)].values()
            for value in shown
        }


def ask_why(target: list[str], questions: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Return the evidence of each answer to each question."""
    answers = ask(target, *(f"why {question}" for question in questions))
    return {
        question: {row["answer"]: row["evidence"] for row in rows}
        for question, rows in zip(questions, answers, strict=True)
    }


def questions_about(states: dict[str, dict[str, Any]]) -> list[str]:
    names = (
        "none open init mapped off thr heir full over pc exited remote nohandle parent child "
        "orphan nosize toolarge skb stale"
    )
    found = [str(states[f"kc-{name}"]["tid"]) for name in names.split()]
    found.append(str(states["kc-stale"]["workers"][0]))
    found += [
        hex(states["kc-exist"]["wanted_number"]),
        "common:0x5105",
        "common:0x4203",
        "usb:200",
        "usb:77",
        "common:0x7005",
    ]
    pc = states["kc-pc"]["tid"]
    found += [f"{pc} {name}" for name in ("__do_sys_getppid", "delay_tsc", "hub_event", "tty_open")]
    found.append(f"{states['kc-keep']['tid']} kcovlab_keep_inner")
    found.append(f"{states['kc-off']['tid']} kcovlab_keep_inner")
    return found


@pytest.fixture(scope="module")
def puzzled(kernel: Kernel, userland: Userland) -> Iterator[Puzzled]:
    with Guest(kernel, userland, Machine(cpus=1)) as guest:
        for name in PUZZLES:
            guest.ask(f"puzzle {name}")
        states = {line["state"]: line for line in guest.truth.lines() if line.get("state")}
        missing = {name: states[name]["missing"] for name in states if "missing" in states[name]}
        assert missing == {}
        states["kc-exist"]["wanted_number"] = int(states["kc-exist"]["wanted"], 16)
        questions = questions_about(states)
        yield Puzzled(
            states,
            ask_why(guest.target(), questions),
            kaslr_offset(guest, read_layout(kernel).symbols),
        )


def tid(puzzled: Puzzled, state: str) -> int:
    found: int = puzzled.states[state]["tid"]
    return found


def test_not_enabled(puzzled: Puzzled) -> None:
    for state, evidence in {
        "kc-none": ["kcov=0x0"],
        "kc-open": ["mode=DISABLED"],
        "kc-init": ["mode=INIT", "sequence=1"],
        "kc-mapped": ["mode=INIT", "sequence=1"],
        "kc-off": ["mode=INIT", "sequence=2"],
        "kc-exited": ["mode=INIT", "sequence=2"],
    }.items():
        assert list(puzzled.answers[str(tid(puzzled, state))].values()) == [evidence], state
    for state in ("kc-off", "kc-exited"):
        assert puzzled.states[state]["sequence"] == 2
        assert "1 session " in puzzled.about(tid(puzzled, state), "mode=INIT", "sequence=2")


def test_enabled_by_another_thread(puzzled: Puzzled) -> None:
    answers = puzzled.answers[str(tid(puzzled, "kc-thr"))]
    # One answer for all objects, which names each thread that collects.
    ((answer, shown),) = answers.items()
    assert shown == ["objects=8"]
    for number in range(8):
        thread = puzzled.states[f"kc-thr/{number}"]
        assert answer.count(f"task {thread['tid']} (kc-thr/{number})") == 1
    owner = puzzled.states["kc-heir"]["owner_tid"]
    ((answer, shown),) = puzzled.answers[str(tid(puzzled, "kc-heir"))].items()
    assert f"task {owner} (kc-dup)" in answer
    assert shown[0].startswith("t=0x")


@pytest.mark.parametrize("state", ["kc-full", "kc-over"])
def test_full(puzzled: Puzzled, state: str) -> None:
    told = puzzled.states[state]
    assert told["full"] is True
    assert puzzled.evidence(told["tid"], "count") == [
        f"count={told['count']}",
        f"capacity={told['capacity']}",
    ]


def test_kaslr(puzzled: Puzzled) -> None:
    told = puzzled.states["kc-pc"]
    shown = puzzled.evidence(told["tid"], "count")
    assert shown[0] == f"count={told['count']}"
    assert shown[-1] == f"KASLR offset={puzzled.offset:#x}"


def test_module(puzzled: Puzzled) -> None:
    """Records of a module are shifted by the same offset; the guest printed its address, and what
    was recorded there.
    """
    told = puzzled.states["kc-keep"]
    question = f"{told['tid']} kcovlab_keep_inner"
    starts = sorted(int(address, 16) for address in told["functions"].values())
    start = int(told["functions"]["kcovlab_keep_inner"], 16)
    end = next(address for address in starts if address > start)
    records = [
        int(word, 16) + puzzled.offset
        for word in (*told.get("records", ()), *told.get("head", ()), *told.get("tail", ()))
    ]
    covered = len({pc for pc in records if start < pc <= end})
    assert covered
    assert puzzled.evidence(question, "points")[1] == f"covered={covered}"
    other = f"{tid(puzzled, 'kc-off')} kcovlab_keep_inner"
    assert puzzled.evidence(other, "points")[1] == "covered=0"


def test_functions(puzzled: Puzzled, kernel: Kernel) -> None:
    pc = tid(puzzled, "kc-pc")
    recorded = {int(word, 16) for word in puzzled.states["kc-pc"]["records"]}
    # __do_sys_getppid() is inlined, and called by the guest.
    points = find_points(kernel.vmlinux, "__x64_sys_getppid")
    called = recorded & points

    def points_of(function: str) -> dict[str, int]:
        shown = puzzled.evidence(f"{pc} {function}", "points")
        pairs = (text.partition("=") for text in shown)
        return {name: int(value) for name, equals, value in pairs if equals}

    covered = points_of("__do_sys_getppid")
    assert called
    assert (covered["points"], covered["covered"]) == (len(points), len(called))
    # A function without points is not instrumented.
    assert points_of("delay_tsc") == {"points": 0}
    for function in ("tty_open", "hub_event"):
        found = points_of(function)
        assert found.pop("points") > 0
        assert found == {"covered": 0}
    usb = puzzled.states["kc-usb"]
    elsewhere = puzzled.evidence(f"{pc} hub_event", "buffer")
    assert int(elsewhere[1].removeprefix("covered=")) > 0
    assert f"task {usb['tid']} (kc-usb)" in puzzled.about(f"{pc} hub_event", *elsewhere)
    assert "buffer" not in puzzled.values(f"{pc} tty_open")


def test_open_section_that_will_be_discarded(puzzled: Puzzled) -> None:
    """The owner disabled KCOV while the worker was in its section: the object's sequence was
    incremented.
    """
    told = puzzled.states["kc-stale"]
    (worker,) = told["workers"]
    assert (told["sequence"], told["enabled"], told["section_in_flight"]) == (2, False, True)
    assert puzzled.evidence(worker, "area")[1:] == [
        "sequence=1",
        f"kcov sequence={told['sequence']}",
    ]
    discarded = ["section sequence=1", f"kcov sequence={told['sequence']}", "remote=False"]
    assert puzzled.evidence(worker, "section sequence") == discarded
    assert puzzled.evidence(told["tid"], "section sequence") == discarded
    shown = puzzled.evidence(told["tid"], "area")
    assert shown == puzzled.evidence(worker, "area")[:2]
    assert f"task {worker} " in puzzled.about(told["tid"], *shown)
    # The worker still has the handle, which is no longer registered.
    assert "common:0x7005" in puzzled.about(worker, "kcov_handle=0x7005")
    assert int(puzzled.evidence("common:0x7005", "registered")[0].removeprefix("registered=")) > 0


def test_remote_size(puzzled: Puzzled) -> None:
    assert puzzled.evidence(tid(puzzled, "kc-nosize"), "remote_size") == ["remote_size=0"]
    told = puzzled.states["kc-toolarge"]
    assert told["full"] is True
    shown = puzzled.evidence(told["tid"], "remote_size")
    assert shown == [f"remote_size={told['remote_size']}", f"size={told['size']}"]
    assert puzzled.evidence(told["tid"], "count") == [
        f"count={told['count']}",
        f"capacity={told['capacity']}",
    ]
    for state in ("kc-remote", "kc-skb"):
        assert "remote_size" not in puzzled.values(tid(puzzled, state))


def test_nobody_looks_it_up(puzzled: Puzzled) -> None:
    """No section ever began for kc-parent; for kc-remote, the guest's vhost worker began some."""
    told = puzzled.states["kc-parent"]
    for question in (told["tid"], "common:0x4203"):
        assert puzzled.evidence(question, "remote_size") == [
            f"remote_size={told['remote_size']}",
            "count=0",
        ]
    assert puzzled.states["kc-remote"]["packets"] == 3
    assert "remote_size" not in puzzled.values(tid(puzzled, "kc-remote"))
    assert puzzled.evidence(tid(puzzled, "kc-nohandle"), "handles") == ["handles=0"]
    assert "handles" not in puzzled.values(told["tid"])
    assert "registered" in puzzled.values("usb:77")
    assert "registered" not in puzzled.values("usb:200")


def test_somebody_else_has_it(puzzled: Puzzled) -> None:
    told = puzzled.states["kc-exist"]
    assert told["errno"] == errno.EEXIST
    owner = puzzled.states["kc-remote"]
    assert told["wanted"] in owner["handles"]
    question = hex(told["wanted_number"])
    kcov = puzzled.evidence(owner["tid"], "kcov")[0]
    answer = puzzled.about(question, kcov)
    assert f"task {owner['tid']} (kc-remote)" in answer
    assert "EEXIST" in answer


def test_carriers(puzzled: Puzzled) -> None:
    told = puzzled.states["kc-skb"]
    # A vhost worker is a thread of its owner's process: it inherits the handle, and has one of its
    # own as well.
    tasks = puzzled.evidence("common:0x5105", "task")
    assert len(tasks) == 2
    answer = puzzled.about("common:0x5105", *tasks)
    assert f"task {told['tid']} (kc-skb), task {told['workers'][0]} (vhost-{told['tid']})" in answer
    packets = puzzled.evidence("common:0x5105", "sk_buff")
    assert len(packets) == told["queued"] == 2
    assert f"descriptor {told['pid']}/{told['queue_fd']}" in puzzled.about(
        "common:0x5105", *packets
    )
    (device,) = puzzled.evidence("common:0x5105", "vhost")
    answer = puzzled.about("common:0x5105", device)
    assert f"vhost_net of descriptor {told['pid']}/{told['vhost_fd']}" in answer
    assert f"task {told['workers'][0]}" in answer
    # Nobody else's.
    assert puzzled.values("common:0x4203").isdisjoint({"sk_buff", "vhost"})


def test_inherited(puzzled: Puzzled) -> None:
    child, parent = puzzled.states["kc-child"], puzzled.states["kc-parent"]
    assert child["handle_of"] == "kc-parent"
    kcov = puzzled.evidence(parent["tid"], "kcov")[0].removeprefix("kcov=")
    answer = puzzled.about(child["tid"], "kcov_handle=0x4203")
    assert "common:0x4203" in answer
    assert f"kcov {kcov}" in answer
    carried = f"task {parent['tid']} (kc-parent), task {child['tid']} (kc-child)"
    assert carried in puzzled.about("common:0x4203", *puzzled.evidence("common:0x4203", "task"))
    # The orphan's handle is no longer registered: its background work is recorded for no object.
    shown = puzzled.evidence(tid(puzzled, "kc-orphan"), "kcov_handle")
    assert "kcov 0x" not in puzzled.about(tid(puzzled, "kc-orphan"), *shown)


def ask_dump(
    inflight_dump: StateDumpMaker, state: str, *questions: str
) -> tuple[Mapping[str, Any], dict[str, dict[str, list[str]]]]:
    """Return the section in flight, and the evidence of each answer to each question about its
    task.
    """
    dump = inflight_dump(state)
    section = dump.section
    assert section is not None
    return section, ask_why(
        dump.target, [question.format(pid=section["pid"]) for question in questions]
    )


def test_interrupt_context(inflight_dump: StateDumpMaker) -> None:
    """A softirq interrupts a task with a local session: its code is not in the task's coverage."""
    section, answers = ask_dump(
        inflight_dump,
        "softirq-over-local",
        "{pid}",
        "{pid} __usb_hcd_giveback_urb",
        "{pid} handle_softirqs",
    )
    assert section["context"] == "softirq"
    found = list(answers[str(section["pid"])].values())
    # The interrupt's frames, the section, and the task's own session beneath it.
    (frames,) = (shown for shown in found if shown[0].startswith("frame="))
    assert frames[-1].startswith("frame=asm_")
    area = [f"area={section['kcov_area']}", f"sequence={section['kcov_sequence']}"]
    assert [shown[:2] for shown in found if shown[0].startswith("area=")] == [area]
    saved = [f"kcov_softirq={section['kcov_softirq']}", f"saved area={section['saved']['area']}"]
    assert saved in found
    for function in ("__usb_hcd_giveback_urb", "handle_softirqs"):
        shown = [
            one
            for one in answers[f"{section['pid']} {function}"].values()
            if one and one[0].startswith("frame=")
        ]
        # The interrupt itself, and the function that runs in it.
        assert len(shown) == 2, function
        assert (shown[1][0], shown[1][-1]) == (f"frame={function}", frames[-1])


def test_no_interrupt(inflight_dump: StateDumpMaker) -> None:
    """A worker inside a section in task context is not interrupted."""
    section, answers = ask_dump(inflight_dump, "hub-section", "{pid}")
    assert section["context"] == "task"
    found = list(answers[str(section["pid"])].values())
    area = [f"area={section['kcov_area']}", f"sequence={section['kcov_sequence']}"]
    assert [shown[:2] for shown in found if shown[0].startswith("area=")] == [area]
    assert not any(value.startswith("frame=") for shown in found for value in shown)
