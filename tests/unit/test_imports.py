# SPDX-License-Identifier: LGPL-2.1-or-later
"""Imports point one way: frontends -> commands -> {render, analysis, collect} -> {walk, symbols} -> target -> model -> abi."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kcovdbg

ROOT = Path(kcovdbg.__file__).parent
LAYERS = (
    ("kcovdbg", "kcovdbg.errors"),
    ("kcovdbg.abi",),
    ("kcovdbg.model",),
    ("kcovdbg.target",),
    ("kcovdbg.walk", "kcovdbg.symbols"),
    ("kcovdbg.render", "kcovdbg.analysis", "kcovdbg.collect"),
    ("kcovdbg.commands", "kcovdbg.helpers"),
    ("kcovdbg.frontends",),
    ("kcovdbg.__main__",),
)
RANKS = {package: rank for rank, packages in enumerate(LAYERS) for package in packages}
# Who may import what doesn't belong to every installation: modules, or packages when they end in a dot.
FOREIGN = {
    "drgn": (
        "kcovdbg.target.drgn",
        "kcovdbg.target.bare",
        "kcovdbg.target.programs",
        "kcovdbg.target.drgn_source",
        "kcovdbg.target.recording",
        "kcovdbg.target.drgn_lines",
        "kcovdbg.helpers",
        "kcovdbg.frontends.drgn_plugin",
        "kcovdbg.frontends.drgn_commands",
    ),
    "_drgn": (),
    "gdb": ("kcovdbg.target.gdb.", "kcovdbg.frontends.gdb_commands."),
    "prompt_toolkit": ("kcovdbg.frontends.shell.", "kcovdbg.render."),
    "pygments": ("kcovdbg.frontends.shell.", "kcovdbg.render."),
    "kcovdbg._native": ("kcovdbg.collect.", "kcovdbg.analysis.hot"),
}


def module_name(path):
    parts = ("kcovdbg", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def package_of(module):
    """The package below kcovdbg that a module belongs to, or the module itself at the top."""
    return ".".join(module.split(".")[:2])


def imports_of(module):
    tree = ast.parse(MODULES[module].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute here"
            yield node.module, node.lineno
            for alias in node.names:
                # from kcovdbg.walk import layout
                if f"{node.module}.{alias.name}" in MODULES:
                    yield f"{node.module}.{alias.name}", node.lineno
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value, node.lineno


def may_import(module, imported):
    if imported == "kcovdbg" or not imported.startswith("kcovdbg."):
        return True
    importer, package = package_of(module), package_of(imported)
    if importer == package or package == "kcovdbg._native":
        return True
    return RANKS[package] < RANKS[importer]


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    wrong = [f"{module}:{line} imports {name}" for name, line in imports_of(module) if not may_import(module, name)]
    assert not wrong


@pytest.mark.parametrize("module", MODULES)
def test_foreign_modules_stay_where_they_belong(module):
    wrong = []
    for name, line in imports_of(module):
        for foreign, allowed in FOREIGN.items():
            if name != foreign and not name.startswith(f"{foreign}."):
                continue
            if not any(module == place or (place.endswith(".") and f"{module}.".startswith(place)) for place in allowed):
                wrong.append(f"{module}:{line} imports {name}")
    assert not wrong


def test_every_package_has_its_layer():
    assert {package_of(module) for module in MODULES} <= RANKS.keys()


def test_the_rules_see_what_they_forbid(monkeypatch, tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("from kcovdbg.commands import COMMANDS\ndef f():\n    import drgn.helpers\n")
    monkeypatch.setitem(MODULES, "kcovdbg.walk.bad", path)
    with pytest.raises(AssertionError, match=r"bad:1 imports kcovdbg\.commands"):
        test_imports_point_down("kcovdbg.walk.bad")
    with pytest.raises(AssertionError, match=r"bad:3 imports drgn\.helpers"):
        test_foreign_modules_stay_where_they_belong("kcovdbg.walk.bad")


def test_one_shot_commands_load_nothing_heavy():
    code = (
        "import sys; from kcovdbg.frontends.cli import main; main(['help', 'tasks'])\n"
        "print([name for name in ('prompt_toolkit', 'pygments', 'drgn', '_drgn', 'gdb', 'cffi', '_cffi_backend', 'zstandard')"
        " if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent)
    assert result.stderr == "[]\n"
