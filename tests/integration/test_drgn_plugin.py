# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines of kcovdbg in drgn, and the plugin, which drgn imports at every start: importing it must be
cheap.
"""

import contextlib
import json
import os
import re
import subprocess
import sys

import drgn
import pytest
from drgn.commands import CommandError

from kcovdbg.frontends.drgn_commands import run_in_drgn
from tests.support.screen import Screen
from tests.support.table_writer import write_one


def test_the_plugin_imports_next_to_nothing():
    code = (
        "import sys, drgn, drgn.commands.linux\n"
        "before = set(sys.modules)\n"
        "import kcovdbg.frontends.drgn_plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == [
        "kcovdbg",
        "kcovdbg.frontends",
        "kcovdbg.frontends.drgn_plugin",
    ]


def test_the_symbol_table_of_the_build_in_the_configuration(demo, tmp_path):
    pc = write_one(tmp_path / "table", demo.vmlinux, "from_the_table")
    (tmp_path / "kcovdbg").mkdir()
    (tmp_path / "kcovdbg/config.toml").write_text(f'symbol-tables = ["{tmp_path}/table"]\n')
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    in_drgn = (
        "import drgn, sys; from kcovdbg.frontends.drgn_commands import run_in_drgn; prog = "
        "drgn.Program()\n"
        f"prog.set_core_dump('{demo.core}'); prog.load_debug_info(['{demo.vmlinux}'])\n"
        f"sys.exit(run_in_drgn(prog, 'sym {pc:#x} --json'))"
    )
    alone = [sys.executable, "-m", "kcovdbg", demo.core, demo.vmlinux, "sym", f"{pc:#x}", "--json"]
    for command in ([sys.executable, "-c", in_drgn], alone):
        result = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=60
        )
        assert result.returncode == 0, result.stderr
        (row,) = json.loads(result.stdout)
        assert row["frames"][0]["function"] == "from_the_table"


@contextlib.contextmanager
def open_drgn(demo, home, settings=""):
    """drgn's own prompt on the demo, with a configuration file."""
    (home / "kcovdbg").mkdir()
    (home / "kcovdbg/config.toml").write_text(settings)
    command = (sys.executable, "-m", "drgn", "-q", "-c", demo.core, "-s", demo.vmlinux)
    folders = {"XDG_CONFIG_HOME": str(home), "XDG_STATE_HOME": str(home)}
    with Screen(
        *command, rows=60, columns=200, DRGN_PLUGINS="kcov=kcovdbg.frontends.drgn_plugin", **folders
    ) as screen:
        screen.wait(at_prompt, seconds=60)
        yield screen


def at_prompt(screen):
    return screen.lines[screen.screen.cursor.y] == ">>>"


def test_lines_of_kcov_complete_at_drgns_prompt(demo, tmp_path):
    with open_drgn(demo, tmp_path) as screen:
        for typed, whole in (
            ("%kcov obj", "%kcov objects"),
            ("%kcov tasks --mode trace-c", "trace-cmp"),
            ("%kcov buffer fd:41/", r"fd:41/\d"),
            ("prog.main_th", "main_thread"),
        ):
            screen.type(f"{typed}\t", lambda screen, whole=whole: re.search(whole, screen.text))
            screen.type("\x15")


def test_columns(demo, tmp_path):
    settings = '[columns]\ntasks = ["comm", "pid"]\n'
    with open_drgn(demo, tmp_path, settings) as screen:
        screen.type(
            "%kcov tasks | head -1\r",
            lambda screen: ["COMM", "PID"] in [line.split() for line in screen.lines],
        )


def test_an_error_names_the_configuration_file(demo, tmp_path):
    with open_drgn(demo, tmp_path, 'color = "never"\ncolors = 1\n') as screen:
        screen.type("%kcov tasks\r")
        # The line is wrapped somewhere: paths differ in length.
        screen.wait(
            lambda screen: (
                f"{tmp_path}/kcovdbg/config.toml:unknownsetting" in "".join(screen.text.split())
            )
        )
        screen.wait(at_prompt)
        assert "Traceback" not in screen.text


def test_lines_run_on_a_program(capfd):
    prog = drgn.Program()
    assert run_in_drgn(prog, "") == 0
    everything = capfd.readouterr().out
    assert "\n  tasks " in everything
    run_in_drgn(prog, "help | head -1 | tr a-z A-Z")
    assert capfd.readouterr().out == everything.splitlines()[0].upper() + "\n"


def test_errors_are_drgns():
    with pytest.raises(CommandError) as caught:
        run_in_drgn(drgn.Program(), "taks")
    message, line, mark, hint = str(caught.value).split("\n")
    assert "taks" in message
    assert (line, mark) == ("  taks", "  ^")
    assert "tasks" in hint
