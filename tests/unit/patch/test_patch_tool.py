# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tool ``patch`` of ``mcp``: which diffs a client may name, and how much it gets."""

import json
from dataclasses import replace

import pytest

from kcovdbg.frontends.mcp.tools import ToolBox
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.trace_paths import FileConfinement
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.patch import command
from kcovdbg.target.target_options import TargetOptions, open_target
from tests.support.compiled_image import FIRST, SECOND
from tests.support.state import Streams, make_workspace
from tests.unit.patch.test_patch_command import Built, diff_of


@pytest.fixture
def box(tmp_path, capsys, monkeypatch):
    """The tools on the image; traces and diffs are in ``box.folder``."""
    built = Built(tmp_path, capsys)
    folder = (tmp_path / "exchange").resolve()
    folder.mkdir()
    built.trace("exchange/t.txt", "second")
    workspace = make_workspace(Streams(), monkeypatch)
    options = TargetOptions(symbols=(str(built.image),), image=True)
    kernel = Kernel(KernelOptions(lambda: open_target(options), source_folders=[str(tmp_path)]))
    box = ToolBox(replace(workspace, inputs=UserInputs(kernel)), FileConfinement(folder))
    box.folder = folder
    return box


DIFF = diff_of("src/first.c", FIRST) + diff_of("src/second.c", SECOND)


def test_the_text_of_a_diff(box):
    """A brief answer says how many rows there are, and where to continue."""
    answer = box.call("patch", {"change": DIFF, "what": ["file:t.txt"], "pc": "raw"})
    assert not answer.is_error, answer.text
    assert len(answer.text) <= 2048
    content = json.loads(answer.text)
    assert content["status"] == 1
    assert content["total"] == len(FIRST.splitlines()) + len(SECOND.splitlines())
    assert content["next"] == len(content["rows"]) > 0
    following = box.call(
        "patch",
        {
            "change": DIFF,
            "what": ["file:t.txt"],
            "pc": "raw",
            "next": content["next"],
            "limit": 1000,
        },
    )
    rows = content["rows"] + following.content["rows"]
    assert len(rows) == content["total"]


def test_only_missed_lines_with_few_keys(box):
    given = {
        "change": DIFF,
        "what": ["file:t.txt"],
        "pc": "raw",
        "missed": True,
        "fields": ["file", "line", "state"],
    }
    answer = box.call("patch", given)
    assert {row["state"] for row in answer.content["rows"]} <= {"not-executed", "partly", "unknown"}
    assert answer.content["rows"][0].keys() == {"file", "line", "state"}


def test_a_diff_in_the_folder(box):
    (box.folder / "a.diff").write_text(DIFF)
    assert (
        box.call("patch", {"change": "a.diff", "what": ["file:t.txt"], "pc": "raw"}).content[
            "status"
        ]
        == 1
    )


@pytest.mark.parametrize(
    "change",
    ["HEAD", "HEAD~1..", "../outside.diff", "{folder}/../outside.diff", "link.diff", "-", None],
)
def test_what_a_client_may_not_name(box, change, monkeypatch):
    (box.folder.parent / "outside.diff").write_text(DIFF)
    (box.folder / "link.diff").symlink_to(box.folder.parent / "outside.diff")
    monkeypatch.setattr(command, "git_diff", lambda *_: "")
    given = {} if change is None else {"change": change.format(folder=box.folder)}
    assert box.call("patch", {**given, "what": ["file:t.txt"], "pc": "raw"}).is_error


@pytest.mark.parametrize(
    ("line", "traces", "name"),
    [
        ("x" * 5000, 1, "t"),
        # Escaped, each takes six bytes.
        ("€" * 900, 1, "t"),
        ("a", 300, "t"),
        ("a", 8, "long-name-of-a-trace-" * 8),
        ("€" * 900, 8, "é" * 100),
    ],
)
def test_a_brief_answer_is_brief_whatever_is_in_it(box, line, traces, name):
    """Long lines, many traces and long names: what is left out is counted."""
    words = []
    for number in range(traces):
        trace = box.folder / f"{name}{number}.txt"
        trace.write_bytes((box.folder / "t.txt").read_bytes())
        words.append(f"file:{trace.name}")
    change = diff_of("src/first.c", line + "\n" + FIRST)
    answer = box.call("patch", {"change": change, "what": words, "pc": "raw"})
    assert len(answer.text.encode()) <= 2048
    assert answer.content["rows"]
    assert answer.content["total"] == len(FIRST.splitlines()) + 1
    assert json.loads(answer.text) == answer.content
