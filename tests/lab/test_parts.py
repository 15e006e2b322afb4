# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parts of the lab that need neither a kernel nor QEMU."""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
from pathlib import Path

import drgn
import pytest

from tests.lab import __main__ as command_line
from tests.lab import cache, requirements
from tests.lab.architecture import ARCHITECTURES
from tests.lab.cpio import CpioWriter
from tests.lab.dump import move_program_headers
from tests.lab.errors import LabError, UnavailableError
from tests.lab.guest import Machine
from tests.lab.kernel import build, find, lost_settings
from tests.lab.progress import Progress
from tests.lab.recipe import RECIPES, Recipe
from tests.lab.rsp import _expanded
from tests.lab.section import _members
from tests.lab.truth import Truth


def test_configuration_merges_fragments() -> None:
    text = RECIPES["default"].configuration()
    assert "CONFIG_KCOV=y\n" in text
    assert "# CONFIG_KASAN is not set\n" in text
    options = [line.split("=")[0] for line in text.splitlines() if line.startswith("CONFIG_")]
    assert len(options) == len(set(options))


def test_lost_settings_are_told() -> None:
    wanted = 'CONFIG_A=y\nCONFIG_B="text"\n# CONFIG_C is not set\n# CONFIG_D is not set\nCONFIG_E=y\n'
    got = 'CONFIG_A=y\nCONFIG_B="other"\nCONFIG_C=y\n# CONFIG_E is not set\n'
    assert lost_settings(wanted, got) == ['CONFIG_B="text"', "# CONFIG_C is not set", "CONFIG_E=y"]


def test_key_tells_package_and_compiler() -> None:
    recipe = RECIPES["default"].read()
    keys = {recipe.key("1", "gcc 1"), recipe.key("2", "gcc 1"), recipe.key("1", "gcc 2")}
    assert len(keys) == 3
    assert recipe.key("1", "gcc 1") in keys
    other = Recipe(name="default", package="linux-source-6.12", fragments=("base.config",))
    assert other.read().key("1", "gcc 1") not in keys


def test_a_kernel_is_made_of_what_its_key_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments and patches are edited while a kernel is built: it is made from those that were there at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tests.lab.recipe.HERE", tmp_path)
    monkeypatch.setattr(requirements, "ensure", lambda _: None)
    monkeypatch.setattr(requirements, "package_version", lambda _: "1")
    monkeypatch.setattr(requirements, "compiler_version", lambda _: "gcc 1")
    fragment, patch = tmp_path / "config/a.config", tmp_path / "generations/a.patch"
    for path in (fragment, patch):
        path.parent.mkdir()
    fragment.write_text("CONFIG_A=y\n")
    patch.write_text("first\n")
    applied = []

    def step(command: list[str], source: Path, _progress: Progress | None = None) -> None:
        if command[0] == "tar":
            fragment.write_text("CONFIG_B=y\n")
            patch.write_text("second\n")
        elif command[0] == "patch":
            applied.append(Path(command[-1]).read_text())
        elif command[-1] == recipe.target:
            (wanted,) = (word.partition("=")[2] for word in command if word.startswith("KCONFIG_ALLCONFIG="))
            (source / ".config").write_text(Path(wanted).read_text())
        else:
            for name in ("vmlinux", "System.map", "arch/x86/boot/bzImage", "include/config/kernel.release"):
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_text(name)

    monkeypatch.setattr("tests.lab.kernel.run_logged", step)
    recipe = Recipe(name="edited", package="linux-source-0.0", fragments=("a.config",), patches=("a.patch",))
    before = recipe.read()
    built = build(recipe)
    assert built.key == before.key("1", "gcc 1")
    assert built.facts["fingerprint"] == before.fingerprint()
    assert built.config.read_text() == "CONFIG_A=y\n"
    assert applied == ["first\n"]
    # The edited recipe is of another kernel.
    assert find(recipe) is None


def test_torn_work_is_not_taken_for_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    final = cache.root() / "thing"

    def torn(work: Path) -> None:
        (work / "half").touch()
        raise LabError("torn")

    with pytest.raises(LabError, match="torn"):
        cache.make_whole(final, torn)
    assert not final.exists()
    # A killed builder leaves this behind.
    (final.parent / ".thing.dead").mkdir()
    cache.make_whole(final, lambda work: (work / "all").touch())
    assert [path.name for path in final.iterdir()] == ["all"]
    assert sorted(path.name for path in final.parent.iterdir()) == ["locks", "thing"]
    cache.make_whole(final, torn)


def test_truth_is_read_as_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    truth = Truth(log)
    assert truth.lines() == []
    log.write_bytes(b'SeaBIOS\r\nnoise TRUTH {"a": 1}\r\nTRUTH {"b"')
    assert truth.lines() == [{"a": 1}]
    with log.open("ab") as file:
        file.write(b': "\\u0001"}\nTRUTH {"torn\nTRUTH [1]\n')
    assert truth.lines() == [{"a": 1}, {"b": "\x01"}]
    assert truth.damaged == ['TRUTH {"torn', "TRUTH [1]"]


@pytest.mark.parametrize(("packet", "meaning"), [(b"OK", b"OK"), (b"0* 1", b"00001"), (b"}\x03a", b"#a")])
def test_packets_are_expanded(packet: bytes, meaning: bytes) -> None:
    assert _expanded(packet) == meaning


def test_cpio_is_readable(tmp_path: Path) -> None:
    stream = io.BytesIO()
    writer = CpioWriter(stream)
    writer.directory("d")
    writer.file("d/f", b"content", 0o755)
    writer.close()
    archive = stream.getvalue()
    assert len(archive) % 4 == 0
    assert archive.startswith(b"070701")
    if shutil.which("cpio") is None:
        pytest.skip("no cpio to read it with")
    done = subprocess.run(["cpio", "-id", "--quiet"], input=archive, cwd=tmp_path, capture_output=True, check=True)
    assert done.stderr == b""
    assert (tmp_path / "d/f").read_bytes() == b"content"
    assert os.access(tmp_path / "d/f", os.X_OK)


def test_program_headers_move(tmp_path: Path) -> None:
    """A file as QEMU writes it: the section table comes first."""
    header = struct.Struct("<16sHHIQQQIHHHHHH")
    phdrs = bytes(range(56)) * 2
    path = tmp_path / "core"
    path.write_bytes(header.pack(b"\x7fELF", 4, 62, 1, 0, 192, 64, 0, 64, 56, 2, 64, 2, 1) + b"S" * 128 + phdrs + b"content")
    size = path.stat().st_size
    move_program_headers(path)
    data = path.read_bytes()
    fields = header.unpack_from(data)
    assert (fields[5], fields[6], fields[10], fields[12], fields[13]) == (64, 0, 2, 0, 0)
    assert data[64 : 64 + len(phdrs)] == phdrs
    assert data.endswith(b"content")
    assert len(data) == size


def test_progress_is_plain_without_a_terminal() -> None:
    stream = io.StringIO()
    with Progress("build", 20, stream) as progress:
        for _ in range(30):
            progress.step("CC x.o")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "build: 0 %"
    assert lines[-2] == "build: 90 %"
    assert lines[-1].startswith("build: done after")
    assert "\r" not in stream.getvalue()
    assert len(lines) == 11


@pytest.mark.parametrize(("machine", "device"), [("x86_64", "virtio-9p-pci"), ("aarch64", "virtio-9p-device")])
def test_shares_become_devices(machine: str, device: str) -> None:
    arguments = Machine(shares=(("host", "/srv"),)).arguments(ARCHITECTURES[machine])
    assert f"{device},fsdev=share0,mount_tag=host" in arguments


def test_what_is_missing_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(requirements, "may_install", lambda: False)
    monkeypatch.setattr(requirements, "for_build", lambda _: {"no-such-program": "its-package"})
    monkeypatch.setattr("tests.lab.kernel._exact_directory", lambda _: None)
    assert command_line.main(["build"]) == 2
    said = capsys.readouterr().err
    assert "missing: its-package" in said
    assert "sudo apt-get install -y --no-install-recommends its-package" in said


@pytest.fixture
def fresh_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a package manager into PATH whose lists are empty until they are updated, and which refuses to install unless it may
    wait for another installation; return the file that it logs to."""
    log, programs = tmp_path / "log", tmp_path / "bin"
    programs.mkdir()
    cache = f"grep -q '^update' {log} && [ $2 = its-package ] && echo '  Candidate: 1.0' || echo '  Candidate: (none)'"
    install = f"case $* in *Lock::Timeout=*) : > {programs}/such-program; chmod +x {programs}/such-program;; *) exit 100; esac"
    get = f"echo $* >> {log}; [ $1 = update ] && exit; {install}"
    for name, text in (("apt-cache", cache), ("apt-get", get)):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    log.touch()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(requirements, "SEARCH_PATH", os.environ["PATH"])
    monkeypatch.setattr(requirements, "may_install", lambda: True)
    return log


def test_package_lists_are_updated_where_there_are_none(fresh_machine: Path) -> None:
    requirements.ensure({"such-program": "its-package"})
    assert [line.split()[0] for line in fresh_machine.read_text().splitlines()] == ["update", "install"]


def test_a_source_package_that_nobody_has_is_told(fresh_machine: Path) -> None:
    with pytest.raises(UnavailableError, match=r"know no linux-source-0\.0"):
        requirements.ensure({"/usr/src/linux-source-0.0.tar.xz": "linux-source-0.0"})
    assert [line.split()[0] for line in fresh_machine.read_text().splitlines()] == ["update"]


@pytest.mark.parametrize(
    ("flags", "order"), [(drgn.PlatformFlags(0), ">"), (drgn.PlatformFlags.IS_LITTLE_ENDIAN, "<")], ids=["big", "little"]
)
def test_members_are_read_in_the_guest_s_byte_order(flags: drgn.PlatformFlags, order: str) -> None:
    """Numbers and bit-fields, as drgn reads them."""
    program = drgn.Program(drgn.Platform(drgn.Architecture.UNKNOWN, flags | drgn.PlatformFlags.IS_64_BIT))
    byte_order = "big" if order == ">" else "little"
    long = program.int_type("unsigned long", 8, False, byte_order)
    word = program.int_type("unsigned int", 4, False, byte_order)
    low, high = (29, 0) if order == ">" else (0, 29)
    members = (
        drgn.TypeMember(long, "number", 0),
        drgn.TypeMember(drgn.Object(program, word, 5, bit_field_size=3), "low", 64 + low),
        drgn.TypeMember(drgn.Object(program, word, 5, bit_field_size=3), "high", 64 + high),
    )
    kind = program.struct_type("s", 16, members)
    data = struct.pack(f"{order}QII", 0x0102030405060708, 0xA0000006, 0)
    whole = drgn.Object.from_bytes_(program, kind, data)
    found = {name: member.of(data) for name, member in _members(kind, ["number", "low", "high"]).items()}
    assert found == {name: whole.member_(name).value_() for name in found}
    assert found == {"number": 0x0102030405060708, "low": 6, "high": 5}
