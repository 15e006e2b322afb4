# SPDX-License-Identifier: LGPL-2.1-or-later
"""The configuration file, as the program reads it at its start."""

import json
import os
import re

import jsonschema
import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.json_schema import schema_of
from kcovdbg.console.settings import read_settings
from kcovdbg.console.terminal import Color
from kcovdbg.frontends.cli import main
from kcovdbg.frontends.shell.pager import find_pager
from tests.support.screen import ROOT


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("PAGER", raising=False)

    def write(text):
        path = tmp_path / "kcovdbg" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def origins(capsys, *words):
    assert main([*words, "config", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    return {
        row["setting"]: (row["value"], row["origin"])
        for row in rows
        if not row["setting"].startswith("limits.")
    }


def test_without_a_file(write, capsys):
    assert origins(capsys) == {
        "color": ("auto", "default"),
        "pager": ("less", "default"),
        "keys": ("auto", "default"),
    }


def test_what_is_in_force_and_from_where(write, capsys):
    path = write(
        'color = "never"\nkeys = "vi"\nsource-dirs = ["/src"]\nsymbol-tables = '
        '["/t"]\n[substitute-paths]\n"/b=" = "/s"\n'
        '[columns]\n"tasks" = ["pid"]\n'
    )
    assert origins(capsys, "--source-dir", "/mine") == {
        "color": ("never", str(path)),
        "pager": ("less", "default"),
        "keys": ("vi", str(path)),
        "source-dirs": ("/src", str(path)),
        "symbol-tables": ("/t", str(path)),
        "substitute-paths./b=": ("/s", str(path)),
        "columns.tasks": ("pid", str(path)),
    }
    assert origins(capsys, "--color", "always")["color"] == ("always", "command line")


def test_a_wrong_setting_has_its_default(write, capsys):
    path = write('color = "red"\nkeys = "vi"\n')
    found = origins(capsys)
    assert found["color"] == ("auto", "default")
    assert found["keys"] == ("vi", str(path))
    assert found["not used"] == (None, str(path))
    schema = schema_of("config", COMMANDS.find("config").row_types)
    assert main(["config", "--json"]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), schema)


def test_columns_are_used(write, capsys):
    write('columns = { help = ["command"] }\n')
    assert main(["help"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "COMMAND"
    assert main(["-e", "help --columns summary"]) == 0
    assert "SUMMARY" in capsys.readouterr().out.splitlines()


def test_the_pager_goes_before_the_environment(tmp_path):
    (tmp_path / "mine").write_text("#!/bin/sh\n")
    (tmp_path / "mine").chmod(0o755)
    environment = {"TERM": "xterm", "PATH": f"{tmp_path}:{os.environ['PATH']}", "PAGER": "cat"}
    assert find_pager(environment, "mine -x") == "mine -x"
    assert find_pager(environment, "") is None
    assert find_pager(environment) == "cat"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('color = "always"\ncolour = "never"\n', "'colour'"),
        ('\ncolor = "red"\n', "'red'"),
        ("keys = 3\n", "'3'"),
        ('source-dirs = "/src"\n', "source-dirs"),
        ('columns = ["pid"]\n', "columns"),
        ('[columns]\ntasks = ["pid"]\ntaks = ["pid"]\n', "'taks'"),
        ('[aliases]\na = "info"\n', "'aliases'"),
        ("pager = [\n", "line 1"),
    ],
)
def test_a_wrong_setting_is_told_and_not_used(write, capsys, text, named):
    path = write(f"{text}\n[limits]\nreply-time = 7\n")
    assert main(["-e", "help"]) == 0
    (told,) = capsys.readouterr().err.splitlines()
    assert re.search(rf" {re.escape(str(path))}: .*{named}", told)
    assert main(["config", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["origin"] for row in rows if row["problem"] is not None] == [str(path)]
    # The rest of the file is in force.
    assert [row["value"] for row in rows if row["setting"] == "limits.reply-time"] == ["7"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('pager = [\nkeys = "vi"\n', [1]),
        ('keys = "vi"\npager = less\n', [2]),
        ('source-dirs = ["/a",\nkeys = "vi"\n', [1]),
        ('pager = less\nkeys = "vi"\nkeys = "emacs"\n', [1, 3]),
    ],
)
def test_lines_that_are_not_toml_are_left_out(write, text, wrong):
    write(text)
    settings = read_settings(COMMANDS, os.environ)
    assert settings.keys == "vi"
    assert (
        sorted(int(re.match(r"line (\d+)", problem.text)[1]) for problem in settings.problems)
        == wrong
    )


def test_a_file_that_cannot_be_read(write):
    path = write("")
    path.write_bytes(b"\xff")
    settings = read_settings(COMMANDS, os.environ)
    assert (settings.path, len(settings.problems)) == (path, 1)


def test_a_column_that_a_command_does_not_have(write, capsys):
    path = write('\n[columns]\nhelp = ["nosuch"]\n')
    assert main(["-e", "help"]) == 2
    assert capsys.readouterr().err.startswith(f"kcovdbg: {path}: ")


def test_the_documented_file_is_valid(write):
    (text,) = re.findall(
        r"```toml\n(.*?)```", (ROOT / "docs/configuration.md").read_text(), re.DOTALL
    )
    write(text)
    settings = read_settings(COMMANDS, os.environ)
    assert (settings.color, settings.keys) == (Color.AUTO, "vi")
    assert settings.substitute_paths == (("/build/linux", "/usr/src/linux"),)
