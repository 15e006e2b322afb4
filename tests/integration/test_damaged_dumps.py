# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps as farms leave them, cut or behind text: what remains is answered as from the whole dump,
and the damage is told.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import drgn
import pytest
import zstandard
from drgn.helpers.linux.mm import follow_phys

from tests.integration.conftest import Demo
from tests.lab.comparison import parse_outputs
from tests.lab.kcovdbg_run import run_kcovdbg

WARNING = b"Warning: Permanently added '[localhost]:1569' (ED25519) to the list of known hosts.\r\n"
COMMANDS = {"tasks": "pid", "objects": "kcov", "remote": "handle", "info": "build_id"}


class Answer(NamedTuple):
    status: int
    rows: dict[str, set[Any]]
    """The key of each row, by command."""
    said: str


def ask(dump: Path, demo: Demo) -> Answer:
    words = [word for command in COMMANDS for word in ("-e", f"{command} --json")]
    done = run_kcovdbg("-c", dump, "-s", demo.vmlinux, *words)
    answers = parse_outputs(done.stdout, COMMANDS)
    # A row of nulls stands for rows that could not be read.
    rows = {
        command: {row[key] for row in answers[command]} - {None}
        for command, key in COMMANDS.items()
    }
    return Answer(done.returncode, rows, done.stderr)


@pytest.fixture(scope="module")
def whole(demo: Demo) -> Answer:
    return ask(demo.core, demo)


@pytest.mark.parametrize("share", [0.24, 0.72, 0.98])
def test_a_cut_core_answers_as_far_as_it_goes(
    demo: Demo, whole: Answer, tmp_path: Path, share: float
) -> None:
    data = demo.core.read_bytes()
    size = int(len(data) * share)
    (tmp_path / "cut").write_bytes(data[:size])
    found = ask(tmp_path / "cut", demo)
    assert found.status == (0 if all(found.rows.values()) else 2), found.said
    assert f"{size:,} of {len(data):,} bytes" in found.said
    for command, rows in whole.rows.items():
        assert found.rows[command] <= rows
    # What is missing is told where rows are.
    assert found.rows == whole.rows or len(found.said.splitlines()) > 1
    if share > 0.5:
        assert found.rows["tasks"]


def test_behind_text_it_answers_the_same(demo: Demo, whole: Answer, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_bytes(WARNING + demo.core.read_bytes())
    found = ask(given, demo)
    assert (found.status, found.rows) == (0, whole.rows)
    assert f"tail -c +{len(WARNING) + 1} {given}" in found.said
    assert given.read_bytes() == WARNING + demo.core.read_bytes()


LISTS = {
    "tasks -a": "task",
    "objects": "kcov",
    "remote": "handle",
    "areas": "area",
    "saved": "saved_area",
    "check": "rule",
}
_HEADER = struct.Struct("<IIQQQQQQ")
_LOAD = 1
_PAGE = 4096


def list_pages(data: bytes) -> list[int]:
    """Return the offsets of the pages of a slice of a 64-bit little-endian machine."""
    return sorted(
        {
            offset + at
            for _, _, offset, _, _, size, _, _ in read_headers(data)
            for at in range(0, size, _PAGE)
        }
    )


def read_headers(data: bytes) -> list[tuple[int, ...]]:
    start, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    headers = [_HEADER.unpack_from(data, start + size * number) for number in range(count)]
    return [header for header in headers if header[0] == _LOAD]


def without_page(data: bytes, page: int) -> bytes:
    """Return a slice whose segments end before a page; what follows in a segment is lost as
    well.
    """
    found = bytearray(data)
    start, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    for number in range(count):
        place = start + size * number
        kind, flags, offset, virtual, physical, length, _, align = _HEADER.unpack_from(data, place)
        if kind == _LOAD and offset <= page < offset + length:
            _HEADER.pack_into(
                found,
                place,
                kind,
                flags,
                offset,
                virtual,
                physical,
                page - offset,
                page - offset,
                align,
            )
    return bytes(found)


def ask_lists(dump: Path, vmlinux: Path) -> tuple[dict[str, list[Any]], str]:
    words = [word for line in LISTS for word in ("-e", f"{line} --json")]
    done = run_kcovdbg("-c", dump, "-s", vmlinux, *words)
    assert "internal error" not in done.stderr, done.stderr
    return (parse_outputs(done.stdout, LISTS) if done.stdout else {}), done.stderr


@pytest.mark.parametrize("name", ["6.12-gcc", "saved-per-cpu"])
def test_a_slice_without_a_page_claims_nothing_about_it(
    tmp_path: Path, sample: Any, name: str
) -> None:
    """Unread is not none: what the whole slice shows is there, or something is said to be missing;
    no rule is broken.
    """
    folder = Path(__file__).parents[1] / "golden" / "generations" / name
    data = (
        zstandard.ZstdDecompressor().decompressobj().decompress((folder / "slice.zst").read_bytes())
    )
    (tmp_path / "slice").write_bytes(data)
    whole, _ = ask_lists(tmp_path / "slice", folder / "vmlinux.zst")
    for page in sample(list_pages(data)[::4]):
        (tmp_path / "slice").write_bytes(without_page(data, page))
        rows, said = ask_lists(tmp_path / "slice", folder / "vmlinux.zst")
        if not rows:
            # It could not be opened.
            assert said
            continue
        assert not [row for row in rows["check"] if row["severity"] in ("error", "warning")], (
            hex(page),
            rows["check"][:2],
        )
        for line, key in LISTS.items():
            lost = {row[key] for row in whole[line]} - {row[key] for row in rows[line]}
            told = any(row["errors"] for row in rows[line]) if line != "check" else True
            # One note is that it is a slice.
            assert not lost or told or len(said.splitlines()) > 1, (hex(page), line, said)
            assert rows[line] or not whole[line], (hex(page), line)


def find_page(demo: Demo, data: bytes, task: int) -> int:
    """Return the offset of the page with the outermost frame of a task's kernel stack."""
    prog = drgn.Program()
    prog.set_core_dump(demo.core)
    prog.load_debug_info([demo.vmlinux])
    trace = prog.stack_trace(drgn.Object(prog, "struct task_struct *", task))
    outermost = [frame for frame in trace if frame.pc >> 63][-1]
    physical = follow_phys(prog["init_mm"].address_of_(), outermost.sp).value_() & -_PAGE
    for _, _, offset, _, start, size, _, _ in read_headers(data):
        if start <= physical < start + size:
            return offset + physical - start
    raise AssertionError("the slice has no such page")


def test_a_stack_that_cannot_be_read_to_its_end(demo: Demo, tmp_path: Path) -> None:
    """Whether the task is interrupted is unknown then, and that is said."""
    done = run_kcovdbg("-c", demo.core, "-s", demo.vmlinux, "tasks", "--json")
    (task,) = (row for row in json.loads(done.stdout) if row["comm"] == "kc-traffic")
    pid = str(task["pid"])
    whole = run_kcovdbg("-c", demo.core, "-s", demo.vmlinux, "why", pid, "--json")
    assert "interrupted" in {row["code"] for row in json.loads(whole.stdout)}
    assert whole.stderr == ""
    data = demo.core.read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(without_page(data, find_page(demo, data, int(task["task"], 16))))
    for command in ("why", "last"):
        asked = run_kcovdbg("-c", cut, "-s", demo.vmlinux, command, pid, "--json", status=0)
        assert "interrupted" not in {row.get("code") for row in json.loads(asked.stdout)}
        assert "could not read its stack" in asked.stderr
