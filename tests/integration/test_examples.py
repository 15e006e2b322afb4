# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each example runs, and shows what it is meant to show."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


TOUR_ENVIRONMENT = os.environ | {"KCOVDBG": f"{sys.executable} -m kcovdbg"}


def test_tour():
    done = subprocess.run(
        [EXAMPLES / "tour.sh"],
        cwd=EXAMPLES.parent,
        env=TOUR_ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = {
        part.partition("\n")[0]: part.partition("\n")[2]
        for part in done.stdout.split("\nkcovdbg> ")[1:]
    }
    assert len(answers) == 5
    # One screen, with a sentence before each command.
    assert len(done.stdout.splitlines()) <= 50
    shown = {line.split()[0]: answer for line, answer in answers.items()}
    assert "softirq-section over local" in shown["tasks"]
    assert "kc-traffic" in shown["saved"]
    assert "__usb_hcd_giveback_urb" in shown["buffer"]
    assert "section 82" in shown["objects"]
    assert "known bug" in shown["check"]


@pytest.mark.parametrize(("answer", "opens"), [("n\r", False), ("\r", True)])
def test_tour_offers_the_shell_on_a_terminal(answer, opens):
    process = pexpect.spawn(
        str(EXAMPLES / "tour.sh"),
        cwd=str(EXAMPLES.parent),
        env=TOUR_ENVIRONMENT | {"TERM": "dumb"},
        timeout=120,
    )
    try:
        process.expect_exact("[Y/n] ")
        process.send(answer)
        assert process.expect_exact([pexpect.EOF, "kcovdbg> "]) == opens
    finally:
        process.close(force=True)


def test_tour_keeps_interrupts_in_its_shell_from_make():
    script = f"trap 'echo interrupted' INT; {EXAMPLES / 'tour.sh'}; echo status $?"
    environment = TOUR_ENVIRONMENT | {"TERM": "dumb"}
    process = pexpect.spawn(
        "sh", ["-c", script], cwd=str(EXAMPLES.parent), env=environment, timeout=120
    )
    try:
        process.expect_exact("[Y/n] ")
        process.send("y\r")
        process.expect_exact("kcovdbg> ")
        process.send("! echo begun; sleep 600\r")
        process.expect_exact("begun\r")
        process.sendintr()
        process.expect_exact("kcovdbg> ")
        process.sendeof()
        assert process.expect_exact(["interrupted", "status 0"]) == 1
    finally:
        process.close(force=True)


def _write_text_trace(path, pcs):
    path.write_text("".join(f"{pc:#x}\n" for pc in pcs))
    return str(path)


def _minimize(*paths):
    return subprocess.run(
        [sys.executable, EXAMPLES / "minimize_corpus.py", *paths],
        capture_output=True,
        text=True,
        check=False,
        cwd=EXAMPLES.parent,
    )


def test_minimize_corpus_covers_all_with_few(tmp_path):
    rng = random.Random(5)
    text = range(0xFFFFFFFF81000000, 0xFFFFFFFF81010000, 5)
    contents = [rng.sample(text, rng.randrange(1, 300)) for _ in range(40)]
    contents += [contents[3], contents[3][:50], contents[3] + contents[4]]
    paths = [
        _write_text_trace(tmp_path / f"{number:02}.txt", pcs) for number, pcs in enumerate(contents)
    ]
    done = _minimize(*paths)
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    covered: set[int] = set()
    for gain, path in lines:
        adds = set(contents[paths.index(path)]) - covered
        # Greedy: no other trace would have added more.
        assert len(adds) == int(gain) == max(len(set(pcs) - covered) for pcs in contents)
        covered |= adds
    assert covered == set().union(*contents)
    assert re.findall(r"\d+", done.stderr) == [
        str(number) for number in (len(covered), len(lines), len(paths))
    ]
    assert paths[3] not in [path for _, path in lines]


def test_minimize_corpus_goes_on_without_a_file_that_is_none(tmp_path):
    good = _write_text_trace(tmp_path / "good.txt", [0xFFFFFFFF81000000])
    done = _minimize(str(tmp_path / "none.kcov"), good)
    assert done.returncode == 2
    assert done.stdout == f"1\t{good}\n"
    assert "none.kcov" in done.stderr
