# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pages: every session on them is run on the demo, every command on them is valid, and Sphinx
builds them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.command import parse_arguments
from kcovdbg.console.command_line import parse_line
from kcovdbg.frontends.options import parse_options
from tests.lab.kcovdbg_run import ROOT, run_kcovdbg
from tests.support.browser import Browser

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "generate")
README = ROOT / "README.md"
FENCE = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
PROMPTS = ("kcovdbg> ", r"\(gdb\) ", ">>> ")
LEFT_OUT = "…"


def fences(page: Path, *kinds: str) -> Iterator[str]:
    yield from (
        match["text"] for match in FENCE.finditer(page.read_text()) if match["kind"] in kinds
    )


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def sessions(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the commands of a page's sessions with what they print."""
    for text in fences(page, "console"):
        shell = ""
        for part in re.split(rf"^(?=\$ |{'|'.join(PROMPTS)})", text, flags=re.MULTILINE):
            line, _, shown = part.partition("\n")
            if line.startswith("(gdb) "):
                # GDB says first where the core stands.
                told = f"-batch -ex 'echo @@\\n' -ex {shlex.quote(line.removeprefix('(gdb) '))}"
                yield f"{shell} {told} 2>/dev/null | sed '1,/^@@$/d'", shown
            elif line.startswith(">>> "):
                yield f"{shell} {line}", shown
            elif line.startswith("kcovdbg> "):
                yield f"{shell} -e {shlex.quote(line.removeprefix('kcovdbg> '))}", shown
            elif line.startswith("$ python -m tests."):
                # The lab's and the bench's own figures: minutes, and never the same.
                continue
            elif line.startswith("$ ") and shown:
                yield line.removeprefix("$ "), shown
            elif line.startswith("$ "):
                shell = line.removeprefix("$ ")


def commands_on(page: Path) -> list[str]:
    """Return the command lines of kcovdbg on a page, those in sessions and those to be typed."""
    texts = fences(page, "sh", "console", "text")
    lines = (
        line.removeprefix("$ ").removeprefix("sudo ")
        for text in texts
        for line in text.splitlines()
    )
    return [
        line for line in lines if line.startswith("kcovdbg ") and not line.startswith("kcovdbg> ")
    ]


SESSIONS = [page for page in (README, *PAGES) if any(True for _ in sessions(page))]
# The pages on adding something have commands of what they add; test_doc_additions.py runs these.
WITH_COMMANDS = [
    page for page in (README, *PAGES) if commands_on(page) and not page.name.startswith("adding-")
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files that the pages name: the demo as ``vmcore`` and
    ``vmlinux``, and their scripts.
    """
    folder = tmp_path_factory.mktemp("place")
    run_kcovdbg("demo", folder, status=0)
    programs = folder / "bin"
    programs.mkdir()
    for name, words in (
        ("kcovdbg", "-m kcovdbg"),
        ("python", ""),
        ("drgn", str(Path(sys.executable).parent / "drgn")),
    ):
        script = programs / name
        script.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} {words} "$@"\n')
        script.chmod(0o755)
    shutil.copy(ROOT / "examples/fuzz.jsonl", folder)
    for name in ("oops.txt", "console.txt"):
        (folder / name).write_text("Call Trace:\n vfs_read+0x15/0x300\n")
    (folder / "ask_batch.py").write_text((ROOT / "examples/ask_batch.py").read_text())
    for page in PAGES:
        for match in re.finditer(
            r"`(\w+\.py)`:\n\n```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            (folder / match[1]).write_text(match[2])
    return folder


def as_pattern(shown: str) -> re.Pattern[str]:
    """Make a pattern of what a page shows: a line of … is any number of lines, … within a line any
    text.
    """
    parts = []
    for line in shown.rstrip("\n").split("\n"):
        if line.strip() == LEFT_OUT:
            parts.append(r"(?:.*\n)*")
        else:
            parts.append(
                ".*".join(re.escape(piece.rstrip()) for piece in line.split(LEFT_OUT)) + r"[ ]*\n"
            )
    return re.compile("".join(parts))


@pytest.mark.parametrize("page", SESSIONS, ids=name_of)
def test_sessions_are_real(page: Path, place: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "PYTHONPATH")
    }
    environment["PATH"] = f"{place / 'bin'}:{environment['PATH']}"
    for command, shown in sessions(page):
        # An ellipsis alone matches any output.
        assert re.sub(rf"[\s{LEFT_OUT}]|\.\.\.", "", shown), command
        if " gdb " in command and shutil.which("gdb") is None:
            pytest.skip("needs gdb")
        if " >>> " in command:
            printed = run_at_prompt(*command.split(" >>> "), place, environment)
            assert as_pattern(shown).fullmatch(printed), f"$ {command}\n{printed}"
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert as_pattern(shown).fullmatch(done.stdout), f"$ {command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"$ {command}\n{done.stderr}"


def run_at_prompt(program: str, line: str, place: Path, environment: dict[str, str]) -> str:
    """Type a line at the prompt of a program in a terminal of 100 columns; return what it
    prints.
    """
    plain = {**environment, "TERM": "dumb", "NO_COLOR": "1", "PYTHON_BASIC_REPL": "1"}
    process = pexpect.spawn(
        "bash",
        ["-c", program],
        cwd=str(place),
        env=plain,
        dimensions=(100, 100),
        encoding="utf-8",
        timeout=120,
    )
    try:
        # The banner has lines with prompts as well.
        process.sendline("print('ready'.upper())")
        process.expect_exact("READY\r\n>>> ")
        process.sendline(line)
        process.expect_exact("\n>>> ")
    finally:
        process.close(force=True)
    # The terminal's echo of the line comes first.
    return str(process.before).replace("\r", "").partition("\n")[2] + "\n"


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_commands_can_be_understood(
    page: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name of a missing file looks like that of a command.
    monkeypatch.chdir(place)
    for line in commands_on(page):
        options = parse_options(
            shlex.split(re.sub(r" (\||2>|>).*", "", line), comments=True)[1:], COMMANDS
        )
        for words in (
            *([word.text for word in parse_line(source).words] for source in options.commands),
            [*options.words],
        ):
            if words:
                parse_arguments(COMMANDS.find(words[0]), words[1:])


@pytest.fixture(scope="module")
def built_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as Sphinx builds them, without a warning."""
    folder = tmp_path_factory.mktemp("pages")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", DOCS, folder],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_sphinx_builds_without_warnings(built_pages: Path) -> None:
    for page in PAGES:
        assert (built_pages / page.relative_to(DOCS)).with_suffix(".html").is_file()


def test_pages_fit_a_phone_and_have_a_dark_mode(built_pages: Path, browser: Browser) -> None:
    grounds = set()
    for dark in (False, True):
        browser.look(width=390, height=844, dark=dark, touch=True)
        for page in PAGES:
            browser.open((built_pages / page.relative_to(DOCS)).with_suffix(".html"))
            # A page with something wider than the phone is shown smaller.
            assert browser.run("window.innerWidth") == 390, page
        grounds.add(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


def test_every_page_is_in_the_contents() -> None:
    listed = {
        str((index.parent / entry).relative_to(ROOT))
        for index in DOCS.rglob("index.md")
        for entry in re.findall(r"^([\w/-]+)$", index.read_text(), re.MULTILINE)
    }
    assert {name_of(page).removesuffix(".md") for page in PAGES} - {"docs/index"} <= listed
