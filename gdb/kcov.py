# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loads kcov-show into GDB.

    (gdb) source /path/to/kcov.py

What belongs to it is in the folder beside this file. It needs GDB 12 and Python 3.8 and nothing else in GDB's process: kcovdbg
with drgn runs in a process of its own, in the interpreter that it is installed in.
"""

import importlib.util
import os
import sys


def _load() -> None:
    name = "kcov_show"
    if name not in sys.modules:
        folder = os.path.join(os.path.dirname(os.path.realpath(__file__)), name)
        spec = importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    sys.modules[name].install()


_load()
