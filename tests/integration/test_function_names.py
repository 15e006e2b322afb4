# SPDX-License-Identifier: LGPL-2.1-or-later
"""Functions by the names of symbols, as an oops has them, and by those of DWARF, against nm and
objdump on the demo's image.
"""

from __future__ import annotations

import re
from functools import cached_property
from itertools import islice
from pathlib import Path

import pytest

from tests.integration.conftest import Demo, DemoWorkspace
from tests.support.programs import list_functions, output_of

# A buffer of a USB hub's work, which executes clones of functions.
_BUFFER = "26"


class Code:
    """The functions of the demo's image, and what the buffer has of them."""

    def __init__(self, image: Path, opened_demo: DemoWorkspace) -> None:
        self._image = image
        self.symbols = list_functions(image)
        self.recorded = [int(row["pc"], 16) for row in opened_demo.ask(f"buffer {_BUFFER}")]

    def points(self, name: str) -> set[int]:
        """Return the return addresses of calls of callbacks, by objdump."""
        found = set()
        for code in self.symbols[name]:
            span = [f"--start-address={code.start}", f"--stop-address={code.stop}"]
            shown = output_of("objdump", "-d", "--no-show-raw-insn", *span, self._image)
            # An address, and at the next instruction the return address.
            rows = re.findall(r"^\s*([0-9a-f]+):\s+(.*)$", shown, re.MULTILINE)
            for (_, text), (after, _) in zip(
                rows, [*rows[1:], (f"{code.stop:x}", "")], strict=True
            ):
                if re.match(r"call.*<__sanitizer_cov_trace_", text):
                    found.add(int(after, 16))
        return found

    def recorded_in(self, name: str) -> list[int]:
        return [pc for pc in self.recorded if any(pc - 1 in code for code in self.symbols[name])]

    @cached_property
    def covered_clones(self) -> list[str]:
        """One of each kind: by their suffixes."""
        names = {
            name.split(".")[1]: name
            for name in self.symbols
            if "." in name and self.recorded_in(name)
        }
        assert names.keys() >= {"isra", "part", "constprop"}
        return [*names.values()]


@pytest.fixture(scope="module")
def code(demo: Demo, opened_demo: DemoWorkspace) -> Code:
    return Code(demo.vmlinux, opened_demo)


def test_points_of_a_symbol(opened_demo: DemoWorkspace, code: Code) -> None:
    for name in ("link_path_walk.part.0.constprop.0", *code.covered_clones):
        assert {int(row["pc"], 16) for row in opened_demo.ask(f"points {name}")} == code.points(
            name
        )
        assert opened_demo.ask(f"why {name}")[0]["code"] == "function-instrumented"


def test_points_of_a_name_in_dwarf_include_its_clones(
    opened_demo: DemoWorkspace, code: Code
) -> None:
    found = {int(row["pc"], 16) for row in opened_demo.ask("points link_path_walk")}
    # It is inlined into other functions as well.
    assert code.points("link_path_walk.part.0.constprop.0") < found


def test_a_cold_part_has_a_name(opened_demo: DemoWorkspace, code: Code) -> None:
    name = next(name for name in code.symbols if name.endswith(".cold") and not code.points(name))
    assert opened_demo.ask(f"points {name}", status=1) == []


def test_filters_take_symbols(opened_demo: DemoWorkspace, code: Code, tmp_path: Path) -> None:
    lines = (
        f"buffer {_BUFFER} --function {{0}}",
        f"top {_BUFFER} --by pc --function {{0}}",
        f"buffer {_BUFFER} --not-function {{0}}",
        f"trace {_BUFFER} --include all --function {{0}}",
        f"export hex {_BUFFER} --function {{0}} -o {tmp_path}/{{0}}",
        f"why {_BUFFER} {{0}}",
    )
    answers = (opened_demo.ask(line.format(name)) for name in code.covered_clones for line in lines)
    for name in code.covered_clones:
        expected = code.recorded_in(name)
        rows, top, left, trace, _, reasons = islice(answers, len(lines))
        assert [int(row["pc"], 16) for row in rows] == expected
        assert sum(row["count"] for row in top) == len(expected)
        assert len(left) == len(code.recorded) - len(expected)
        assert sum(row["records"] for row in trace) == len(expected)
        assert {int(word, 16) for word in (tmp_path / name).read_text().split()} == set(expected)
        (covered,) = [row for row in reasons if row["code"] == "code-executed"]
        assert covered["values"]["covered"] == len(code.points(name) & set(expected))


def test_a_pattern_matches_symbols(opened_demo: DemoWorkspace, code: Code) -> None:
    found = {pc for name in code.symbols if ".isra." in name for pc in code.recorded_in(name)}
    expected = [pc for pc in code.recorded if pc in found]
    rows = opened_demo.ask(f"buffer {_BUFFER} --function '*.isra.*'")
    assert [int(row["pc"], 16) for row in rows] == expected != []


def test_source_of_a_symbol(opened_demo: DemoWorkspace) -> None:
    by_symbol, by_name = (
        opened_demo.ask(f"source {_BUFFER} {name}")
        for name in ("va_format.constprop.0", "va_format")
    )
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
def test_a_name_that_the_kernel_does_not_have(opened_demo: DemoWorkspace, line: str) -> None:
    output, errors = opened_demo.run(line, 2)
    names = {"opne.c": "open.c", "opnat2": "do_sys_openat2", "vfs_read.isra.7": "vfs_read?"}
    (found,) = [
        (wrong in errors, meant in errors) for wrong, meant in names.items() if wrong in line
    ]
    assert (output, found) == ("", (True, True))


@pytest.mark.parametrize(
    "option",
    ["--function kcovlab_keep_inner", "--file modules/kcovlab_keep.c", "--function may_lookup"],
)
def test_modules_and_inlined_functions_have_names(opened_demo: DemoWorkspace, option: str) -> None:
    opened_demo.run(f"buffer 41 {option}")


def test_why_takes_places_of_call_traces(opened_demo: DemoWorkspace, code: Code) -> None:
    name = next(name for name in code.covered_clones if len(code.symbols[name]) == 1)
    (own,) = code.symbols[name]
    executed = code.recorded_in(name)[0]
    others = sorted(code.points(name).difference(code.recorded))
    # The last one is in front of the first point.
    for pc in (executed, others[0], own.start + 1):
        by_address = opened_demo.ask(f"why {pc:#x} {_BUFFER}")
        for place in (f"{name}+{pc - own.start:#x}", f"{name}+{pc - own.start:#x}/{len(own):#x}"):
            for line in (f"why {place} {_BUFFER}", f"why {_BUFFER} {place}"):
                codes = {row["code"] for row in opened_demo.ask(line)}
                assert codes >= {row["code"] for row in by_address}
                assert pc != executed or "code-executed" in codes


def test_why_refuses_what_is_no_place(opened_demo: DemoWorkspace, code: Code) -> None:
    name = next(name for name in code.covered_clones if len(code.symbols[name]) == 1)
    (own,) = code.symbols[name]
    for word, meant in (
        (f"{name}+{len(own) + 0x9000:#x}", f"sym {name}"),
        (f"{name}+0x1/{len(own) + 0x9000:#x}", f"sym {name}"),
        ("do_sys_opnat2+0x5", "do_sys_openat2"),
        # As nm prints it.
        (f"{own.start:#x}", f"why {name}"),
        (f"{name}+0x0", f"why {name}"),
    ):
        output, errors = opened_demo.run(f"why {word} {_BUFFER}", 2)
        assert output == ""
        assert word.partition("+")[0] in errors
        assert meant in errors


@pytest.mark.parametrize("words", ["0x10 34", "34 0x10", "34 34", "usb:1 34", "34 usb:1"])
def test_why_of_two_words_that_are_no_code(opened_demo: DemoWorkspace, words: str) -> None:
    output, errors = opened_demo.run(f"why {words}", 2)
    assert output == ""
    # Both are named, and no other kernel or module would help.
    assert all(f"'{word}'" in errors for word in words.split())
    assert "MODULE" not in errors
