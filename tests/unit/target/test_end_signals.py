# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signals that are turned into exceptions, in kcovdbg's own code only."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time

import pytest
from _drgn_util import plugins

from kcovdbg.target.end_signals import holds_signals, signals_as_exit
from tests.support.child_process import restore_signals


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_leave_a_block_in_order(number):
    steps = []

    def block():
        with signals_as_exit():
            try:
                os.kill(os.getpid(), number)
            finally:
                steps.append("left")

    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught:
        block()
    assert steps == ["left"]
    assert caught.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_an_exit_that_a_library_loses_is_repeated():
    with pytest.raises(SystemExit), signals_as_exit(), contextlib.suppress(SystemExit):
        os.kill(os.getpid(), signal.SIGTERM)


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_exit():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def run_in_block(function):
    with signals_as_exit():
        function()
        time.sleep(10)


@pytest.mark.parametrize(
    ("number", "exception"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGQUIT, SystemExit)]
)
def test_signals_wait_for_a_function(number, exception):
    steps = []

    @holds_signals
    def function():
        os.kill(os.getpid(), number)
        time.sleep(0.02)
        steps.append("done")

    with pytest.raises(exception):
        run_in_block(function)
    assert steps == ["done"]


def test_signals_wait_for_plugins(monkeypatch):
    """drgn would take an exception for the failure of the plugin, or lose it."""
    steps = []

    def hook():
        os.kill(os.getpid(), signal.SIGTERM)
        steps.append("done")

    monkeypatch.setitem(plugins._hooks, "signal_test", [("test", hook)])
    with pytest.raises(SystemExit):
        run_in_block(lambda: plugins.call_plugins("signal_test"))
    assert steps == ["done"]


AT_EXIT = """
import atexit, os, signal, sys
from kcovdbg import __main__
from kcovdbg.frontends import cli
atexit.register(lambda: os.kill(os.getpid(), signal.SIGQUIT))
sys.argv[1:] = ["--version"]
sys.exit(__main__.main())
"""


def test_signals_wait_for_imports(monkeypatch, tmp_path):
    """C code that imports a module, as drgn does to log, may lose an exception."""
    (tmp_path / "interrupted.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ndone = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(KeyboardInterrupt):
        run_in_block(lambda: importlib.import_module("interrupted"))
    assert sys.modules.pop("interrupted").done


def test_a_signal_at_exit_is_no_exception_in_a_callback():
    command = [sys.executable, "-c", AT_EXIT]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, preexec_fn=restore_signals
    )
    assert (done.returncode, done.stderr) == (0, "")
