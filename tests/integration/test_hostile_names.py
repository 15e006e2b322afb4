# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names that an image, its path or its debug info chooses: of files of this machine, of builds, and
of GDB's commands.
"""

import json
import os
import struct
import subprocess

import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Workspace
from kcovdbg.elf.file import ElfFile
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.trace_paths import FileConfinement
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.symbols import table_builder
from kcovdbg.symbols.coverage_points import find_points
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_cache import find_table_key, lock_path, table_path
from kcovdbg.target.target_options import TargetOptions, open_target
from tests.lab.kcovdbg_run import run_kcovdbg

CALLBACK = """\
__attribute__((no_sanitize_coverage, noinline, used)) void __sanitizer_cov_trace_pc(void) { __asm__ volatile("" ::: "memory"); }
volatile int number;
"""
CODE = """\
#line %d "%s"
__attribute__((noinline)) void %s(void) { if (number) number++; else number--; }
void _start(void) { %s(); }
"""
FLAGS = ("-g", "-O1", "-fno-pie", "-no-pie", "-nostdlib", "-static", "-fsanitize-coverage=trace-pc")
SECRET = "THE SECRET OF THIS MACHINE"


def make_image(path, file, *options, function="shown", line=1, build_id="0x" + "01" * 20):
    """Compile an image whose function is in a file that need not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text(CALLBACK + CODE % (line, file, function, function))
    command = ["gcc", *FLAGS, f"-Wl,--build-id={build_id}", *options, source.name, "-o", path.name]
    subprocess.run(command, cwd=path.parent, check=True)
    return path


def make_trace(image, path, **header):
    """Write a trace of all points of an image."""
    with ElfFile(image) as elf:
        pcs = find_points(elf).pc
    path.write_bytes(struct.pack(f"<{len(pcs) + 1}Q", len(pcs), *pcs))
    if header:
        side = {
            "format": 1,
            "mode": "TRACE_PC",
            "word_size": 8,
            "byteorder": "little",
            "count": len(pcs),
            **header,
        }
        path.with_name(f"{path.name}.json").write_text(json.dumps(side))
    return path


@pytest.fixture
def home(tmp_path):
    """The directory in which the user saved a stranger's image, and works."""
    (tmp_path / "home/.ssh").mkdir(parents=True)
    for name in (".ssh/id_rsa", "notes.c"):
        (tmp_path / "home" / name).write_text(f"{SECRET}\n" * 20)
    return tmp_path / "home"


@pytest.mark.parametrize(
    "directory", ["/proc/self/cwd", "/proc/self/root{home}", "{home}/link", "{home}"]
)
@pytest.mark.parametrize("file", [".ssh/id_rsa", "notes.c"])
def test_no_file_of_this_machine_is_published(home, tmp_path, directory, file):
    (home / "link").symlink_to(".")
    named = directory.format(home=home)
    built = make_image(
        tmp_path / "build/vmlinux", file, f"-fdebug-prefix-map={tmp_path}/build={named}"
    )
    image = home / "vmlinux"
    built.rename(image)
    trace = make_trace(image, home / "t.kcov")
    options = {"cwd": home, "cache": tmp_path / "cache", "env": {"HOME": str(home)}}
    shown = run_kcovdbg("-s", "vmlinux", "source", "file:t.kcov", **options).stdout
    run_kcovdbg("-s", "vmlinux", "report", "file:t.kcov", "-o", "r.html", **options)
    text = run_kcovdbg("-s", "vmlinux", "view", "--text", "file:t.kcov", **options).stdout
    assert SECRET not in shown + text + (home / "r.html").read_text()
    assert "shown" in (home / "r.html").read_text()
    # Named by the user, a tree is read, but files of source alone.
    named = run_kcovdbg(
        "-s", "vmlinux", "--source-dir", ".", "source", "file:t.kcov", **options
    ).stdout
    assert (SECRET in named) == (file == "notes.c")
    assert trace.exists()


def test_programs_get_no_source_of_the_build_directory(tmp_path, monkeypatch):
    """Where an image was built the user sees it; a server's clients do not."""
    pytest.importorskip("mcp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    from kcovdbg.frontends.mcp.tools import ToolBox

    image = make_image(tmp_path / "build/vmlinux", "notes.c")
    (tmp_path / "build/notes.c").write_text(f"{SECRET}\n" * 20)
    (tmp_path / "served").mkdir()
    make_trace(image, tmp_path / "served/t.kcov")
    seen = run_kcovdbg(
        "-s", image, "source", f"file:{tmp_path}/served/t.kcov", cache=tmp_path / "cache"
    ).stdout
    assert SECRET in seen
    for folders in ((), (str(tmp_path / "build"),)):
        kernel = Kernel(
            KernelOptions(
                lambda: open_target(TargetOptions(symbols=[str(image)], image=True)),
                source_folders=folders,
            )
        )
        box = ToolBox(Workspace(COMMANDS, UserInputs(kernel)), FileConfinement(tmp_path / "served"))
        answer = box.call("source", {"what": "file:t.kcov"})
        assert (SECRET in answer.text) == bool(folders)


def top(*words, cache, status=None):
    """Return the functions that the records are in."""
    done = run_kcovdbg(*words, "--json", cache=cache, status=status)
    return [row["function"] for row in json.loads(done.stdout or "[]")]


def test_the_build_id_of_another_image_names_nothing(tmp_path):
    """It is public: a stranger's image that claims it was believed for the genuine one, once it had
    been looked at.
    """
    genuine = make_image(tmp_path / "genuine", "good.c", function="genuine")
    stranger = make_image(tmp_path / "stranger", "evil.c", function="strange", line=666)
    with ElfFile(genuine) as one, ElfFile(stranger) as other:
        build_id = one.build_id
        assert build_id == other.build_id
    trace = make_trace(genuine, tmp_path / "t.kcov", build_id=build_id)
    cache = tmp_path / "cache"
    line = ("top", f"file:{trace}")
    assert "strange" in top("-s", stranger, *line, cache=cache)
    # Nothing but the build ID is known of the trace.
    assert "strange" not in top(*line, cache=cache)
    assert "genuine" in top("-s", genuine, *line, cache=cache)
    assert "genuine" not in top(*line, cache=cache)
    run_kcovdbg(
        "symbols", "build", stranger, "-o", tmp_path / "stranger.kcovsym", cache=cache, status=0
    )
    assert "genuine" in top("-s", genuine, *line, cache=cache)
    assert (
        json.loads(run_kcovdbg("symbols", "info", genuine, "--json", cache=cache).stdout)[0][
            "build_id"
        ]
        == build_id
    )
    # A build without an image is what the user says it is.
    run_kcovdbg("symbols", "build", genuine, cache=cache, status=0)
    assert "genuine" in top(*line, cache=cache)
    assert len(json.loads(run_kcovdbg("symbols", "info", "--json", cache=cache).stdout)) == 2


def test_a_table_is_of_what_was_read(tmp_path, monkeypatch):
    """Whoever can write an image must not put other contents into its table after its digest was
    taken.
    """
    genuine = make_image(tmp_path / "genuine", "good.c", function="genuine")
    stranger = make_image(tmp_path / "stranger", "evil.c", function="strange")
    shared = tmp_path / "shared"
    shared.write_bytes(genuine.read_bytes())
    shared.chmod(0o666)
    plain = table_builder.make_table

    def swap(*words, **options):
        with shared.open("r+b") as file:
            file.write(stranger.read_bytes())
        return plain(*words, **options)

    monkeypatch.setattr(table_builder, "make_table", swap)
    folder = tmp_path / "tables"
    path = table_builder.build_table_file(shared, folder=folder)
    assert path == table_path(find_table_key(genuine), folder)
    names = {function.name for function in LocationTable(path).functions()}
    assert "genuine" in names
    assert "strange" not in names


def test_tables_are_the_user_s_alone(tmp_path):
    image = make_image(tmp_path / "image", "good.c")
    before = os.umask(0)
    try:
        path = table_builder.build_table_file(image, folder=tmp_path / "a/tables")
    finally:
        os.umask(before)
    modes = [
        place.stat().st_mode & 0o777
        for place in (path, lock_path(path), path.parent, path.parents[1])
    ]
    assert modes == [0o600, 0o600, 0o700, 0o700]
