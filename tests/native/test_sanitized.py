# SPDX-License-Identifier: LGPL-2.1-or-later
"""The C loops under AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = os.environ.get("KCOVDBG_NATIVE_ROUNDS", "300")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    path = tmp_path_factory.mktemp("native") / "driver"
    warnings = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    sources = [
        Path(__file__).with_name("driver.c"),
        *(ROOT / "native" / f"{name}.c" for name in ("pctext", "chains", "seqdiff")),
    ]
    command = ["gcc", "-O1", "-g", *warnings, *sanitizers, f"-I{ROOT / 'native'}", "-o", path, *sources]
    built = subprocess.run(command, capture_output=True, text=True)
    if "cannot find" in built.stderr:
        pytest.skip("needs gcc's sanitizers")
    assert built.returncode == 0, built.stderr
    return path


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_random_work(driver, seed):
    done = subprocess.run([driver, seed, ROUNDS], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
