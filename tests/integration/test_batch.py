# SPDX-License-Identifier: LGPL-2.1-or-later
"""``batch``: many dumps and traces into one data set; compared with kcovdbg's answers about each of
them.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
import zstandard

from kcovdbg.farm.batch_run import BatchJob, find_digests, find_outcome, run_job
from kcovdbg.target.demo_files import find_demo
from tests.integration.conftest import Demo
from tests.lab.kcovdbg_run import ROOT, ask, run_kcovdbg
from tests.support.compiled_image import compile_image
from tests.support.programs import output_of
from tests.support.screen import Screen

DEMO = find_demo()
LINES = ("tasks", "objects", "check", "buffer 82 -n 3", "remote")


run = functools.partial(run_kcovdbg, status=0, timeout=600)


def unpack(path: Path) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())


@pytest.fixture
def vmlinux(demo: Demo) -> Path:
    return demo.vmlinux


def make_dumps(folder: Path, number: int, cut: int = 7) -> list[Path]:
    """Make dumps: the demo under other names, one of them cut off so early that nothing can be
    read.
    """
    whole = DEMO / "demo.slice.zst"
    folder.mkdir()
    paths = [
        folder / f"dump-{index}.{'slice' if index == cut else 'zst'}" for index in range(number)
    ]
    for index, path in enumerate(paths):
        path.write_bytes(unpack(whole)[: 300 + index] if index == cut else whole.read_bytes())
    return paths


def read_rows(output: Path, command: str) -> list[dict[str, Any]]:
    answer = duckdb.sql(
        f"SELECT * FROM read_parquet('{output}/command={command}/*.parquet', "
        f"union_by_name=true, hive_partitioning=false)"
    )
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def as_text(value: object) -> object:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def same(kept: object, said: object) -> bool:
    """Return whether a value of the data set equals that of JSON; values without a type are JSON in
    text.
    """
    if isinstance(kept, list) and isinstance(said, list):
        return len(kept) == len(said) and all(map(same, kept, said))
    if isinstance(kept, dict) and isinstance(said, dict):
        return kept.keys() == said.keys() and all(same(kept[key], said[key]) for key in kept)
    return kept == said or kept == as_text(said)


def test_rows_are_those_of_json(tmp_path: Path, vmlinux: Path) -> None:
    output = tmp_path / "out"
    dump = DEMO / "demo.slice.zst"
    words = [word for line in LINES for word in ("-e", line)]
    run("batch", *words, dump, "-s", vmlinux, "-o", output)
    answers = dict(zip(LINES, ask(["-c", dump, "-s", vmlinux], *LINES, status=None), strict=True))
    for line, alone in answers.items():
        kept = read_rows(output, line.split()[0])
        assert [row.pop("dump") for row in kept] == [str(dump)] * len(alone)
        assert {row.pop("command_line") for row in kept} <= {line}
        assert len({row.pop("dump_build_id") for row in kept}) <= 1
        assert {row.pop("dump_damage") for row in kept} <= {None}
        assert len(kept) == len(alone)
        for row, expected in zip(kept, alone, strict=True):
            assert list(row) == list(expected)
            # A count that the demo's damaged object has: no signed number of 64 bits.
            large = {
                key
                for key, value in expected.items()
                if isinstance(value, int) and value >= 1 << 63
            }
            assert all(row[key] is None for key in large)
            assert len(row.get("errors", [])) == len(expected.get("errors", [])) + len(large)
            compared = row.keys() - large - ({"errors"} if large else set())
            assert all(same(row[key], expected[key]) for key in compared), (row, expected)

    def question(name: str) -> list[list[str]]:
        printed = output_of(sys.executable, ROOT / "examples/ask_batch.py", output, name)
        return [line.split("\t") for line in printed.splitlines()[1:]]

    assert {row[0]: row[1] for row in question("handles")} == {
        row["handle"]: "1" for row in answers["remote"]
    }
    wrong = [row for row in answers["check"] if row["rule"] in ("K1", "X2", "X3")]
    assert (
        question("leaked")
        == [[str(dump), row["object"], row["rule"], row["message"]] for row in wrong]
        != []
    )


def test_bad_dumps_stop_nobody_and_are_not_asked_again(tmp_path: Path, vmlinux: Path) -> None:
    dumps = make_dumps(tmp_path / "dumps", 8, cut=3)
    words = ["batch", "-e", "tasks", "-e", "check", *dumps, tmp_path / "none", "-s", vmlinux]
    output = tmp_path / "out"
    outcomes = json.loads(run(*words, "-o", output, "--json", status=1).stdout)
    assert [outcome["dump"] for outcome in outcomes] == [*map(str, dumps), str(tmp_path / "none")]
    failed = {outcome["dump"] for outcome in outcomes if outcome["error"] is not None}
    assert failed == {str(dumps[3]), str(tmp_path / "none")}
    assert all("Traceback" not in (outcome["error"] or "") for outcome in outcomes)
    whole = {str(path) for path in dumps} - failed
    assert {row["dump"] for row in read_rows(output, "tasks")} == whole
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*.parquet")}
    again = json.loads(run(*words, "-o", output, "--json", status=None).stdout)
    assert again == outcomes
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*.parquet")} == before
    # One that has changed is asked again, and so is one that failed where that is wanted.
    os.utime(dumps[0], (1, 1))
    dumps[3].write_bytes(unpack(DEMO / "demo.slice.zst"))
    outcomes = json.loads(run(*words, "-o", output, "--json", "--retry", status=None).stdout)
    assert {outcome["dump"] for outcome in outcomes if outcome["error"] is not None} == failed - {
        str(dumps[3])
    }
    assert len([path for path in output.rglob("*.parquet") if path not in before]) == 2
    assert len([path for path in before if path.stat().st_mtime_ns != before[path]]) == 2


def test_directories_and_damage(tmp_path: Path, vmlinux: Path) -> None:
    """All that is a dump by its contents or name; what is damaged is listed, and told in each
    row.
    """
    dumps = tmp_path / "dumps"
    (whole,) = make_dumps(dumps, 1)
    plain = unpack(whole)
    below = dumps / "below"
    below.mkdir()
    (below / "cut").write_bytes(plain[: len(plain) * 3 // 4])
    (below / "vmcore").write_bytes(b"")
    (below / "README").write_text("about these\n")
    (below / "vmlinux").symlink_to(vmlinux)
    words = ["batch", "-e", "tasks", "-s", vmlinux, "-o", tmp_path / "out"]
    done = run(*words, dumps, whole, "--json", status=1)
    problems = {Path(row["dump"]): row["error"] for row in json.loads(done.stdout)}
    assert set(problems) == {whole, below / "cut", below / "vmcore"}
    assert problems[whole] is None
    assert f"{len(plain) * 3 // 4:,} of {len(plain):,} bytes" in problems[below / "cut"]
    assert "is empty" in problems[below / "vmcore"]
    damage = {row["dump"]: row["dump_damage"] for row in read_rows(tmp_path / "out", "tasks")}
    assert damage[str(whole)] is None
    assert "truncated" in damage[str(below / "cut")]
    # What was answered as far as it goes did not fail.
    run(*words, below / "cut")
    run(*words[:-1], tmp_path / "other", tmp_path / "out", status=2)


@pytest.mark.parametrize("place", ["dumps", "dumps/out", "dumps/away/out", ".", "links"])
def test_places_for_a_data_set_that_are_refused(tmp_path: Path, place: str) -> None:
    """With a directory: in it, through a link in it, above it; and where there are links."""
    make_dumps(tmp_path / "dumps", 1)
    (tmp_path / "victim").mkdir()
    (tmp_path / "dumps/away").symlink_to(tmp_path / "victim")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/command=tasks").symlink_to(tmp_path / "victim")
    refused = run("batch", "-e", "tasks", tmp_path / "dumps", "-o", tmp_path / place, status=2)
    assert "-o DIR" in refused.stderr
    assert not [*(tmp_path / "victim").iterdir()]


def test_an_outcome_that_cannot_be_believed(tmp_path: Path) -> None:
    """One for another file, one of another kind, through a link, of another user: the job runs
    again.
    """
    dump = tmp_path / "vmcore"
    dump.write_bytes(b"")
    job = BatchJob(str(dump), ("tasks",), str(tmp_path / "out"), (), 60)
    assert run_job(job) == find_outcome(job)
    kept = job.run_file.read_text()
    found = json.loads(kept)
    for change in (
        {**found, "identity": {**found["identity"], "path": "/x"}},
        {**found, "identity": {**found["identity"], "kcovdbg": "0"}},
        {**found, "outcome": {**found["outcome"], "path": "/x"}},
        {**found, "outcome": {**found["outcome"], "lines": [{"line": 3, "status": 0, "rows": 0}]}},
        {**found, "outcome": {**found["outcome"], "more": 1}},
        {**found, "outcome": []},
        [],
    ):
        job.run_file.write_text(json.dumps(change))
        assert find_outcome(job) is None
    job.run_file.write_text(kept)
    assert find_outcome(job) is not None
    job.run_file.rename(tmp_path / "kept")
    job.run_file.symlink_to(tmp_path / "kept")
    assert find_outcome(job) is None
    job.run_file.unlink()
    os.mkfifo(job.run_file)
    assert find_outcome(job) is None
    if os.geteuid() == 0:
        job.run_file.unlink()
        job.run_file.write_text(kept)
        os.chown(job.run_file, 12345, 12345)
        assert find_outcome(job) is None


def test_an_outcome_is_of_the_same_file_and_images(tmp_path: Path) -> None:
    """Another image may claim the same build ID, and a file can get the time of its last write
    back.
    """
    dump, image = tmp_path / "vmcore", compile_image(tmp_path)
    dump.write_bytes(b"first")
    symbols = ((None, str(image)),)
    job = BatchJob(
        str(dump), ("tasks",), str(tmp_path / "out"), symbols, 60, digests=find_digests(symbols)
    )
    assert run_job(job) == find_outcome(job)
    other = tmp_path / "other"
    other.write_bytes(image.read_bytes() + b"\0")
    assert find_outcome(replace(job, digests=find_digests(((None, str(other)),)))) is None
    written = dump.stat().st_mtime_ns
    dump.write_bytes(b"other")
    os.utime(dump, ns=(written, written))
    assert find_outcome(job) is None


def test_a_dump_that_takes_too_long_is_given_up(tmp_path: Path, vmlinux: Path) -> None:
    # Less time than any process takes to open a dump.
    (dump,) = make_dumps(tmp_path / "dumps", 1)
    output = tmp_path / "out"
    done = run(
        "batch", "-e", "tasks", dump, "-s", vmlinux, "-o", output, "--timeout", "0.01", status=1
    )
    assert "0.01 s" in done.stdout
    assert not list(output.rglob("*.parquet"))


def run_worker(job: BatchJob, code: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", code]
    return subprocess.run(
        words, cwd=ROOT, input=json.dumps(asdict(job)), capture_output=True, text=True, check=False
    )


def test_a_dump_is_unpacked_once(tmp_path: Path, vmlinux: Path) -> None:
    job = BatchJob(
        str(DEMO / "demo.slice.zst"), ("tasks",), str(tmp_path / "out"), ((None, str(vmlinux)),), 60
    )
    imports = "from kcovdbg.farm import batch_worker; from kcovdbg.target import dump_file"
    done = run_worker(job, f"{imports}; batch_worker.main(); print(len(dump_file._KEPT))")
    assert done.stdout.splitlines()[-1] == "1", done.stdout


def test_a_dump_is_known_before_its_first_command(tmp_path: Path, vmlinux: Path) -> None:
    job = BatchJob(
        str(DEMO / "demo.slice.zst"),
        ("last",),
        str(tmp_path),
        ((None, str(vmlinux)),),
        60,
        files=(str(tmp_path / "last"),),
    )
    code = (
        "import os; from kcovdbg.farm import batch_worker; "
        "batch_worker.summarize_crash = lambda *_: os._exit(7); batch_worker.main()"
    )
    done = run_worker(job, code)
    assert done.returncode == 7, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["build_id"]


def test_nothing_half_written_when_it_is_killed(tmp_path: Path, vmlinux: Path) -> None:
    dumps = make_dumps(tmp_path / "dumps", 6)
    output = tmp_path / "out"
    words = ["batch", "-e", "tasks", *dumps, "-s", vmlinux, "-o", output]
    with subprocess.Popen(
        [sys.executable, "-m", "kcovdbg", *words], cwd=ROOT, stderr=subprocess.PIPE
    ) as process:
        while not list(output.glob("_runs/*.json")):
            time.sleep(0.05)
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    for path in output.rglob("*.parquet"):
        duckdb.sql(f"SELECT count(*) FROM '{path}'").fetchall()
    run(*words)
    assert {row["dump"] for row in read_rows(output, "tasks")} == set(map(str, dumps))


def test_stopped_by_an_interrupt(tmp_path: Path, vmlinux: Path) -> None:
    dumps = make_dumps(tmp_path / "dumps", 7)
    words = ["batch", "-e", "tasks", *dumps, "-s", vmlinux, "-o", tmp_path / "out"]
    with Screen(sys.executable, "-m", "kcovdbg", *words, "-j", "1") as screen:
        screen.wait(" of 7")
        assert screen.end(keys="\x03") == 130
        assert " of 7" not in screen.text
        assert "same command" in screen.text
    done = len(list((tmp_path / "out/_runs").glob("*.json")))
    assert 0 < done < 7
    assert f"{done} of them earlier" in run(*words).stdout
    assert {row["dump"] for row in read_rows(tmp_path / "out", "tasks")} == set(map(str, dumps))


def test_a_list_of_pcs_and_an_image(tmp_path: Path, vmlinux: Path) -> None:
    """The list does not say its build, and the rows of top have a key of their own for the line."""
    text = tmp_path / "one.txt"
    expected, _ = ask(["--demo"], "top 41", f"export hex 41 -o {text}")
    words = ("batch", "-e", "top {}", text, "-o", tmp_path / "out")
    assert "no such file" in run(*words, tmp_path / "absent.kcov", status=1).stdout
    run(*words)
    assert {row["function"] for row in read_rows(tmp_path / "out", "top")} == {None}
    # An answer without debug info is not one with it, and a kernel that kcovdbg was started with is
    # that of the traces.
    for line in ((*words, "-s", vmlinux), ("-s", vmlinux, *words, "--again")):
        run(*line)
        rows = read_rows(tmp_path / "out", "top")
        assert {row["command_line"] for row in rows} == {"top {}"}
        assert [(row["function"], row["count"], row["line"]) for row in rows] == [
            (row["function"], row["count"], row["line"]) for row in expected
        ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.zst", "-o", "x"], "-e COMMAND"),
        (["-e", "tasks | cat", "a.zst", "-o", "x"], "'tasks | cat'"),
        (["-e", "view 3", "a.zst", "-o", "x"], "view"),
        (["-e", "export hex {} -o one.txt", "a.zst", "-o", "x"], "export"),
        (["-e", "report -o one.html", "a.zst", "-o", "x"], "report"),
        (["-e", "taks", "a.zst", "-o", "x"], "'taks'"),
        (["-e", "monitor --print", "a.zst", "-o", "x"], "monitor"),
        (["-e", "catch 3", "a.zst", "-o", "x"], "catch"),
        (["-e", "mcp", "a.zst", "-o", "x"], "mcp"),
    ],
)
def test_refusals(tmp_path: Path, words: list[str], said: str) -> None:
    words = [str(tmp_path / word) if word == "x" else word for word in words]
    refused = run("batch", *words, status=2)
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
