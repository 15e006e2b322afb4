# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loads kcov-show into GDB.

    (gdb) source /path/to/kcov.py

What belongs to it is in the folder beside this file. It needs GDB 12 and Python 3.8 and nothing
else in GDB's process: kcovdbg with drgn runs in a process of its own, in the interpreter that it is
installed in.
"""

import importlib.util
import os
import signal
import sys


def _load() -> None:
    """Define everything in GDB."""
    name = "kcov_show"
    if name not in sys.modules:
        # Not __file__: where a script of Python sources this file, GDB leaves the path of that
        # script in it.
        loader = os.path.realpath(_load.__code__.co_filename)
        folder = os.path.join(os.path.dirname(loader), name)
        spec = importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            # The next source of this file starts anew.
            del sys.modules[name]
            raise
    sys.modules[name].install()


# C-c takes effect when everything is defined: half of the names would be of no use.
_masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
try:
    _load()
finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masked)
sys.modules["kcov_show"].greet()
