# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces that kcovdbg collected on two booted kernels, before and after a patch, and on two boots
of one of them.

The patch and the program say what differs. Pairs are compared with what addr2line and the sources
say. It needs the recipe ``patched``.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcovdbg.elf.file import ElfFile
from kcovdbg.records.side_file import read_header, side_path
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.symbols.table_cache import cache_folder
from tests.lab.collect_guest import SHARED, boot_shared
from tests.lab.conftest import find_built
from tests.lab.initramfs import MODULES, WORKLOAD, make_userland
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.lab.kernel import Kernel
from tests.support.programs import addr2line
from tests.support.screen import Screen

FILE = "kernel/sys.c"
PATCHED = "__do_sys_getpriority"
RUNS = 2
# Of the terminal: two sides with their places.
COLUMNS = 160


MODULE = "kcovlab_keep.c"
ADDED = "WRITE_ONCE(total, total + 1);"
# A patch of the module: what it adds runs.
BEFORE_ADDED = "unsigned int sum = 0;\n"
AFTER_ADDED = f"{BEFORE_ADDED}\n\tif (n > 2)\n\t\t{ADDED}\n"


class Boot(NamedTuple):
    """A boot of a kernel, with what was collected in it."""

    kernel: Kernel
    module: Path
    module_source: Path
    traces: Sequence[str]

    def source(self) -> list[str]:
        return (self.kernel.tree / FILE).read_text().splitlines()

    def module_text(self) -> list[str]:
        return (self.module_source / MODULE).read_text().splitlines()


def collect(kernel: Kernel, modules: Path, folder: Path) -> Boot:
    userland = make_userland(kernel, WORKLOAD, modules)
    (module,) = [path for path in userland.modules if path.stem == "kcovlab_keep"]
    shutil.copy(module, folder)
    with boot_shared(kernel, userland, folder, memory_mib=1024, cpus=2) as lab:
        names = [f"{number}.kcov" for number in range(RUNS)]
        script = [f"grep -q kcovlab_keep /proc/modules || insmod {SHARED}/kcovlab_keep.ko"]
        script += [
            lab.python(f"-m kcovdbg collect -o {SHARED}/{name} -- {SHARED}/priority")
            for name in names
        ]
        lab.run("\n".join(script), 900)
    return Boot(kernel, module, modules, tuple(f"file:{folder / name}" for name in names))


@pytest.fixture(scope="module")
def boots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Boot, Boot, Boot]:
    """Two boots of the kernel before the patch, and one of the kernel after it."""
    before, after = (find_built(name) for name in ("default", "patched"))
    changed = change_module(tmp_path_factory.mktemp("modules"))
    first, second, third = (
        collect(kernel, modules, tmp_path_factory.mktemp(kernel.recipe.name))
        for kernel, modules in ((before, MODULES), (before, MODULES), (after, changed))
    )
    return first, second, third


def change_module(folder: Path) -> Path:
    """Return a copy of the modules' sources in which one is another version."""
    shutil.copytree(MODULES, folder, dirs_exist_ok=True)
    text = (folder / MODULE).read_text()
    assert text.count(BEFORE_ADDED) == 1
    (folder / MODULE).write_text(text.replace(BEFORE_ADDED, AFTER_ADDED))
    return folder


def name_builds(boots: Sequence[Boot]) -> list[str]:
    options: list[str] = []
    for boot in dict.fromkeys(boots):
        options += [
            "--other-vmlinux",
            str(boot.kernel.vmlinux),
            "--other-source",
            str(boot.kernel.tree),
        ]
    for module in {boot.module for boot in boots}:
        options += ["--other-vmlinux", str(module)]
    return options


def ask(boots: Sequence[Boot], *words: str) -> tuple[int, Any]:
    done = run_kcovdbg(*name_builds(boots), *words, "--json", timeout=1200)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def test_side_files_say_where_the_module_was(boots: tuple[Boot, Boot, Boot]) -> None:
    for boot in boots:
        with ElfFile(boot.module) as elf:
            build_id = elf.build_id
        for trace in boot.traces:
            header = read_header(Path(trace.removeprefix("file:")))
            assert header is not None
            assert header.modules is not None
            assert [(place.name, place.build_id) for place in header.modules] == [
                ("kcovlab_keep", build_id)
            ]
    places = [read_header(Path(boot.traces[0].removeprefix("file:"))) for boot in boots[:2]]
    assert places[0] is not None
    assert places[1] is not None
    # Else the next test says nothing. Equal addresses are one of thousands.
    assert places[0].recorded_modules != places[1].recorded_modules


def test_the_module_is_the_same_in_both_boots(boots: tuple[Boot, Boot, Boot]) -> None:
    first, second, _ = boots
    _, rows = ask((first,), "diff", *first.traces, "--", *second.traces)
    assert not [
        row
        for row in rows
        if row["frames"] and row["frames"][-1]["function"].startswith("kcovlab_keep")
    ]
    _, rows = ask((first,), "trace", second.traces[0], "--against", first.traces[0])
    sides = {
        row["function"]: row["side"]
        for row in rows
        if row["function"] and row["function"].startswith("kcovlab_keep")
    }
    # As the module's source has them, called by the one that is written to.
    assert sides == dict.fromkeys(
        ("kcovlab_keep_write", "kcovlab_keep_outer", "kcovlab_keep_middle", "kcovlab_keep_inner"),
        "both",
    )


def test_what_the_patch_adds(boots: tuple[Boot, Boot, Boot]) -> None:
    before, _, after = boots
    _, rows = ask((before, after), "diff", *before.traces, "--", *after.traces)
    text = after.source()
    patched = [
        frame
        for row in rows
        for frame in row["frames"]
        if row["side"] == "right" and frame["function"] == PATCHED
    ]
    found = {text[frame["line"] - 1].strip() for frame in patched}
    assert "WRITE_ONCE(kcovlab_asked, kcovlab_asked + 1);" in found
    assert "WRITE_ONCE(kcovlab_asked, 0);" not in found
    assert all("kcovlab_asked" in line or "which == PRIO_" in line for line in found)
    functions = {frame["function"] for row in rows for frame in row["frames"]}
    assert not functions & {"override_release", "release_override"}


def test_what_the_patch_of_the_module_adds(boots: tuple[Boot, Boot, Boot]) -> None:
    before, _, after = boots
    _, rows = ask((before, after), "diff", *before.traces, "--", *after.traces)
    found = {
        (
            row["side"],
            row["missing"],
            frame["function"],
            after.module_text()[frame["line"] - 1].strip(),
        )
        for row in rows
        for frame in row["frames"]
        if frame["file"] is not None and frame["file"].endswith(MODULE)
    }
    assert found == {("right", "line", "kcovlab_keep_middle", ADDED)}


def test_view_of_both_kernels(boots: tuple[Boot, Boot, Boot]) -> None:
    """In a terminal: rows of what the patches changed have the same line of the source on both
    sides, by its number there.
    """
    before, _, after = boots
    command = [
        sys.executable,
        "-m",
        "kcovdbg",
        *name_builds((before, after)),
        "view",
        before.traces[0],
        after.traces[0],
    ]
    shown: list[list[str]] = []
    with Screen(
        *command, rows=40, columns=COLUMNS, XDG_CACHE_HOME=str(cache_folder().parent.parent)
    ) as terminal:
        terminal.wait("] diff", seconds=120)
        # In the order of the program's calls. What is waited for is beside what is searched for.
        for searched, beside in (
            (PATCHED, "__x64_sys_getpriority"),
            ("override_release", "release_override"),
            ("kcovlab_keep_middle", "kcovlab_keep_inner"),
        ):
            terminal.type(f"/{searched}\r")
            terminal.wait(beside, seconds=120)
            terminal.settle()
            shown.append(terminal.lines)
        terminal.type("q")
        assert terminal.end() == 0
    texts = [before.source(), after.source()]
    found = find_shown(shown[0], rf"{PATCHED}(?: ← \w+)? {FILE}:(\d+)", texts)
    pairs = [pair for pair in found if None not in pair]
    assert len(pairs) > 1
    assert all(left == right for left, right in pairs)
    added = {right for left, right in found if left is None}
    assert "WRITE_ONCE(kcovlab_asked, kcovlab_asked + 1);" in added
    assert added <= {"WRITE_ONCE(kcovlab_asked, kcovlab_asked + 1);", "if (which == PRIO_PROCESS)"}
    assert not [left for left, right in found if right is None]
    found = find_shown(
        shown[1], rf"(?:override_release|release_override)(?: ← \w+)? {FILE}:(\d+)", texts
    )
    # The names differ, and some of the lines are the calls.
    pairs = [
        tuple(text and text.replace("release_override", "override_release") for text in pair)
        for pair in found
    ]
    assert len(pairs) > 5
    assert all(left == right for left, right in pairs)
    texts = [before.module_text(), after.module_text()]
    found = find_shown(shown[2], rf"kcovlab_keep_\w+ modules/{MODULE}:(\d+)", texts)
    pairs = [pair for pair in found if None not in pair]
    assert len(pairs) > 5
    assert all(left == right for left, right in pairs)
    assert [pair for pair in found if None in pair] == [(None, ADDED)]


def find_shown(
    rows: Sequence[str], place: str, texts: Sequence[list[str]]
) -> list[tuple[str | None, ...]]:
    """Return for each row with a place on either side the texts of its lines, None where that side
    has none.
    """
    found: list[tuple[str | None, ...]] = []
    for row in rows:
        places = [re.search(place, half) for half in (row[: COLUMNS // 2], row[COLUMNS // 2 :])]
        if any(places):
            pair = zip(places, texts, strict=True)
            found.append(
                tuple(
                    None if match is None else text[int(match[1]) - 1].strip()
                    for match, text in pair
                )
            )
    return found


def test_report_of_the_patch(boots: tuple[Boot, Boot, Boot], tmp_path: Path) -> None:
    """Of the lines that differ, those were executed that the program executes in their kernel."""
    before, _, after = boots
    page = tmp_path / "patch.html"
    run_kcovdbg(
        *name_builds((before, after)),
        "report",
        before.traces[0],
        after.traces[0],
        "-o",
        page,
        timeout=1200,
        status=0,
    )
    (changed,) = [
        part
        for part in page.read_text().split("<details ")
        if f">{FILE.replace('/', '/<wbr>')}</span>" in part
    ][:1]
    rows = re.findall(
        r'<tr class="c-(\w+)">.*?<td class="line">(\d*)</td><td class="line">(\d*)</td>', changed
    )
    old, new = before.source(), after.source()
    removed = [(style, old[int(left) - 1].strip()) for style, left, right in rows if not right]
    added = [(style, new[int(right) - 1].strip()) for style, left, right in rows if not left]
    # Of three system calls that have it, the program makes the first.
    call = "if ({}(name->release, sizeof(name->release)))"
    assert removed == [
        (style, call.format("override_release")) for style in ("left", "none", "none")
    ]
    assert added == [
        ("right", "if (which == PRIO_PROCESS)"),
        ("right", "WRITE_ONCE(kcovlab_asked, kcovlab_asked + 1);"),
        ("none", "else if (which == PRIO_USER)"),
        ("none", "WRITE_ONCE(kcovlab_asked, 0);"),
        *((style, call.format("release_override")) for style in ("right", "none", "none")),
    ]


def test_pairs_are_what_addr2line_says(boots: tuple[Boot, Boot, Boot], tmp_path: Path) -> None:
    """All that one build executed, paired with points of the other one: the same functions on lines
    of the same text.
    """
    before, _, after = boots
    # A trace of one point: all others are on the left only, with their counterparts.
    whole = Path(after.traces[0].removeprefix("file:"))
    one = tmp_path / "one.kcov"
    word = read_trace(whole).words[0]
    one.write_bytes((1).to_bytes(8, "little") + word.to_bytes(8, "little"))
    side_path(one).write_text(
        json.dumps(json.loads(side_path(whole).read_text()) | {"count": 1, "size": None})
    )
    _, rows = ask((before, after), "diff", before.traces[0], f"file:{one}")
    pairs = [
        (int(row["pc"], 0), int(row["counterpart"], 0))
        for row in rows
        if row["counterpart"] is not None
    ]
    left, right = (
        [frames[0] for frames in addr2line(boot.kernel.vmlinux, [pair[side] - 1 for pair in pairs])]
        for side, boot in enumerate((before, after))
    )
    lines = {boot: texts(boot.kernel) for boot in (before, after)}
    wrong = [
        (pair, here, there)
        for pair, here, there in zip(pairs, left, right, strict=True)
        if plain(here[0]) != plain(there[0]) or lines[before](here) != lines[after](there)
    ]
    lacking = [row for row in rows if row["counterpart"] is None]
    print(
        f"{len(rows)} points, {len(lacking)} without a counterpart, {len(wrong)} of "
        f"{len(pairs)} pairs wrong"
    )
    assert len(pairs) > 500
    assert len(lacking) < 0.02 * len(rows)
    assert not wrong


def plain(function: str) -> str:
    return function.partition(".")[0].replace("release_override", "override_release")


def texts(kernel: Kernel) -> Any:
    cache: dict[str, list[str]] = {}

    def text(place: tuple[str, str, int]) -> str:
        _, file, line = place
        name = file.partition(f"{kernel.recipe.source_name}/")[2] or file.removeprefix("./")
        if name not in cache:
            path = kernel.tree / name
            cache[name] = path.read_text(errors="replace").splitlines() if path.exists() else []
        content = cache[name]
        # The names of files that the build made are not in the tree: their lines are compared.
        return (
            content[line - 1].replace("release_override", "override_release")
            if 0 < line <= len(content)
            else f"{name}:{line}"
        )

    return text
