# SPDX-License-Identifier: LGPL-2.1-or-later
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kcovdbg
from kcovdbg.commands import COMMANDS
from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.command import Command
from kcovdbg.errors import TargetError, UsageError
from kcovdbg.frontends.cli import main
from kcovdbg.frontends.options import parse_options
from kcovdbg.render.renderable import text_lines
from kcovdbg.target.opening import TargetOptions
from tests.unit.state import make_layout, make_target

ROOT = Path(kcovdbg.__file__).parent.parent


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
        arguments=(Argument(("status",), Value.NUMBER, "s", count=Count.OPTIONAL, default=0),),
        needs=frozenset(),
    ),
    Command("interrupt", "a probe", _interrupt, needs=frozenset()),
)
TABLE = COMMANDS.with_commands(*PROBES)


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr("kcovdbg.commands.session.detect_layout", lambda _target: make_layout())
    return []


@pytest.fixture
def cli(opened, capsys, monkeypatch):
    def cli(*arguments, stdin=""):
        def open_target(options):
            opened.append(options)
            if options.core == "broken":
                raise TargetError("broken can't be opened", hint="try another")
            return make_target(name=options.core or "kernel")

        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        cli.status = main(arguments, open_target=open_target, commands=TABLE)
        cli.out, cli.err = capsys.readouterr()
        return cli.out

    return cli


@pytest.fixture
def files(tmp_path):
    """A vmlinux, a core, a script and what none of them is."""
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    (tmp_path / "vmlinux").write_bytes(ident + b"\x02\0" + bytes(64))
    (tmp_path / "vmcore").write_bytes(ident + b"\x04\0" + bytes(64))
    (tmp_path / "vmcore.kdump").write_bytes(b"KDUMP   " + bytes(64))
    (tmp_path / "vmlinuz").write_bytes(b"MZ\0\0" + bytes(64))
    (tmp_path / "script").write_text("#!/usr/bin/env kcovdbg\n# comment\nexit-with\n\nexit-with 1\n")
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


def test_where_the_source_is():
    options = parse_options(["--source-dir", "/src", "--substitute-path", "/build/linux=/src=old", "-e", "info"], COMMANDS)
    assert options.source_folders == ("/src",)
    assert options.substitutions == (("/build/linux", "/src=old"),)
    with pytest.raises(UsageError, match="takes FROM=TO, not /build"):
        parse_options(["--substitute-path", "/build", "-e", "info"], COMMANDS)


def test_files_as_in_crash(files):
    both = {files["vmlinux"], files["vmcore"]}
    for first, second in (("vmlinux", "vmcore"), ("vmcore", "vmlinux")):
        options = parse_options([files[first], files[second]], COMMANDS)
        assert set(options.target.files) == both
        assert options.script is None
    options = parse_options([files["vmlinux"], "-e", "info", files["vmcore.kdump"], "-e", "tasks"], COMMANDS)
    assert set(options.target.files) == {files["vmlinux"], files["vmcore.kdump"]}
    assert options.commands == ("info", "tasks")
    options = parse_options([files["vmcore"], "tasks", "-a", "--json", "x"], COMMANDS)
    assert options.words == ("tasks", "-a", "--json", "x")
    options = parse_options([files["vmcore"], files["script"]], COMMANDS)
    assert options.script == files["script"]
    assert parse_options([files["vmlinuz"]], COMMANDS).target.files == (files["vmlinuz"],)


def test_a_command_has_the_rest_for_itself():
    assert parse_options(["-c", "tasks", "info", "-e", "-c", "help"], COMMANDS).words == ("info", "-e", "-c", "help")
    assert parse_options(["-qe", "tasks"], COMMANDS).commands == ("tasks",)
    assert parse_options(["-etasks", "-q"], COMMANDS).commands == ("tasks",)
    assert parse_options(["--color", "never", "saved"], COMMANDS).words == ("saved",)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["taks"], "taks is neither a command nor a file", "did you mean tasks?"),
        (
            ["/no/such/vmcore"],
            "there is no file /no/such/vmcore",
            "check the name; a relative one starts at the working directory",
        ),
        (["--cor", "x"], "no option is called --cor", "did you mean --core or --color?"),
        (["-z"], "no option is called -z", "kcovdbg --help tells the options"),
        (["-c"], "argument -c/--core: expected one argument", "kcovdbg --help tells the options"),
        (["--color", "blue", "info"], None, "kcovdbg --help tells the options"),
        (["-e", "info", "tasks"], "-e and the command tasks exclude each other", "give each command by an -e of its own"),
    ],
)
def test_bad_usage(cli, arguments, message, hint):
    with pytest.raises(UsageError) as caught:
        parse_options(arguments, COMMANDS)
    assert message is None or str(caught.value) == message
    assert caught.value.hint == hint
    assert cli(*arguments) == ""
    assert cli.status == 2
    assert cli.err == f"kcovdbg: {caught.value}\n  {hint}\n"


def test_a_script_through_a_pipe(files, tmp_path):
    """As the shell's <(…) gives one: nothing is read of it before it is run."""
    os.mkfifo(tmp_path / "commands")
    options = parse_options([files["vmcore"], str(tmp_path / "commands")], COMMANDS)
    assert options.script == str(tmp_path / "commands")
    assert options.target.files == (files["vmcore"],)


def test_a_script_and_a_command(files):
    with pytest.raises(UsageError, match="is a script"):
        parse_options([files["script"], "-e", "info"], COMMANDS)
    with pytest.raises(UsageError, match="one script"):
        parse_options([files["script"], files["script"]], COMMANDS)


def test_a_command(cli, opened):
    assert json.loads(cli("-c", "dump", "info", "--json"))[0]["target"] == "dump"
    assert cli.status == 0
    assert opened == [TargetOptions(core="dump")]


def test_several_commands_share_a_target_and_the_highest_status(cli, opened):
    out = cli("-c", "dump", "-e", "info", "-e", "exit-with 1", "-e", "nonsense", "-e", "exit-with", "-e", "info | cat")
    assert out.count("status") == 2
    assert cli.err.startswith("kcovdbg: no command is called nonsense\n")
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
    assert cli.err == "kcovdbg: tasks has no option -c\n  -c comes before the command\n"


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
    assert cli.out == "status 0\nstatus 0\n"
    assert cli.err.startswith("kcovdbg: standard input:2: no command is called nonsense\n  nonsense\n  ^\n")
    assert cli.status == 2
    cli("-e", "exit-with", stdin="nonsense")
    assert cli.status == 0


def test_a_script(cli, files):
    assert cli(files["script"]) == "status 0\nstatus 1\n"
    assert cli.status == 1


def test_debug(cli):
    cli("--debug", "-e", "nonsense")
    assert "Traceback" in cli.err
    cli("--debug", "nonsense")
    assert "Traceback" in cli.err
    cli("nonsense")
    assert "Traceback" not in cli.err


def test_color(cli, monkeypatch):
    assert "\x1b" not in cli("-c", "x", "info")
    assert "\x1b[1m" in cli("--color", "always", "-c", "x", "info")
    assert "\x1b" not in cli("--color=always", "-c", "x", "info", "--json")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\x1b[1m" in cli("-c", "x", "info")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in cli("-c", "x", "info")


def run(*arguments, **options):
    options = {"capture_output": True, "text": True, "cwd": ROOT, "stdin": subprocess.DEVNULL} | options
    return subprocess.run([sys.executable, "-m", "kcovdbg", *arguments], **options)


def test_as_a_program():
    assert run("--version").stdout == f"kcovdbg {kcovdbg.__version__}\n"
    result = run("taks")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "kcovdbg: taks is neither a command nor a file\n  did you mean tasks?\n"
    result = run(stdin=None, input="help | head -1\n!echo x\n")
    assert result.stdout.split() == ["COMMAND", "SHOWS", "x"]
    assert run(stdin=None, input="").returncode == 0


@pytest.mark.parametrize("lines", [["help"], ["-e", "help", "-e", "help tasks"]])
def test_a_closed_pipe_is_no_error(lines):
    read, write = os.pipe()
    os.close(read)
    try:
        result = run(*lines, capture_output=False, stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_full_disk_is_one():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with Path("/dev/full").open("w") as full:
        result = run("help", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (2, "kcovdbg: No space left on device\n")


def test_a_locale_that_cannot_show_it():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = run("help", "tasks", env=environment)
    assert result.returncode == 0
    assert "[PATTERN|TID\\u2026]" in result.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_ended_leaves_nothing_behind(tmp_path, number):
    """What was decompressed goes, when a terminal is closed for instance."""
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kcovdbg", "--demo"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as process:
        process.stdin.write("info\n")
        process.stdin.flush()
        # It reads on in a pipe, so that it is there, and knows the dump, until it is ended.
        assert process.stdout.read(1)
        assert list(tmp_path.glob("kcovdbg-*"))
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert list(tmp_path.glob("kcovdbg-*")) == []
