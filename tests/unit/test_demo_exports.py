# SPDX-License-Identifier: LGPL-2.1-or-later
"""Exports of the demo, looked at by those whom they are for; the page that shows each format; and the page's own examples."""

import json
import re
import shutil
import subprocess
from bisect import bisect_right
from pathlib import Path

import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.commands.run import run_line, run_reporting
from kcovdbg.commands.session import Session
from kcovdbg.target.opening import TargetOptions, open_target
from tests.unit.state import Streams

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def streams():
    return Streams()


@pytest.fixture(scope="module")
def demo(streams):
    pytest.importorskip("drgn")
    return Session(COMMANDS, lambda: open_target(TargetOptions(demo=True)), find_terminal=streams.find)


@pytest.fixture(scope="module")
def ask(demo, streams):
    def asked(line):
        assert run_reporting(demo, line) == 0
        return streams.take()[0]

    return asked


@pytest.fixture
def tree(demo, ask, tmp_path):
    """A source tree with as many lines as are asked for."""
    rows = json.loads(ask("source 25 --json"))
    for file, last in {row["file"]: row["line"] for row in rows}.items():
        # A name that leads out of the tree isn't made.
        path = (tmp_path / "tree" / file).resolve()
        assert path.is_relative_to(tmp_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text;\n" * last)
    demo.source_folders = (str(tmp_path / "tree"),)
    demo.__dict__.pop("source", None)
    yield rows
    demo.source_folders = ()
    demo.__dict__.pop("source", None)


def test_genhtml_agrees_with_source(tree, ask, tmp_path):
    genhtml = shutil.which("genhtml")
    if genhtml is None:
        pytest.skip("genhtml isn't installed: apt-get install lcov")
    out = tmp_path / "25.info"
    ask(f"export lcov 25 -o {out}")
    done = subprocess.run([genhtml, out, "-o", tmp_path / "html"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    covered, total = map(int, re.search(r"lines\.+: *[\d.]+% \((\d+) of (\d+) lines\)", done.stdout).groups())
    assert (covered, total) == (sum(row["covered"] > 0 for row in tree), len(tree))
    assert total > 1000
    # And in each file's page: how often each line was executed.
    page = next((tmp_path / "html").rglob("vsprintf.c.gcov.html")).read_text()
    shown = [int(hits) for hits in re.findall(r'class="(?:lineCov|tlaGNC|tlaUNC|lineNoCov)[^>]*>\s*(\d+) :', page)]
    expected = [row["hits"] for row in tree if row["file"] == "lib/vsprintf.c"]
    assert shown == expected


def test_our_own_reader_takes_text_back(demo, ask, tmp_path):
    """Without being told which of the two it is: the kernel's points decide."""
    recorded = [int(row["pc"], 16) for row in json.loads(ask("buffer 25 --json"))]
    for line, expected in (("hex", recorded), ("hex --calls", recorded), ("rawcover", sorted(set(recorded)))):
        ask(f"export {line} 25 -o {tmp_path}/pcs")
        assert [int(row["pc"], 16) for row in json.loads(ask(f"buffer file:{tmp_path}/pcs --json"))] == expected


def test_module_offsets_against_the_symbol_table(demo, ask):
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm isn't installed: apt-get install binutils")
    names, start = {}, None
    for line in subprocess.run([nm, demo.target.lines.image], capture_output=True, text=True, check=True).stdout.splitlines():
        address, kind, name = line.split()
        if kind in "tTwW":
            # The compiler's copies of a function have a suffix.
            names.setdefault(int(address, 16), set()).add(name.split(".")[0])
        if name == "_stext":
            start = int(address, 16)
    addresses = sorted(names)
    rows = json.loads(ask("buffer 25 --json"))
    expected = {int(row["pc"], 16) - 5: row["symbol"] for row in rows if row["symbol"]}
    lines = ask("export modoff 25").splitlines()
    offsets = [int(line.removeprefix("vmlinux+"), 16) for line in lines]
    assert len(offsets) == len(expected) > 1000
    for offset in offsets:
        address = start + offset
        assert expected[address] in names[addresses[bisect_right(addresses, address) - 1]], hex(address)


def test_modules_have_their_own_offsets(ask):
    lines = ask("export modoff kcov:0xffff8ca5c08c5300").splitlines()
    module = [line for line in lines if line.startswith("kcovlab_keep.ko+")]
    assert len(module) >= 10
    assert all(int(line.partition("+")[2], 16) < 0x1000 for line in module)
    assert all(int(line.partition("+")[2], 16) < 0x2000000 for line in lines)


def test_counts_of_points_agree(demo, ask):
    """funccover's sums are rawcover's lines, and its totals the calls that a disassembler sees."""
    functions = [line.rsplit(",", 2) for line in ask("export funccover 41").splitlines()[1:]]
    assert sum(int(covered) for _, covered, _ in functions) == len(ask("export rawcover 41").splitlines())
    (row,) = [row for row in functions if row[0].endswith(",__task_pid_nr_ns")]
    assert int(row[1]) > 0
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("objdump isn't installed: apt-get install binutils")
    command = [objdump, "-d", "--disassemble=__task_pid_nr_ns", demo.target.lines.image]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(row[2]) == len(re.findall(r"call .*<__sanitizer_cov_trace_pc>", listing))


def examples():
    text = (ROOT / "docs/exports.md").read_text()
    for block in re.findall(r"```(?:console|output)\n\$ kcovdbg --demo\n(.*?)```", text, re.DOTALL):
        for exchange in block.split("kcovdbg> ")[1:]:
            yield exchange.partition("\n")[::2]


def test_the_page_has_every_format():
    text = (ROOT / "docs/exports.md").read_text()
    (formats,) = [argument.choices for argument in COMMANDS.find("export").arguments if argument.names == ("format",)]
    assert [name for name in formats if f"\n## {name}\n" not in text] == []
    assert len(list(examples())) >= len(formats)


@pytest.mark.parametrize(("line", "shown"), list(examples()), ids=lambda part: part[:30])
def test_the_pages_examples(line, shown, demo, streams, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_reporting(demo, line)
    assert [part.rstrip() for part in "".join(streams.take()).splitlines()] == [part.rstrip() for part in shown.splitlines()]


def test_run_line_is_quiet_about_success(demo, streams):
    assert run_line(demo, "export hex 34 | head -1") == 0
    assert streams.take()[1] == ""
