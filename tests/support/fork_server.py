# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run kcovdbg in processes that have its modules already.

Importing them takes half of a short command's time. A server imports them once, and forks for each
run. The process has its own arguments, environment, directory, streams and signals, and ends as a
program does. What an interpreter decides when it starts is the server's: a test of that starts one.

``python -m tests.support.fork_server FD`` is the server; the socket FD gives it what to run.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, NamedTuple

NEW_PROCESSES: Final = "KCOVDBG_TESTS_NEW_PROCESSES"
"""A variable: each process of kcovdbg begins with an interpreter."""
_ROOT: Final = Path(__file__).parents[2]
_LARGEST_MESSAGE: Final = 64 << 10
_PIPE_SIZE: Final = 64 << 10
# Standard input, output and errors, and where the process's ID and status go.
_DESCRIPTORS: Final = 4
# Beginnings of the variables that are read when a process starts.
_READ_AT_START: Final = ("LANG", "LC_", "PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_")
# Modules that need other packages.
_LEFT_OUT: Final = ("kcovdbg.frontends.mcp", "kcovdbg.frontends.gdb")


class Run(NamedTuple):
    """What a process runs."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str

    def is_like(self, environment: Mapping[str, str]) -> bool:
        """Return whether the variables that are read when a process starts are the same."""
        changed = {name for name, _ in self.environment.items() ^ environment.items()}
        return not any(name.startswith(_READ_AT_START) for name in changed)


class Server(NamedTuple):
    """A server, which has one process at a time."""

    connection: socket.socket
    process: subprocess.Popen[bytes]
    environment: Mapping[str, str]

    def run(
        self,
        run: Run,
        timeout: float,
        stdin: IO[Any] | int | None = None,
        text: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run kcovdbg as :func:`subprocess.run` does, and capture what it prints.

        :param stdin: a file, its descriptor or DEVNULL; None: as it is here.
        :param text: what it gets instead, through a pipe.
        """
        with contextlib.ExitStack() as files:
            pipes = [_open_pipe(files) for _ in range(_DESCRIPTORS)]
            (given, feed), *outputs = pipes
            source = given if text is not None else _open_input(stdin, files)
            sent = [source.fileno(), *(write.fileno() for _, write in outputs)]
            message = json.dumps(run).encode()
            assert len(message) <= _LARGEST_MESSAGE
            socket.send_fds(self.connection, [message], sent)
            for file in (given, *(write for _, write in outputs)):
                file.close()
            output, errors, said = (read for read, _ in outputs)
            pid = int(said.readline())
            try:
                printed = _communicate(feed, (text or "").encode(), (output, errors), timeout)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(run.arguments, timeout) from None
            status = int(said.readline())
        return subprocess.CompletedProcess(run.arguments, status, *map(_decode, printed))


@functools.cache
def find_server(process: int, thread: int) -> Server:
    """Return the server of a thread; start it on first use. It ends with the process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with theirs:
        started = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=_ROOT,
            env=environment,
            pass_fds=[theirs.fileno()],
        )
    return Server(ours, started, environment)


def _open_pipe(files: contextlib.ExitStack) -> tuple[BinaryIO, BinaryIO]:
    read, write = os.pipe()
    return (
        files.enter_context(os.fdopen(read, "rb")),
        files.enter_context(os.fdopen(write, "wb")),
    )


def _open_input(stdin: IO[Any] | int | None, files: contextlib.ExitStack) -> IO[Any]:
    if stdin == subprocess.DEVNULL:
        return files.enter_context(Path(os.devnull).open("rb"))
    number = 0 if stdin is None else stdin
    return os.fdopen(number, "rb", closefd=False) if isinstance(number, int) else number


def _communicate(
    feed: BinaryIO, data: bytes, outputs: Sequence[BinaryIO], timeout: float
) -> list[bytearray]:
    """Write to a process, and read what it prints, until each output is closed.

    :raises TimeoutError: when that takes longer.
    """
    deadline = time.monotonic() + timeout
    printed = [bytearray() for _ in outputs]
    with selectors.DefaultSelector() as selector:
        selector.register(feed, selectors.EVENT_WRITE)
        for index, output in enumerate(outputs):
            selector.register(output, selectors.EVENT_READ, index)
        while selector.get_map():
            if time.monotonic() > deadline:
                raise TimeoutError
            for key, _ in selector.select(1):
                if key.data is not None:
                    part = os.read(key.fd, _PIPE_SIZE)
                    printed[key.data] += part
                    if not part:
                        selector.unregister(key.fileobj)
                    continue
                data = _write_part(feed, data)
                if not data:
                    selector.unregister(feed)
                    feed.close()
    return printed


def _write_part(feed: BinaryIO, data: bytes) -> bytes:
    """Write as much as a pipe takes at once; return what is left."""
    try:
        return data[os.write(feed.fileno(), data[: select.PIPE_BUF]) :] if data else b""
    except BrokenPipeError:
        return b""


def _decode(data: bytearray) -> str:
    return io.TextIOWrapper(io.BytesIO(data)).read()


def _serve(connection: socket.socket) -> tuple[Run, Sequence[int]] | None:
    """Fork for each message.

    :return: in the process that it forked, what to run and the streams; None at the end.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _LARGEST_MESSAGE, _DESCRIPTORS)
        if not message:
            return None
        *streams, told = descriptors
        pid = os.fork()
        if pid == 0:
            os.close(told)
            return Run(*json.loads(message)), streams
        for stream in streams:
            os.close(stream)
        # Whoever asked may be gone.
        with contextlib.suppress(BrokenPipeError), os.fdopen(told, "w") as file:
            print(pid, file=file, flush=True)
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status), file=file)


def _become(run: Run, streams: Sequence[int]) -> None:
    """Give this process what a new one has."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # As an interpreter opens them.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        before = getattr(sys, name)
        binary = os.fdopen(before.fileno(), f"{mode}b", closefd=False)
        newline = None if mode == "r" else "\n"
        opened = io.TextIOWrapper(
            binary, before.encoding, before.errors, newline, line_buffering=name == "stderr"
        )
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    os.chdir(run.folder)
    os.environ.clear()
    os.environ.update(run.environment)
    sys.argv = [str(_ROOT / "kcovdbg" / "__main__.py"), *run.arguments]
    sys.path[0] = run.folder


def _import_all() -> None:
    import kcovdbg

    for module in pkgutil.walk_packages(kcovdbg.__path__, "kcovdbg."):
        if not module.name.startswith(_LEFT_OUT):
            importlib.import_module(module.name)


def main() -> int:
    """Serve; in a process that was forked, return its status."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    from kcovdbg.__main__ import main as run_kcovdbg

    assert threading.active_count() == 1
    gc.freeze()
    # An interrupt is for the processes.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    found = _serve(connection)
    if found is None:
        return 0
    signal.signal(signal.SIGINT, before)
    connection.close()
    _become(*found)
    return run_kcovdbg()


if __name__ == "__main__":
    sys.exit(main())
