# SPDX-License-Identifier: LGPL-2.1-or-later
"""Builds ``kcovdbg._native``: setup.py takes :data:`ffibuilder`; run as a program, this compiles it
into the checkout.

Each C source in this folder has its declarations in a header of the same name, whose part between
``/* cdef */`` and ``/* cdef end */``, if any, is what Python sees. A new source needs no more than
a line in :data:`SOURCES`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from cffi import FFI

SOURCES = (
    "distinct_pcs.c",
    "chains.c",
    "seqdiff.c",
    "x86_decoder.c",
    "branches.c",
    "arm64_switch.c",
    "blocks.c",
    "block_states.c",
    "source_lines.c",
    "calls.c",
    "locations.c",
    "table_rows.c",
    "symbol_columns.c",
    "dwarf.c",
    "collector.c",
    "inject.c",
    "follow.c",
)

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent
_CDEF = re.compile(r"^/\* cdef \*/$(.*?)^/\* cdef end \*/$", re.DOTALL | re.MULTILINE)


def _declarations(header: Path) -> str:
    """Return what of a header Python sees; nothing of one that only the C sources use."""
    match = _CDEF.search(header.read_text())
    return "" if match is None else match[1]


def _make_builder(root: Path) -> FFI:
    # setuptools wants paths relative to the folder of setup.py; compiling in place wants them
    # absolute.
    headers = [Path(source).with_suffix(".h") for source in SOURCES]
    builder = FFI()
    for header in headers:
        builder.cdef(_declarations(_HERE / header))
    builder.set_source(
        "kcovdbg._native",
        "".join(f'#include "{header}"\n' for header in headers),
        sources=[str(root / "native" / source) for source in SOURCES],
        include_dirs=[str(root / "native")],
        depends=[str(root / "native" / header) for header in (*headers, "array.h", "hash.h")],
        # What cffi generates has parameters without use.
        extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter"],
    )
    return builder


ffibuilder = _make_builder(Path())


def compile_in_place() -> Path:
    """Compile the module into the checkout's package.

    :return: the shared object.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Elsewhere than in the checkout: an older setuptools than pyproject.toml asks for would
        # refuse to read that file.
        cwd = Path.cwd()
        os.chdir(folder)
        try:
            built = Path(_make_builder(_ROOT).compile(tmpdir=folder))
        finally:
            os.chdir(cwd)
        # It keeps to the stable ABI (cffi's default), so that this name is as good as the one
        # setup.py's build gives it.
        target = _ROOT / "kcovdbg" / "_native.abi3.so"
        # A process that has the old one mapped must not see it change.
        fresh = target.with_suffix(".new")
        shutil.copy(built, fresh)
        fresh.replace(target)
    return target


if __name__ == "__main__":
    compile_in_place()
