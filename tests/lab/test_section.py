# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests are stopped inside each kind of section; drgn finds in a dump taken there what raw memory holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import drgn
import pytest

from tests.lab.guest import Machine
from tests.lab.section import STATES, stopped_in
from tests.lab.test_dump import opened

if TYPE_CHECKING:
    from tests.lab.conftest import Booter, StateDumpMaker

pytestmark = pytest.mark.lab

# By state: the context, and the interrupted session.
EXPECTED = {
    "hub-section": ("task", None),
    "vhost-section": ("task", None),
    "softirq-over-local": ("softirq", "local"),
    "softirq-over-none": ("softirq", None),
    "softirq-over-idle": ("softirq", None),
    "softirq-over-section": ("softirq", "remote"),
}


@pytest.mark.parametrize("state", STATES)
def test_dump_shows_the_section(inflight_dump: StateDumpMaker, state: str) -> None:
    dump = inflight_dump(state)
    section = dump.section
    assert section is not None
    assert (section["context"], section["beneath"]) == EXPECTED[state]
    assert section["stopped_at"] == "kcov_remote_stop"
    program = opened(dump)
    task = drgn.Object(program, "struct task_struct *", int(section["task"], 16))
    for name in ("kcov_mode", "kcov_size", "kcov_sequence", "kcov_softirq"):
        assert task.member_(name).value_() == section[name], name
    for name in ("kcov_area", "kcov", "kcov_saved_area", "kcov_saved_kcov"):
        assert task.member_(name).value_() == int(section[name], 16), name
    assert task.pid.value_() == section["pid"]
    kcov = task.kcov
    assert kcov.remote.value_()
    assert kcov.sequence.value_() == section["kcov_sequence"]
    buffer = section["buffers"]["kcov_area"]
    assert program.read_u64(task.kcov_area.value_()) == buffer["count"] > 0
    saved = section["buffers"]["saved_area"]
    assert (saved is not None) == (section["beneath"] is not None)
    if saved is not None:
        assert program.read_u64(task.kcov_saved_area.value_()) == saved["count"]
        assert task.kcov_saved_kcov.remote.value_() == (section["beneath"] == "remote")


def test_guest_goes_on_afterwards(boot: Booter) -> None:
    guest = boot(Machine())
    guest.wait_done()
    for state in ("vhost-section", "softirq-over-local"):
        with stopped_in(guest, state) as section:
            assert section["state"] == state
            assert not guest.qmp.running()
        assert guest.qmp.running()
        assert guest.ask("stop")
    # KCOV's own checks printed no warning.
    assert "WARNING" not in guest.console()
