# SPDX-License-Identifier: LGPL-2.1-or-later
"""Recordings of ``monitor``: a row per look, as JSON Lines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kcovdbg.console.output_files import Inputs, no_inputs, refuse_input
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import parse_json
from kcovdbg.limits import TEXT_SIZE, find_limit, over_limit
from kcovdbg.monitor.samples import RecordedRun, Sample
from kcovdbg.output_file import open_output
from kcovdbg.console.json_array import json_lines
from kcovdbg.console.renderable import Fields
from kcovdbg.monitor.sample_rows import SAMPLE_COLUMNS, make_row, read_row


class RecordingWriter:
    """A recording that samples are added to.

    :param stream: written to.
    :param facts: target, release and build ID.
    """

    def __init__(self, stream: BinaryIO, facts: Mapping[str, str | None]) -> None:
        self._stream = stream
        self._facts = facts
        self.samples = 0

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        self.samples += 1
        for line in json_lines(Fields(SAMPLE_COLUMNS, make_row(sample, self._facts))):
            self._stream.write(line.encode())


@contextlib.contextmanager
def open_recording(path: str, facts: Mapping[str, str | None], inputs: Inputs = no_inputs) -> Iterator[RecordingWriter]:
    """Open a recording for writing.

    The file gets its name when the block ends. C-c and what ends the process in order end the block; what was recorded is kept.

    :param inputs: what must not be overwritten.
    :raises KcovdbgError: when it cannot be written.
    """
    end: BaseException | None = None
    try:
        with open_output(path, check=partial(refuse_input, path, inputs)) as stream:
            try:
                yield RecordingWriter(stream, facts)
            except OSError as error:
                if error.filename is None:
                    # An error of the recording's own file, which is then useless.
                    raise
                end = error
            except BaseException as error:  # noqa: BLE001 (raised again once the recording is complete)
                end = error
    except OSError as error:
        raise KcovdbgError(f"could not write '{path}': {error.strerror or error}") from error
    if end is not None:
        raise end


class RecordedSample(NamedTuple):
    """A sample of a recording, with the facts that do not change."""

    sample: Sample
    facts: Mapping[str, str | None]


def read_samples(path: str) -> Iterator[RecordedSample]:
    """Iterate over the samples of a recording.

    :raises KcovdbgError: when it is not a recording, or cannot be read.
    """
    number = 0
    try:
        for row in _read_lines(path):
            number += 1
            yield RecordedSample(*read_row(row))
    except OSError as error:
        raise KcovdbgError(f"could not read '{path}': {error.strerror or error}") from error
    except ValueError as error:
        where = f"row {max(number, 1)}: " if number else ""
        raise KcovdbgError(
            f"'{path}' is not a recording of monitor: {where}{error}", hint="monitor --record FILE writes one"
        ) from None
    if not number:
        raise KcovdbgError(f"'{path}' is empty", hint="monitor --record FILE writes a recording")


def read_run(path: str) -> RecordedRun:
    """Read a recording.

    :raises KcovdbgError: when it is not one, or cannot be read.
    """
    found = list(read_samples(path))
    return RecordedRun(tuple(row.sample for row in found), found[0].facts)


def _read_lines(path: str) -> Iterator[Mapping[str, object]]:
    with Path(path).expanduser().open("rb") as stream:
        limit = find_limit(TEXT_SIZE)
        while line := stream.readline(limit + 1):
            if len(line) > limit:
                raise over_limit(TEXT_SIZE, f"a row of {path}")
            if not line.strip():
                continue
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError("a line is not an object")  # noqa: TRY004 (of the file)
            yield row
