# SPDX-License-Identifier: LGPL-2.1-or-later
"""`why` on a real kernel: each reason is brought about in a guest, and the answer compared with what the guest printed."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.lab.asking import run_kcovdbg, symbol_options
from tests.lab.guest import Guest, Machine
from tests.lab.section import kaslr_offset, read_layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.conftest import StateDumpMaker
    from tests.lab.initramfs import Userland
    from tests.lab.kernel import Kernel

pytestmark = pytest.mark.lab

PUZZLES = ("exist", "nosize", "toolarge", "skb", "stale")


class Puzzled(NamedTuple):
    """A guest in which coverage is missing for many reasons: its states as it told them, and every answer about them."""

    states: dict[str, dict[str, Any]]
    answers: dict[str, dict[str, list[str]]]
    offset: int

    def ask(self, question: object) -> str:
        """Return the answers to a question, one a line."""
        return "\n".join(self.answers[str(question)])

    def evidence(self, question: object, answer: str) -> list[str]:
        """Return what an answer that begins or ends like this rests on."""
        found = [shown for text, shown in self.answers[str(question)].items() if answer in text]
        assert len(found) == 1, (answer, self.ask(question))
        return found[0]


def questions_about(states: dict[str, dict[str, Any]]) -> list[str]:
    tids = [
        *(
            "kc-none",
            "kc-open",
            "kc-init",
            "kc-mapped",
            "kc-off",
            "kc-thr",
            "kc-heir",
            "kc-full",
            "kc-over",
            "kc-pc",
            "kc-exited",
        ),
        *("kc-remote", "kc-nohandle", "kc-parent", "kc-child", "kc-orphan", "kc-nosize", "kc-toolarge", "kc-skb", "kc-stale"),
    ]
    found = [str(states[name]["tid"]) for name in tids]
    found.append(str(states["kc-stale"]["workers"][0]))
    found += [hex(states["kc-exist"]["wanted_number"]), "common:0x5105", "common:0x4203", "usb:200", "usb:77", "common:0x7005"]
    pc = states["kc-pc"]["tid"]
    found += [f"{pc} {name}" for name in ("__do_sys_getppid", "delay_tsc", "no_such_function", "hub_event", "tty_open")]
    found.append(f"{states['kc-keep']['tid']} kcovlab_keep_inner")
    found.append(f"{states['kc-off']['tid']} kcovlab_keep_inner")
    return found


@pytest.fixture(scope="module")
def puzzled(kernel: Kernel, userland: Userland) -> Iterator[Puzzled]:
    with Guest(kernel, userland, Machine(cpus=1)) as guest:
        guest.wait_done()
        for name in PUZZLES:
            guest.ask(f"puzzle {name}")
        states = {line["state"]: line for line in guest.truth.lines() if line.get("state")}
        missing = {name: states[name]["missing"] for name in states if "missing" in states[name]}
        assert missing == {}
        states["kc-exist"]["wanted_number"] = int(states["kc-exist"]["wanted"], 16)
        questions = questions_about(states)
        words = [word for question in questions for word in ("-e", f"why {question} --json")]
        symbols = symbol_options(guest.kernel, guest.userland)
        done = run_kcovdbg("--qemu", guest.sockets.debugger_qmp, *symbols, *words, timeout=300)
        assert done.returncode == 0, done.stderr
        decoder, text, answers = json.JSONDecoder(), done.stdout, []
        while text := text.lstrip():
            rows, end = decoder.raw_decode(text)
            answers.append({row["answer"]: row["evidence"] for row in rows})
            text = text[end:]
        yield Puzzled(states, dict(zip(questions, answers, strict=True)), kaslr_offset(guest, read_layout(kernel).symbols))


def tid(puzzled: Puzzled, state: str) -> int:
    found: int = puzzled.states[state]["tid"]
    return found


def test_not_enabled(puzzled: Puzzled) -> None:
    assert "neither open nor mapped" in puzzled.ask(tid(puzzled, "kc-none"))
    assert "KCOV_INIT_TRACE was never called" in puzzled.ask(tid(puzzled, "kc-open"))
    for state in ("kc-init", "kc-mapped"):
        assert "is initialised, and was never enabled" in puzzled.ask(tid(puzzled, state))
    for state in ("kc-off", "kc-exited"):
        assert puzzled.states[state]["sequence"] == 2
        assert "isn't enabled now (1 session ended)" in puzzled.ask(tid(puzzled, state))


def test_enabled_by_another_thread(puzzled: Puzzled) -> None:
    answers = puzzled.ask(tid(puzzled, "kc-thr"))
    for number in range(8):
        thread = puzzled.states[f"kc-thr/{number}"]
        assert f"is enabled by another thread, task {thread['tid']} (kc-thr/{number})" in answers
    owner = puzzled.states["kc-heir"]["owner_tid"]
    assert f"is enabled by another thread, task {owner} (kc-dup)" in puzzled.ask(tid(puzzled, "kc-heir"))


@pytest.mark.parametrize("state", ["kc-full", "kc-over"])
def test_full(puzzled: Puzzled, state: str) -> None:
    told = puzzled.states[state]
    assert told["full"] is True
    shown = puzzled.evidence(told["tid"], "its buffer is full: everything since is lost")
    assert shown == [f"count={told['count']}", f"capacity={told['capacity']}"]


def test_kaslr(puzzled: Puzzled) -> None:
    told = puzzled.states["kc-pc"]
    shown = puzzled.evidence(told["tid"], f"there is coverage: {told['count']} records in its buffer")
    assert shown[-1] == f"KASLR offset={puzzled.offset:#x}"


def test_module(puzzled: Puzzled) -> None:
    """A module's records are shifted by the same offset; the guest said where its text is, and what was recorded there."""
    told = puzzled.states["kc-keep"]
    question = f"{told['tid']} kcovlab_keep_inner"
    starts = sorted(int(address, 16) for address in told["functions"].values())
    start = int(told["functions"]["kcovlab_keep_inner"], 16)
    end = next(address for address in starts if address > start)
    records = [
        int(word, 16) + puzzled.offset for word in (*told.get("records", ()), *told.get("head", ()), *told.get("tail", ()))
    ]
    covered = len({pc for pc in records if start < pc <= end})
    assert covered
    assert puzzled.evidence(question, "kcovlab_keep_inner() is covered; it is in a module") == [f"covered={covered}"]
    other = puzzled.ask(f"{tid(puzzled, 'kc-off')} kcovlab_keep_inner")
    assert "kcovlab_keep_inner() is in a module, and nothing of it is in the buffer" in other


def test_functions(puzzled: Puzzled) -> None:
    pc = tid(puzzled, "kc-pc")
    assert "__do_sys_getppid() is covered" in puzzled.ask(f"{pc} __do_sys_getppid")
    assert "isn't instrumented" in puzzled.ask(f"{pc} delay_tsc")
    assert "has no function no_such_function" in puzzled.ask(f"{pc} no_such_function")
    assert "tty_open() is instrumented, and none of its points is in the buffer" in puzzled.ask(f"{pc} tty_open")
    hub = puzzled.ask(f"{pc} hub_event")
    assert "hub_event() is instrumented, and none of its points is in the buffer" in hub
    usb = puzzled.states["kc-usb"]
    assert f"hub_event() is covered in the background coverage of task {usb['tid']} (kc-usb): it ran there" in hub


def test_open_section_that_will_be_discarded(puzzled: Puzzled) -> None:
    """The owner disabled while the worker was inside: the object's sequence went on."""
    told = puzzled.states["kc-stale"]
    (worker,) = told["workers"]
    assert (told["sequence"], told["enabled"], told["section_in_flight"]) == (2, False, True)
    answers = puzzled.ask(worker)
    assert "hasn't ended: nothing of it is merged yet" in answers
    shown = puzzled.evidence(worker, "will be discarded")
    assert shown[:2] == ["section sequence=1", f"kcov sequence={told['sequence']}"]
    owner = puzzled.ask(told["tid"])
    assert f"a section for it is still open in task {worker}" in owner
    assert "will be discarded" in owner
    assert "nobody has registered any more" in puzzled.ask(worker)
    assert "nobody has registered it: sections under it collect nothing" in puzzled.ask("common:0x7005")


def test_remote_size(puzzled: Puzzled) -> None:
    assert "areas for its sections have no size" in puzzled.ask(tid(puzzled, "kc-nosize"))
    told = puzzled.states["kc-toolarge"]
    assert told["full"] is True
    shown = puzzled.evidence(told["tid"], "areas for its sections are larger than its buffer")
    assert shown == [f"remote_size={told['remote_size']}", f"size={told['size']}"]
    assert "its buffer is full" in puzzled.ask(told["tid"])
    for state in ("kc-remote", "kc-skb"):
        assert "areas for its sections" not in puzzled.ask(tid(puzzled, state))


def test_nobody_looks_it_up(puzzled: Puzzled) -> None:
    """No section was ever begun for kc-parent; for kc-remote the guest's vhost worker began some."""
    for question in (tid(puzzled, "kc-parent"), "common:0x4203"):
        assert "nobody has looked its handles up in a task" in puzzled.ask(question)
    assert puzzled.states["kc-remote"]["packets"] == 3
    assert "nobody has looked its handles up" not in puzzled.ask(tid(puzzled, "kc-remote"))
    assert "no handle leads to" in puzzled.ask(tid(puzzled, "kc-nohandle"))
    assert "nobody has registered it" in puzzled.ask("usb:77")


def test_somebody_else_has_it(puzzled: Puzzled) -> None:
    told = puzzled.states["kc-exist"]
    assert told["errno"] == errno.EEXIST
    owner = puzzled.states["kc-remote"]
    assert told["wanted"] in owner["handles"]
    answers = puzzled.ask(hex(told["wanted_number"]))
    assert f"task {owner['tid']} (kc-remote) has registered it" in answers
    assert "fails with EEXIST" in answers


def test_carriers(puzzled: Puzzled) -> None:
    told = puzzled.states["kc-skb"]
    answers = puzzled.ask("common:0x5105")
    # A vhost worker is a thread of its owner's process, which inherits the handle, and has one of its own besides.
    assert f"carried by task {told['tid']} (kc-skb), task {told['workers'][0]} (vhost-{told['tid']})" in answers
    packets = puzzled.evidence("common:0x5105", f"the receive queue of descriptor {told['pid']}/{told['queue_fd']}")
    assert len(packets) == told["queued"] == 2
    assert f"carried by 2 sk_buffs, the receive queue of descriptor {told['pid']}/{told['queue_fd']}" in answers
    device = f"carried by 1 vhost worker, vhost_net of descriptor {told['pid']}/{told['vhost_fd']}"
    assert f"{device}, which task {told['workers'][0]} works for" in answers
    # Nobody else's.
    assert "sk_buff" not in puzzled.ask("common:0x4203")


def test_inherited(puzzled: Puzzled) -> None:
    child, parent = puzzled.states["kc-child"], puzzled.states["kc-parent"]
    assert child["handle_of"] == "kc-parent"
    assert "it carries common:0x4203, inherited: background work that it starts collects for" in puzzled.ask(child["tid"])
    carried = f"carried by task {parent['tid']} (kc-parent), task {child['tid']} (kc-child)"
    assert carried in puzzled.ask("common:0x4203")
    assert "inherited, which nobody has registered any more" in puzzled.ask(tid(puzzled, "kc-orphan"))


def ask_dump(inflight_dump: StateDumpMaker, state: str, *questions: str) -> tuple[dict[str, Any], list[str]]:
    dump = inflight_dump(state)
    section = dump.section
    assert section is not None
    words = [word for question in questions for word in ("-e", f"why {question} --json".format(pid=section["pid"]))]
    done = run_kcovdbg("-c", dump.path, *symbol_options(dump.kernel, dump.userland), *words)
    assert done.returncode == 0, done.stderr
    return section, done.stdout.split("\n]\n")


def test_interrupt_context(inflight_dump: StateDumpMaker) -> None:
    """A softirq on top of a task that traces itself: what runs there isn't the task's."""
    section, (answers, function, *_) = ask_dump(
        inflight_dump, "softirq-over-local", "{pid}", "{pid} __usb_hcd_giveback_urb", "{pid} handle_softirqs"
    )
    assert section["context"] == "softirq"
    assert "it is interrupted, and its CPU is in " in answers
    assert "its own session is saved" in answers
    assert "a softirq section on top of it collects for" in answers
    assert "runs in an interrupt on top of the task now: KCOV leaves that out" in function


def test_no_interrupt(inflight_dump: StateDumpMaker) -> None:
    """A worker inside of a section in task context isn't interrupted."""
    section, (answers, *_) = ask_dump(inflight_dump, "hub-section", "{pid}")
    assert section["context"] == "task"
    assert "hasn't ended: nothing of it is merged yet" in answers
    assert "is interrupted" not in answers
