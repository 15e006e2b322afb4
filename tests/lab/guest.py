# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel of the lab, running in QEMU under software emulation."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import Self

from tests.lab import requirements
from tests.lab.errors import LabError
from tests.lab.initramfs import Userland
from tests.lab.kcovdbg_run import symbol_options
from tests.lab.kernel import Kernel
from tests.lab.process import DieWithOwner
from tests.lab.qmp import Qmp
from tests.lab.recipe import Architecture
from tests.lab.rsp import Rsp
from tests.lab.truth import Truth

# Bytes of a file that a line of the console takes into a packed guest.
_PIECE = 48
# What the kernel prints when waiting is of no use any more.
_DEAD = ("Kernel panic - not syncing",)


@dataclasses.dataclass(frozen=True)
class Machine:
    """The hardware and the kernel's command line."""

    memory_mib: int = 128
    cpus: int = 1
    # Empty: the architecture's.
    cpu: str = ""
    append: str = ""
    # Tag of a 9p file system -> directory of the host; the guest can't write there.
    shares: tuple[tuple[str, str], ...] = ()
    # A directory of the host where the guest can write as well: with a share `root` for
    # `Guest.run`.
    exchange: str = ""
    # Another archive to boot with, for kernels without 9p: kcovdbg_initramfs.py packs the host's
    # programs with their libraries. The guest does not see the exchange directory then, and
    # `Guest.run` and `Guest.fetch` copy.
    packed: str = ""
    # Time is instructions executed, one of them a nanosecond, and none passes while nothing runs:
    # what is measured in such a guest doesn't depend on what else the host does. Slower, and all of
    # its CPUs are one thread of the host.
    counts_instructions: bool = False
    # Further arguments of QEMU's.
    options: tuple[str, ...] = ()

    def arguments(self, platform: Architecture) -> list[str]:
        command = [
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *(*platform.machine, "-cpu", self.cpu or platform.cpu),
            *("-m", f"{self.memory_mib}M", "-smp", str(self.cpus)),
            *platform.vmcoreinfo,
            *("-device", f"virtio-rng-{platform.virtio}"),
        ]
        for index, (tag, path) in enumerate(self.shares):
            command += [
                "-fsdev",
                f"local,id=share{index},path={path},security_model=none,readonly=on,multidevs=remap",
            ]
            command += [
                "-device",
                f"virtio-9p-{platform.virtio},fsdev=share{index},mount_tag={tag}",
            ]
        if self.exchange and not self.packed:
            command += ["-fsdev", f"local,id=exchange,path={self.exchange},security_model=none"]
            command += ["-device", f"virtio-9p-{platform.virtio},fsdev=exchange,mount_tag=exchange"]
        if self.counts_instructions:
            command += ["-icount", "shift=0,sleep=off"]
        return [*command, *self.options]

    def command_line(self, platform: Architecture) -> str:
        # A panicked machine stands still, to be dumped. Warnings and worse are printed, as serial
        # output takes time. Of two USB controllers, one has the gadget of the standing states, the
        # other is for traffic.
        return (
            f"console={platform.console} loglevel=5 panic=0 random.trust_cpu=on dummy_hcd.num=2 "
            f"{self.append}".strip()
        )


class Sockets(NamedTuple):
    """The ways into a guest, all in its directory but the GDB stub's port."""

    directory: Path
    gdb_port: int
    gdb_remote: str
    """The GDB stub, as debuggers want it written."""
    qmp: Path
    """The lab's own."""
    debugger_qmp: Path
    """For the debugger under test, as one QMP socket serves one client."""
    monitor: Path
    """QEMU's monitor for humans."""
    truth: Path
    """The second serial port, as QEMU wants a pair of pipes named."""
    truth_input: Path
    """A pipe: lines to the workload."""
    truth_log: Path
    """What the workload prints.

    A plain file in a pipe's place: a socket's log repeats bytes that the socket took late.
    """
    console_log: Path

    @classmethod
    def of(cls, directory: Path, gdb_port: int) -> Self:
        names = ("qmp", "qmp-debugger", "monitor", "truth", "truth.in", "truth.out", "console.log")
        return cls(
            directory, gdb_port, f"127.0.0.1:{gdb_port}", *(directory / name for name in names)
        )


class Guest:
    """A running guest; as a context manager, its states stand inside the block, and it ends with
    the block.

    An owned guest (the default) ends with the thread that started it, however that ends; a
    detached one ends when it is told to.
    """

    def __init__(
        self,
        kernel: Kernel,
        userland: Userland,
        machine: Machine | None = None,
        *,
        detached: bool = False,
    ) -> None:
        self.kernel = kernel
        self.userland = userland
        machine = machine or Machine()
        self.machine = dataclasses.replace(
            machine, memory_mib=max(machine.memory_mib, kernel.recipe.memory_mib)
        )
        self._detached = detached
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._qmp: Qmp | None = None
        self.sockets = Sockets.of(Path(), 0)
        self.truth = Truth()
        self._scripts = 0

    @classmethod
    def attach(cls, directory: Path) -> Guest:
        """A detached guest that another process started.

        One with an owner is refused: it is the owner's to end.
        """
        try:
            state = json.loads((directory / "guest.json").read_text())
        except OSError as error:
            raise LabError(f"no guest in {directory}: {error.strerror}") from None
        kernel, userland = Kernel.at(Path(state["kernel"])), Userland(Path(state["userland"]))
        machine = state["machine"]
        machine["shares"] = tuple(tuple(share) for share in machine["shares"])
        machine["options"] = tuple(machine["options"])
        if state["owner"] is not None:
            raise LabError(f"the guest in {directory} belongs to process {state['owner']}")
        guest = cls(kernel, userland, Machine(**machine), detached=True)
        guest._pid = state["pid"]
        guest.sockets = Sockets.of(directory, state["gdb_port"])
        guest.truth = Truth(guest.sockets.truth_log)
        return guest

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_done()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """QEMU's process."""
        return self._pid

    def alive(self) -> bool:
        return (
            self._process.poll() is None
            if self._process is not None
            else _is_qemu_of(self._pid, self.sockets.directory)
        )

    def start(self) -> None:
        requirements.ensure(requirements.for_boot(self.kernel.recipe.platform))
        remove_left_over()
        # Under another name until its lock is held, or someone who starts a guest now would take it
        # for left behind.
        made = Path(tempfile.mkdtemp(prefix="new-", dir=_run_root()))
        with (made / "lock").open("w") as lock:
            # Held by us and by QEMU: a directory whose lock is free was left behind.
            fcntl.flock(lock, fcntl.LOCK_EX)
            directory = made.rename(made.with_name(f"guest-{made.name.removeprefix('new-')}"))
            try:
                self._launch(directory, lock.fileno())
            except BaseException:
                self.stop()
                shutil.rmtree(directory, ignore_errors=True)
                raise

    def stop(self) -> None:
        """End the guest and remove its directory. May be called at any time, also twice."""
        atexit.unregister(self.stop)
        if self._qmp is not None:
            self._qmp.close()
        self._qmp = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        elif self._pid and _is_qemu_of(self._pid, self.sockets.directory):
            os.kill(self._pid, signal.SIGKILL)
        if self.sockets.gdb_port:
            shutil.rmtree(self.sockets.directory, ignore_errors=True)

    @property
    def qmp(self) -> Qmp:
        """The lab's own QMP connection, made on first use."""
        if self._qmp is None:
            self._qmp = Qmp(self.sockets.qmp, timeout=max(60, self.kernel.recipe.boot_seconds / 2))
        return self._qmp

    def target(self, way: str = "--qemu") -> list[str]:
        """Return kcovdbg's options that name the guest, by QMP or ``--gdb-remote``, and its debug
        info.
        """
        address = self.sockets.debugger_qmp if way == "--qemu" else self.sockets.gdb_remote
        return [way, str(address), *symbol_options(self.kernel, self.userland)]

    def gdb(self) -> Rsp:
        """A new connection to the GDB stub: the guest stands still until it is detached."""
        platform = self.kernel.recipe.platform
        address = ("127.0.0.1", self.sockets.gdb_port)
        return Rsp(address, registers=platform.registers, byte_order=platform.byte_order)

    def send(self, line: str) -> None:
        """Say a line to the workload."""
        with self.sockets.truth_input.open("wb", buffering=0) as pipe:
            pipe.write(line.encode() + b"\n")

    def wait_truth(
        self, wanted: Callable[[dict[str, Any]], bool], timeout: float = 60, since: int = 0
    ) -> dict[str, Any]:
        """The first line of truth that is wanted, among all from number `since` on."""
        deadline = time.monotonic() + timeout
        position = since
        while True:
            lines = self.truth.lines()
            for line in lines[position:]:
                if wanted(line):
                    return line
            position = len(lines)
            # Looked at before the deadline: what ended the guest says more than that time passed.
            self._check_health()
            if time.monotonic() > deadline:
                last = lines[-1] if lines else None
                raise LabError(
                    f"no such truth within {timeout} s; the last was {last}\n{self._console_tail()}"
                )
            time.sleep(0.05)

    def wait_done(self) -> None:
        """Wait until the workload says that its states stand."""
        self.wait_truth(
            lambda line: "done" in line and "answer" not in line, self.kernel.recipe.boot_seconds
        )

    def ask(self, line: str, timeout: float = 60) -> list[dict[str, Any]]:
        """Say a line to the workload and wait until it has answered; returns all that it said
        meanwhile.
        """
        since = len(self.truth.lines())
        self.send(line)
        answer = self.wait_truth(lambda truth: truth.get("answer") == line, timeout, since)
        if "error" in answer:
            raise LabError(f"the workload answers {line!r} with: {answer['error']}")
        return self.truth.lines()[since:]

    def make(self, line: str, state: str | None = None, timeout: float = 60) -> dict[str, Any]:
        """Say a line that makes a state; return the first line about one, or about the named one.

        :raises LabError: when the workload could not make it.
        """
        told = next(
            told
            for told in self.ask(line, timeout)
            if told.get("state") and state in (None, told["state"])
        )
        if "missing" in told:
            raise LabError(f"{line}: {told['missing']}")
        return told

    def run(self, script: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a shell script in the guest, with the host's programs and files; what it writes is
        gone with the guest.

        It takes a machine with an exchange directory (`/tmp/exchange` in the guest) and a share
        `root`.
        """
        self._scripts += 1
        name = f"run{self._scripts}"
        path = Path(self.machine.exchange) / name
        path.write_text(script)
        if self.machine.packed:
            data = script.encode()
            for start in range(0, len(data), _PIECE):
                self.send(f"put {name} {data[start : start + _PIECE].hex()}")
        answers = self.ask(f"run {name}", timeout)
        told = next(line for line in answers if line.get("state") == "run")
        if "missing" in told:
            raise LabError(told["missing"])
        if self.machine.packed:
            for suffix in (".out", ".err"):
                self.fetch(f"{name}{suffix}")
        output, errors = (
            path.with_suffix(suffix).read_text(errors="replace") for suffix in (".out", ".err")
        )
        return subprocess.CompletedProcess(script, told["status"], output, errors)

    def fetch(self, name: str, timeout: float = 120) -> Path:
        """Copy a file out of the exchange of a packed guest, which has it for itself; of others it
        is there.
        """
        path = Path(self.machine.exchange) / name
        if self.machine.packed:
            told = [
                line for line in self.ask(f"get {name}", timeout) if line.get("state") == "file"
            ]
            if told and "missing" in told[0]:
                raise LabError(f"{name}: {told[0]['missing']}")
            path.write_bytes(bytes.fromhex("".join(line["hex"] for line in told)))
        return path

    def crash(self, how: str = "", timeout: float = 60) -> None:
        """Have the workload crash the kernel, `oops`: by a NULL dereference in a module.

        It then stands still, to be dumped.
        """
        self.send(f"crash {how}".strip())
        deadline = time.monotonic() + timeout
        # The last that a panicking kernel prints.
        while "---[ end Kernel panic" not in self.console():
            if not self.alive() or time.monotonic() > deadline:
                raise LabError(f"the kernel did not crash\n{self._console_tail()}")
            time.sleep(0.05)

    def console(self) -> str:
        """All that the kernel has printed."""
        return self.sockets.console_log.read_text(errors="replace")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The guest's CPUs stand still inside the block."""
        was_running = self.qmp.running()
        self.qmp.execute("stop")
        try:
            yield
        finally:
            if was_running:
                self.qmp.execute("cont")

    def _launch(self, directory: Path, lock: int) -> None:
        with socket.socket() as listener:
            # Bound here and handed over, so that no two guests race for one port.
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            self.sockets = Sockets.of(directory, listener.getsockname()[1])
            os.mkfifo(self.sockets.truth_input, 0o600)
            self.sockets.truth_log.touch(0o600)
            self.truth = Truth(self.sockets.truth_log)
            log = (directory / "qemu.log").open("wb")
            with log:
                self._process = subprocess.Popen(
                    self._command(listener.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(listener.fileno(), lock),
                    # C-c at the terminal is for us; we end the guest ourselves.
                    start_new_session=True,
                    preexec_fn=None if self._detached else DieWithOwner(),
                )
            self._pid = self._process.pid
            if not self._detached:
                # The guest of an owner who is killed dies by the kernel's hand, this is for one who
                # just ends.
                atexit.register(self.stop)
            self._wait_sockets()
        (directory / "guest.json").write_text(json.dumps(self.describe()))

    def describe(self) -> dict[str, Any]:
        """What another process needs to find its way in."""
        return {
            "pid": self._pid,
            "owner": None if self._detached else os.getpid(),
            "kernel": str(self.kernel.directory),
            "userland": str(self.userland.directory),
            "machine": dataclasses.asdict(self.machine),
            "gdb_port": self.sockets.gdb_port,
            **{
                name: str(way) for name, way in self.sockets._asdict().items() if name != "gdb_port"
            },
        }

    def _command(self, gdb_fd: int) -> list[str]:
        sockets, platform = self.sockets, self.kernel.recipe.platform
        booted = [
            *(requirements.find_program(platform.qemu) or platform.qemu,),
            *self.machine.arguments(platform),
            *(
                "-kernel",
                str(self.kernel.image),
                "-initrd",
                self.machine.packed or str(self.userland.image),
            ),
            *(
                "-append",
                f"{self.machine.command_line(platform)} {self.kernel.recipe.command_line}".strip(),
            ),
        ]
        if platform.lacks_seed:
            tree = str(sockets.directory / "tree")
            described = [
                f"{word},dumpdtb={tree}" if word == platform.machine[1] else word for word in booted
            ]
            seed = ("/chosen", "kaslr-seed", secrets.token_hex(4), secrets.token_hex(4))
            for command in (described, ["fdtput", "-t", "x", tree, *seed]):
                subprocess.run(command, check=True, capture_output=True)
            booted += ["-dtb", tree]
        return [
            *booted,
            *("-serial", f"file:{sockets.console_log}"),
            # printk never gets into this one, so lines of truth stay whole.
            *("-chardev", f"pipe,id=truth,path={sockets.truth}"),
            *platform.truth,
            *("-qmp", f"unix:{sockets.qmp},server=on,wait=off"),
            *("-qmp", f"unix:{sockets.debugger_qmp},server=on,wait=off"),
            *("-monitor", f"unix:{sockets.monitor},server=on,wait=off"),
            # The stub sends acknowledgement and answer apart: held back by Nagle's algorithm, each
            # would take 40 ms.
            *(
                "-chardev",
                f"socket,id=gdb,fd={gdb_fd},server=on,wait=off,nodelay=on",
                "-gdb",
                "chardev:gdb",
            ),
        ]

    def _wait_sockets(self) -> None:
        deadline = time.monotonic() + 20
        while not (self.sockets.monitor.exists() and self.sockets.debugger_qmp.exists()):
            self._check_health()
            if time.monotonic() > deadline:
                raise LabError("QEMU opens no sockets")
            time.sleep(0.02)

    def _check_health(self) -> None:
        if not self.alive():
            said = (self.sockets.directory / "qemu.log").read_text(errors="replace")
            raise LabError(f"QEMU ended: {said}\n{self._console_tail()}")
        if self.sockets.console_log.exists() and any(word in self.console() for word in _DEAD):
            raise LabError(f"the guest's kernel died\n{self._console_tail()}")

    def _console_tail(self, lines: int = 30) -> str:
        if not self.sockets.console_log.exists():
            return "(nothing on the console)"
        return "\n".join(self.console().splitlines()[-lines:])


def detached_guests() -> list[Guest]:
    """The guests that run by themselves; they may be anybody's who uses this account."""
    found = []
    for path in _run_root().glob("guest-*/guest.json"):
        with contextlib.suppress(LabError, OSError, ValueError, KeyError):
            found.append(Guest.attach(path.parent))
    return [guest for guest in found if guest.alive()]


def remove_left_over() -> None:
    """Remove the directories of guests whose owner was killed."""
    for directory in _run_root().glob("guest-*"):
        try:
            with (directory / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
        except BlockingIOError:
            continue
        except OSError:
            # Without a lock yet: it is just being made.
            continue


def _run_root() -> Path:
    """Short, as the path of a unix socket may have 107 characters."""
    directory = (
        Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"kcovlab-{os.getuid()}"
    )
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise LabError(f"{directory} belongs to someone else")
    return directory


def _is_qemu_of(pid: int, directory: Path) -> bool:
    """Whether the process is still the guest's, and not one that got its number later."""
    with contextlib.suppress(OSError):
        return str(directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
