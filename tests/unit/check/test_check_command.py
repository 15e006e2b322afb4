# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command `check`: status, JSON, lists, locks, and kernels that run while they are read."""

import json
import re

import pytest

from kcovdbg.abi.handle import find_bucket
from kcovdbg.check import runner as looking
from kcovdbg.check.known_bugs import BUGS
from kcovdbg.check.runner import check, list_rules
from kcovdbg.frontends.cli import main
from kcovdbg.model.finding import Severity
from kcovdbg.model.state import Part
from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E6, E7, E9A
from tests.unit.check.test_check_rules import descriptor


def leak(kernel, refcount=3):
    kernel.target.put(kernel.objects["local"], "struct kcov", {"refcount.refs.counter": refcount})


def test_healthy(cli):
    status, text, err = cli(Kernel(E9A), "check")
    assert (status, err) == (0, "")
    assert "rules applied: no violations" in text
    assert cli(Kernel(E9A), "check", "--json")[:2] == (0, [])


def test_violated(cli):
    kernel = Kernel(E9A)
    leak(kernel)
    status, (row,), _ = cli(kernel, "check", "--json")
    assert status == 1
    assert (row["rule"], row["severity"], row["certainty"]) == ("K1", "error", "certain")
    assert row["object"] == f"kcov {kernel.objects['local']:#x}"
    assert {"name": "found", "value": "2"} in row["values"]
    assert {"name": "refcount", "value": "3"} in row["values"]
    assert row["sentence"]
    assert row["guarantee"]
    # No known bug leaves this state.
    assert (row["cause"], row["causes"]) == (None, [])
    status, text, _ = cli(kernel, "check")
    assert status == 1
    assert "error: K1 kcov 0x" in text
    assert "descriptor 40/3" in text
    assert "rules applied: 1 violation" in text
    assert "known bug" not in text


def test_only_some_rules(cli):
    kernel = Kernel(E9A)
    leak(kernel)
    assert cli(kernel, "check", "--json", "T1")[:2] == (0, [])
    assert cli(kernel, "check", "--json", "k1")[0] == 1
    status, _, err = cli(kernel, "check", "K99")
    assert status == 2
    assert "'K99'" in err


def test_advice_is_no_violation(cli):
    kernel = Kernel(E7)
    assert cli(kernel, "check", "--json")[:2] == (0, [])
    status, rows, _ = cli(kernel, "check", "--all", "--json")
    assert status == 0
    assert {(row["rule"], row["severity"]) for row in rows} == {("K9", "advice")}


def test_how_sure_a_cause_is(cli):
    """A known bug is never certain: it is likely if no other bug leaves this state, and otherwise
    unsure.
    """
    kernel = Kernel(E6)
    kernel.target.put(kernel.tasks[52], "struct task_struct", {"kcov": 0})
    _, (row,), _ = cli(kernel, "check", "--json")
    (cause,) = row["causes"]
    assert (row["rule"], "lost remote references" in cause["bug"], cause["fixed"][:5]) == (
        "T4",
        True,
        "v6.10",
    )
    assert cause["certainty"] == "likely"
    assert row["cause"] == f"{cause['bug']} (fixed: {cause['fixed']})"
    text = cli(kernel, "check", "T4")[1]
    assert f"likely ({cause['reason']}): {row['cause']}\n" in text

    # The mode of an object that no task has enabled: that bug, another one, or damage.
    kernel = Kernel(E6)
    kernel.put(kernel.objects["local"], "struct kcov", t=0)
    _, (row,), _ = cli(kernel, "check", "--json", "K5")
    assert [cause["certainty"] for cause in row["causes"]] == ["unsure"]
    assert "K5" in row["causes"][0]["reason"]

    # After the owner's exit, handles are left whose object's owner is no task.
    kernel = Kernel(E6)
    kernel.target.put(kernel.tasks[52], "struct task_struct", {"kcov": 0})
    kernel.put(kernel.objects["idle remote"], "struct kcov", t=0xFFFF88800DEAD000)
    status, (row,), _ = cli(kernel, "check", "--json")
    assert (status, row["rule"], row["object"]) == (
        1,
        "K6",
        f"kcov {kernel.objects['idle remote']:#x}",
    )
    assert "lost remote references" in row["cause"]

    # No bug explains what is unknown.
    init = kernel.target.symbol("init_task").address
    kernel.write_word(init + kernel.target.member("struct task_struct", "tasks.next").offset, 0)
    _, rows, _ = cli(kernel, "check", "--json", "K6")
    assert {(row["severity"], row["certainty"]) for row in rows} == {("unknown", "unknown")}
    assert [cause for row in rows for cause in row["causes"]] == []


def test_what_could_not_be_read_is_not_absent(cli):
    """A rule that is checked alone first walks what it reports as absent."""
    kernel = Kernel(E9A)
    assert cli(kernel, "check", "--json", "R7")[1] == []
    head = kernel.target.symbol("kcov_remote_map").address
    for bucket in range(16):
        kernel.write_word(head + bucket * kernel.target.word_size, 0x1000)
    status, (row,), err = cli(kernel, "check", "--json", "R7")
    assert (status, row["rule"], row["severity"]) == (3, "R7", "unknown")
    assert "bucket 0 of kcov_remote_map is broken" in err


def test_what_is_missing_makes_it_unsure(cli):
    kernel = Kernel(E9A)
    leak(kernel)
    kernel.target.vmas = None
    status, (row,), err = cli(kernel, "check", "--json", "K1")
    assert (status, row["severity"], row["certainty"]) == (3, "unknown", "unknown")
    assert "mappings" in row["reason"]
    assert "mappings" in err


def look(kernel, change):
    """Check a kernel that runs: each pause changes something."""
    changes = iter(change)
    return check(
        kernel.reader(), pause=lambda _seconds: next(changes, lambda _kernel: None)(kernel)
    )


def test_live_gone_at_second_look():
    kernel = Kernel(E9A, live=True)
    leak(kernel)
    report = look(kernel, [lambda kernel: leak(kernel, 2)])
    assert report.findings == ()
    assert [remark.partition(":")[0] for remark in report.remarks] == [
        "1 disagreement was transient"
    ]


@pytest.mark.parametrize("live", [True, False])
def test_what_only_slab_memory_shows_may_be_freed_on_a_running_kernel(live):
    # Seen in a storm: the file and its object were freed, and the freed memory looks like both.
    kernel = Kernel(E9A, live=live)
    descriptor("fuzz", 70, "null")(kernel)
    unmapped = kernel.objects["unmapped"]
    assert kernel.reader().read(Part.OBJECTS).objects[unmapped].found_by == ("file",)
    kernel.target.put(unmapped, "struct kcov", {"remote": 1, "remote_size": 5})
    report = look(kernel, [])
    (finding,) = [finding for finding in report.findings if finding.rule == "K7"]
    assert finding.severity is (Severity.TRANSIENT if live else Severity.ERROR)
    assert bool(report.violations) is not live
    if live:
        assert "slab" in finding.reason


def test_live_moving():
    kernel = Kernel(E9A, live=True)
    leak(kernel)
    report = look(kernel, [lambda kernel: leak(kernel, 7)])
    assert [(finding.severity, finding.rule) for finding in report.findings] == [
        (Severity.RACING, "K1")
    ]
    assert not report.violations


def test_list_needs_no_kernel(capsys):
    assert main(["check", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["rule"] for row in rows] == [rule.name for rule in list_rules()]
    assert all(row["sentence"] and row["severity"] for row in rows)
    assert main(["check", "--list"]) == 0
    assert rows[0]["sentence"] in capsys.readouterr().out


@pytest.mark.parametrize("rule", [rule.name for rule in list_rules()])
def test_explain(capsys, rule):
    assert main(["check", "--explain", rule]) == 0
    text = capsys.readouterr().out
    assert next(r for r in list_rules() if r.name == rule).sentence in text
    assert all(bug.title in text for bug in BUGS if rule in bug.rules)


def many_handles(number):
    """A kernel, one of whose chains has so many handles in the wrong bucket, each with a link back
    that is right.
    """
    kernel = Kernel(E9A)
    target = kernel.target
    node, head = (
        target.member("struct kcov_remote", "hnode").offset,
        target.symbol("kcov_remote_map").address,
    )
    wrong = [
        handle for handle in range(1 << 56 | 1, 1 << 56 | 4000) if find_bucket(handle, 4, 8) != 0
    ]
    addresses = [kernel.allocate_type("struct kcov_remote") for _ in range(number)]
    for index, address in enumerate(addresses):
        before = head if index == 0 else addresses[index - 1] + node
        target.put(
            address,
            "struct kcov_remote",
            {"handle": wrong[index], "kcov": kernel.objects["shared"]},
        )
        kernel.write_word(address + node + 8, before)
        kernel.write_word(before, address + node)
    return kernel


@pytest.mark.parametrize(("number", "more"), [(20, 0), (21, 1), (50, 30)])
def test_many_violations_of_a_rule(number, more):
    """The first findings are shown, the others are counted: in text, in JSON and in the sum."""
    asker = Asker(many_handles(number).target)
    rows, _ = asker.rows("check R2")
    assert len(rows) == 20 + bool(more)
    assert len({tuple(row) for row in rows}) == 1
    out, _ = asker.ask("check R2")
    assert f"{number} violations" in out
    assert (f"error: R2 and {more} more" in out) is bool(more)
    if more:
        assert rows[-1]["rule"] == "R2"
        assert rows[-1]["object"] == f"{more} more"
        assert rows[-1]["values"] == [{"name": "more", "value": str(more)}]


def test_what_is_far_too_much_is_not_counted_to_its_end(monkeypatch):
    """The answer says that counting stopped, in text, in JSON and in the sum."""
    monkeypatch.setattr(looking, "_COUNTED", 30)
    asker = Asker(many_handles(50).target)
    rows, _ = asker.rows("check R2")
    assert len(rows) == 21
    assert rows[-1]["object"] == "at least 10 more"
    out, _ = asker.ask("check R2")
    assert "error: R2 and at least 10 more\n" in out
    assert "at least 30 violations" in out
    # The limit for counting.
    monkeypatch.setattr(looking, "_COUNTED", 51)
    out, _ = asker.ask("check R2")
    assert "error: R2 and 30 more\n" in out
    assert "at least" not in out


def test_what_is_left_out_is_still_compared():
    """A running kernel is read again: all findings that persist are counted, although few are
    shown.
    """
    kernel = many_handles(50)
    kernel.target.live = True
    report = check(kernel.reader(), wanted=("R2",), pause=lambda _seconds: None)
    assert (report.violations, report.remarks, len(report.findings)) == (50, (), 21)


def test_why_sees_what_check_leaves_out():
    kernel = many_handles(50)
    names = {finding.object for finding in check(kernel.reader()).findings}
    rows, _ = Asker(kernel.target).rows("remote")
    handle = next(
        f"usb:{row['instance']}"
        for row in rows
        if row["bucket"] == 0 and f"handle usb:{row['instance']}" not in names
    )
    rows, _ = Asker(kernel.target).rows(f"why {handle}")
    assert any(row["evidence"][0] == "R2" and "bucket=0" in row["evidence"] for row in rows)


def test_rules_that_were_not_applied_are_counted(cli):
    """Every rule is in the summary: applied, or not for a reason."""

    def counts(*words):
        _, text, _ = cli(Kernel(E9A), "check", *words)
        applied, others = re.search(
            r"^(\d+) rules? applied: .*\n((?:\d+ rules? not applied: .*)?)", text, re.MULTILINE
        ).groups()
        return int(applied), [int(count) for count in re.findall(r"(\d+) \(", others)]

    applied, others = counts()
    assert len(others) == 3
    assert applied + sum(others) == len(list_rules())
    with_advice, others = counts("--all")
    assert len(others) == 2
    assert with_advice > applied
    assert with_advice + sum(others) == len(list_rules())
    assert counts("K1") == (1, [])
