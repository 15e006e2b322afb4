# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collecting in every mode of the other generations' kernels, compared with a C program that makes
the same calls.

Kernels that are not built are skipped: python -m tests.lab build NAME. None of them can mount the
host's files.
"""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcovdbg.abi import record
from kcovdbg.model.buffer import Buffer
from tests.lab.collect_guest import SHARED, Lab, boot_packed
from tests.lab.comparison import parse_rows
from tests.lab.conftest import built

SIZE = 1 << 17
BITMAP = SIZE // 32
WORK = f"{SHARED}/work 3"


class Mode(NamedTuple):
    """A mode as in the postings, not taken from kcovdbg."""

    name: str
    request: int = 0x6364
    argument: int = 0
    bitmap: int = 0
    record_words: int = 1
    second: bool = False
    # No record occurs twice.
    is_unique: bool = False


PC = Mode("pc")
CMP = Mode("cmp", argument=1, record_words=4)
MODES = {
    "unique-maps": [
        PC,
        CMP,
        Mode("uniq-pc", argument=2, is_unique=True),
        Mode("uniq-edge", argument=4, second=True, is_unique=True),
        Mode("uniq-pc-edge", argument=6, second=True, is_unique=True),
        Mode("uniq-cmp", argument=8, record_words=4, is_unique=True),
    ],
    "ext-records": [PC, CMP, Mode("pc-ext", argument=2)],
    "ext-format": [PC, CMP, Mode("pc-ext", argument=2)],
    "6.1-gcc-locks": [PC, CMP],
    "saved-per-cpu": [PC, CMP],
    "mode-remote": [PC, CMP],
    "owner-member": [PC, CMP],
    "unique-bitmap": [PC, CMP, Mode("unique-pc", 0x40086367, BITMAP, BITMAP, is_unique=True)],
}


@pytest.fixture(scope="module", params=MODES)
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with boot_packed(*built(request.param), tmp_path_factory.mktemp("exchange")) as lab:
        yield request.param, lab


def by_hand(path: Path, mode: Mode) -> set[tuple[int, ...]]:
    """Return the records of a buffer that the C program saved, without kcovdbg's decoder."""
    words = array("Q", path.read_bytes())[mode.bitmap :]
    return as_records(words[1 : 1 + words[0] * mode.record_words], mode.record_words)


def as_records(words: array[int], width: int) -> set[tuple[int, ...]]:
    return {tuple(words[at : at + width]) for at in range(0, len(words), width)}


def places(records: set[tuple[int, ...]]) -> set[int]:
    """Return the PCs of records: operands of comparisons differ between runs."""
    return {one[-1] for one in records}


def share_of(part: set[int], whole: set[int]) -> float:
    return len(part & whole) / len(part)


def test_every_mode(packed: tuple[str, Lab]) -> None:
    name, lab = packed
    modes = MODES[name]
    bus = lab.guest.make("traffic usb plug", "kc-plugging")["bus"]
    lines = [
        f"collect --mode {mode.name} --buffer-size {SIZE} -o {SHARED}/{mode.name}.kcov -- {WORK}"
        for mode in modes
    ]
    # Children are followed, though these kernels have no calls that read another process's memory.
    # With small buffers: in one of the series each word of them takes 128 bytes more.
    lines += [
        f"collect --mode {modes[-1].name} --per-thread --buffer-size 16K -o "
        f"{SHARED}/crowd.kcov --json -- {SHARED}/crowd 5"
    ]
    lines += [
        f"collect --remote usb:{bus},common:auto --buffer-size 256K -o {SHARED}/usb.kcov -- sleep 3 "
        ">/dev/null",
        "collect --mode cmp --remote common:0x33 -- true >/dev/null",
        "tasks --json",
        "remote --json",
        "check --json",
    ]
    script = (
        f"cd {SHARED}\n{lab.kcovdbg('-q --script -')} <<EOF >answers 2>said || exit 1\n"
        + "\n".join(lines)
        + "\nEOF\n"
    )
    for mode in modes:
        script += (
            f"./modes {mode.request} {mode.argument} {SIZE} {mode.bitmap} {int(mode.second)} "
            f"{mode.name}.hand {WORK}\n"
        )
        script += "test $? = 0 || exit 2\n"
    done = lab.guest.run(script, 1800)
    lab.guest.ask("stop")
    lab.fetch("answers", "said")
    said = (lab.exchange / "said").read_text()
    assert done.returncode == 0, said
    print(said)
    traces: dict[str, Buffer] = {}
    hand: dict[str, set[tuple[int, ...]]] = {}
    for mode in modes:
        edges = (
            [f"{mode.name}.hand.edges", f"{mode.name}.edges.kcov", f"{mode.name}.edges.kcov.json"]
            if mode.second
            else []
        )
        lab.fetch(f"{mode.name}.kcov", f"{mode.name}.kcov.json", f"{mode.name}.hand", *edges)
        traces[mode.name], hand[mode.name] = (
            lab.trace(f"{mode.name}.kcov"),
            by_hand(lab.exchange / f"{mode.name}.hand", mode),
        )
        if mode.second:
            traces["edges"] = lab.trace(f"{mode.name}.edges.kcov")
            hand["edges"] = by_hand(lab.exchange / f"{mode.name}.hand.edges", Mode("edges"))
            compare(lab, "edges", traces["edges"], hand["edges"], 1, is_unique=True)
        if mode.name != "uniq-edge":
            compare(
                lab,
                mode.name,
                traces[mode.name],
                hand[mode.name],
                mode.record_words,
                is_unique=mode.is_unique,
            )
    compare_modes(traces)
    lab.fetch("usb.remote.kcov", "usb.remote.kcov.json")
    assert lab.functions(lab.trace("usb.remote.kcov"))["hub_event"]
    check_answers(said, (lab.exchange / "answers").read_text(), modes[-1])


def check_answers(said: str, text: str, mode: Mode) -> None:
    """Check the answers of commands that wrote no trace: each task was followed, and nothing stays
    enabled.
    """
    assert "not collected: " not in said
    assert "common:0x33: " not in said
    # What the collected commands print comes first.
    crowd, tasks, remote, violated = parse_rows(text[text.index("[") :])
    own = {row["comm"]: row["tid"] for row in crowd if row["comm"].startswith(("t-", "c-"))}
    assert len(own) == 6, mode.name
    assert (tasks, remote, violated) == ([], [], [])


def compare(
    lab: Lab, name: str, buffer: Buffer, hand: set[tuple[int, ...]], width: int, *, is_unique: bool
) -> None:
    """kcovdbg collected the same places as the C program, except for a few that are not executed
    each time.
    """
    ours = as_records(buffer.words, width)
    common = places(ours) & places(hand)
    print(
        f"{name}: {buffer.count} records, {len(ours)} distinct; by hand {len(hand)}; "
        f"{len(common)} places in common"
    )
    assert buffer.count > 200
    assert not buffer.full
    # The C program records exec as well.
    assert share_of(places(ours), places(hand)) > 0.9
    if is_unique:
        assert len(ours) == buffer.count
    else:
        assert len(ours) < buffer.count
    if name != "edges":
        pcs = [
            pc
            for word in record.pc_words(buffer.words, buffer.encoding)
            if (pc := record.pc_of_word(word, buffer.encoding)[1])
        ]
        found = {lab.function(pc) for pc in pcs}
        assert "path_openat" in found
        # It has comparisons only with lock debugging.
        assert width > 1 or {"__do_sys_getppid", "__x64_sys_getppid"} & found


def compare_modes(traces: dict[str, Buffer]) -> None:
    """Compare the modes of one kernel with each other."""
    plain = set(traces["pc"].words)
    if "unique-pc" in traces:
        assert share_of(set(traces["unique-pc"].words), plain) > 0.9
        assert share_of(plain, set(traces["unique-pc"].words)) > 0.9
    if "pc-ext" in traces:
        words = traces["pc-ext"].words
        kinds = {word >> 60 for word in words}
        assert kinds == {0x0, 0x1, 0xF}
        # The plain mode records points of both kinds, but no exits.
        points = {word | 0xFF << 56 for word in words if word >> 60 != 1}
        assert share_of(points, plain) > 0.9
        assert share_of(plain, points) > 0.9
        depth = lowest = 0
        for word in words:
            depth += {0x0: 1, 0x1: -1}.get(word >> 60, 0)
            lowest = min(lowest, depth)
        # When the trace began, some functions had been entered already: those at the end of exec.
        assert lowest > -40
        assert abs(depth - lowest) < 60


HELD = 1 << 14


def test_user_space_sees_what_the_kernel_holds(packed: tuple[str, Lab]) -> None:
    name, lab = packed
    held = lab.hold(HELD, (mode.name for mode in MODES[name]))
    for mode in MODES[name]:
        row = held[mode.name]
        seen = lab.outside("buffer", f"fd:{row['pid']}/{row['fd']}", "--raw")
        edges = [int(one["pc"], 16) for one in seen if one["kind"] == "edge"]
        seen = [one for one in seen if one["kind"] != "edge"]
        width = mode.record_words
        count = len(row["words"]) // width
        # A mode that records only edges leaves the buffer for addresses empty.
        assert count > 5 or mode.name == "uniq-edge", mode.name
        # At the end the kernel forgets that a bitmap precedes the count; the raw words still have
        # everything.
        start = HELD // 32 if mode.bitmap else 0
        told = [int(one["pc"], 16) for one in seen[start : start + count]]
        print(
            f"{mode.name}: {count} records by the user, {len(seen)} by the kernel, "
            f"{len(edges)} edges"
        )
        assert told == row["words"][width - 1 :: width], mode.name
        # Disabling is recorded too, behind what the block covers.
        assert len(seen) - count < 300 or mode.bitmap
        if width == 4:
            assert [int(one["arg1"], 16) for one in seen[:count]] == row["words"][1::4]
        assert bool(edges) == mode.second
        if mode.second:
            assert len(row["edges"]) > 5
            assert edges[: len(row["edges"])] == row["edges"], mode.name
            assert len(edges) - len(row["edges"]) < 300


assert sys.byteorder == "little"
