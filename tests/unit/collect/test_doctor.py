# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers of doctor about instrumented points, from a compiled image and from the kernel's own
symbols.
"""

import errno
import io
import json
import os
import shutil
import subprocess

import pytest

from kcovdbg.collect import doctor_command as doctor
from kcovdbg.collect import requests as explaining
from kcovdbg.collect.requests import Step, explain_errno
from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Context, Workspace
from kcovdbg.console.runner import run_words
from kcovdbg.console.terminal import Terminal
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelMemory, KernelOptions
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.target.drgn.lines import DrgnLines
from kcovdbg.target.drgn.target import DrgnTarget
from tests.support.state import make_target
from tests.support.stub import make_stub

SOURCE = """
void __sanitizer_cov_trace_pc(void) {}
int work(int x) { CALLS return x; }
void _start(void) { work(3); }
"""


@pytest.fixture
def make_image(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")

    def make(calls, *options):
        (tmp_path / "a.c").write_text(
            SOURCE.replace("CALLS", "__sanitizer_cov_trace_pc();" * calls)
        )
        image = tmp_path / f"image{calls}{len(options)}"
        command = [
            "gcc",
            "-O0",
            "-g",
            "-nostdlib",
            "-static",
            "-o",
            image,
            *options,
            tmp_path / "a.c",
        ]
        subprocess.run(command, check=True)
        return image

    return make


def test_calls_are_looked_for(make_image):
    assert doctor.find_calls(make_image(3))[0] == 3
    assert doctor.find_calls(make_image(0))[0] == 0
    # Without symbols, the targets of calls are unknown.
    assert doctor.find_calls(make_image(3, "-s")) is None


def test_no_answer_from_what_has_no_code(make_image, tmp_path):
    image = make_image(2)
    subprocess.run(["objcopy", "--only-keep-debug", image, tmp_path / "debug"], check=True)
    assert doctor.find_calls(tmp_path / "debug") is None
    (tmp_path / "text").write_text("no ELF")
    assert doctor.find_calls(tmp_path / "text") is None


def test_symbols_of_the_running_kernel(tmp_path):
    path = tmp_path / "kallsyms"
    names = ("__sanitizer_cov_trace_pc",)
    path.write_text("0000000000000000 T start\n0000000000000000 T __sanitizer_cov_trace_pc\n")
    assert doctor.has_symbol(names, path) is True
    path.write_text("0000000000000000 T start\n0000000000000000 T __sanitizer_cov_trace_pcx\n")
    assert doctor.has_symbol(names, path) is False
    path.write_text("")
    assert doctor.has_symbol(names, path) is None
    assert doctor.has_symbol(names, tmp_path / "none") is None


def make_kernel(**memory):
    return make_stub(Kernel, memory=make_stub(KernelMemory, **memory))


def look(monkeypatch, image=None, symbol=None, config=None):
    target = (
        None if image is None else make_stub(DrgnTarget, lines=make_stub(DrgnLines, image=image))
    )
    monkeypatch.setattr(doctor, "is_this_machine", lambda _target: True)
    monkeypatch.setattr(doctor, "has_symbol", lambda _names: symbol)
    monkeypatch.setattr(doctor, "read_config", lambda: config)
    return doctor._check_points(make_stub(Context, kernel=make_kernel(optional_target=target)))


def test_the_image_says_more_than_the_configuration(monkeypatch, make_image):
    everywhere = {"CONFIG_KCOV": "y", "CONFIG_KCOV_INSTRUMENT_ALL": "y"}
    assert look(monkeypatch, make_image(3), True, {}).ok is True
    found = look(monkeypatch, make_image(0), True, everywhere)
    assert (found.ok, "__sanitizer_cov_trace_pc" in found.answer) == (False, True)
    assert found.fix


@pytest.mark.parametrize(
    ("symbol", "config", "ok"),
    [
        (False, {"CONFIG_KCOV_INSTRUMENT_ALL": "y"}, False),
        (True, {"CONFIG_KCOV": "y"}, None),
        (True, {"CONFIG_KCOV_INSTRUMENT_ALL": "y"}, True),
        (None, None, None),
        (True, None, None),
    ],
)
def test_without_an_image(monkeypatch, symbol, config, ok):
    found = look(monkeypatch, None, symbol, config)
    assert found.ok is ok
    assert found.fix


def test_a_kernel_without_kcov_is_told_from_a_missing_mount(monkeypatch, tmp_path):
    path = str(tmp_path / "kcov")
    monkeypatch.setattr(explaining, "read_config", lambda: {"CONFIG_DEBUG_FS": "y"})
    error = explain_errno(Step.OPEN, errno.ENOENT, path=path)
    assert path in str(error)
    assert "CONFIG_KCOV=y" in error.hint
    assert "mount" not in error.hint
    for config in (None, {"CONFIG_KCOV": "y"}):
        monkeypatch.setattr(explaining, "read_config", lambda config=config: config)
        error = explain_errno(Step.OPEN, errno.ENOENT, path=path)
        assert error.hint == f"mount -t debugfs none {tmp_path}"


@pytest.mark.parametrize("is_readable", [True, False])
def test_debug_info_is_not_to_blame_for_a_kernel_that_cannot_be_read(monkeypatch, is_readable):
    monkeypatch.setattr(os, "access", lambda *_: is_readable)
    kernel = make_kernel(optional_target=None, problem="it can't be opened")
    found = doctor._check_symbols(make_stub(Context, kernel=kernel))
    assert found.ok is (False if is_readable else None)
    assert ("-s VMLINUX" in found.fix) == is_readable


@pytest.mark.parametrize(
    ("config", "ok"), [(None, None), ({"CONFIG_KCOV": "y"}, True), ({}, False)]
)
def test_debugfs_is_not_readable_by_this_user(monkeypatch, config, ok):
    def refuse(self, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(doctor.Path, "exists", refuse)
    monkeypatch.setattr(doctor, "read_config", lambda: config)
    found = doctor._check_kernel(None)
    assert found.ok is ok
    if config is None:
        assert "root" in found.fix.split()


@pytest.mark.parametrize(("symbol", "rows"), [(None, 0), (False, 0), (True, 1)])
def test_a_device_that_is_not_in_debugfs(monkeypatch, tmp_path, symbol, rows):
    monkeypatch.setattr(
        doctor, "has_symbol", lambda names: symbol if names == ("kcov_df_fops",) else None
    )
    found = list(doctor.check_devices(tmp_path))
    assert [one.ok for one in found] == [False] * rows
    assert all(str(tmp_path) in one.fix for one in found)


@pytest.mark.parametrize(
    ("owner", "call", "number", "fix"),
    [(doctor.Path, "stat", errno.EACCES, "root"), (doctor.os, "open", errno.EPERM, "lockdown")],
)
def test_a_device_that_is_forbidden(monkeypatch, tmp_path, owner, call, number, fix):
    def refuse(*_args, **_options):
        raise PermissionError(number, os.strerror(number))

    (tmp_path / "kcov_dataflow").touch()
    monkeypatch.setattr(doctor, "has_symbol", lambda _names: True)
    monkeypatch.setattr(owner, call, refuse)
    (found,) = doctor.check_devices(tmp_path)
    assert (found.ok, fix in found.fix) == (False, True)


@pytest.mark.parametrize(
    ("features", "is_tried"),
    [(None, True), ((), False), (("dataflow-early",), False), (("dataflow-objects",), True)],
)
def test_a_device_is_tried_unless_it_is_of_another_posting(tmp_path, features, is_tried):
    (tmp_path / "kcov_dataflow").touch(0o640)
    opened, enabled = doctor.check_devices(tmp_path, features)
    assert (opened.ok, opened.fix, "-rw-r-----" in opened.answer) == (True, None, True)
    # A file that is no device refuses to be enabled.
    assert enabled.ok is (False if is_tried else None)
    assert enabled.fix


def test_fixes_are_whole_at_any_width(monkeypatch):
    """And an answer about this machine says so beside a kernel of another one."""
    fix = (
        "mount -t debugfs none /sys/kernel/debug, as root, before everything else that is to be "
        "done"
    )
    monkeypatch.setattr(
        doctor, "_CHECKS", (("is it there?", lambda _context: doctor.Diagnosis(False, "no", fix)),)
    )
    target = make_target(name="another", release="1.2.3")
    workspace = Workspace(COMMANDS, UserInputs(Kernel(KernelOptions(lambda: target))))
    for width in (40, 80, None):
        stream = io.StringIO()
        status = run_words(workspace, ["doctor"], Terminal(stream, io.StringIO(), width))
        text = " ".join(stream.getvalue().split())
        assert status == 1
        assert fix in text
        assert "another" in text
    stream = io.StringIO()
    run_words(workspace, ["doctor", "--json"], Terminal(stream, io.StringIO()))
    assert json.loads(stream.getvalue()) == [
        {"ok": False, "question": "is it there?", "answer": "no", "fix": fix}
    ]
