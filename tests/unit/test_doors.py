# SPDX-License-Identifier: LGPL-2.1-or-later
"""What leads into and out of the process: each file is opened by input_file or output_file, each
directory of the user is found by user_folder, and each child gets its environment from
child_process. What does otherwise is listed here, with the reason.
"""

import ast
import collections
import functools
from pathlib import Path

import pytest

import kcovdbg

REPOSITORY = Path(kcovdbg.__file__).parents[1]
FILES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for top in ("kcovdbg", "gdb")
    for path in sorted((REPOSITORY / top).rglob("*.py"))
}

KERNEL = "a file of the kernel's own, in /proc, /sys or /dev"
PACKAGE = "a file of this package"
OWN = "a file or descriptor that this process has made itself"
MINE = "the user's own script or settings, or a pipe that the user named"
NO_FILE = "another thing that is opened"
OUTPUT = "written; exclusively, or without following links"

OPENED = {
    "gdb.kcov_show.child.find_python": "the program kcovdbg, in an absolute directory of PATH",
    "gdb.kcov_show.commands._load_symbols": "the image that GDB has already loaded",
    "gdb.kcov_show.commands._read_help": PACKAGE,
    "gdb.kcov_show.output._pipes_read_by_children": KERNEL,
    "gdb.kcov_show.output._pipes_written": KERNEL,
    "gdb.kcov_show.output.is_batch": KERNEL,
    "kcovdbg.abi.syscall_names._read_tables": PACKAGE,
    "kcovdbg.collect.background_jobs.BackgroundJob.__init__": OWN,
    "kcovdbg.collect.background_jobs.BackgroundJob.files": OWN,
    "kcovdbg.collect.background_jobs.BackgroundJob.lines": OWN,
    "kcovdbg.collect.command_run._read_openers": OWN,
    "kcovdbg.collect.command_run._watch_opens": OWN,
    "kcovdbg.collect.doctor_command._check_following": KERNEL,
    "kcovdbg.collect.doctor_command._check_kcore": KERNEL,
    "kcovdbg.collect.doctor_command._try_open": KERNEL,
    "kcovdbg.collect.doctor_command.has_symbol": KERNEL,
    "kcovdbg.collect.thread_trace.Trace.__enter__": NO_FILE,
    "kcovdbg.collect.trace_writer._read_modules": KERNEL,
    "kcovdbg.compare.build_match.BuildFunctions.__init__": NO_FILE,
    "kcovdbg.console.html._read": PACKAGE,
    "kcovdbg.console.runner._run_file": MINE,
    "kcovdbg.console.settings.read_settings": MINE,
    "kcovdbg.console.terminal.discard_output": KERNEL,
    "kcovdbg.frontends.cli._replace_closed_streams": OWN,
    "kcovdbg.frontends.mcp.calls._serve": OWN,
    "kcovdbg.frontends.mcp.server.serve_stdio.open_box": NO_FILE,
    "kcovdbg.frontends.program._run_script": MINE,
    "kcovdbg.frontends.shell.prompt.open_history": OUTPUT,
    "kcovdbg.frontends.standard_input._keep_as_file": OWN,
    "kcovdbg.input_file.open_input": "the opener of inputs",
    "kcovdbg.limits.allocated_memory": KERNEL,
    "kcovdbg.output_file._CheckedFile": "the writer of files",
    "kcovdbg.output_file._CheckedFile.__init__": "the writer of files",
    "kcovdbg.output_file._Destination.open": "the writer of files",
    "kcovdbg.output_file._create": "the writer of files",
    "kcovdbg.output_file._look_up": "the writer of files",
    "kcovdbg.output_file._walk": "the writer of files",
    "kcovdbg.output_file.open_output": "the writer of files",
    "kcovdbg.package_tables.read_tables": PACKAGE,
    "kcovdbg.records.trace_reader._read_pipe": MINE,
    "kcovdbg.records.user_view.is_private": KERNEL,
    "kcovdbg.records.user_view.read_user_view": KERNEL,
    "kcovdbg.symbols.table_builder._only_builder": OUTPUT,
    "kcovdbg.symbols.table_cache.TableBuild.__init__": OWN,
    "kcovdbg.target.connection._start_time": KERNEL,
    "kcovdbg.target.connection.restore_record": OUTPUT,
    "kcovdbg.target.dump_file._remove_unused": OWN,
    "kcovdbg.target.local_kernel.read_config": KERNEL,
    "kcovdbg.target.local_kernel.running_build_id": KERNEL,
    "kcovdbg.target.local_kernel.running_kaslr_offset": KERNEL,
    "kcovdbg.target.demo_files.list_demo_files": PACKAGE,
    "kcovdbg.target.qmp.Qmp.peer_memory_is_readable": KERNEL,
}
CHILDREN = {
    "gdb.kcov_show.child.Child.__init__": "kcovdbg, started by GDB with GDB's own environment",
    "gdb.kcov_show.pipeline.Pipeline.__init__": "the user's pipe, started by GDB with GDB's own "
    "environment",
    "gdb.kcov_show.watch._interrupting": "sleep and kill, started by GDB",
    "kcovdbg.collect.background_jobs.BackgroundJob.__init__": "kcovdbg, whose command gets the environment as it "
    "is",
    "kcovdbg.frontends.mcp.calls.SpareProcess.__init__": "a fork that answers one call",
    "kcovdbg.target.qmp.Qmp.limited": "a fork that runs nothing",
}
SETTINGS = "a variable that is a setting and no path, or that names a program"
ENVIRONMENT = {
    "gdb.kcov_show.child.Child.__init__": "GDB's own environment",
    "gdb.kcov_show.child._find_scripts": "PATH",
    "gdb.kcov_show.child.find_python": SETTINGS,
    "kcovdbg.child_process._search_path": "PYTHONPATH",
    "kcovdbg.child_process.child_environment": "the environment of children",
    "kcovdbg.collect.command_run._Run._make_command": "that of the user's command, which is "
    "measured as it "
    "is",
    "kcovdbg.commands.config._rows": SETTINGS,
    "kcovdbg.file_digest._is_own_group": "the user's name, as that of a group",
    "kcovdbg.commands.gdb._run": SETTINGS,
    "kcovdbg.console.output_files.open_destination": "a shell's redirection has its variables",
    "kcovdbg.console.output_files.run_shell": SETTINGS,
    "kcovdbg.console.terminal.find_terminal": SETTINGS,
    "kcovdbg.console.terminal.find_terminal.painter": SETTINGS,
    "kcovdbg.frontends.cli._run": "passed to readers of settings",
    "kcovdbg.frontends.drgn_commands._find_workspace": "passed to readers of settings",
    "kcovdbg.frontends.gdb.server.Server._prepare": "passed to readers of settings",
    "kcovdbg.frontends.gdb.server.Server._run": SETTINGS,
    "kcovdbg.frontends.shell.run_interactively": "passed to readers of settings and to "
    "child_environment()",
    "kcovdbg.limits._read_environment": SETTINGS,
    "kcovdbg.limits.set_limits": SETTINGS,
    "kcovdbg.monitor.screen.show_monitor": SETTINGS,
    "kcovdbg.patch.git_diff._find_environment": "passed to child_environment()",
    "kcovdbg.target.drgn.program_memory.without_command_plugins": SETTINGS,
}
FINDERS = ("kcovdbg.child_process", "kcovdbg.user_folder")

OPENERS = (
    "open",
    "read_text",
    "read_bytes",
    "fdopen",
    "FileIO",
    "fromfile",
    "memmap",
    "copyfile",
    "copyfileobj",
)
STARTERS = (
    "Popen",
    "run",
    "call",
    "check_call",
    "check_output",
    "getoutput",
    "getstatusoutput",
    "system",
    "popen",
)
FORKERS = (
    "fork",
    "forkpty",
    "execl",
    "execle",
    "execlp",
    "execlpe",
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "spawn",
    "spawnv",
)
FORKERS = (
    *FORKERS,
    "posix_spawn",
    "posix_spawnp",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "Process",
    "ProcessPoolExecutor",
)
VARIABLES = (
    "environ",
    "environb",
    "getenv",
    "getenvb",
    "expanduser",
    "expandvars",
    "home",
    "getpwuid",
    "getpwnam",
)


class Finder(ast.NodeVisitor):
    """Collects where files, variables and children are used: the names of functions."""

    def __init__(self, module):
        self.names = [module]
        self.found = collections.defaultdict(set)

    def note(self, kind):
        self.found[kind].add(".".join(self.names))

    def visit_scope(self, node):
        self.names.append(node.name)
        self.generic_visit(node)
        self.names.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_scope  # noqa: N815

    def visit_name(self, name, owner):
        if name in OPENERS and (name != "copyfileobj" or owner == "shutil"):
            self.note("opened")
        if name in VARIABLES and (name != "home" or owner == "Path"):
            self.note("environment")
        if name in FORKERS:
            self.note("child")

    def visit_Attribute(self, node):
        self.visit_name(node.attr, getattr(node.value, "id", None))
        self.generic_visit(node)

    def visit_Name(self, node):
        self.visit_name(node.id, None)

    def visit_Call(self, node):
        function = node.func
        if (
            isinstance(function, ast.Attribute)
            and function.attr in STARTERS
            and getattr(function.value, "id", None) in ("subprocess", "os")
        ):
            environment = next(
                (keyword.value for keyword in node.keywords if keyword.arg == "env"), None
            )
            maker = getattr(getattr(environment, "func", None), "id", "")
            self.note(
                "started" if maker in ("child_environment", "_pager_environment") else "child"
            )
        self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, str) and (
            node.value == "HOME" or (node.value.startswith("XDG_") and " " not in node.value)
        ):
            self.note("folder")


@functools.cache
def find_all_uses():
    found = collections.defaultdict(set)
    for module, path in FILES.items():
        finder = Finder(module)
        finder.visit(ast.parse(path.read_text()))
        for kind, names in finder.found.items():
            found[kind] |= names
    return found


def find_uses(kind):
    return find_all_uses()[kind]


@pytest.mark.parametrize(
    ("kind", "known"), [("opened", OPENED), ("child", CHILDREN), ("environment", ENVIRONMENT)]
)
def test_each_use_is_known(kind, known):
    found = {
        name
        for name in find_uses(kind)
        if kind != "environment" or not name.startswith("kcovdbg.user_folder.")
    }
    assert sorted(found.symmetric_difference(known)) == []


def test_children_and_folders_are_found_at_all():
    """A test that finds nothing would hold for any tree."""
    assert "kcovdbg.frontends.shell.pager._start" in find_uses("started")
    assert "kcovdbg.commands.gdb._run" in find_uses("started")
    assert sorted(name for name in find_uses("folder") if not name.startswith(FINDERS)) == []
    assert "kcovdbg.user_folder.find_user_folder" in find_uses("folder")
    finder = Finder("m")
    finder.visit(
        ast.parse(
            "from pathlib import Path\nmap(Path.read_text, ())\nwith open(0): "
            "pass\nos.execv(1, 2)\nx['HOME']"
        )
    )
    assert dict(finder.found) == {"opened": {"m"}, "child": {"m"}, "folder": {"m"}}
