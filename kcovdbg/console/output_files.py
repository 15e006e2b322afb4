# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files and pipelines for the output of commands, and shell commands."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TextIO, TypeAlias, cast

from kcovdbg.console.command_line import CommandLine, find_outputs
from kcovdbg.console.terminal import Destination, Terminal
from kcovdbg.errors import CapabilityError, KcovdbgError, refuse_path, write_error
from kcovdbg.output_file import find_output, open_output
from kcovdbg.user_folder import expand_user

if TYPE_CHECKING:
    import subprocess

_NOT_STARTED = 126
"""From this status on, sh could not start the command or a signal ended it."""

STDOUT: Final = "-"
"""The name of standard output where a command takes an output file."""

Inputs: TypeAlias = Callable[[], Iterable[str]]
"""Returns the paths of the files and source trees that are read, with an open target's files."""
# Suffixes of the languages in the kernel's debug info.
_SOURCE_SUFFIXES: Final = frozenset((".c", ".h", ".S", ".s", ".rs"))


@contextlib.contextmanager
def open_destination(
    line: CommandLine, terminal: Terminal, inputs: Inputs = tuple
) -> Iterator[Destination]:
    """Open the file or the pipeline that a line's output goes to.

    A file gets its name when it is complete. After an error, the old file is still there.

    :param inputs: returns the files that the line must not overwrite.
    :raises KcovdbgError: when the file cannot be written, or the pipeline cannot be started.
    """
    if line.redirection is None:
        assert line.pipeline is not None
        check_stdout(terminal.stdout, inputs)
        for path in find_outputs(line.pipeline):
            refuse_input(os.path.expandvars(path), inputs)
        open_pipeline = terminal.open_pipeline or _open_pipeline
        with open_pipeline(line.pipeline, terminal.stdout) as found:
            yield found
    else:
        check_output(line.redirection.path, inputs)
        with open_text(line.redirection.path, inputs, append=line.redirection.append) as stream:
            yield Destination(stream)


def check_output(path: str, inputs: Inputs = tuple) -> None:
    """Check that a file can be written and is not being read, before a command reads or runs
    anything.

    :param path: a file, or ``-`` for standard output.
    :raises KcovdbgError: when it cannot be written, or is an input.
    """
    if path == STDOUT:
        return
    try:
        status, folder, _ = find_output(path)
        if folder is not None and (status is None or stat.S_ISREG(status.st_mode)):
            _check_folder(path, folder)
        elif status is not None and stat.S_ISDIR(status.st_mode):
            refuse_path(path, errno.EISDIR)
    except FileNotFoundError:
        hint = f"mkdir -p {expand_user(path).parent}"
        problem = f"could not write '{path}': {os.strerror(errno.ENOENT)}"
        raise KcovdbgError(problem, hint=hint) from None
    except (OSError, ValueError) as error:
        raise write_error(path, error) from None
    refuse_input(path, inputs)


def _check_folder(path: str, folder: Path) -> None:
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        refuse_path(path, errno.EROFS)
    if not os.access(folder, os.W_OK | os.X_OK):
        refuse_path(path, errno.EACCES)


def refuse_input(path: str, inputs: Inputs) -> None:
    """Make sure that an output is not the same file as an input, even under another name.

    :raises KcovdbgError: when it is.
    """
    try:
        found = find_output(path).status
    except OSError:
        # Reported when it is opened.
        return
    if found is not None:
        _refuse_file(found, path, inputs)


def check_stdout(stdout: TextIO, inputs: Inputs) -> None:
    """Check that standard output is not a file that is read, as after the shell's ``>>``.

    :raises KcovdbgError: when it is.
    """
    if stdout.isatty():
        # Not for a pager's stream: to ask for its descriptor would end the pager.
        return
    try:
        found = os.fstat(stdout.fileno())
    except (OSError, ValueError):
        # The stream is not a file of the system.
        return
    _refuse_file(found, STDOUT, inputs)


def _refuse_file(found: os.stat_result, path: str, inputs: Inputs) -> None:
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISBLK(found.st_mode)):
        return
    for given in inputs():
        if _is_source_in(path, given):
            raise KcovdbgError(
                f"cannot write '{path}': it is a source file in '{given}', which is read",
                hint="choose another file",
            )
        with contextlib.suppress(OSError, ValueError):
            if os.path.samestat(found, expand_user(given).stat()):
                same = "it is" if given == path else f"it is the same file as '{given}', which is"
                raise KcovdbgError(
                    f"cannot write '{path}': {same} being read", hint="choose another file"
                )


def _is_source_in(path: str, folder: str) -> bool:
    """Return whether a file is a source file in a tree: any file of a source tree may be read."""
    output = expand_user(path)
    return (
        output.suffix in _SOURCE_SUFFIXES
        and expand_user(folder).is_dir()
        and Path(os.path.realpath(output)).is_relative_to(os.path.realpath(expand_user(folder)))
    )


@contextlib.contextmanager
def open_text(path: str, inputs: Inputs = tuple, *, append: bool = False) -> Iterator[TextIO]:
    """Open a file for text; see :func:`kcovdbg.output_file.open_output`.

    :param inputs: returns the files that must not be overwritten.
    :param append: write to the end of the existing file, at once.
    :raises KcovdbgError: when it cannot be written.
    """
    try:
        with open_output(path, append=append, check=partial(refuse_input, path, inputs)) as binary:
            stream = io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace")
            try:
                yield stream
            finally:
                # Flush it; the writer of files closes it.
                stream.detach()
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename != path:
            # The error is about another file.
            raise
        raise write_error(path, error) from error


def binary_stdout(stdout: TextIO) -> BinaryIO:
    """Return the stream below standard output, for a file that is not text.

    :raises CapabilityError: when it is a terminal, or takes text only.
    """
    binary: BinaryIO | None = getattr(stdout, "buffer", None)
    if binary is None or stdout.isatty():
        raise CapabilityError(
            "cannot write a binary file to a terminal",
            hint="redirect the output: -o - > FILE, or give -o FILE",
        )
    stdout.flush()
    return binary


@contextlib.contextmanager
def _open_pipeline(pipeline: str, stdout: TextIO) -> Iterator[Destination]:
    import shutil
    import subprocess

    from kcovdbg.child_process import child_environment

    # Not every sh has pipefail yet; without bash, the last part's status is the pipeline's.
    shell = ["sh", "-c"]
    if shutil.which("bash"):
        shell = ["bash", "--posix", "-o", "pipefail", "-c"]

    with (
        _stdout_file(stdout) as file,
        subprocess.Popen(
            [*shell, pipeline],
            stdin=subprocess.PIPE,
            stdout=file,
            env=child_environment(),
            encoding="utf-8",
            errors="backslashreplace",
        ) as process,
    ):
        assert process.stdin is not None
        try:
            with process.stdin as stream:
                yield Destination(cast("TextIO", stream), lambda: _wait(process))
        except BrokenPipeError:
            # The reader, such as head, is done.
            pass
        finally:
            status = _wait(process)
    check_pipeline_status(pipeline, status)


def check_pipeline_status(pipeline: str, status: int) -> None:
    """Raise if a pipeline could not run; at other statuses, such as grep's 1, its programs have
    printed their errors.

    :raises KcovdbgError: when it could not.
    """
    if status >= _NOT_STARTED:
        raise KcovdbgError(f"pipeline failed with status {status}: {pipeline}")


def _wait(process: subprocess.Popen[str]) -> int:
    """Wait for a child. After C-c the child, which also gets it, ends by itself."""
    while True:
        try:
            return pipeline_status(process.wait())
        except KeyboardInterrupt:
            continue


def pipeline_status(status: int) -> int:
    """Return the exit status of a pipeline: 0 if its reader had enough, or got C-c.

    :param status: the status of the pipeline's process, negative for a signal.
    """
    for number in (signal.SIGPIPE, signal.SIGINT):
        if status in (-number, 128 + number):
            return 0
    return abs(status)


@contextlib.contextmanager
def _stdout_file(stdout: TextIO) -> Iterator[int]:
    """Yield a file descriptor for a child's output to a stream, also if the stream has no
    descriptor.
    """
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
    """Run a shell command; without one, the user's shell.

    :return: its exit status.
    """
    import subprocess

    from kcovdbg.child_process import child_environment

    words = ["sh", "-c", command] if command else [os.environ.get("SHELL", "sh")]
    with (
        _stdout_file(stdout) as file,
        subprocess.Popen(words, stdout=file, env=child_environment(), text=True) as process,
    ):
        return _wait(process)
