# SPDX-License-Identifier: LGPL-2.1-or-later
"""``monitor`` as a command: its errors, its output, and the summary of the recording in the
examples.
"""

import io
import json
import re
import signal
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Workspace
from kcovdbg.console.runner import run_words
from kcovdbg.console.terminal import Terminal
from kcovdbg.errors import GoneError, KcovdbgError
from kcovdbg.frontends.cli import main
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.monitor import command, monitor_source
from kcovdbg.monitor.samples import read_samples
from kcovdbg.target.connection import MachineState
from kcovdbg.target.watchpoints import RunEnd
from tests.support.clock import Clock
from tests.support.samples import FakeMachine, FakeSource, kcov, sample, task
from tests.support.state import make_layout, make_target, strict_schema

EXAMPLE = str(Path(__file__).parents[3] / "examples/fuzz.jsonl")


@pytest.fixture
def kernel(monkeypatch):
    def make(*answers, is_terminal=False, **values):
        def make_source(_target, _layout, _names, *options):
            return FakeSource(
                *answers,
                **dict(zip(("interval", "share", "record", "machine"), options, strict=True)),
            )

        monkeypatch.setattr(command, "LiveSource", make_source)
        target = make_target(
            **{"live": True, "state": lambda: MachineState.RUNNING, "watchpoints": None, **values}
        )
        workspace = Workspace(COMMANDS, UserInputs(Kernel(KernelOptions(lambda: target))))
        workspace.inputs.kernel.memory.layout = make_layout()
        stdout = io.StringIO()
        terminal = Terminal(stdout, io.StringIO(), 80 if is_terminal else None)
        return workspace, terminal, stdout

    return make


def looks(count=5):
    return [sample(number / 10, task(100 * number), objects=(kcov(),)) for number in range(count)]


def run(made, *words):
    workspace, terminal, stdout = made
    status = run_words(workspace, ["monitor", *words], terminal)
    return status, stdout.getvalue()


def refuse(made, *words):
    with pytest.raises(KcovdbgError) as refused:
        run(made, *words)
    return refused.value


def test_without_a_terminal_it_names_what_works(kernel):
    error = refuse(kernel(*looks()))
    assert "--record" in error.hint
    assert "--jsonl" in error.hint


@pytest.mark.usefixtures("clock")
def test_looks_are_printed_without_a_screen(kernel):
    """Each count of a look is printed once; lines that stay the same are not repeated."""
    words = ("--print", "--seconds", "0.5", "--interval", "0.125", "--cpu", "100")
    _, text = run(kernel(*looks()), *words)
    counts = [int(count) for count in re.findall(r"%\] +([1-9]00) ", text)]
    assert counts == sorted(set(counts))
    assert len(counts) > 1
    assert text.count("PID") == 1


def test_a_dump_is_refused(kernel):
    error = refuse(kernel(*looks(), live=False, state=lambda: None), "--record", "x.jsonl")
    assert "vmcore" in str(error)
    assert not Path("x.jsonl").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--summary"],
        ["-o", "page.html"],
        [EXAMPLE, "--summary", "--record", "x"],
        [EXAMPLE, "--record", "x"],
        ["--record", "x", "--cpu", "0"],
        ["--record", "x", "--cpu", "101"],
        ["/nowhere/at/all.jsonl", "--summary"],
        ["--record", "/nowhere/at/all.jsonl"],
        [EXAMPLE, "--summary", "-o", EXAMPLE],
        [EXAMPLE, "--summary", "--json", "-o", "-"],
    ],
)
def test_what_makes_no_sense_is_refused(kernel, words):
    refuse(kernel(*looks()), *words)
    assert list(read_samples(EXAMPLE))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(monitor_source, "time", clock)


@pytest.mark.usefixtures("clock")
def test_rows_are_printed_one_by_one(kernel):
    status, printed = run(
        kernel(*looks()), "--jsonl", "--seconds", "0.5", "--interval", "0.125", "--cpu", "100"
    )
    rows = [json.loads(line) for line in printed.splitlines()]
    assert status == 0
    assert [row["tasks"][0]["count"] for row in rows] == [0, 100, 200, 300, 400]
    jsonschema.validate(rows, strict_schema("monitor"))


@pytest.mark.usefixtures("clock")
def test_a_recording_without_a_terminal(kernel, tmp_path):
    path = tmp_path / "run.jsonl"
    made = kernel(*looks())
    status, printed = run(
        made, "--record", str(path), "--seconds", "0.5", "--interval", "0.125", "--cpu", "100"
    )
    assert status == 0
    assert list(read_samples(str(path))) == looks()[:5]
    assert "5 looks in" in printed


def record(made, path, *words):
    """Record as fast as it goes; return the samples."""
    assert run(made, "--record", str(path), "--interval", "0.01", "--cpu", "100", *words)[0] == 0
    return list(read_samples(str(path)))


@pytest.mark.parametrize(
    ("end", "states"),
    [(KeyboardInterrupt(), ["running"] * 2), (GoneError("guest"), ["running", "running", "gone"])],
)
def test_the_end_of_a_recording_keeps_it(kernel, tmp_path, end, states):
    found = record(kernel(*looks(2), end), tmp_path / "run.jsonl")
    assert [one.state for one in found] == states


def end_this_process():
    # Without a handler, it would end the tests.
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("words", [(), ("--jsonl",)])
def test_a_signal_ends_a_recording_and_keeps_it(kernel, tmp_path, words):
    path = tmp_path / "run.jsonl"
    made = kernel(*looks(2), end_this_process)
    with pytest.raises(SystemExit) as ended:
        run(made, "--record", str(path), "--interval", "0.01", "--cpu", "100", *words)
    assert ended.value.code == 128 + signal.SIGTERM
    assert len(list(read_samples(str(path)))) == 2


@pytest.mark.parametrize(
    ("ends", "states"),
    [
        ((RunEnd.TIME, RunEnd.TIME, RunEnd.OTHER), ["running"] * 3 + ["stopped"]),
        ((RunEnd.INTERRUPT,), ["running"]),
    ],
)
def test_a_machine_behind_a_stub_runs_between_looks(kernel, tmp_path, ends, states):
    machine = FakeMachine(*ends)
    made = kernel(*looks(9), live=False, state=lambda: MachineState.STOPPED, watchpoints=machine)
    assert [one.state for one in record(made, tmp_path / "run.jsonl")] == states
    assert not machine.ends


def test_the_screen_gets_the_source_and_what_views_a_buffer(kernel, tmp_path, monkeypatch):
    made = kernel(*looks(), is_terminal=True)
    shown, viewed = [], []

    def show(source, view):
        shown.append((source.activity.looks, source.share))
        viewed.append(view("41"))

    made[0].frontend = replace(made[0].frontend, has_screen=True)
    monkeypatch.setattr("kcovdbg.monitor.screen.show_monitor", show)
    monkeypatch.setattr("kcovdbg.monitor.command.make_followed_view", lambda _context, name: name)
    monkeypatch.setattr("kcovdbg.buffers.view_screen.show_view", viewed.append)
    path = tmp_path / "run.jsonl"
    status, printed = run(made, "--record", str(path), "--cpu", "5")
    assert status == 0
    assert shown == [(1, 0.05)]
    assert viewed == ["41", ""]
    assert "1 looks in" in printed


def test_errors_of_the_first_look_need_no_screen(kernel, monkeypatch):
    made = kernel(KcovdbgError("it cannot be read"), is_terminal=True)
    made[0].frontend = replace(made[0].frontend, has_screen=True)
    monkeypatch.setattr("kcovdbg.monitor.screen.show_monitor", lambda *_: pytest.fail("shown"))
    assert "it cannot be read" in str(refuse(made))


def test_summary_of_the_example(kernel):
    status, printed = run(kernel(), EXAMPLE, "--summary", "--json")
    assert status == 0
    rows = json.loads(printed)
    jsonschema.validate(rows, strict_schema("monitor"))
    assert run(kernel(), EXAMPLE, "--json") == (status, printed)
    (row,) = rows
    # The programs that ran in the guest: tests/lab/programs/rounds.c, called with 5 and 4.
    (filled,) = [buffer for buffer in row["buffers"] if "rounds-fill" in buffer["tasks"][0]]
    assert (filled["size"], filled["overflows"], filled["rounds"], filled["needed_size"]) == (
        512,
        5,
        5,
        2048,
    )
    assert [(section["handle"], section["begun"]) for section in row["sections"]] == [("0x5ec7", 4)]
    assert sum(place["share"] for place in row["functions"]) == pytest.approx(1)


def test_a_recording_has_no_screen(kernel, monkeypatch):
    made = kernel(is_terminal=True)
    made[0].frontend = replace(made[0].frontend, has_screen=True)
    monkeypatch.setattr("kcovdbg.monitor.screen.show_monitor", lambda *_: pytest.fail("shown"))
    assert "KCOV_INIT_TRACE, 2048" in run(made, EXAMPLE)[1]


def test_summary_as_text_names_the_size_for_both(kernel):
    _, printed = run(kernel(), EXAMPLE, "--summary")
    assert "KCOV_INIT_TRACE, 2048" in printed
    assert "kCoverSize = 2 << 10" in printed
    assert "KCOV_INSTRUMENT_read_write.o := n" in printed


def test_page_is_whole_and_needs_no_other_file(kernel, tmp_path):
    path = tmp_path / "page.html"
    status, _ = run(kernel(), EXAMPLE, "-o", str(path))
    assert status == 0
    page = path.read_text()
    drawings = [ET.fromstring(drawing) for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    assert [len(drawing.findall("polyline")) for drawing in drawings] == [1] * 4
    # The page's policy allows no style attributes, and no network.
    assert not re.search(r' style="|(src|href)="(http|//)', page)
    assert "KCOV_INIT_TRACE, 2048" in path.read_text()
    _, printed = run(kernel(), EXAMPLE, "-o", "-")
    assert printed.rstrip("\n").splitlines() == path.read_text().splitlines()


def test_names_in_a_page_cannot_become_markup(kernel, tmp_path):
    rows = Path(EXAMPLE).read_text().replace("rounds-fill", "<script>x</script>")
    recording, page = tmp_path / "a.jsonl", tmp_path / "a.html"
    recording.write_text(rows)
    run(kernel(), str(recording), "-o", str(page))
    assert "<script>x" not in page.read_text()
    assert "&lt;script&gt;x" in page.read_text()


@pytest.mark.parametrize(
    "key", ["time", "state", "reads", "seconds", "tasks", "errors", "target", "release"]
)
@pytest.mark.parametrize(
    "value", ["1e9", "NaN", "1e999", '"x"', "[]", "{}", "true", "null", "[null]", "9" * 5000]
)
def test_a_row_that_means_harm_is_refused_or_read(tmp_path, capsys, key, value):
    rows = Path(EXAMPLE).read_text().splitlines()
    row = json.loads(rows[1])
    row[key] = "HERE"
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([rows[0], json.dumps(row).replace('"HERE"', value), rows[2]]))
    for words in ([], ["--json"], ["-o", str(tmp_path / "a.html")]):
        # An error of Python would be an internal one, with a hint on how to report it.
        assert main(["monitor", str(path), "--summary", *words]) in (0, 2)
        assert "--debug" not in capsys.readouterr().err
