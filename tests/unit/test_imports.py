# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rules of the source tree that no linter knows: imports, names, licenses, cited documents.

Imports point one way: frontends -> commands and tools -> buffers -> compare -> {why, crash} ->
check -> console -> inputs -> records -> {symbols, walk} -> series -> target -> {elf, model, abi}.
"""

import ast
import collections
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import kcovdbg
from kcovdbg.commands import COMMANDS
from kcovdbg.commands import MODULES as COMMAND_MODULES

ROOT = Path(kcovdbg.__file__).parent
TOOLS = tuple(
    f"kcovdbg.{name}"
    for name in ("catch", "collect", "export", "farm", "monitor", "patch", "report")
)
LAYERS = (
    ("kcovdbg", "kcovdbg.errors"),
    ("kcovdbg.limits", "kcovdbg.package_tables", "kcovdbg.user_folder"),
    ("kcovdbg.child_process",),
    ("kcovdbg.compiled_module",),
    ("kcovdbg.input_file", "kcovdbg.output_file"),
    ("kcovdbg.file_digest",),
    ("kcovdbg.abi",),
    ("kcovdbg.model", "kcovdbg.elf"),
    ("kcovdbg.target",),
    ("kcovdbg.series",),
    ("kcovdbg.walk", "kcovdbg.symbols"),
    ("kcovdbg.records", "kcovdbg.helpers"),
    ("kcovdbg.inputs",),
    ("kcovdbg.console",),
    ("kcovdbg.check",),
    ("kcovdbg.why", "kcovdbg.crash"),
    ("kcovdbg.compare",),
    ("kcovdbg.buffers",),
    ("kcovdbg.commands", *TOOLS),
    ("kcovdbg.frontends",),
    ("kcovdbg.__main__",),
)
RANKS = {package: rank for rank, packages in enumerate(LAYERS) for package in packages}
# The modules that may import what not every installation has; packages end in a dot.
FOREIGN = {
    "drgn": (
        "kcovdbg.target.drgn.",
        "kcovdbg.helpers",
        "kcovdbg.frontends.drgn_commands",
        "kcovdbg.frontends.drgn_plugin",
    ),
    "_drgn": (),
    "gdb": (),
    "prompt_toolkit": (
        "kcovdbg.frontends.shell.",
        "kcovdbg.console.",
        "kcovdbg.monitor.screen",
        "kcovdbg.buffers.view_screen",
    ),
    "pygments": ("kcovdbg.frontends.shell.", "kcovdbg.console."),
    "mcp": ("kcovdbg.frontends.mcp.server",),
    "mcp_types": ("kcovdbg.frontends.mcp.server",),
    "anyio": ("kcovdbg.frontends.mcp.server",),
    "pydantic": ("kcovdbg.frontends.mcp.server",),
    "jsonschema": ("kcovdbg.frontends.mcp.tools",),
    "kcovdbg._native": ("kcovdbg.compiled_module",),
}

REPOSITORY = ROOT.parent
SOURCES = tuple(
    sorted(
        path
        for top in ("kcovdbg", "tests", "native", "gdb", "docs", "examples")
        for path in (REPOSITORY / top).rglob("*")
        if path.suffix in (".c", ".css", ".h", ".js", ".py", ".sh")
        # What cffi writes on installation.
        and not path.name.startswith("_native")
    )
)
QUESTION_WORDS = frozenset("how what when where which who whose why".split())
# Words in -ing that name a thing; and "missing", as in missing_coverage: coverage that a trace
# lacks.
NOUNS = frozenset("encoding finding folding listing loading missing string wording".split())


def module_name(path):
    parts = ("kcovdbg", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def package_of(module):
    """The package below kcovdbg that a module belongs to, or the module itself at the top."""
    return ".".join(module.split(".")[:2])


def imports_of(module, tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute here"
            for alias in node.names:
                # from kcovdbg.walk import layout
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module, node.lineno
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value, node.lineno


def may_import(module, imported):
    if imported == "kcovdbg" or not imported.startswith("kcovdbg."):
        return True
    importer, package = package_of(module), package_of(imported)
    if package == "kcovdbg._native":
        return True
    if importer == package:
        # A command imports no other one.
        return importer != "kcovdbg.commands"
    return RANKS[package] < RANKS[importer]


class Contents(NamedTuple):
    """What all modules import and define."""

    imports: list[tuple[str, str, int]]
    """The module, what it imports, and the line."""
    public: dict[str, set[str]]
    """Of each public class and function, the modules that define it."""


@functools.cache
def read_modules():
    """Read each module once; not when the tests are collected, as each worker does that."""
    contents = Contents([], collections.defaultdict(set))
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text())
        contents.imports.extend((module, name, line) for name, line in imports_of(module, tree))
        for node in tree.body:
            if isinstance(
                node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            ) and not node.name.startswith("_"):
                contents.public[node.name].add(module)
    return contents


def find_imports(is_wrong):
    """Return the imports of which a function of a module and what it imports is true."""
    return [
        f"{module}:{line} imports {name}"
        for module, name, line in read_modules().imports
        if is_wrong(module, name)
    ]


def test_imports_point_down():
    assert find_imports(lambda module, name: not may_import(module, name)) == []


def test_verdicts_read_no_memory():
    """Verdicts work on a State and on buffers."""
    verdicts, readers = (
        ("kcovdbg.check", "kcovdbg.why", "kcovdbg.crash"),
        ("kcovdbg.target", "kcovdbg.walk"),
    )
    pure = {m for m in MODULES if package_of(m) in verdicts and not m.endswith("command")}
    assert find_imports(lambda module, name: module in pure and package_of(name) in readers) == []


def is_out_of_place(module, name):
    places = next(
        (
            places
            for foreign, places in FOREIGN.items()
            if name == foreign or name.startswith(f"{foreign}.")
        ),
        [module],
    )
    return not any(
        module == place or (place.endswith(".") and f"{module}.".startswith(place))
        for place in places
    )


def test_foreign_modules_stay_where_they_belong():
    assert find_imports(is_out_of_place) == []


def test_no_modules_import_each_other():
    """Imports for type checkers and inside functions count."""
    graph = {module: set() for module in MODULES}
    for module, name, _ in read_modules().imports:
        graph[module].add(name)
    graphlib.TopologicalSorter(graph).prepare()


def test_every_package_has_its_layer():
    assert {package_of(module) for module in MODULES} <= RANKS.keys()


@functools.cache
def loaded_by(*words):
    """Return the modules that are loaded at the end of a run of the program."""
    code = (
        f"import sys; from kcovdbg.frontends.cli import main; main({[*words]}); "
        f"print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, check=True
    )
    return done.stderr.splitlines()[-1].split()


def test_one_shot_commands_load_nothing_heavy():
    heavy = {
        "prompt_toolkit",
        "pygments",
        "drgn",
        "_drgn",
        "gdb",
        "cffi",
        "_cffi_backend",
        "zstandard",
    }
    assert heavy.isdisjoint(loaded_by("help", "tasks"))


def test_the_version_loads_no_workspace():
    workspace = ("kcovdbg.walk", "kcovdbg.model", "kcovdbg.records")
    loaded = loaded_by("--version")
    assert [name for name in loaded if name.startswith(workspace)] == []
    assert {"hashlib", "tempfile"}.isdisjoint(loaded)


@pytest.mark.parametrize(("command", "most"), [("tasks", 90), ("areas", 87)])
def test_a_command_loads_what_it_uses(command, most):
    """A command on the demo loads no names of PCs, no formats of traces, and no completion.

    The first one after an installation also loads what unpacks the demo.
    """
    loaded = [name for name in loaded_by("--demo", command) if name.startswith("kcovdbg")]
    assert f"kcovdbg.commands.{command}" in loaded
    assert not [
        name for name in loaded if package_of(name) in ("kcovdbg.symbols", "kcovdbg.records")
    ]
    assert not [name for name in loaded if name.startswith("kcovdbg.console.completion")]
    assert len(loaded) <= most


def test_a_question_about_a_task_loads_no_readers_of_traces():
    readers = {
        "kcovdbg.inputs.buffer_sources",
        "kcovdbg.records.pc_file",
        "kcovdbg.records.trace_reader",
        "kcovdbg.symbols.location_table",
    }
    assert readers.isdisjoint(loaded_by("--demo", "why", "34"))


@pytest.mark.parametrize("words", [["tasks"], ["check"], ["why", "34"]])
def test_commands_on_a_dump_load_no_helpers_of_drgn(words):
    # One of them imports all of them.
    loaded = loaded_by("--demo", *words)
    assert [name for name in loaded if name.startswith(("drgn.helpers.linux", "drgn.com"))] == []


def test_a_command_is_loaded_alone():
    """The modules of all commands would take ten megabytes of each process."""
    for words in (["-e", "jobs"], ["jobs"]):
        assert {*COMMAND_MODULES.values()}.intersection(loaded_by(*words)) == {
            "kcovdbg.collect.jobs_command"
        }


def test_the_process_beside_gdb_starts_without_commands():
    code = "import sys, kcovdbg.frontends.gdb.server; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True
    ).stdout
    assert {*COMMAND_MODULES.values()}.isdisjoint(loaded.split())


def test_every_command_is_in_the_table():
    declared = {
        name
        for name, path in MODULES.items()
        if re.search(r"^COMMAND\b.* = ", path.read_text(), re.M)
    }
    assert set(COMMAND_MODULES.values()) == declared
    assert [command.name for command in map(COMMANDS.find, COMMAND_MODULES)] == list(
        COMMAND_MODULES
    )


def test_no_two_public_classes_or_functions_share_a_name():
    public = read_modules().public
    assert {name: found for name, found in public.items() if len(found) > 1} == {
        "main": public["main"]
    }


def find_bad_words(path):
    """Return the words of a file's name that are gerunds or question words."""
    words = re.split(r"[_-]", path.stem.removeprefix("test_"))
    if path.parent.name == "commands" or words[0] == "commands" or path.parent.name == "lab":
        # A command's file is named for the command, and so are its tests.
        words = [word for word in words if word not in COMMANDS]
    return [
        word
        for word in words
        if word in QUESTION_WORDS or (word.endswith("ing") and word not in NOUNS)
    ]


def test_files_are_named_by_nouns():
    assert {
        str(path.relative_to(REPOSITORY)): words
        for path in SOURCES
        if (words := find_bad_words(path))
    } == {}


def test_each_file_names_its_license():
    without = [
        str(path.relative_to(REPOSITORY))
        for path in SOURCES
        if "SPDX-License-Identifier: LGPL-2.1-or-later"
        not in "".join(path.read_text().splitlines()[:2])
    ]
    assert without == []


def cited_documents(path):
    """Return the names of documents in Markdown that a file cites: those of the kernel and of other
    projects end otherwise.
    """
    return set(re.findall(r"(?<![\w*{}])[\w./-]*[\w-]\.md\b", path.read_text()))


def test_each_cited_document_is_in_the_repository():
    there = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"))
    }
    cited = {
        (path, name) for path in SOURCES if path != Path(__file__) for name in cited_documents(path)
    }
    assert {name for _, name in cited} >= {"kcov-abi.md"}
    missing = sorted(
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path, name in cited
        if not any(document == name or document.endswith(f"/{name}") for document in there)
    )
    assert missing == []
