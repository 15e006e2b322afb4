# SPDX-License-Identifier: LGPL-2.1-or-later
"""The built kernel agrees with the recipe."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.lab.kernel import Kernel, lost_settings

if TYPE_CHECKING:
    from tests.lab.initramfs import Userland

pytestmark = pytest.mark.lab


def test_recipe_is_recorded(kernel: Kernel) -> None:
    facts = kernel.facts
    assert facts["package"] == kernel.recipe.package
    assert str(facts["package_version"]).startswith(kernel.recipe.package.rpartition("-")[2])
    assert Kernel.at(kernel.directory) == kernel


def test_configuration_stuck(kernel: Kernel) -> None:
    assert lost_settings(kernel.recipe.configuration(), kernel.config.read_text()) == []


def test_parts_are_there(kernel: Kernel) -> None:
    for path in (kernel.vmlinux, kernel.image, kernel.system_map, kernel.tree / "vmlinux-gdb.py"):
        assert path.is_file()
    # The sources of compiled files, and no others.
    assert (kernel.tree / "kernel/kcov.c").is_file()
    assert (kernel.tree / "kernel/sched/core.c").is_file()
    assert not list(kernel.tree.glob("kernel/**/*.o"))


def test_debug_info_names_no_machine(kernel: Kernel) -> None:
    """Debug info names only the packaged source, neither the cache nor a home directory."""
    strings = subprocess.run(
        ["readelf", "-p", ".debug_line_str", str(kernel.vmlinux)], capture_output=True, text=True, check=True
    ).stdout
    assert str(kernel.facts["source_name"]) in strings
    assert "/kcovdbg/" not in strings


def test_modules_are_instrumented(userland: Userland) -> None:
    assert {path.stem for path in userland.modules} >= {"kcovlab_keep", "kcovlab_gone"}
    for path in userland.modules:
        symbols = subprocess.run(["nm", "-u", str(path)], capture_output=True, text=True, check=True).stdout
        # KCOV's own code is not instrumented: it would record itself.
        assert ("__sanitizer_cov_trace_pc" in symbols) == (path.stem != "kcovlab_damage"), path.stem
        sections = subprocess.run(["readelf", "-SW", str(path)], capture_output=True, text=True, check=True).stdout
        assert ".debug_info" in sections
