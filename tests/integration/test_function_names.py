# SPDX-License-Identifier: LGPL-2.1-or-later
"""Functions by the names of symbols, as an oops has them, and by those of DWARF, against nm and objdump on the demo's image."""

from __future__ import annotations

import re
import shutil
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from kcovdbg.frontends.cli import main
from kcovdbg.target.dump_file import unpack
from kcovdbg.target.opener import find_demo
from tests.lab.kcovdbg_run import Rows, ask
from tests.support.programs import output_of

pytestmark = pytest.mark.skipif(shutil.which("objdump") is None, reason="needs binutils")

# A buffer of a USB hub's work, which executes clones of functions.
_BUFFER = "26"


@cache
def image() -> Path:
    return Path(unpack(str(find_demo() / "vmlinux.zst")).path)


@cache
def symbols() -> dict[str, list[range]]:
    """Return the code of each function, by nm."""
    found: dict[str, list[range]] = {}
    for line in output_of("nm", "-S", image()).splitlines():
        words = line.split()
        if len(words) == 4 and words[2] in "tT":
            found.setdefault(words[3], []).append(range(int(words[0], 16), int(words[0], 16) + int(words[1], 16)))
    return found


@cache
def points(name: str) -> set[int]:
    """Return the return addresses of calls of callbacks, by objdump."""
    found = set()
    for code in symbols()[name]:
        span = [f"--start-address={code.start}", f"--stop-address={code.stop}"]
        shown = output_of("objdump", "-d", "--no-show-raw-insn", *span, image())
        # An address, and at the next instruction the return address.
        rows = re.findall(r"^\s*([0-9a-f]+):\s+(.*)$", shown, re.MULTILINE)
        for (_, text), (after, _) in zip(rows, [*rows[1:], (f"{code.stop:x}", "")], strict=True):
            if re.match(r"call.*<__sanitizer_cov_trace_", text):
                found.add(int(after, 16))
    return found


def ask_demo(*lines: str, status: int = 0) -> list[Rows]:
    return ask(["--demo"], *lines, status=status)


@cache
def recorded() -> list[int]:
    return [int(row["pc"], 16) for row in ask_demo(f"buffer {_BUFFER}")[0]]


def inside(name: str, pcs: list[int]) -> list[int]:
    return [pc for pc in pcs if any(pc - 1 in code for code in symbols()[name])]


@cache
def covered_clones() -> list[str]:
    """Return one of each kind: by their suffixes."""
    names = {name.split(".")[1]: name for name in symbols() if "." in name and inside(name, recorded())}
    assert names.keys() >= {"isra", "part", "constprop"}
    return [*names.values()]


def test_points_of_a_symbol() -> None:
    names = ("link_path_walk.part.0.constprop.0", *covered_clones())
    answers = ask_demo(*(f"points {name}" for name in names), *(f"why {name}" for name in names))
    for name, rows, reasons in zip(names, answers, answers[len(names) :], strict=False):
        assert {int(row["pc"], 16) for row in rows} == points(name)
        assert reasons[0]["code"] == "function-instrumented"


def test_points_of_a_name_in_dwarf_include_its_clones() -> None:
    found = {int(row["pc"], 16) for row in ask_demo("points link_path_walk")[0]}
    # It is inlined into other functions as well.
    assert points("link_path_walk.part.0.constprop.0") < found


def test_a_cold_part_has_a_name() -> None:
    name = next(name for name in symbols() if name.endswith(".cold") and not points(name))
    assert ask_demo(f"points {name}", status=1) == [[]]


def test_filters_take_symbols(tmp_path: Path) -> None:
    lines = (
        f"buffer {_BUFFER} --function {{0}}",
        f"top {_BUFFER} --by pc --function {{0}}",
        f"buffer {_BUFFER} --not-function {{0}}",
        f"trace {_BUFFER} --include all --function {{0}}",
        f"export hex {_BUFFER} --function {{0}} -o {tmp_path}/{{0}}",
        f"why {_BUFFER} {{0}}",
    )
    answers = iter(ask_demo(*(line.format(name) for name in covered_clones() for line in lines)))
    for name in covered_clones():
        output = tmp_path / name
        expected = inside(name, recorded())
        rows, top, left, trace, _, reasons = islice(answers, len(lines))
        assert [int(row["pc"], 16) for row in rows] == expected
        assert sum(row["count"] for row in top) == len(expected)
        assert len(left) == len(recorded()) - len(expected)
        assert sum(row["records"] for row in trace) == len(expected)
        assert {int(word, 16) for word in output.read_text().split()} == set(expected)
        (covered,) = [row for row in reasons if row["code"] == "function-covered"]
        assert covered["values"]["covered"] == len(points(name) & set(expected))


def test_a_pattern_matches_symbols() -> None:
    code = [code for name in symbols() if ".isra." in name for code in symbols()[name]]
    expected = [pc for pc in recorded() if any(pc - 1 in one for one in code)]
    (rows,) = ask_demo(f"buffer {_BUFFER} --function '*.isra.*'")
    assert expected
    assert [int(row["pc"], 16) for row in rows] == expected


def test_source_of_a_symbol() -> None:
    by_symbol, by_name = ask_demo(*(f"source {_BUFFER} {name}" for name in ("va_format.constprop.0", "va_format")))
    assert by_symbol == by_name != []


@pytest.mark.parametrize(
    "line",
    [
        "buffer 41 --function do_sys_opnat2",
        "buffer 41 --not-function do_sys_opnat2",
        "buffer 41 --file fs/opne.c",
        "top 41 --function do_sys_opnat2",
        "trace 41 --function do_sys_opnat2",
        "trace 41 --against 34 --function do_sys_opnat2",
        "diff 41 34 --function do_sys_opnat2",
        "diff 41 34 --ordered --file fs/opne.c",
        "view 41 --text --not-function do_sys_opnat2",
        "source 41 do_sys_opnat2",
        "source 41 fs/opne.c",
        "points do_sys_opnat2",
        "points fs/opne.c",
        "why 41 do_sys_opnat2",
        "export hex 41 --function do_sys_opnat2 -o /dev/null",
        "buffer 41 --function vfs_read.isra.7",
    ],
)
def test_a_name_that_the_kernel_does_not_have(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--demo", "-e", line]) == 2
    shown = capsys.readouterr()
    wrong, meant = ("opne.c", "open.c") if "opne.c" in line else ("opnat2", "do_sys_openat2")
    wrong, meant = ("vfs_read.isra.7", "vfs_read?") if "isra" in line else (wrong, meant)
    assert (shown.out, wrong in shown.err, meant in shown.err) == ("", True, True)


@pytest.mark.parametrize("option", ["--function kcovlab_keep_inner", "--file modules/kcovlab_keep.c", "--function may_lookup"])
def test_modules_and_inlined_functions_have_names(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--demo", "-e", f"buffer 41 {option}"]) == 0, capsys.readouterr().err
