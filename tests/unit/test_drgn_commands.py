# SPDX-License-Identifier: LGPL-2.1-or-later
import pytest

drgn = pytest.importorskip("drgn")


def test_lines_run_on_a_program(capfd):
    from kcovdbg.frontends.drgn_commands import run_in_drgn

    prog = drgn.Program()
    assert run_in_drgn(prog, "") == 0
    everything = capfd.readouterr().out
    assert everything.startswith("COMMAND")
    run_in_drgn(prog, "help | head -1 | tr A-Z a-z")
    assert capfd.readouterr().out.split() == ["command", "shows"]


def test_errors_are_drgns():
    from drgn.commands import CommandError

    from kcovdbg.frontends.drgn_commands import run_in_drgn

    with pytest.raises(CommandError) as caught:
        run_in_drgn(drgn.Program(), "taks")
    assert str(caught.value) == "no command is called taks\n  taks\n  ^\n  did you mean tasks?"
