# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command `why`, on kernels in memory: each answer is given where it is true, and only
there.
"""

import json

import jsonschema
import pytest

from kcovdbg.frontends.cli import main
from kcovdbg.model.state import Part
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E2, E6, E7, E9A, E9B
from tests.support.kernels.scenario import make_scenario, usb
from tests.support.state import strict_schema

KEYS = {"question", "code", "answer", "evidence", "values", "guard", "path", "operands"}


@pytest.fixture
def ask(capsys):
    def ask(kernel, *words):
        status = main(["why", *words, "--json"], open_target=lambda _options: kernel.target)
        out, ask.err = capsys.readouterr()
        ask.status = status
        if status:
            return ""
        rows = json.loads(out)
        assert all(row.keys() == KEYS for row in rows)
        jsonschema.validate(rows, strict_schema("why"))
        assert all(row["evidence"] for row in rows)
        ask.codes = [row["code"] for row in rows]
        ask.values = {row["code"]: row["values"] for row in rows}
        assert len({row["question"] for row in rows}) <= 1
        return "\n".join(line for row in rows for line in (row["answer"], *row["evidence"]))

    return ask


def kcov(kernel, name, **values):
    kernel.target.put(kernel.objects[name], "struct kcov", values)


CASES = {
    # Row, subject, a part of what is said, and the codes that must be among the answers.
    "not open": (E9A, "1", "neither open nor mapped", "not-opened"),
    "name of a task without state": (E9A, "init", "/sys/kernel/debug/kcov neither open nor mapped"),
    "kernel thread": (E9A, "2", "kernel thread", "kernel-thread"),
    "by another thread": (E9A, "45", "was never enabled", "never-enabled"),
    "of a sibling": (E7, "40", "there is coverage: 17 records", "coverage"),
    "full": (E9A, "42", "count=511", "buffer-full"),
    "interrupted": (E9A, "60", "saved area=0x", "session-saved"),
    "softirq section": (E9A, "60", "softirq section in it collects for kcov 0x"),
    "section": (E9A, "7", "kcov sequence="),
    "stale section": (E9A, "8", "will be discarded", "section-discarded"),
    "owner": (E7, "50", "owner of a KCOV_REMOTE_ENABLE", "remote-owner"),
    "owner's section": (E7, "50", "a section for it is open in task 7 (kworker/0:1)"),
    "size 0": (E7, "52", "have no size", "no-section-areas"),
    "child": (E7, "51", "carries common:0x42", "handle-inherited"),
    # Whether it had KCOV is unknown.
    "exiting": (E9A, "46", "exiting"),
    "handle": (E7, "usb:1", "task 50 (owner) registered it"),
    "handle by its word": (E7, hex(usb(1)), "EEXIST"),
    "nobody's handle": (E7, "usb:77", "not registered"),
    "carried": (E7, "common:0x42", "carried by task 50 (owner), task 51 (owner's child)"),
    "USB": (E7, "usb:1", "the hub of USB bus 1"),
    "too old": (E2, "usb:1", "generation=E2"),
    "reserved bits": (E7, hex(usb(1) | 1 << 40), "reserved bits"),
    "local and owner": (E9B, "50", "there is coverage: 44 records"),
}


@pytest.mark.parametrize("case", CASES)
def test_answers(ask, case):
    row, subject, expected, *codes = CASES[case]
    assert expected in ask(Kernel(row), subject)
    assert set(codes) <= set(ask.codes)
    assert case != "exiting" or ask.codes == ["exiting"]


def test_unknown_object(ask):
    assert "nothing leads to an object" in ask(Kernel(E9A), "0xffff88800dead000")


def write(place, value, table="buffers"):
    """Return the change of the count of a buffer."""
    return lambda kernel: kernel.write_word(getattr(kernel, table)[place], value)


def change(name, **values):
    """Return the change of members of an object; a task stands for its address."""
    return lambda kernel: kcov(
        kernel,
        name,
        **{key: kernel.tasks[44] if value is TASK else value for key, value in values.items()},
    )


TASK = object()
DISABLED = change("remote", t=0, remote=0, remote_size=0, mode=1, sequence=7)
# Row, a change, what is asked about (a name is an object's), and parts of what is said.
CHANGED = {
    "opened": (E9A, None, "opened", "was never called"),
    "stopped": (E9A, None, "stopped", "(3 sessions ended)"),
    "local": (E9A, None, "local", "task 40 (executor) traces itself into it"),
    "remote": (E9A, None, "remote", "task 50 (owner)"),
    "not mapped": (E6, change("unmapped", area=0), "unmapped", "is not mapped"),
    # Task 45 shares a descriptor with 44; somebody else enabled it.
    "another thread": (E9A, change("shared", t=TASK, mode=2), "45", "is enabled by another thread, task 44 " "(child)"),
    "too large": (E7, change("remote", remote_size=4096), "50", "areas for its sections are larger than its " "buffer"),
    "full area": (E9A, write("kworker", 255, "areas"), "7", "is full: what it executes now is lost"),
    "KASLR": (E9A, lambda kernel: setattr(kernel.target, "kaslr_offset", 1 << 24), "40", "minus the KASLR offset"),
    "empty": (E9A, write("local", 0), "40", "its buffer is empty"),
    "impossible": (E9A, write("local", 1 << 40), "40", "is impossible", "check: its buffer's count is " "0x10000000000"),
    "wraps": (E9A, write("compared", (1 << 59) - 1), "compared", "in front of the buffer"),
    "wrapped": (E9A, write("compared", 1 << 59), "compared", "the next comparison at offset 0x8"),
    "never looked up": (E7, change("idle remote", remote_size=77), "52", "looked up its handles"),
    "outlives a disable": (
        E9A, DISABLED, "remote", "(6 sessions ended)", "still open in task 7 (kworker/0:1)", "will be discarded",
    ),
    # Another task's memory is where the owner's was.
    "reused owner": (E7, change("remote", t=TASK), "usb:1", "a task that is gone", "its owner is gone"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_answers_after_a_change(ask, case):
    row, make, subject, *expected = CHANGED[case]
    kernel = Kernel(row)
    subject = hex(kernel.objects[subject]) if subject in kernel.objects else subject
    before = ask(kernel, subject)
    if make is not None:
        make(kernel)
        assert any(part not in before for part in expected)
    said = ask(kernel, subject)
    assert all(part in said for part in expected)
    assert "task 44 (child) registered it:" not in said


@pytest.mark.parametrize(
    ("subject", "code"),
    [("usb:1", "object-unreadable"), ("0x{remote:x}", "object-unreadable"), ("50", "finding")],
)
@pytest.mark.parametrize("values", [{"t": 0x7F0012345000}, {"mode": 0x5A5A5A}])
def test_an_object_whose_memory_is_of_something_else(ask, subject, code, values):
    """Nothing that it says is a fact: neither that its owner is gone, nor its sizes."""
    kernel = Kernel(E7)
    kcov(kernel, "remote", remote_size=1 << 30, **values)
    ask(kernel, subject.format(**kernel.objects))
    assert code in ask.codes
    assert not {"owner-gone", "section-areas-too-large", "not-enabled-now"} & {*ask.codes}
    assert "which it inherited" not in ask(kernel, "50")


def test_a_mode_without_an_owner(ask):
    """It was enabled, whatever its sequence is."""
    kernel = Kernel(E9A)
    for owner in (0, kernel.allocate(64)):
        kcov(kernel, "local", t=owner, sequence=1)
        ask(kernel, hex(kernel.objects["local"]))
        assert "owner-gone" in ask.codes
        assert "never-enabled" not in ask.codes


def test_a_section_ahead_of_its_object(ask):
    kernel = Kernel(E9A)
    kernel.put(kernel.tasks[7], "struct task_struct", kcov_sequence=99)
    assert "disabled meanwhile" not in ask(kernel, "7")
    assert "section-discarded" in ask.codes


def test_a_handle_that_no_task_can_carry(ask):
    kernel = Kernel(E9A)
    kernel.put(kernel.tasks[40], "struct task_struct", kcov_handle=0x1234567812345678)
    assert "inherited and" not in ask(kernel, "40")
    assert "handle-inherited" in ask.codes


@pytest.mark.parametrize("row", [E2, E9A, E9B], ids=lambda row: row.name)
def test_a_failed_remote_enable(ask, row):
    """kcov_disable() in its error path increments the sequence; the buffer then has never had a
    record (kcov-abi.md K8).
    """
    kernel = Kernel(row)
    kernel.target.write(kernel.buffers["stopped"], bytes(64))
    ask(kernel, hex(kernel.objects["stopped"]))
    assert ("remote-enable-failed" in ask.codes) == row.has_remote
    if row.has_remote:
        assert ask.values["remote-enable-failed"]["registered"] > 0
        # The owner of one that succeeded leaves the same, if it ends before a section.
        assert "or it succeeded" in ask(kernel, hex(kernel.objects["stopped"]))
    # A count that user space reset leaves what was recorded.
    kernel.target.write(kernel.buffers["stopped"] + 8, b"\1")
    ask(kernel, hex(kernel.objects["stopped"]))
    assert "remote-enable-failed" not in ask.codes


def test_a_task_that_collects_for_two_objects(ask):
    """Since v7.2 an owner may trace itself: each answer about a buffer names the object."""
    kernel = Kernel(E9B)
    both = next(
        task
        for task in kernel.truth.tasks.values()
        if task.owns and task.session and task.session.area is None
    )
    pid = next(pid for pid, task in kernel.truth.tasks.items() if task is both)
    answers = ask(kernel, str(pid))
    for name in (both.owns, both.session.kcov):
        assert f"the buffer of kcov {kernel.objects[name]:#x}" in answers


def test_lost_session(ask):
    """The object says that it is enabled for a task, and the task refers to none."""
    kernel = Kernel(E9A)
    kernel.put(
        kernel.tasks[42], "struct task_struct", kcov=0, kcov_mode=0, kcov_area=0, kcov_size=0
    )
    said = ask(kernel, "42")
    # Two other objects of its process are enabled for other threads.
    assert (ask.codes.count("session-lost"), ask.codes.count("enabled-by-other-thread")) == (1, 2)
    assert f"t={kernel.tasks[42]:#x}" in said


def test_somebody_looks_it_up(ask):
    kernel = Kernel(E7)
    kcov(kernel, "idle remote", remote_size=77)
    assert "looked up its handles" not in ask(kernel, "50")
    kernel.write_word(kernel.buffers["idle remote"], 3)
    assert "looked up its handles" not in ask(kernel, "52")


@pytest.mark.parametrize("subject", ["usb:1", hex(usb(1))])
def test_owner_is_gone(ask, subject):
    """Findings of check are answers as well, and each known bug behind them is named once."""
    kernel = Kernel(E6)
    kcov(kernel, "remote", t=0)
    answers = ask(kernel, subject)
    assert "its owner is gone" in answers
    assert "check: it leads to kcov" in answers
    assert ask.codes.count("finding") > 1
    assert ask.codes.count("known-bug") == 1
    assert set(ask.values["known-bug"]["rules"]) <= {"K5", "K6", "T1", "T4", "R5", "X3"}
    assert answers.count("lost remote references") == 1
    finding = ask.values["finding"]
    assert finding["rule"]
    assert finding["object"]
    assert {pair["name"] for pair in finding["finding"]}


def test_interrupted(ask):
    kernel = Kernel(E9A)
    own = ("vfs_read", "ksys_read", "do_syscall_64")
    kernel.give_stack(
        60, "give_back", "handle_softirqs", "irq_exit_rcu", "asm_sysvec_apic_timer_interrupt", *own
    )
    assert "is interrupted: its CPU is in asm_sysvec_apic_timer_interrupt()" in ask(kernel, "60")
    kernel.give_stack(60, *own)
    assert "is interrupted" not in ask(kernel, "60")
    # One that sleeps isn't interrupted, whatever is left on its stack.
    kernel.give_stack(40, "schedule", "asm_sysvec_apic_timer_interrupt")
    assert "is interrupted" not in ask(kernel, "40")


ENTRY = ("sysvec_apic_timer_interrupt", "asm_sysvec_apic_timer_interrupt")
SOFTIRQ = ("handle_softirqs", "irq_exit_rcu", "sysvec_call_function", "asm_sysvec_call_function")


@pytest.mark.parametrize(
    ("functions", "where"),
    [
        (
            (
                "__schedule",
                "preempt_schedule_irq",
                "raw_irqentry_exit_cond_resched",
                "irqentry_exit",
                *ENTRY,
            ),
            None,
        ),
        (
            (
                "task_work_run",
                "exit_to_user_mode_loop",
                "irqentry_exit_to_user_mode",
                "irqentry_exit",
                *ENTRY,
            ),
            None,
        ),
        (
            (
                "do_signal",
                "do_notify_resume",
                "exit_to_user_mode",
                "el0_interrupt",
                "el0t_64_irq_handler",
            ),
            None,
        ),
        # An interrupt that has been handled on top of one that has not.
        (("trace_hardirqs_on", "irqentry_exit", *ENTRY, *SOFTIRQ), "asm_sysvec_call_function"),
        # One that has not been handled during the work that follows another.
        (
            (*SOFTIRQ, "task_work_run", "exit_to_user_mode_loop", "irqentry_exit", *ENTRY),
            "asm_sysvec_call_function",
        ),
    ],
)
def test_work_after_an_interrupt_is_the_tasks_own(ask, functions, where):
    kernel = Kernel(E9A)
    kernel.give_stack(60, *functions, "vfs_read", "do_syscall_64")
    answers = ask(kernel, "60")
    assert ("is interrupted" in answers) == (where is not None)
    assert where is None or f"{where}()" in answers


def test_no_handle(ask):
    kernel = Kernel(E7)
    for bus in range(2, 40):
        kernel.put(kernel.handles[usb(bus)], "struct kcov_remote", kcov=kernel.objects["remote"])
    kcov(kernel, "idle remote", remote_size=77)
    assert "no handle leads to" in ask(kernel, "52")
    # There is nothing to look up.
    assert "handle-never-looked-up" not in ask.codes


def test_wrong_words(ask):
    ask(Kernel(E9A), "99999")
    assert ask.status == 2
    assert "99999" in ask.err
    ask(Kernel(E9A), "whatever")
    assert ask.status == 2
    assert "usb:1" in ask.err


@pytest.mark.parametrize(("line", "column"), [("why nonsense", 4), ("objects  nonsense | head", 9)])
def test_a_wrong_subject_is_pointed_at(capsys, line, column):
    kernel = Kernel(E9A)
    assert main(["-e", line], open_target=lambda _options: kernel.target) == 2
    _, shown, mark, *_ = capsys.readouterr().err.splitlines()
    assert (shown, mark) == (f"  {line}", " " * (2 + column) + "^")


def test_text(capsys):
    kernel = Kernel(E9A)
    assert main(["why", "42"], open_target=lambda _options: kernel.target) == 0
    question, answer, evidence = capsys.readouterr().out.splitlines()
    assert question == "where is the coverage of task 42 (executor/2)?"
    assert answer.startswith("- its buffer is full")
    assert evidence == "    count=511, capacity=511"


def test_functions_of_the_demo(capsys):
    """Task 34 of the demo, kc-pc, traced getppid() and a few other calls."""
    answers = []
    for words in (["34", "vfs_read"], ["vfs_read", "34"], ["kc-pc", "vfs_read"]):
        assert main(["--demo", "why", *words, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1] == answers[2]
    first, *ways = answers[0]
    assert first["code"] == "code-not-executed"
    assert first["values"]["covered"] == 0 < first["values"]["points"]
    assert {row["code"] for row in ways} == {"system-call-not-made"}
    assert {row["path"][0] for row in ways} == {"__x64_sys_pread64", "__x64_sys_read"}
    assert main(["--demo", "why", "34", "no_such_function"]) == 2
    assert capsys.readouterr().out == ""
    assert main(["--demo", "why", "34", "delay_tsc", "--json"]) == 0
    assert "points=0" in capsys.readouterr().out


def test_answers_have_values(ask):
    kernel = Kernel(E9A)
    ask(kernel, "42")
    assert ask.values["buffer-full"] == {
        "count": 511,
        "capacity": 511,
        "kcov": hex(kernel.objects["full"]),
    }
    ask(kernel, "8")
    discarded = ask.values["section-discarded"]
    assert discarded["pid"] == 8
    assert discarded["section_sequence"] != discarded["kcov_sequence"]
    ask(kernel, "1")
    assert ask.values["not-opened"] == {"kcov": "0x0"}
    kernel = Kernel(E7)
    ask(kernel, "usb:1")
    owner = kernel.tasks[50]
    assert ask.values["handle-registered"]["kcov"] == hex(kernel.objects["remote"])
    assert ask.values["handle-registered"]["pid"] == 50
    ask(kernel, "common:0x42")
    carried = ask.values["carried-by-tasks"]
    assert carried == {"tasks": [hex(owner), hex(kernel.tasks[51])], "pids": [50, 51]}


def test_lists_in_text(capsys):
    """The name of a list stands before its first item only."""
    kernel = Kernel(E9A)
    kernel.give_stack(
        60, "give_back", "handle_softirqs", "asm_sysvec_apic_timer_interrupt", "vfs_read"
    )
    main(["why", "60"], open_target=lambda _options: kernel.target)
    assert capsys.readouterr().out.count("frame=") == 1


def set_bits(kernel, bits, tids):
    for tid in tids:
        task = kernel.tasks[tid]
        word = int.from_bytes(
            kernel.target.read(task + kernel.offset("struct task_struct", "kcov_mode"), 4), "little"
        )
        kernel.put(task, "struct task_struct", kcov_mode=word | bits)


def paused(kernel):
    """Return the tasks in which the flag is damage, or may be."""
    tasks = kernel.reader().read(Part.ALL_TASKS).all_tasks
    return [task.fields.pid for task in tasks if any("29" in error for error in task.errors)]


def test_a_paused_task(ask):
    kernel = Kernel(E9B)
    switched_out = [
        tid for tid, task in kernel.truth.tasks.items() if task.ran and not task.running
    ]
    assert len(switched_out) > 3
    set_bits(kernel, 1 << 29, switched_out)
    # On kernels where every switched-out task keeps the bit, it means nothing there.
    ask(kernel, "40")
    assert "not-recording-now" not in ask.codes
    assert paused(kernel) == []
    running = next(tid for tid, task in kernel.truth.tasks.items() if task.running and task.session)
    set_bits(kernel, 1 << 29, [running])
    ask(kernel, str(running))
    assert ask.codes[0] == "not-recording-now"
    assert int(ask.values["not-recording-now"]["kcov_mode_raw"], 16) & 1 << 29


def test_a_single_paused_task_may_be_damaged():
    kernel = Kernel(E9B)
    set_bits(kernel, 1 << 29, [40])
    assert paused(kernel) == [40]


def with_table(name, descriptors):
    """Return a kernel whose task 44 or 45, ``child`` or ``parent``, has other descriptors."""
    scenario = make_scenario(E9A)
    scenario.tables[name].update(descriptors)
    return Kernel(E9A, scenario)


def test_inherited_descriptors_are_one_answer(ask):
    """A child has every descriptor of a process with three threads that collect, and with objects
    that do not.
    """
    fuzz = make_scenario(E9A).tables["fuzz"]
    kernel = with_table("child", {fd + 200: file for fd, file in fuzz.items()})
    said = ask(kernel, "44")
    assert ask.codes == ["enabled-by-other-thread"]
    assert set(ask.values["enabled-by-other-thread"]["pids"]) == {40, 41, 42}
    # Those of the process, and the one that it shares with its parent.
    assert (
        ask.values["enabled-by-other-thread"]["objects"]
        == len([file for file in fuzz.values() if file not in ("tty", "null")]) + 1
    )
    for pid in (40, 41, 42):
        assert f"task {pid} (" in said


def test_inherited_descriptors_that_nobody_enabled_are_one_answer(ask):
    kernel = with_table("child", {20: "unmapped", 21: "stopped", 22: "opened"})
    ask(kernel, "44")
    assert ask.codes == ["descriptors-inherited"]
    assert ask.values["descriptors-inherited"]["objects"] == 4


def test_own_objects_in_one_state_are_one_answer(ask):
    """Objects that only the task's process has: two that were enabled once, and one that was never
    initialized.
    """
    scenario = make_scenario(E9A)
    for fd in (6, 70, 71):
        del scenario.tables["fuzz"][fd]
    scenario.tables["init"].update({6: "opened", 70: "mapping only", 71: "stopped"})
    del scenario.spaces["fuzz"][0x70000], scenario.spaces["fuzz"][0x90000]
    kernel = Kernel(E9A, scenario)
    ask(kernel, "1")
    assert sorted(ask.codes) == ["not-enabled-now", "not-initialized"]
    assert ask.values["not-enabled-now"]["objects"] == 2


@pytest.mark.parametrize("words", [["vfs_read", "1"], ["1", "vfs_read"], ["init", "vfs_read"]])
def test_code_of_a_task_that_does_not_collect(ask, words):
    """Why its code has no records is told first, and is all that can be said."""
    ask(Kernel(E9A), *words)
    assert ask.status == 0
    assert ask.codes[0] == "not-opened"
    assert not {"code-not-executed", "code-executed"} & set(ask.codes)


def test_function_of_a_task_of_the_demo_that_does_not_collect(capsys):
    """Whether the function can be covered, and a path to it, follow why the task has no records."""
    assert main(["--demo", "why", "1", "vfs_read", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["code"] for row in rows] == [
        "not-opened",
        "function-instrumented",
        "system-call-path",
    ]
    assert rows[-1]["path"][-1] == "vfs_read"


@pytest.mark.parametrize(
    ("task", "line", "code"),
    [
        ("34", "fs/namei.c:144", "code-not-executed"),
        # Of a task that does not collect nothing of its own ran or did not.
        ("1", "fs/namei.c:144", "not-opened"),
    ],
)
def test_a_line_and_a_task_in_either_order(capsys, task, line, code):
    answers = []
    for words in ((task, line), (line, task)):
        assert main(["--demo", "why", *words, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    rows = answers[0]
    assert code in [row["code"] for row in rows]
    assert all(line in row["question"] for row in rows)
    # Only calls that lead there are named.
    paths = [row["path"] for row in rows if row["code"] == "system-call-not-made"]
    assert bool(paths) == (code == "code-not-executed")
    assert all(path[-1] == "getname_flags" for path in paths)


def test_code_of_which_nothing_is_known(capsys):
    """An open trace without a stack does not say whether a function was being entered."""
    assert main(["--demo", "why", "82", "hub_event", "--json"]) == 0
    rows = {row["code"]: row for row in json.loads(capsys.readouterr().out)}
    assert "coverage" in rows
    assert rows["unknown"]["values"]["covered"] == 0 < rows["unknown"]["values"]["points"]
    assert not {"code-not-executed", "code-executed"} & rows.keys()


def test_function_that_other_tasks_ran(capsys):
    assert main(["--demo", "why", "34", "getname_flags", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    elsewhere = [row for row in rows if row["code"] == "function-covered-elsewhere"]
    assert rows[0]["code"] == "code-not-executed"
    assert elsewhere
    for row in elsewhere:
        buffer = row["values"]["buffer"]
        assert main(["--demo", "why", buffer, "getname_flags", "--json"]) == 0
        codes = [one["code"] for one in json.loads(capsys.readouterr().out)]
        assert "code-executed" in codes


def test_traces_follow_code_alone(ask):
    ask(Kernel(E9A), "1", "vfs_read", "file:trace")
    assert ask.status == 2
