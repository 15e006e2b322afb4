# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the packages, install them into empty environments, and run them there."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.comparison import parse_outputs
from tests.lab.kcovdbg_run import ROOT, Rows, ask, run_kcovdbg

# Answers from the dump alone, from its debug info, and through the native module. The first one
# waits for the location table, which knows the tail calls that debug info does not show.
QUESTIONS = (
    "points vfs_read",
    "tasks",
    "objects",
    "buffer 82 -n 5",
    "top 82",
    "trace 82",
    "last 82",
    "check",
)


@dataclass(frozen=True)
class Installed:
    """A clean environment with the wheel in it."""

    prefix: Path
    home: Path

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, away from any checkout and from tables that other tests
        leave.
        """
        folders = {"HOME": str(self.home), "TMPDIR": str(self.home)}
        environment = {"PATH": "/usr/bin:/bin", "TERM": "dumb", "LANG": "C.UTF-8"} | folders
        return subprocess.run(
            [self.prefix / "bin" / words[0], *words[1:]],
            cwd=self.home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=check,
        )

    def package(self) -> Path:
        """Return where the package is."""
        return Path(
            self.run("python", "-c", "import kcovdbg; print(kcovdbg.__path__[0])").stdout.strip()
        )


def list_files() -> list[str]:
    """Return a copy of the files of this checkout that git tracks."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True
    ).stdout
    return [name for name in os.fsdecode(listed).split("\0") if name and (ROOT / name).exists()]


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the source distribution of the tracked files, and the wheel built from it."""
    source = tmp_path_factory.mktemp("source")
    for name in list_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    output = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "-o", output, source], check=True, capture_output=True
    )
    (sdist,) = output.glob("*.tar.gz")
    (wheel,) = output.glob("*.whl")
    return sdist, wheel


def install(python: Path, wheel: Path, folder: Path) -> Installed:
    prefix = folder / "environment"
    subprocess.run([python, "-m", "venv", "--without-pip", prefix], check=True)
    # With this environment's pip: to install another one takes seconds.
    pip = [sys.executable, "-m", "pip", "--python", prefix / "bin/python"]
    words = ["--disable-pip-version-check", "install", "-q", wheel]
    subprocess.run([*pip, *words], check=True, cwd=folder)
    home = folder / "home"
    home.mkdir()
    return Installed(prefix, home)


@functools.cache
def find_pythons() -> dict[str, Path]:
    """Return an interpreter of the oldest supported version and one of the newest; all other tests
    run on another one.
    """
    # pyenv's commands in the path run only the versions that it is told to.
    in_path = (shutil.which(f"python3.{minor}") for minor in range(10, 30))
    found: dict[int, Path] = {}
    for path in filter(
        None, (sys.executable, *in_path, *sorted(Path.home().glob(".pyenv/versions/*/bin/python3")))
    ):
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            code = "import sys, venv, ensurepip; print(sys.version_info.minor)"
            done = subprocess.run(
                [path, "-c", code], capture_output=True, text=True, timeout=20, check=True
            )
            found.setdefault(int(done.stdout), Path(path))
    return {
        f"3.{minor}": found[minor]
        for minor in (min(minor for minor in found if minor >= 10), max(found))
    }


@pytest.fixture(scope="session", params=find_pythons())
def installed(
    request: pytest.FixtureRequest,
    packages: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Installed:
    return install(
        find_pythons()[request.param],
        packages[1],
        tmp_path_factory.mktemp(f"python{request.param}-"),
    )


@pytest.fixture(scope="session")
def answers() -> dict[str, Rows]:
    """What this checkout answers to the questions."""
    # The demo is damaged, which check says by its status.
    return dict(zip(QUESTIONS, ask(["--demo"], *QUESTIONS, status=1), strict=True))


def test_wheel_is_for_every_python_from_the_oldest(packages: tuple[Path, Path]) -> None:
    assert "-cp310-abi3-" in packages[1].name
    subprocess.run(
        [sys.executable, "-m", "abi3audit", "--strict", "--report", packages[1]], check=True
    )


def test_sdist_holds_what_git_holds(packages: tuple[Path, Path]) -> None:
    with tarfile.open(packages[0]) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    missing = set(list_files()) - held
    assert missing <= {".gitignore", ".gitattributes"}


def test_wheel_holds_no_tests_and_nothing_twice(packages: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packages[1]) as wheel:
        names = wheel.namelist()
    assert len(names) == len(set(names))
    assert {name.split("/")[0].split("-")[0] for name in names} == {"kcovdbg"}
    assert not [
        name
        for name in names
        if name.endswith((".c", ".o")) or "/tests/" in name
        if "/demo/" not in name
    ]


def test_answers(installed: Installed, answers: dict[str, Rows]) -> None:
    words = [word for question in QUESTIONS for word in ("-e", f"{question} --json")]
    assert (
        parse_outputs(installed.run("kcovdbg", "--demo", *words, check=False).stdout, QUESTIONS)
        == answers
    )


def test_what_else_is_installed(installed: Installed) -> None:
    share = installed.prefix / "share"
    assert (share / "man/man1/kcovdbg.1").is_file()
    assert (share / "bash-completion/completions/kcovdbg.bash").is_file()
    assert (share / "zsh/site-functions/_kcovdbg").is_file()
    assert (share / "fish/vendor_completions.d/kcovdbg.fish").is_file()
    loader = Path(installed.run("kcovdbg", "gdb", "--path").stdout.strip())
    assert loader.is_relative_to(installed.prefix)
    assert loader.read_text() == (ROOT / "gdb/kcov.py").read_text()
    here, there = installed.home / "here", installed.home / "there"
    run_kcovdbg("demo", here, status=0)
    installed.run("kcovdbg", "demo", str(there))
    files = {path.relative_to(here) for path in here.rglob("*")}
    assert files == {path.relative_to(there) for path in there.rglob("*")}
    assert {Path("vmcore"), Path("modules/kcovlab_keep.c"), Path("calls/vmcore")} <= files


def test_drgn_finds_the_plugin(installed: Installed) -> None:
    script = installed.home / "script.py"
    script.write_text(
        "from importlib.metadata import entry_points\n"
        "(entry,) = entry_points(group='drgn.plugins', name='kcov')\n"
        "assert entry.load().__name__ == 'kcovdbg.frontends.drgn_plugin'\n"
        "from kcovdbg.helpers import for_each_kcov\n"
    )
    installed.run("python", str(script))


def test_without_the_native_module(
    installed: Installed, answers: dict[str, Rows], request: pytest.FixtureRequest
) -> None:
    """The compiled module is required: what needs it says in one sentence what to install."""
    python = request.node.callspec.params["installed"]
    if python != next(iter(find_pythons())) and not request.config.getoption("exhaustive"):
        pytest.skip("as with the oldest Python: --exhaustive runs it")
    package = installed.package()
    (native,) = package.glob("_native*.so")
    away = native.rename(installed.home / native.name)
    try:
        refusals = 0
        for question in QUESTIONS:
            done = installed.run("kcovdbg", "--demo", "-e", f"{question} --json", check=False)
            assert "Traceback" not in done.stderr, question
            if done.returncode == 2:
                refusals += 1
                assert "C compiler" in done.stderr, question
            else:
                assert json.loads(done.stdout) == answers[question], question
        assert refusals
        refused = installed.run("kcovdbg", "collect", "--", "true", check=False)
        assert refused.returncode == 125
        assert "C compiler" in refused.stderr
        assert "Traceback" not in refused.stderr
    finally:
        away.rename(native)
