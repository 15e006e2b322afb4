# SPDX-License-Identifier: LGPL-2.1-or-later
"""The C code under AddressSanitizer and UndefinedBehaviorSanitizer: random work, and damaged debug
info.
"""

import subprocess

import pytest

from tests.native import driver

# Of each target; three times as many with --exhaustive.
SECONDS = 1


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return driver.compile_driver(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return driver.make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("target", driver.TARGETS)
def test_target(program, corpus, target, tmp_path, request):
    seconds = 3 * SECONDS if request.config.getoption("exhaustive") else SECONDS
    done = driver.run(program, target, 1, seconds, corpus, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("target", driver.LIBFUZZER)
def test_libfuzzer(target, tmp_path):
    fuzzer = driver.compile_libfuzzer(tmp_path, target)
    if fuzzer is None:
        pytest.skip("needs clang")
    done = subprocess.run(
        [fuzzer, "-runs=2000", "-seed=1", "-max_len=4096"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Done 2000 runs" in done.stderr


def test_the_corpus_has_both_formats(corpus):
    """Undamaged, it has what compilers write: otherwise damage is refused at once, and nothing is
    tried.
    """
    wanted = ["DWARF 4", "DWARF 5", "LTO"]
    assert [name for name in wanted if any(name in path.name for path in corpus)] == wanted
