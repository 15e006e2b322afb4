# SPDX-License-Identifier: LGPL-2.1-or-later
"""Options and fixtures of all tests."""

import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

from tests.support.fork_server import NEW_PROCESSES

# A busy machine must not fail a test.
hypothesis.settings.register_profile("kcovdbg", deadline=None)
hypothesis.settings.load_profile("kcovdbg")

# A shell's background jobs ignore C-c and SIGQUIT, and nohup ignores a hang-up; so would each
# program that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# The tests ignore the user's settings, and tables of other runs in the temporary directory, where a
# look-up would find them. Programs that the tests start may write their own, so the directories
# must exist.
_FOLDERS = {
    name: tempfile.TemporaryDirectory(prefix=f"kcovdbg-{name.lower()}-", ignore_cleanup_errors=True)
    for name in ("XDG_CONFIG_HOME", "TMPDIR")
}
os.environ.update({name: folder.name for name, folder in _FOLDERS.items()})

# drgn reads debug info with as many threads as there are processors. Those that wait for another
# would take the processor from it where other tests run.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_ROOT = Path(__file__).parents[1]
Item = TypeVar("Item")
SHARE = 12
"""Without --exhaustive, a sweep takes one of this many items."""


def pytest_configure(config: pytest.Config) -> None:
    """Compile the C sources again if they are newer than the module. With --exhaustive, start an
    interpreter for each process of kcovdbg.
    """
    if config.getoption("exhaustive"):
        os.environ[NEW_PROCESSES] = "1"
    sources = (path for path in (_ROOT / "native").iterdir() if path.suffix in (".c", ".h"))
    module = _ROOT / "kcovdbg" / "_native.abi3.so"
    is_old = (
        module.exists() and max(path.stat().st_mtime for path in sources) > module.stat().st_mtime
    )
    # Not in each process of several.
    if is_old and not hasattr(config, "workerinput"):
        subprocess.run(
            [sys.executable, _ROOT / "native" / "build_native.py"],
            stdout=subprocess.DEVNULL,
            check=True,
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive", action="store_true", help="sweep over all items, not a sample of them"
    )


@pytest.fixture
def sample(request: pytest.FixtureRequest) -> Callable[[Iterable[Item]], tuple[Item, ...]]:
    """Return a function that picks the items of a sweep: all with --exhaustive, else a share that
    differs by test.
    """

    def sample(sweep: Iterable[Item]) -> tuple[Item, ...]:
        items = tuple(sweep)
        assert items
        if request.config.getoption("exhaustive"):
            return items
        return items[zlib.crc32(request.node.name.encode()) % min(SHARE, len(items)) :: SHARE]

    return sample
