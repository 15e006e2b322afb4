# SPDX-License-Identifier: LGPL-2.1-or-later
import drgn
import pytest


def test_lines_run_on_a_program(capfd):
    from kcovdbg.frontends.drgn_commands import run_in_drgn

    prog = drgn.Program()
    assert run_in_drgn(prog, "") == 0
    everything = capfd.readouterr().out
    assert "\n  tasks " in everything
    run_in_drgn(prog, "help | head -1 | tr a-z A-Z")
    assert capfd.readouterr().out == everything.splitlines()[0].upper() + "\n"


def test_errors_are_drgns():
    from drgn.commands import CommandError

    from kcovdbg.frontends.drgn_commands import run_in_drgn

    with pytest.raises(CommandError) as caught:
        run_in_drgn(drgn.Program(), "taks")
    message, line, mark, hint = str(caught.value).split("\n")
    assert "taks" in message
    assert (line, mark) == ("  taks", "  ^")
    assert "tasks" in hint
