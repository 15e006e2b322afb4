# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debian 13's rustc and bindgen, unpacked in the lab's cache.

Their versions fit the kernel's Rust code, those of Debian 12 do not. They run with Debian 13's C
library, so that the machine may have another release.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.lab import cache, requirements

_SUITE = "trixie"
# The programs, the standard library's source, and the libraries that they need.
_PACKAGES = (
    *("rustc", "libstd-rust-1.85", "libstd-rust-dev", "rust-src", "rustfmt", "bindgen"),
    *(
        "libclang1-19",
        "libllvm19",
        "libc6",
        "libgcc-s1",
        "libstdc++6",
        "zlib1g",
        "libzstd1",
        "libedit2",
        "libffi8",
    ),
    *("libxml2", "libz3-4", "libtinfo6", "libbsd0", "libmd0", "liblzma5"),
)
# It is run by its loader, as it would take the machine's own C library otherwise.
_WRAPPER = """#!/bin/sh
export LIBCLANG_PATH={root}/usr/lib/x86_64-linux-gnu
exec {root}/usr/lib64/ld-linux-x86-64.so.2 --library-path {root}/usr/lib/x86_64-linux-gnu {root}/usr/bin/{program} "$@"
"""
_VARIABLES = {"RUSTC": "rustc", "HOSTRUSTC": "rustc", "RUSTFMT": "rustfmt", "BINDGEN": "bindgen"}


def directory() -> Path:
    """Return where the tools are, once :func:`install` has run."""
    return cache.root() / f"rust-{_SUITE}"


def install() -> None:
    """Download and unpack the tools, unless they are in the cache.

    :raises UnavailableError: there is no apt, or no mirror of Debian's.
    """
    cache.make_whole(directory(), _unpack)


def version() -> str | None:
    """Return rustc's version line; None before :func:`install`."""
    return requirements.compiler_version(str(directory() / "bin" / "rustc"))


def make_arguments() -> list[str]:
    """Return the variables that name the tools for the kernel's make."""
    return [f"{name}={directory() / 'bin' / program}" for name, program in _VARIABLES.items()]


def _unpack(work: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kcovdbg-packages-") as downloads:
        for package in requirements.download(_PACKAGES, _SUITE, Path(downloads)):
            subprocess.run(["dpkg-deb", "-x", package, work], check=True)
    (work / "bin").mkdir()
    for program in set(_VARIABLES.values()):
        wrapper = work / "bin" / program
        # The directory is renamed when it is complete.
        wrapper.write_text(_WRAPPER.format(root=directory(), program=program))
        wrapper.chmod(0o755)
