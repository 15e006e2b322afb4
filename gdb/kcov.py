# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loads kcov-show into GDB.

    (gdb) source /path/to/kcov.py

The package is the one that this file belongs to, a checkout's or an installed one. Nothing is added to sys.path: what else lies
beside the package is for another Python than GDB's.
"""

import importlib.util
import sys
from pathlib import Path


def _load() -> None:
    if sys.version_info < (3, 10):  # noqa: UP036 - GDB's Python is whichever the system has
        raise RuntimeError("kcov-show needs a GDB with Python 3.10 or newer; this one has " + sys.version.split()[0])
    if "kcovdbg" not in sys.modules:
        root = next(path for path in Path(__file__).resolve().parents if (path / "kcovdbg" / "__init__.py").is_file())
        spec = importlib.util.spec_from_file_location("kcovdbg", root / "kcovdbg" / "__init__.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["kcovdbg"] = module
        spec.loader.exec_module(module)
    from kcovdbg.frontends.gdb import install

    install()


_load()
