# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading a syz-manager's files: what is hostile or missing in them, and which log and program
belong to a dump.
"""

import json
import os
import shutil
from contextlib import closing

import pytest

from kcovdbg.errors import KcovdbgError
from kcovdbg.farm.syzkaller_workdir import find_manager, find_program, names_another_task, read_log
from kcovdbg.farm.workdir_reader import WorkdirReader
from kcovdbg.records.crash_report import summarize_report
from tests.support.compiled_image import compile_image

# As pkg/rpcserver/last_executing.go writes them; syzkaller's programs have no empty lines.
LOG = """\
[  12.5] syzkaller: a boot message
3.5s ago: executing program 1 (id=45):
r0 = openat$kvm(0xffffffffffffff9c, &(0x7f0000000000), 0x0, 0x0)
ioctl$KVM_CREATE_VM(r0, 0xae01, 0x0)

2s ago: executing program 0 (id=451):
getpid()

1s ago: executing program 1 (id=451) (fault-call:0):
close(0xffffffffffffffff)

0s ago: executing program 1 (id=4):
sync()

[  31.9] BUG: KASAN: slab-use-after-free in foo
"""


@pytest.fixture
def workdir(tmp_path):
    folder = tmp_path / "manager/workdir"
    (folder / "crashes").mkdir(parents=True)
    return folder


def make_crash(workdir, name, **files):
    folder = workdir / "crashes" / name
    folder.mkdir()
    for file, text in files.items():
        (folder / file.replace("__", ".")).write_text(text, errors="surrogateescape")
    return folder


# Cut off after 15 bytes.
LONG = "1s ago: executing program 12 (id=123456789):\nsync()\n\n"
# Of older managers, among what the console printed.
OLD = (
    "12:00:00 executing program 3:\nr0 = socket(0x2, 0x1, 0x0)\n[   12.3] "
    "some(message)\nbind(r0, 0x0, 0x0)\n"
    "12:00:01 executing program 1:\nsync()\n[  12.4] BUG: x\n"
)


@pytest.mark.parametrize(
    ("log", "comm", "program"),
    [
        (
            LOG,
            "syz.1.45",
            "r0 = openat$kvm(0xffffffffffffff9c, &(0x7f0000000000), 0x0, "
            "0x0)\nioctl$KVM_CREATE_VM(r0, 0xae01, 0x0)",
        ),
        (LOG, "syz.0.451", "getpid()"),
        (LOG, "syz.1.4", "sync()"),
        # Another executor's, a kernel thread's, an old executor's; that which was started last.
        (LOG, "syz.2.45", None),
        (LOG, "kworker/1:2", None),
        (LOG, "syz-executor.1", None),
        (LOG, None, "sync()"),
        (LONG, "syz.12.12345678", "sync()"),
        (LONG, "syz.12.1234567", None),
        (OLD, "syz-executor.3", "r0 = socket(0x2, 0x1, 0x0)\nbind(r0, 0x0, 0x0)"),
        (OLD, "syz-executor1", "sync()"),
        (OLD, "syz-executor2", None),
        (OLD, None, "sync()"),
        ("nothing", None, None),
    ],
)
def test_program(log, comm, program):
    assert find_program(log.encode(), comm) == program


@pytest.mark.parametrize(
    ("log", "other"),
    [
        (b"[  31.9] CPU: 1 UID: 0 PID: 77 Comm: syz.1.45 Not tainted 6.12.0 #1\n", False),
        (
            b"[ 31.9][ T78] CPU: 1 PID: 78 Comm: syz.1.46 Not tainted\n[ 32.0] CPU: 1 PID: 77 "
            b"Comm: syz.1.45 Tainted: G\n",
            False,
        ),
        # Another boot's task had the number, or the name.
        (b"[  31.9] CPU: 1 UID: 0 PID: 77 Comm: kworker/0:1 Not tainted 6.12.0 #1\n", True),
        (b"[  31.9] CPU: 1 UID: 0 PID: 99 Comm: syz.1.45 Not tainted 6.12.0 #1\n", True),
        (b"Kernel panic - not syncing: nobody is named\n", False),
    ],
)
def test_a_log_of_another_crash(log, other):
    """A manager overwrites the oldest log and keeps the oldest dump."""
    assert names_another_task(log, 77, "syz.1.45") is other


def test_every_file_that_a_manager_writes(workdir):
    """SaveCrash and SaveRepro of pkg/manager/crash.go, tail reports and dumps as of January
    2026.
    """
    text = dict.fromkeys(
        (
            "log0",
            "tag0",
            "report0",
            "machineInfo0",
            "log1",
            "tag1",
            "machineInfo1",
            "repro0",
            "repro1",
        ),
        "x",
    )
    repro = {f"repro.{end}": "x" for end in ("prog", "cprog", "tag", "log", "report", "stats")}
    folder = make_crash(
        workdir,
        "2411dc8cd4c3f9814e20779d67f47dddbf55c9f6",
        description="BUG: x\n",
        vmcore="",
        **text,
    )
    for name in (*repro, "strace.log", "title-stat", "mount_0.gz"):
        (folder / name).write_text("x")
    os.utime(folder / "log1", (1, 1))
    (crash,) = find_manager(str(workdir)).crashes()
    assert crash.title == "BUG: x"
    assert [path.name for path in (*crash.logs, *crash.reports)] == [
        "log0",
        "log1",
        "repro.log",
        "report0",
        "repro.report",
    ]
    assert [dump.path.name for dump in crash.dumps] == ["vmcore"]
    assert (crash.report, crash.log) == (folder / "report0", folder / "log0")
    assert (crash.reproducer, crash.c_reproducer) == (folder / "repro.prog", folder / "repro.cprog")
    assert crash.machine in (folder / "machineInfo0", folder / "machineInfo1")


def test_the_log_of_the_newest_report(workdir):
    """A crash without a report has a newer log."""
    folder = make_crash(workdir, "a", log0="", log1="", log2="", report0="", report1="")
    for name, time in (("log0", 10), ("report0", 10), ("log1", 20), ("report1", 20), ("log2", 30)):
        os.utime(folder / name, (time, time))
    (crash,) = find_manager(str(workdir)).crashes()
    assert (crash.report, crash.log) == (folder / "report1", folder / "log1")


def test_files_of_syz_crush_and_of_the_diff_fuzzer(workdir):
    crushed = make_crash(workdir, "a", log0="", log1="", memory_dump1="", reproducer0="sync()")
    patched = make_crash(
        workdir,
        "b",
        patched_report="[   31.8][   T77] usb 1-1: new device\n[   31.9][   T77] BUG: x\nCall Trace:\n",
        patched_crash_log="",
        repro__prog="sync()",
    )
    found = {crash.path: crash for crash in find_manager(str(workdir)).crashes()}
    assert found[crushed].dumps == ((crushed / "memory_dump1", crushed / "log1"),)
    assert found[crushed].reproducer == crushed / "reproducer0"
    assert (found[crushed].title, found[patched].title) == (None, "BUG: x")
    assert (found[patched].report, found[patched].log) == (
        patched / "patched_report",
        patched / "patched_crash_log",
    )


def test_a_configuration_that_go_reads(workdir):
    """Bytes that are no UTF-8 become others, and what follows the first value is ignored."""
    (workdir.parent / "syz.cfg").write_bytes(
        b' {"name": "\xff", "workdir": "workdir"}\n# end\n{"more": 1}'
    )
    manager = find_manager(str(workdir.parent / "syz.cfg"))
    assert manager.workdir == workdir.resolve()


def test_crashes(workdir):
    make_crash(
        workdir,
        "b",
        description="BUG: x\n",
        vmcore="dump",
        log0="",
        log1="",
        report1="",
        repro__prog="sync()",
    )
    make_crash(workdir, "a", description="INFO: y\n", log0="")
    make_crash(workdir, "c")
    found = list(find_manager(str(workdir)).crashes())
    assert [(crash.path.name, crash.title, len(crash.dumps)) for crash in found] == [
        ("c", None, 0),
        ("b", "BUG: x", 1),
        ("a", "INFO: y", 0),
    ]
    assert (len(found[1].logs), len(found[1].reports), found[1].reproducer is not None) == (
        2,
        1,
        True,
    )


def test_the_log_of_a_dump_is_the_first_one_after_it(workdir):
    folder = make_crash(workdir, "a", description="", vmcore="", log0="", log1="", log2="")
    for name, time in (("log0", 90), ("vmcore", 100), ("log1", 101), ("log2", 200)):
        os.utime(folder / name, (time, time))
    (crash,) = find_manager(str(workdir)).crashes()
    assert crash.dumps[0].log == folder / "log1"


def test_directories_are_no_dumps(workdir):
    folder = make_crash(workdir, "a", vmcore="", vmcore__zst="")
    (folder / "vmcore.kcovdbg").mkdir()
    (crash,) = find_manager(str(workdir)).crashes()
    assert [dump.path.name for dump in crash.dumps] == ["vmcore", "vmcore.zst"]


def test_files_that_would_wait_or_never_end(workdir):
    folder = make_crash(workdir, "a")
    os.mkfifo(folder / "description")
    os.mkfifo(folder / "vmcore")
    (folder / "log0").symlink_to("/dev/zero")
    (crash,) = find_manager(str(workdir)).crashes()
    assert (crash.title, crash.dumps) == (None, ())
    with pytest.raises(OSError):
        read_log(folder / "log0")


def test_links_out_of_a_crash_are_not_read(workdir):
    """Titles and programs go into answers, which may be published."""
    folder = make_crash(workdir, "a")
    (workdir / "secret").write_text("root:secret\n1s ago: executing program 0 (id=1):\nsync()\n\n")
    (folder / "description").symlink_to(workdir / "secret")
    (folder / "log0").symlink_to("../../secret")
    (folder / "kept").write_text("1s ago: executing program 0 (id=1):\nsync()\n\n")
    (folder / "log1").symlink_to("kept")
    (workdir / "other").mkdir()
    (workdir / "other/description").write_text("root:secret")
    (folder.parent / "b").symlink_to(workdir / "other")
    (folder.parent / "loop").symlink_to("loop")
    (crash,) = find_manager(str(workdir)).crashes()
    assert crash.title is None
    with pytest.raises(OSError):
        read_log(folder / "log0")
    assert read_log(folder / "log1").startswith(b"1s ago")


def test_bytes_that_are_no_text(workdir):
    folder = make_crash(workdir, "a")
    (folder / "description").write_bytes(b"BUG: \xff\x1b[2J" + b"A" * (1 << 20))
    (crash,) = find_manager(str(workdir)).crashes()
    assert crash.title.startswith("BUG: \ufffd\x1b[2JAAAA")
    assert len(crash.title) == 4096


@pytest.mark.parametrize("named", ["workdir", "absolute"])
def test_configuration(workdir, named):
    kernel = workdir.parent / "linux"
    kernel.mkdir()
    (kernel / "vmlinux").write_bytes(b"\x7fELF")
    (kernel / "stripped.ko").write_bytes(b"\x7fELF")
    value = workdir if named == "absolute" else "workdir"
    (workdir.parent / "other.cfg").write_text('{"workdir": "elsewhere", "kernel_obj": "nowhere"}')
    (workdir.parent / "broken.cfg").write_text("{")
    configuration = workdir.parent / "syz.cfg"
    configuration.write_text(
        f'{{\n\t# "workdir": "/x",\n"workdir": "{value}",\n "kernel_obj": "linux"}}'
    )
    for place in (workdir, configuration):
        manager = find_manager(str(place))
        assert manager.workdir == workdir.resolve()
        assert manager.images == ((kernel / "vmlinux").resolve(),)


def write_configuration(path, workdir, *folders):
    first, *others = map(str, folders)
    path.write_text(
        json.dumps({"workdir": str(workdir), "kernel_obj": first, "module_obj": others})
    )


@pytest.fixture
def image(tmp_path_factory):
    """A kernel that is neither in nor beside the working directory."""
    return compile_image(tmp_path_factory.mktemp("elsewhere")).rename(
        tmp_path_factory.getbasetemp() / "elsewhere0/vmlinux"
    )


def test_images_elsewhere_are_read_where_the_user_names_them(workdir, image):
    write_configuration(workdir / "m.cfg", workdir, image.parent, "/", "/proc/self/root")
    manager = find_manager(str(workdir))
    assert manager.images == ()
    assert sum(str(image.parent) in remark for remark in manager.remarks) == 1
    for place in (image, image.parent):
        assert find_manager(str(workdir), [str(place)]).images == (
            (image,) if place == image.parent else ()
        )


def test_an_image_that_is_a_link_or_a_pipe_is_not_read(workdir, image):
    write_configuration(workdir / "m.cfg", workdir, workdir, workdir / "up")
    (workdir / "vmlinux").symlink_to(image)
    (workdir / "up").symlink_to(image.parent)
    os.mkfifo(workdir / "a.ko")
    (workdir / "b.ko").symlink_to(image)
    (workdir / "c.ko").symlink_to("/dev/zero")
    shutil.copy(image, workdir / "d.ko")
    assert find_manager(str(workdir)).images == (workdir.resolve() / "d.ko",)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a file of another user")
def test_a_configuration_of_another_user_beside_is_not_read(workdir):
    (workdir.parent / "linux").mkdir()
    (workdir.parent / "linux/vmlinux").write_bytes(b"\x7fELF")
    configuration = workdir.parent / "m.cfg"
    write_configuration(configuration, workdir, workdir.parent / "linux")
    assert find_manager(str(workdir)).images
    os.chown(configuration, 65534, 65534)
    assert find_manager(str(workdir)).images == ()


def test_a_home_is_not_searched(workdir, monkeypatch):
    (workdir.parent / "linux").mkdir()
    (workdir.parent / "linux/vmlinux").write_bytes(b"\x7fELF")
    write_configuration(workdir.parent / "m.cfg", workdir, workdir.parent / "linux")
    assert find_manager(str(workdir)).images
    monkeypatch.setenv("HOME", str(workdir.parent))
    assert find_manager(str(workdir)).images == ()


def test_a_dump_elsewhere_is_not_read(workdir):
    folder = make_crash(workdir, "a")
    (workdir / "kept").write_text("dump")
    (folder / "vmcore").symlink_to("/etc/passwd")
    (folder / "vmcore.zst").symlink_to("../../kept")
    (crash,) = find_manager(str(workdir)).crashes()
    assert [dump.path.name for dump in crash.dumps] == ["vmcore.zst"]
    assert [remark.partition(":")[0] for remark in crash.remarks] == ["vmcore"]


def test_a_reader_that_does_not_end(workdir, monkeypatch):
    monkeypatch.setattr("kcovdbg.farm.workdir_reader.python_command", lambda *_: ["sleep", "60"])
    with closing(WorkdirReader(0.2)) as reader, pytest.raises(KcovdbgError) as caught:
        reader.find(str(workdir), ())
    assert "0.2 s" in str(caught.value)
    assert "--timeout" in caught.value.hint
    monkeypatch.setattr("kcovdbg.farm.workdir_reader.python_command", lambda *_: ["true"])
    with closing(WorkdirReader(60)) as reader, pytest.raises(KcovdbgError):
        reader.find(str(workdir), ())


def test_a_process_reads_the_same(workdir):
    make_crash(
        workdir,
        "a",
        description="BUG: \udcff",
        vmcore="",
        log0=LOG,
        report0="BUG: KASAN: x in foo+0x1/0x2\n",
    )
    make_crash(workdir, "b", report0="")
    manager = find_manager(str(workdir))
    with closing(WorkdirReader(60)) as reader:
        assert reader.find(str(workdir), ()) == (manager, list(manager.crashes()))
        crash = manager.crashes()[1]
        found = reader.read_dump_log(crash.dumps[0].log, 1, "syz.1.4")
        assert (found.is_other, found.program) == (False, "sync()")
        texts = reader.read_crash(crash, None)
        found = summarize_report("BUG: KASAN: x in foo+0x1/0x2\n")
        assert (texts.summary.function, texts.summary.errors) == (
            found.origin.function,
            (found.problem,),
        )
        assert (texts.program, texts.is_last) == ("sync()", False)
        with pytest.raises(KcovdbgError):
            reader.find(str(workdir / "absent"), ())
        (workdir / "pcs").write_text("0xffffffff81000000\n")
        with pytest.raises(KcovdbgError) as caught:
            reader.find(str(workdir / "pcs"), ())
        # Its kind is named where the error is shown.
        assert caught.value.wrong_file == str(workdir / "pcs")
        with pytest.raises(KcovdbgError):
            reader.read_dump_log(workdir / "absent", 1, "x")


@pytest.mark.parametrize("value", ["3", '"x"', "[3]", "null"])
def test_configuration_with_other_types(workdir, value):
    (workdir.parent / "syz.cfg").write_text(
        f'{{"workdir": "workdir", "kernel_obj": {value}, "module_obj": {value}}}'
    )
    assert find_manager(str(workdir)).images == ()


def test_paths_that_no_file_can_have(workdir):
    (workdir / "loop").symlink_to("loop")
    names = ["a\0b", "\ud800", "x" * 300, "x/" * 5000, "loop/x"]
    for name in names:
        settings = {"workdir": str(workdir), "kernel_obj": name, "module_obj": names}
        (workdir / "m.cfg").write_text(json.dumps(settings))
        assert find_manager(str(workdir)).images == ()
        (workdir / "m.cfg").write_text(json.dumps({**settings, "workdir": name}))
        assert find_manager(str(workdir)).images == ()
        with pytest.raises(KcovdbgError):
            find_manager(str(workdir / "m.cfg"))


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"workdir": 3}', '{"workdir": "none"}'])
def test_what_is_no_manager(tmp_path, text):
    place = tmp_path / "place"
    if text is None:
        place.mkdir()
    else:
        place.write_text(text)
    with pytest.raises(KcovdbgError) as caught:
        find_manager(str(place))
    assert caught.value.hint
    with pytest.raises(KcovdbgError) as caught:
        find_manager(str(tmp_path / "absent"))
    assert caught.value.hint
