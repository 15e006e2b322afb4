# SPDX-License-Identifier: LGPL-2.1-or-later
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kcovdbg
from kcovdbg.collect import doctor_command as doctor
from kcovdbg.commands import COMMANDS
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.command import Command
from kcovdbg.console.renderable import text_lines
from kcovdbg.errors import TargetError, UsageError
from kcovdbg.frontends.cli import main
from kcovdbg.frontends.options import parse_options
from kcovdbg.records.input_kind import InputKind, find_kind
from kcovdbg.target.target_options import TargetOptions
from tests.support.state import make_layout, make_target

ROOT = Path(kcovdbg.__file__).parents[1]


def _exit(context, args):
    context.status = args.status
    return text_lines(f"status {args.status}")


def _interrupt(_context, _args):
    raise KeyboardInterrupt


PROBES = (
    Command(
        "exit-with",
        "a probe",
        _exit,
        arguments=(Argument("status [STATUS]", Value.NUMBER, "s", default=0),),
        needs=frozenset(),
    ),
    Command("interrupt", "a probe", _interrupt, needs=frozenset()),
)
TABLE = COMMANDS.with_commands(*PROBES)


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr("kcovdbg.inputs.kernel_memory.detect_layout", lambda _target: make_layout())
    return []


@pytest.fixture
def cli(opened, capsys, monkeypatch):
    def cli(*arguments, stdin=""):
        def open_target(options):
            opened.append(options)
            if options.core == "broken":
                raise TargetError("broken can't be opened", hint="try another")
            return make_target(name=options.core or "kernel")

        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        cli.status = main(arguments, open_target=open_target, commands=TABLE)
        cli.out, cli.err = capsys.readouterr()
        return cli.out

    return cli


@pytest.fixture
def files(tmp_path):
    """A vmlinux, a core, scripts, and a file of another kind."""
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    (tmp_path / "vmlinux").write_bytes(ident + b"\x02\0" + bytes(64))
    (tmp_path / "vmcore").write_bytes(ident + b"\x04\0" + bytes(64))
    (tmp_path / "vmcore.kdump").write_bytes(b"KDUMP   " + bytes(64))
    (tmp_path / "vmlinuz").write_bytes(b"MZ\0\0" + bytes(64))
    (tmp_path / "script").write_text(
        "#!/usr/bin/env kcovdbg\n# comment\nexit-with\n\nexit-with 1\n"
    )
    (tmp_path / "commands").write_text("exit-with\n\nexit-with 1\n")
    return {path.name: str(path) for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], TargetOptions()),
        (["-k"], TargetOptions(kernel=True)),
        (["-c", "dump", "-s", "a", "-s", "b"], TargetOptions(core="dump", symbols=("a", "b"))),
        (["--core=dump"], TargetOptions(core="dump")),
        (["--qemu", "/run/qmp"], TargetOptions(qemu="/run/qmp")),
        (["--gdb-remote", "localhost:1234"], TargetOptions(gdb_remote="localhost:1234")),
        (["--demo", "-q"], TargetOptions(demo=True)),
    ],
)
def test_targets(arguments, expected):
    options = parse_options([*arguments, "-e", "info"], COMMANDS)
    assert options.target == expected
    assert options.commands == ("info",)


@pytest.mark.parametrize(
    "arguments", [[""], ["-c", ""], ["--core="], ["-s", ""], ["--qemu", ""], ["--gdb-remote", ""]]
)
def test_empty_values_are_refused(arguments):
    """A variable of a script that is not set must not open the running kernel."""
    with pytest.raises(UsageError):
        parse_options([*arguments, "-e", "info"], COMMANDS)


def test_where_the_source_is():
    options = parse_options(
        ["--source-dir", "/src", "--substitute-path", "/build/linux=/src=old", "-e", "info"],
        COMMANDS,
    )
    assert options.source_folders == ("/src",)
    assert options.substitutions == (("/build/linux", "/src=old"),)
    with pytest.raises(UsageError, match=r"FROM=TO.*/build"):
        parse_options(["--substitute-path", "/build", "-e", "info"], COMMANDS)


def test_files_as_in_crash(files):
    both = {files["vmlinux"], files["vmcore"]}
    for first, second in (("vmlinux", "vmcore"), ("vmcore", "vmlinux")):
        options = parse_options([files[first], files[second]], COMMANDS)
        assert set(options.target.files) == both
        assert options.script is None
    options = parse_options(
        [files["vmlinux"], "-e", "info", files["vmcore.kdump"], "-e", "tasks"], COMMANDS
    )
    assert set(options.target.files) == {files["vmlinux"], files["vmcore.kdump"]}
    assert options.commands == ("info", "tasks")
    options = parse_options([files["vmcore"], "tasks", "-a", "--json", "x"], COMMANDS)
    assert options.words == ("tasks", "-a", "--json", "x")
    options = parse_options([files["vmcore"], files["script"]], COMMANDS)
    assert (options.script, options.is_script_named) == (files["script"], False)
    options = parse_options([files["vmcore"], "--script", files["commands"]], COMMANDS)
    assert (options.script, options.is_script_named) == (files["commands"], True)
    assert parse_options([files["vmlinuz"]], COMMANDS).target.files == (files["vmlinuz"],)


@pytest.mark.parametrize(
    "text",
    [
        "ffffffff8108cb35\n",
        "0xffffffff8108cb35,\n",
        "\ufeff8\n-2130195659\n",
        "18446744071579388725\n",
    ],
)
def test_a_list_of_pcs_is_no_script(files, tmp_path, text):
    trace = tmp_path / "run.hex"
    trace.write_text(text)
    for paths in ([files["vmlinux"], str(trace)], [str(trace), files["vmlinux"]]):
        options = parse_options(paths, COMMANDS)
        (named,) = options.inputs
        assert (named.path, named.found.kind) == (str(trace), InputKind.TRACE)
        assert (options.target.files, options.script) == ((files["vmlinux"],), None)


def test_a_command_has_the_rest_for_itself():
    assert parse_options(["-c", "tasks", "info", "-e", "-c", "help"], COMMANDS).words == (
        "info",
        "-e",
        "-c",
        "help",
    )
    assert parse_options(["-qe", "tasks"], COMMANDS).commands == ("tasks",)
    assert parse_options(["-etasks", "-q"], COMMANDS).commands == ("tasks",)
    assert parse_options(["--color", "never", "saved"], COMMANDS).words == ("saved",)


@pytest.mark.parametrize(
    ("arguments", "named", "suggested"),
    [
        (["taks"], {"taks"}, {"tasks"}),
        (["bt"], {"bt"}, {"last"}),
        (["ps"], {"ps"}, {"tasks"}),
        (["/no/such/vmcore"], {"/no/such/vmcore"}, set()),
        (["--cor", "x"], {"--cor"}, {"--core", "--color"}),
        (["-z"], {"-z"}, {"--help"}),
        (["-c"], {"--core"}, {"--help"}),
        (["--color", "blue", "info"], {"--color", "blue"}, {"--help"}),
        (["-e", "info", "tasks"], {"-e", "tasks"}, {"-e"}),
    ],
)
def test_bad_usage(cli, arguments, named, suggested):
    with pytest.raises(UsageError) as caught:
        parse_options(arguments, COMMANDS)
    assert named <= words_of(str(caught.value))
    assert caught.value.hint
    assert suggested <= words_of(caught.value.hint)
    assert cli(*arguments) == ""
    assert cli.status == 2
    assert cli.err == f"kcovdbg: {caught.value}\n  {caught.value.hint}\n"


def words_of(message):
    """Return the words of a message, with options and paths whole."""
    return set(re.findall(r"[/\w-]+(?:/[\w-]+)*", message.replace("/--", " --")))


def test_a_script_through_a_pipe(files, tmp_path):
    """A script from the shell's <(…): nothing of it is read before it is run, and it is one only by
    the option.
    """
    os.mkfifo(tmp_path / "pipe")
    options = parse_options([files["vmcore"], "--script", str(tmp_path / "pipe")], COMMANDS)
    assert options.script == str(tmp_path / "pipe")
    assert options.target.files == (files["vmcore"],)
    options = parse_options([files["vmcore"], str(tmp_path / "pipe")], COMMANDS)
    assert options.script is None
    assert [one.found.kind for one in options.inputs] == [InputKind.PIPE]


def test_a_script_and_a_command(files):
    with pytest.raises(UsageError, match=re.escape(files["script"])):
        parse_options([files["script"], "-e", "info"], COMMANDS)
    with pytest.raises(UsageError, match=re.escape(files["script"])):
        parse_options([files["script"], files["script"]], COMMANDS)
    with pytest.raises(UsageError, match=re.escape(files["commands"])):
        parse_options(["--script", files["commands"], "info"], COMMANDS)


def test_a_command(cli, opened):
    assert json.loads(cli("-c", "dump", "info", "--json"))[0]["target"] == "dump"
    assert cli.status == 0
    assert opened == [TargetOptions(core="dump")]


def test_several_commands_share_a_target_and_the_highest_status(cli, opened):
    out = cli(
        "-c",
        "dump",
        "-e",
        "info",
        "-e",
        "exit-with 1",
        "-e",
        "nonsense",
        "-e",
        "exit-with",
        "-e",
        "info | cat",
    )
    assert out.count("status") == 2
    assert re.match(r"kcovdbg: .*\bnonsense\b", cli.err)
    assert cli.status == 2
    assert len(opened) == 1
    cli("-e", "exit-with 1", "-e", "exit-with 0")
    assert cli.status == 1


def test_exit_statuses(cli):
    cli("exit-with", "1")
    assert cli.status == 1
    cli("exit-with")
    assert cli.status == 0
    cli("interrupt")
    assert cli.status == 130
    cli("-e", "interrupt", "-e", "exit-with")
    assert (cli.status, cli.out) == (130, "")
    cli("-c", "broken", "info")
    assert cli.status == 2
    assert cli.err == "kcovdbg: broken can't be opened\n  try another\n"


def test_misplaced_options(cli):
    cli("tasks", "-c", "dump")
    assert cli.status == 2
    message, hint = cli.err.splitlines()
    assert {"tasks", "-c"} <= words_of(message)
    assert "-c" in words_of(hint)


def test_help_and_version(cli, opened):
    assert cli("--version") == f"kcovdbg {kcovdbg.__version__}\n"
    for arguments in (["--help"], ["-h"], ["-c", "x", "--help"]):
        out = cli(*arguments)
        assert out.startswith("Usage: kcovdbg [TARGET]")
        assert all(command.summary in out for command in COMMANDS)
        assert all(len(line) <= 100 for line in out.splitlines())
    assert cli("tasks", "--help") == cli("help", "tasks")
    assert not opened


def test_standard_input_is_a_script(cli):
    assert cli(stdin="exit-with\n# nothing\n\nexit-with 1\n") == "status 0\nstatus 1\n"
    assert cli.status == 1
    cli(stdin="exit-with\nnonsense\nexit-with\n")
    # The first error ends it; a violation, whose status is 1, is none.
    assert cli.out == "status 0\n"
    message, line, mark, *_ = cli.err.splitlines()
    assert re.match(r"kcovdbg: standard input:2: .*\bnonsense\b", message)
    assert (line, mark) == ("  nonsense", "  ^")
    assert cli.status == 2
    cli("-e", "exit-with", stdin="nonsense")
    assert cli.status == 0


def test_a_script(cli, files):
    for arguments in (
        [files["script"]],
        ["--script", files["script"]],
        ["--script", files["commands"]],
    ):
        assert cli(*arguments) == "status 0\nstatus 1\n"
        assert cli.status == 1
    assert cli("--script", "-", stdin="exit-with\nexit-with 1\n") == "status 0\nstatus 1\n"
    cli(files["commands"])
    assert (cli.status, cli.out) == (2, "")
    assert "--script" in cli.err


def test_a_script_with_a_trace(cli, tmp_path):
    """A trace beside a script is kept for its lines, and not answered in place of them."""
    trace = tmp_path / "pcs.txt"
    trace.write_text("0xffffffff81000010\n0xffffffff81000020\n")
    assert cli("--script", "-", str(trace), stdin="exit-with 1\n") == "status 1\n"
    assert cli.status == 1


ACTIONS = (
    "! touch made",
    "help > made",
    "help >> made",
    "help | tee made",
    "help; help > made",
    "collect -- touch made",
    "export hex 41 -o made",
    "demo made",
    "batch -e help -o made .",
    "< commands",
)


@pytest.mark.parametrize("line", ACTIONS)
def test_only_a_named_script_acts(cli, files, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "commands").write_text("! touch made\n")
    (tmp_path / "look").write_text(f"#!/usr/bin/env kcovdbg\nexit-with\n{line}\nexit-with\n")
    for arguments, stdin in (
        ([str(tmp_path / "look")], ""),
        ([], f"exit-with\n{line}\nexit-with\n"),
        ([], f"{line}\n"),
    ):
        cli(*arguments, stdin=stdin)
        assert (cli.status, "--script" in cli.err) == (2, True)
        assert cli.out.count("status 0") == (0 if stdin.startswith(line) else 1)
        assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("line", ACTIONS[:5])
def test_a_named_script_acts(cli, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "look").write_text(f"{line}\n")
    for arguments, stdin in (
        (["--script", "look"], ""),
        (["--script", "-"], f"{line}\n"),
        (["-e", line], ""),
    ):
        cli(*arguments, stdin=stdin)
        assert (cli.status, cli.err) == (0, "")
        (tmp_path / "made").unlink()


LOG = (
    "[    0.000000] Linux version 6.12\n[    0.100000] Command line: quiet\n[    1.000000]  "
    "ksys_read+0x70/0x100\n"
)


@pytest.mark.parametrize(
    "first", ["", "help > made\n", "! touch made\n", "exit-with\n", "#!/usr/bin/kcovdbg\n"]
)
def test_a_log_is_no_script(files, tmp_path, first):
    """Neither is one whose first lines are commands: who writes a log writes all of it."""
    path = tmp_path / "serial.log"
    path.write_text(first + LOG)
    options = parse_options([files["vmlinux"], str(path)], COMMANDS)
    kinds = [one.found.kind for one in options.inputs]
    assert (kinds, options.script) == ([InputKind.LOG], None)


@pytest.mark.parametrize(
    "line",
    [
        "sym vfs_read+0x15/0x40",
        "sym 0xffffffff81000005 0xffffffff81000015",
        "tasks?",
        "top 41 | head",
    ],
)
def test_commands_about_code_are_a_script(tmp_path, line):
    path = tmp_path / "look"
    path.write_text(
        f"#!/usr/bin/env kcovdbg\n{line}\n# [    0.000000] Linux\n{line}\nsmy vfs_read+0x15/0x40\n"
    )
    assert parse_options([str(path)], COMMANDS).script == str(path)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (
            b"diff --git a/fs/a.c b/fs/a.c\n--- a/fs/a.c\n+++ b/fs/a.c\n@@ -1,1 +1,1 @@\n-a\n+b\n",
            "patch",
        ),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\0" + bytes(64), "dump"),
        (b"KDUMP   " + bytes(64), "dump"),
        (b"TN:\nSF:a.c\nDA:1,1\nend_of_record\n", "lcov"),
        (b'{"workdir": "/syz/workdir"}\n', "configuration"),
        (b"\x1f\x8b\x08\0", "gzip"),
    ],
)
def test_other_kinds_on_standard_input_are_refused_by_name(cli, monkeypatch, data, named):
    monkeypatch.setattr("os.dup2", lambda *_: None)
    monkeypatch.setattr(
        "kcovdbg.frontends.standard_input.find_path_kind", lambda _path: find_kind(data)
    )
    cli(stdin=data)
    assert cli.status == 2
    assert named in cli.err
    assert cli.out == ""


def test_words_that_are_none_are_reported_once(cli):
    for text in ("some\nwords\nof text\n", "taks\n", "nothing\nexit-with\n"):
        cli(stdin=text)
        assert (cli.status, cli.out) == (2, "")
        assert re.match(r"kcovdbg: standard input:1: ", cli.err)
        assert "standard input:2" not in cli.err


def test_debug(cli):
    cli("--debug", "-e", "nonsense")
    assert "Traceback" in cli.err
    cli("--debug", "nonsense")
    assert "Traceback" in cli.err
    cli("nonsense")
    assert "Traceback" not in cli.err


def test_color(cli, monkeypatch):
    # A dumb terminal has no colors.
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b" not in cli("-c", "x", "info")
    assert "\x1b[1m" in cli("--color", "always", "-c", "x", "info")
    assert "\x1b" not in cli("--color=always", "-c", "x", "info", "--json")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\x1b[1m" in cli("-c", "x", "info")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in cli("-c", "x", "info")


def test_only_relative_paths_start_at_the_working_directory(capsys, tmp_path):
    def hint(path):
        assert main(["-c", str(path), "info"]) == 2
        _, *hints = capsys.readouterr().err.splitlines()
        return "".join(hints)

    assert "working directory" in hint("nowhere/vmcore")
    assert hint(tmp_path / "vmcore").endswith(f"ls {tmp_path} lists the files there")
    assert hint(tmp_path / "a" / "b" / "vmcore").endswith(f"no directory {tmp_path / 'a'}")


def test_doctor_exits_1_when_something_is_missing(cli, monkeypatch):
    def answers(*oks):
        checks = [
            ("is it there?", lambda _context, ok=ok: doctor.Diagnosis(ok, "an answer"))
            for ok in oks
        ]
        monkeypatch.setattr(doctor, "_CHECKS", checks)
        rows = json.loads(cli("doctor", "--json"))
        assert [row["ok"] for row in rows] == list(oks)
        return cli.status

    assert answers(True, False, True) == 1
    # What is unknown may be there.
    assert answers(True, None) == 0


@pytest.mark.parametrize("commands", ["", "\n \n"])
def test_a_target_that_cannot_be_opened_is_reported_without_commands(tmp_path, commands):
    words = [sys.executable, "-m", "kcovdbg", "-c", str(tmp_path / "none")]
    done = subprocess.run(words, input=commands, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "none" in done.stderr
