# SPDX-License-Identifier: LGPL-2.1-or-later
"""The collector in C, under sanitizers, without a kernel that has KCOV."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("collector.c", "inject.c", "follow.c")


def test_with_a_fake_device(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    program = tmp_path / "collector"
    command = [
        "gcc",
        "-O1",
        "-g",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        f"-I{ROOT / 'native'}",
    ]
    command += [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ]
    # The program puts a moment of its own between reaping a process and what follows.
    command += ["-Wl,--wrap=kill", "-Wl,--wrap=waitpid"]
    sources = [
        Path(__file__).with_name("collector.c"),
        *(ROOT / "native" / name for name in SOURCES),
    ]
    built = subprocess.run([*command, "-o", program, *sources], capture_output=True, text=True)
    if "cannot find" in built.stderr:
        pytest.skip("needs gcc's sanitizers")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
