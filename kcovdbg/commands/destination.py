# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files and pipelines that a command's output goes to, and the shell's own commands."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from kcovdbg.commands.line import CommandLine
from kcovdbg.errors import KcovdbgError

if TYPE_CHECKING:
    import subprocess

_NOT_STARTED = 126
"""From this status on sh couldn't start the command, or it died of a signal."""


@contextlib.contextmanager
def open_destination(line: CommandLine, stdout: TextIO) -> Iterator[TextIO]:
    """Open what a line's output goes to.

    A file that is replaced gets its name when all is written; after an error its old content is still there.

    :raises KcovdbgError: when the file can't be written, or the pipeline can't be started.
    """
    if line.pipeline is not None:
        with _open_pipeline(line.pipeline, stdout) as stream:
            yield stream
    elif line.redirection is not None:
        with open_file(line.redirection.path, append=line.redirection.append) as stream:
            yield stream
    else:
        yield stdout


@contextlib.contextmanager
def open_file(path: str, *, append: bool = False) -> Iterator[TextIO]:
    """Open a file for writing, which gets its name when all is written; after an error its old content is still there.

    :param append: to what is in it already, which is seen as it goes.
    :raises KcovdbgError: when it can't be written.
    """
    try:
        with _open_path(path, append=append) as stream:
            yield stream
    except OSError as error:
        if error.filename is not None and not _is_beside(error.filename, path):
            # The command's own trouble with a file of its own.
            raise
        raise KcovdbgError(f"{path} can't be written: {error.strerror or error}") from error


def _is_beside(path: object, redirected: str) -> bool:
    return isinstance(path, (str, os.PathLike)) and Path(path).parent == Path(redirected).expanduser().resolve().parent


@contextlib.contextmanager
def _open_path(name: str, *, append: bool) -> Iterator[TextIO]:
    path = Path(name).expanduser()
    # A link stays a link: what it points at is replaced.
    path = path.resolve()
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    if append or (mode is not None and not stat.S_ISREG(mode)):
        # Appending to a file is visible as it goes; a device or a FIFO has no name to give it later.
        with path.open("a" if append else "w", encoding="utf-8", errors="backslashreplace") as stream:
            yield stream
        return
    temporary = path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}")
    try:
        # Exclusive, and with the permissions that the umask leaves, which those of tempfile aren't.
        with temporary.open("x", encoding="utf-8", errors="backslashreplace") as stream:
            if mode is not None:
                os.fchmod(stream.fileno(), stat.S_IMODE(mode))
            yield stream
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _open_pipeline(pipeline: str, stdout: TextIO) -> Iterator[TextIO]:
    import subprocess

    with (
        _stdout_file(stdout) as file,
        subprocess.Popen(
            ["sh", "-c", pipeline], stdin=subprocess.PIPE, stdout=file, encoding="utf-8", errors="backslashreplace"
        ) as process,
    ):
        assert process.stdin is not None
        try:
            with process.stdin as stream:
                yield cast("TextIO", stream)
        except BrokenPipeError:
            # head has seen enough.
            pass
        finally:
            status = _wait(process)
    if status >= _NOT_STARTED:
        # What else it means by its status is its own affair: grep's 1 is no error of ours.
        raise KcovdbgError(f"the pipeline ended with status {status}: {pipeline}")


def _wait(process: subprocess.Popen[str]) -> int:
    """Wait for a child; C-c goes to it too, and it ends by itself."""
    while True:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            continue
        # Killed by a signal is what a pager's or head's end may look like.
        return 0 if status in (-signal.SIGPIPE, 128 + signal.SIGPIPE, -signal.SIGINT, 128 + signal.SIGINT) else abs(status)


@contextlib.contextmanager
def _stdout_file(stdout: TextIO) -> Iterator[int]:
    """Give a child a file descriptor that ends up in a stream, which may have none of its own."""
    stdout.flush()
    try:
        descriptor = stdout.fileno()
    except (AttributeError, OSError):
        import tempfile

        with tempfile.TemporaryFile() as file:
            try:
                yield file.fileno()
            finally:
                file.seek(0)
                stdout.write(file.read().decode("utf-8", "backslashreplace"))
    else:
        yield descriptor


def run_shell(command: str, stdout: TextIO) -> int:
    """Run a command of the shell's; without one the user's shell itself.

    :return: its exit status.
    """
    import subprocess

    words = ["sh", "-c", command] if command else [os.environ.get("SHELL", "sh")]
    with _stdout_file(stdout) as file, subprocess.Popen(words, stdout=file, text=True) as process:
        return _wait(process)
