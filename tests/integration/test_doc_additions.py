# SPDX-License-Identifier: LGPL-2.1-or-later
"""Follow each page that tells how to add something: then it is there. test_doc_new_command.py
follows the page about commands.
"""

import json
from pathlib import Path

import pytest

from tests.support.page_steps import ROOT, copy_tree, follow, run_in

DOCS = ROOT / "docs"
FOLLOWED = (
    "column",
    "generation",
    "pc-format",
    "rule",
    "series",
    "exporter",
    "architecture",
)
BOCHS = """\
(0).[15042] [0x000001000010] 0010:ffffffff81000010 (unk. ctxt): push rbp ; 55
(0).[15043] [0x000001000011] 0010:ffffffff81000011 (unk. ctxt): mov rbp, rsp ; 4889e5
(0).[15044] [0x0000000fff00] 0008:00000000000fff00 (unk. ctxt): hlt ; f4
"""
# Ask a kernel in memory of the page's row: its generation and variants, and what debug info lacks.
ASK_KERNEL = """
import json, sys
from kcovdbg.walk.layout import detect_layout
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import ROWS
from kcovdbg.check.runner import check
from kcovdbg.model.state import Part
(row,) = [row for row in ROWS if row.name == sys.argv[1]]
kernel = Kernel(row)
found = detect_layout(kernel.target).generation
tasks = kernel.reader().read(Part.TASKS).tasks
print(json.dumps({
    "era": found.era, "variants": found.variants, "missing": found.missing,
    "unrecognised": found.unrecognised, "features": sorted(found.features),
    "sequences": sorted({task.fields.kcov_sequence for task in tasks}),
    "findings": [finding.rule for finding in check(kernel.reader()).findings],
}))
"""
# Decode the page's instructions, and name their machine; print how many there are.
TEST_FORMS = """
from kcovdbg.elf.header import EM_LOONGARCH
from kcovdbg.symbols.arch import ARCHITECTURES
from kcovdbg.target.drgn.program_memory import _ARCHITECTURES
from tests.unit.symbols import test_branch_forms as forms
for row in forms.LOONGARCH:
    forms.test_form(EM_LOONGARCH, *row)
print(len(forms.LOONGARCH), _ARCHITECTURES[EM_LOONGARCH].name, ARCHITECTURES[EM_LOONGARCH].step)
"""


@pytest.fixture
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the source tree in which the page that the test is about was followed."""
    top = copy_tree(tmp_path)
    (page,) = DOCS.glob(f"adding-a*-{request.param}.md")
    follow(page, top)
    return top


def about(page: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("followed", [page], indirect=True)


def test_every_page_is_followed() -> None:
    pages = {path.stem.partition("-")[2].partition("-")[2] for path in DOCS.glob("adding-a*.md")}
    assert pages == {*FOLLOWED, "command"}


@about("column")
def test_a_column(followed: Path) -> None:
    rows = json.loads(run_in(followed, "-m", "kcovdbg", "--demo", "tasks", "--json"))
    plain = json.loads(run_in(ROOT, "-m", "kcovdbg", "--demo", "tasks", "--json"))
    assert [{key: row[key] for key in row if key != "prio"} for row in rows] == plain
    # Linux's range of priorities; the demo's tasks have the default one.
    assert {row["prio"] for row in rows} == {120}
    text = run_in(followed, "-m", "kcovdbg", "--demo", "tasks", "--columns", "pid,prio")
    assert "PRIO" in text.splitlines()[0]
    run_in(followed, "-m", "docs.generate")
    assert "`prio`" in (followed / "docs" / "json.md").read_text()


@about("pc-format")
def test_a_pc_format(followed: Path) -> None:
    (followed / "bochs.txt").write_text(BOCHS)
    for options in (), ("--format", "bochs"):
        command = ("--demo", "buffer", "file:bochs.txt", "--json", *options)
        rows = json.loads(run_in(followed, "-m", "kcovdbg", *command))
        assert [row["pc"] for row in rows] == ["0xffffffff81000010", "0xffffffff81000011"]
    # Fails where no pattern of that name is measured.
    run_in(followed, "-m", "pytest", "-q", "tests/unit/test_patterns.py", "-k", "BOCHS")


@about("exporter")
def test_an_exporter(followed: Path) -> None:
    lines = run_in(followed, "-m", "kcovdbg", "--demo", "export", "counts", "41").split("\n")[:-1]
    rows = json.loads(run_in(ROOT, "-m", "kcovdbg", "--demo", "top", "41", "--by", "pc", "--json"))
    assert {tuple(line.split()) for line in lines} == {
        (row["pc"], str(row["count"])) for row in rows
    }
    run_in(followed, "-m", "docs.generate")
    assert "counts" in (followed / "docs" / "man" / "kcovdbg.1").read_text()


@about("rule")
def test_a_rule(followed: Path) -> None:
    run_in(
        followed,
        "-m",
        "pytest",
        "-q",
        "tests/unit/check/test_check_rules.py",
        "-k",
        "A8 or described",
    )
    explained = run_in(followed, "-m", "kcovdbg", "check", "--explain", "A8", "--json")
    assert json.loads(explained)[0]["rule"] == "A8"
    run_in(followed, "-m", "docs.generate")
    assert "A8" in (followed / "docs" / "check-rules.md").read_text()


@about("series")
def test_a_series(followed: Path) -> None:
    found = json.loads(run_in(followed, "-c", ASK_KERNEL, "SAMPLE"))
    assert found["variants"] == ["KCOV_SAMPLE (2026)"]
    assert "sampling" in found["features"]
    assert found["era"] == "E9b"
    assert found["missing"] == found["unrecognised"] == found["findings"] == []
    run_in(followed, "-m", "docs.generate")
    assert "KCOV_SAMPLE" in (followed / "docs" / "generations.md").read_text()


@about("generation")
def test_a_generation(followed: Path) -> None:
    found = json.loads(run_in(followed, "-c", ASK_KERNEL, "E10"))
    assert found["era"] == "E10"
    assert "section" in found["features"]
    assert found["missing"] == found["unrecognised"] == found["findings"] == []
    assert None not in found["sequences"]
    assert len(found["sequences"]) > 1


@about("architecture")
def test_an_architecture(followed: Path) -> None:
    assert run_in(followed, "-c", TEST_FORMS).split() == ["14", "LOONGARCH64", "4"]
