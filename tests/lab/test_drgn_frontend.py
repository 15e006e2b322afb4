# SPDX-License-Identifier: LGPL-2.1-or-later
"""drgn's own command line with the plugin, and the helpers: the same answers as kcovdbg's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import drgn
import pytest

from kcovdbg import helpers
from tests.lab.comparison import COMMANDS
from tests.lab.conftest import DumpMaker, StateDumpMaker
from tests.lab.kcovdbg_run import ask_state, run_kcovdbg
from tests.lab.situation import Dump
from tests.support.screen import Screen

DRGN = Path(sys.executable).parent / "drgn"
STATE_COMMANDS = ("tasks", *COMMANDS.values())


def open_drgn(dump: Dump, state: Path) -> Screen:
    if not DRGN.exists():
        pytest.skip("drgn's command line isn't installed")
    words = (DRGN, "-q", *dump.target)
    plugin = "kcov=kcovdbg.frontends.drgn_plugin"
    return Screen(*words, rows=50, columns=160, DRGN_PLUGINS=plugin, XDG_STATE_HOME=str(state))


def at_prompt(screen: Screen) -> bool:
    return bool(screen.lines[screen.screen.cursor.y] == ">>>")


@pytest.fixture(scope="module")
def in_drgn(standing_dump: DumpMaker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screen]:
    with open_drgn(standing_dump(), tmp_path_factory.mktemp("state")) as screen:
        screen.wait(at_prompt, seconds=60)
        yield screen


@pytest.mark.parametrize("command", STATE_COMMANDS)
def test_same_bytes_as_the_shell(
    in_drgn: Screen, standing_dump: DumpMaker, tmp_path: Path, command: str
) -> None:
    answer = tmp_path / "answer"
    in_drgn.type(f"%kcov {command} --json > {answer}\r")
    in_drgn.wait(lambda screen: at_prompt(screen) and answer.exists(), seconds=60)
    ours = run_kcovdbg(*standing_dump().target, "-e", f"{command} --json", status=0)
    assert answer.read_text() == ours.stdout
    assert len(ours.stdout) > 2


def test_pipes_errors_and_interrupts(in_drgn: Screen) -> None:
    in_drgn.type("%kcov remote | head -1\r")
    in_drgn.wait("HANDLE")
    in_drgn.wait(at_prompt)
    in_drgn.type("%kcov\r")
    in_drgn.wait("objects")
    in_drgn.wait(at_prompt)
    in_drgn.type("%kcov taks\r")
    in_drgn.wait("drgn: error: unknown command 'taks'")
    in_drgn.type("%kcov remote | sleep 600\r")
    in_drgn.settle()
    # The terminal shows ^C before the next prompt.
    in_drgn.type("\x03")
    in_drgn.settle()
    in_drgn.type("\r")
    in_drgn.wait(at_prompt)
    assert "Traceback" not in in_drgn.text


@pytest.fixture(scope="module", params=["standing", "hub-section", "softirq-over-local"])
def opened(
    request: pytest.FixtureRequest, inflight_dump: StateDumpMaker, standing_dump: DumpMaker
) -> tuple[Any, Any]:
    """A Program as opened by drgn's users, and the answers of the commands about the same dump."""
    dump = standing_dump() if request.param == "standing" else inflight_dump(request.param)
    prog = drgn.Program()
    prog.set_core_dump(dump.path)
    prog.load_debug_info(dump.target[3::2])
    return prog, ask_state(dump.target)


def test_helpers_find_what_the_commands_find(opened: tuple[Any, Any]) -> None:
    prog, answers = opened
    assert helpers.kcov_generation(prog) == answers["info"][0]["generation"]
    assert [hex(kcov) for kcov in helpers.for_each_kcov(prog)] == [
        row["kcov"] for row in answers["objects"]
    ]
    remote = [(hex(entry.handle), hex(entry.kcov)) for entry in helpers.for_each_kcov_remote(prog)]
    assert remote == [(row["handle"], row["kcov"]) for row in answers["remote"]]
    areas = [(hex(area), kind, state) for area, kind, state in helpers.for_each_kcov_area(prog)]
    assert areas == [(row["area"], row["list"], row["state"]) for row in answers["areas"]]
    saved = [
        (task.pid.value_() if task else None, hex(kcov))
        for task, kcov in helpers.for_each_kcov_saved(prog)
    ]
    assert saved == [(row["pid"], row["saved_kcov"]) for row in answers["saved"]]


def test_helpers_say_of_objects_what_the_command_says(opened: tuple[Any, Any]) -> None:
    prog, answers = opened
    rows = {row["kcov"]: row for row in answers["objects"]}
    assert rows
    for kcov in helpers.for_each_kcov(prog):
        row = rows[hex(kcov)]
        words = helpers.kcov_words(kcov)
        references = helpers.kcov_references(kcov)
        assert helpers.kcov_count(kcov) == row["count"]
        assert helpers.kcov_capacity(kcov) == row["capacity"]
        assert helpers.kcov_mode_name(kcov) == row["mode"]
        assert hex(helpers.find_kcov_area(kcov)) == row["area"]
        assert (
            sum(reference.counts for reference in references) == row["counted"] == row["refcount"]
        )
        assert len(references) == len(row["references"])
        assert words[:1] == ([] if row["count"] is None else [row["count"]])
        assert len(words) == (row["size"] if words else 0)


def test_helpers_say_of_tasks_what_the_command_says(opened: tuple[Any, Any]) -> None:
    prog, answers = opened
    rows = {row["task"]: row for row in answers["tasks"]}
    tasks = list(helpers.for_each_kcov_task(prog))
    assert tasks
    for task in tasks:
        row = rows[hex(task)]
        state = helpers.kcov_task_state(task)
        assert state.fields.pid == row["pid"] == task.pid
        assert (state.mode, state.count, state.full) == (
            row["kcov_mode"],
            row["count"],
            row["full"],
        )
        assert state.role is not None
        assert state.role.value == row["role"]
        assert (state.beneath.value if state.beneath else None) == row["beneath"]
        assert state.owns_remote == row["owns_remote"]
        assert helpers.kcov_mode_name(task) == row["kcov_mode"]
        assert hex(helpers.find_kcov_area(task)) == row["kcov_area"]


def test_view_in_drgn_and_back(in_drgn: Screen, standing_dump: DumpMaker) -> None:
    in_drgn.type(f"%kcov view {standing_dump().states()['kc-pc']['tid']}\r")
    in_drgn.wait(lambda screen: "q leave" in screen.text and ">>>" not in screen.text)
    in_drgn.type("q")
    in_drgn.wait(at_prompt)
