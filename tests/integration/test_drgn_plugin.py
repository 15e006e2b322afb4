# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines of kcovdbg in drgn, and the plugin, which drgn imports at every start: importing it must be cheap."""

import json
import os
import subprocess
import sys

import drgn
import pexpect
import pytest
from drgn.commands import CommandError

from kcovdbg.elf.file import ElfFile
from kcovdbg.frontends.drgn_commands import run_in_drgn
from kcovdbg.model.location import Frame
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import TextRange
from tests.support.table_writer import TableWriter


def test_the_plugin_imports_next_to_nothing():
    code = (
        "import sys, drgn, drgn.commands.linux\n"
        "before = set(sys.modules)\n"
        "import kcovdbg.frontends.drgn_plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == ["kcovdbg", "kcovdbg.frontends", "kcovdbg.frontends.drgn_plugin"]


def test_the_symbol_table_of_the_build_in_the_configuration(demo, tmp_path):
    with ElfFile(demo.vmlinux) as elf:
        writer = TableWriter(
            elf.build_id, [TextRange(text.address, text.address + text.size, ".text") for text in elf.text_sections()]
        )
        pc = elf.section(".text").address + 9
    writer.add_frames(pc, PointKind.PC, (Frame("from_the_table", "a.c", 7, None),))
    writer.write(tmp_path / "table")
    (tmp_path / "kcovdbg").mkdir()
    (tmp_path / "kcovdbg/config.toml").write_text(f'symbol-tables = ["{tmp_path}/table"]\n')
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    in_drgn = (
        "import drgn, sys; from kcovdbg.frontends.drgn_commands import run_in_drgn; prog = drgn.Program()\n"
        f"prog.set_core_dump('{demo.core}'); prog.load_debug_info(['{demo.vmlinux}'])\n"
        f"sys.exit(run_in_drgn(prog, 'sym {pc:#x} --json'))"
    )
    alone = [sys.executable, "-m", "kcovdbg", demo.core, demo.vmlinux, "sym", f"{pc:#x}", "--json"]
    for command in ([sys.executable, "-c", in_drgn], alone):
        result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert result.returncode == 0, result.stderr
        (row,) = json.loads(result.stdout)
        assert row["frames"][0]["function"] == "from_the_table"


def test_lines_of_kcov_complete_at_drgns_prompt(demo, tmp_path):
    environment = {**os.environ, "TERM": "dumb", "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "drgn", "-q", "-c", f"{demo.core}", "-s", f"{demo.vmlinux}"]
    shell = pexpect.spawn(command[0], command[1:], env=environment, dimensions=(40, 200), encoding="utf-8", timeout=60)
    shell.expect(r"linux import \*\s+>>> ")
    for typed, whole in (
        ("%kcov obj", "%kcov objects"),
        ("%kcov tasks --mode trace-c", "trace-cmp"),
        ("%kcov buffer fd:41/", r"fd:41/\d"),
        ("prog.main_th", "main_thread"),
    ):
        shell.send(f"{typed}\t")
        shell.expect(whole)
        shell.sendcontrol("u")
    shell.close(force=True)


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
