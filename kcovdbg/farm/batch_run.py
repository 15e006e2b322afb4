# SPDX-License-Identifier: LGPL-2.1-or-later
"""The jobs of a batch: their files and directory, their run on this machine or a Dask cluster, and their rows as Parquet.

Types of Parquet's columns come from those of JSON, not from the values: the files of many dumps form one data set only if a
column without values has its type as well.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kcovdbg.child_process import find_install_command
from kcovdbg.console.argument import Argument, Count, Value
from kcovdbg.console.column import Column
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Fields, Table
from kcovdbg.console.terminal import write_remarks
from kcovdbg.console.writer import encode_rows
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ET_REL, ElfError
from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError
from kcovdbg.farm.batch_job import BatchJob, Outcome, find_outcome, run_job
from kcovdbg.output_file import open_output
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.debug_files import list_debug_files

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa


_LARGEST: Final = (1 << 63) - 1
_BATCH: Final = 65536


def import_arrow() -> Any:
    """Return pyarrow.

    :raises CapabilityError: when it is not installed.
    """
    try:
        arrow = import_module("pyarrow")
        import_module("pyarrow.parquet")
    except ImportError as error:
        raise CapabilityError(
            "Parquet files need pyarrow, which is not installed", hint=find_install_command("farm")
        ) from error
    return arrow


def _find_type(arrow: Any, column: Column) -> Any:
    """Return the type of a column: addresses and words are text, as in JSON; values without a type are JSON in text."""
    if column.items is not None:
        members = [arrow.field(item.key, _find_type(arrow, item)) for item in column.items if not item.text_only]
        return arrow.list_(arrow.struct(members))
    text = arrow.string()
    simple = {"number": arrow.int64(), "pid": arrow.int64(), "cpu": arrow.int64(), "bool": arrow.bool_()}
    others = {"share": arrow.float64(), "seconds": arrow.float64(), "list": arrow.list_(text), "addresses": arrow.list_(text)}
    return {**simple, **others}.get(column.kind.name, text)


def write_parquet(path: Path, tables: Iterable[Table | Fields], constants: Mapping[str, str | None]) -> int:
    """Write the tables of one command to a file, which gets its name when it is complete.

    :param constants: values of every row, in front of its own columns.
    :return: the number of rows; without a table no file is written.
    :raises CapabilityError: when pyarrow is not installed.
    :raises OSError: when the file cannot be written.
    """
    arrow = import_arrow()
    writer = None
    number = 0
    with contextlib.ExitStack() as stack:
        for table in tables:
            fields = [(name, arrow.string()) for name in constants]
            fields += [(column.key, _find_type(arrow, column)) for column in table.columns if not column.text_only]
            fields += [("errors", arrow.list_(arrow.string()))] if table.errors is not None else []
            schema = arrow.schema(fields)
            if writer is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                stream = stack.enter_context(open_output(path))
                writer = stack.enter_context(arrow.parquet.ParquetWriter(stream, schema, compression="zstd"))
            rows = ({**constants, **_fit(row, schema)} for row in encode_rows(table))
            while some := list(islice(rows, _BATCH)):
                writer.write_table(arrow.Table.from_pylist(some, schema=schema))
                number += len(some)
    return number


def _fit(row: Mapping[str, object], schema: pa.Schema) -> dict[str, Any]:
    """Return a row with the types of the schema; a number that is too large is left out, and noted in the row's errors."""
    arrow = import_arrow()
    found = {key: _convert(arrow, value, schema.field(key).type, key) for key, value in row.items()}
    fitted = {key: value for key, (value, _) in found.items()}
    unfit = [problem for _, problems in found.values() for problem in problems]
    if unfit and "errors" in fitted:
        fitted["errors"] = [*(fitted["errors"] or ()), *unfit]
    return fitted


def _convert(arrow: Any, value: Any, kind: Any, path: str) -> tuple[Any, Sequence[str]]:
    """Return a value with a type of Arrow's, None for a number that does not fit, and what does not fit in it."""
    if value is None:
        return None, ()
    if isinstance(value, int) and not isinstance(value, bool) and arrow.types.is_int64(kind) and abs(value) > _LARGEST:
        return None, (f"{path}: {value} does not fit a signed 64-bit number",)
    if arrow.types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value), ()
    if arrow.types.is_list(kind) and isinstance(value, list):
        items = [_convert(arrow, item, kind.value_type, f"{path}[]") for item in value]
        return [item for item, _ in items], [problem for _, problems in items for problem in problems]
    if arrow.types.is_struct(kind) and isinstance(value, dict):
        members = {one.name: _convert(arrow, value.get(one.name), one.type, f"{path}.{one.name}") for one in kind}
        return {key: member for key, (member, _) in members.items()}, [one for _, some in members.values() for one in some]
    return value, ()


_IS_DUMP_NAME: Final = re.compile(r"(vm)?core|dump", re.IGNORECASE)
TIMEOUT: Final = 600.0
"""The default time limit of a job, in seconds."""

# As many as the kernel follows.
_MAX_LINKS: Final = 40

RUN_OPTIONS: Final = (
    Argument(("-j", "--jobs"), Value.NUMBER, "run N files at a time; default: the number of CPUs", metavar="N"),
    Argument(("--scheduler",), Value.TEXT, "use a Dask scheduler: tcp://host:8786", metavar="ADDR"),
    Argument(("--timeout",), Value.SECONDS, "time limit per file; default 600", metavar="SECONDS"),
    Argument(("--retry",), Value.FLAG, "rerun files that failed earlier"),
    Argument(("--again",), Value.FLAG, "rerun all files"),
)
"""Options of commands that run jobs."""

SYMBOLS: Final = Argument(
    ("-s", "--symbols"),
    Value.FILE,
    "a vmlinux, or a directory of them; default: those kcovdbg was started with",
    metavar="PATH",
    count=Count.ANY,
)
"""The option for debug info."""


DebugInfo: TypeAlias = tuple[tuple[str | None, str], ...]
"""Files with debug info: the build ID of a kernel, None of a module; and the path."""


class BatchResult(NamedTuple):
    """The outcomes of jobs."""

    outcomes: Sequence[Outcome]
    """In the order of the jobs."""
    earlier: int
    """How many of them were there before."""


def run_batch(context: Context, jobs: Sequence[BatchJob], options: Namespace) -> BatchResult:
    """Run the jobs that have no outcome yet, and set the exit status to 1 if any job failed.

    :param options: the values of :data:`RUN_OPTIONS`.
    :raises CapabilityError: when Dask is not installed, or there is no scheduler.
    """
    kept = () if options.again else ((job.run_file, find_outcome(job)) for job in jobs)
    done = {file: found for file, found in kept if found is not None and not (options.retry and found.failed)}
    earlier = len(done)
    left = [job for job in jobs if job.run_file not in done]
    # Imported here: it imports logging, which would slow down every other command.
    from concurrent.futures import as_completed

    stream = context.terminal.stderr
    with contextlib.ExitStack() as stack:
        if left:
            submit = stack.enter_context(_open_executor(context.command.name, options))
            futures = {submit(run_job, job): job for job in left}
            stack.callback(lambda: [future.cancel() for future in futures])
        try:
            for number, future in enumerate(as_completed(futures) if left else (), 1):
                job = futures[future]
                try:
                    done[job.run_file] = future.result()
                except Exception as error:  # whatever the job did to a cluster's workers
                    if not options.scheduler:
                        raise
                    said = (str(error).splitlines() or [""])[0]
                    done[job.run_file] = Outcome(job.path, error=f"{type(error).__name__}: {said}")
                if stream.isatty():
                    stream.write(f"\r{number} of {len(left)} \x1b[K" if number < len(left) else "\r\x1b[K")
                    stream.flush()
        except KeyboardInterrupt:
            stream.write("\r\x1b[K" if stream.isatty() else "")
            again = "the same command without --again" if options.again else "the same command"
            write_remarks(context.terminal, (f"stopped: files that are done are kept; {again} does the others",))
            raise
    outcomes = [done[job.run_file] for job in jobs]
    if any(outcome.failed for outcome in outcomes):
        context.status = 1
    return BatchResult(outcomes, earlier)


@contextlib.contextmanager
def _open_executor(command: str, options: Namespace) -> Iterator[Callable[..., Future[Outcome]]]:
    """Open threads of this machine, each of which waits for a job's process, or a Dask cluster; return what submits jobs.

    The cluster reruns the jobs of workers that die: a job's result is files, so it can safely run twice.

    :raises CapabilityError: when Dask is not installed, or there is no scheduler.
    """
    if not options.scheduler:
        from concurrent.futures import ThreadPoolExecutor

        # After C-c running jobs end by themselves.
        with ThreadPoolExecutor(options.jobs or len(os.sched_getaffinity(0))) as pool:
            yield pool.submit
        return
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise CapabilityError(f"{command}: --scheduler needs Dask", hint=find_install_command("farm")) from error
    try:
        client = distributed.Client(options.scheduler, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CapabilityError(
            f"{command}: no Dask scheduler at '{options.scheduler}': {said}",
            hint="start one with dask scheduler, and workers with dask worker ADDR",
        ) from error
    with client:
        yield client.get_executor(pure=False, retries=3).submit


def find_inputs(names: Sequence[str], *, traces: bool) -> tuple[Path, ...]:
    """Return the absolute paths of files, and of those in directories that are dumps by their contents or name.

    :param traces: return those that are neither dumps nor programs nor JSON, instead.
    """
    found: list[Path] = []
    for place in (Path(name).expanduser().absolute() for name in names):
        paths = sorted(place.rglob("[!.]*")) if place.is_dir() else ()
        found += (path for path in paths if path.is_file() and _is_input(path, traces=traces))
        found += () if place.is_dir() else (place,)
    return tuple(dict.fromkeys(found))


def _is_input(path: Path, *, traces: bool) -> bool:
    try:
        kind = dumpfile.identify(path)
    except KcovdbgError:
        # Listed with its error.
        return True
    if traces:
        return path.suffix != ".json" and kind in (dumpfile.FileKind.EMPTY, dumpfile.FileKind.OTHER)
    # Files that were not extracted, or not from their start, are listed as well.
    return kind.is_dump or (kind is not dumpfile.FileKind.ELF and _IS_DUMP_NAME.search(path.name) is not None)


def make_output(command: str, name: str | os.PathLike[str], inputs: Sequence[Path]) -> Path:
    """Return the user's directory for results, made if it does not exist.

    :param inputs: files and directories of somebody else, who may have put links and results there.
    :raises KcovdbgError: when it cannot be made, is in an input directory or reached through one, or has links or an input.
    """
    path = Path(os.path.abspath(Path(name).expanduser()))  # noqa: PTH100 - links are looked at one by one
    folder = Path(os.path.realpath(path))
    passed, links = _pass(path)
    for given in inputs:
        real = Path(os.path.realpath(given))
        home = real if real.is_dir() else Path(os.path.realpath(given.parent))
        holds = folder in (*real.parents, *home.parents) or folder == home != real
        if holds or real in passed or home in links:
            relation = "holds" if holds else "is reached through"
            raise UsageError(
                f"{command}: '{name}' {relation} the input '{given}'", hint="-o takes a directory for the results alone: -o DIR"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        link = _find_link(folder)
    except OSError as error:
        problem = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
        raise KcovdbgError(f"could not write '{name}': {problem}", hint="-o takes a directory: -o DIR") from None
    if link is not None:
        raise KcovdbgError(f"cannot write to '{name}': '{link}' is a link", hint="choose another directory: -o DIR")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise KcovdbgError(f"could not write '{name}': {os.strerror(errno.EACCES)}", hint="choose another directory: -o DIR")
    return folder


def _pass(path: Path) -> tuple[set[Path], set[Path]]:
    """Return the directories on the way to a path, which is among them, and those in which the way follows a link."""
    passed: set[Path] = set()
    links: list[Path] = []
    place = Path("/")
    left = [*reversed(path.parts)]
    while left:
        step = left.pop()
        following = place.parent if step == ".." else place / step
        if len(links) < _MAX_LINKS and following.is_symlink():
            links.append(place)
            # An absolute target begins with the root, from where the way goes on.
            left += reversed(following.readlink().parts)
        else:
            place = following
            passed.add(place)
    return passed, {*links}


def _find_link(folder: Path) -> str | None:
    """Return the path of a link below a directory, None where there is none."""
    with os.scandir(folder) as entries:
        for entry in entries:
            found = entry.path if entry.is_symlink() else _find_link(Path(entry)) if entry.is_dir() else None
            if found is not None:
                return found
    return None


def find_symbols(context: Context, named: Sequence[str] | None) -> Sequence[str]:
    """Return the files and folders of debug info that the command names, or else those that kcovdbg was started with."""
    if named:
        return named
    return [name for name in context.workspace.named_files if Path(name).is_dir() or _is_debug_info(name)]


def _is_debug_info(name: str) -> bool:
    return Path(name).is_file() and dumpfile.identify(name) is dumpfile.FileKind.ELF


def find_debug_info(places: Sequence[str], *, unpacked: bool) -> DebugInfo:
    """Return the debug info files named or in the folders named, with the build-ids of kernels; modules have None.

    :param unpacked: return the paths of decompressed copies, which exist as long as this process does.
    :raises TargetError: when one cannot be read.
    """
    found: list[tuple[str | None, str]] = []
    for path in (Path(file) for place in places for file in list_debug_files(place)):
        plain = dumpfile.unpack(path).path
        found.append((_read_build_id(plain), str(plain.absolute() if unpacked else path.resolve())))
    return tuple(found)


def _read_build_id(path: Path) -> str | None:
    try:
        with ElfFile(path) as file:
            # A module may be of any of the kernels: it is matched with the loaded modules when a dump is opened.
            return None if file.header.type == ET_REL else file.build_id
    except ElfError:
        # Reported when a dump is opened with it.
        return None
