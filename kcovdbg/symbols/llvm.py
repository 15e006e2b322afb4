# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asks llvm-symbolizer for many addresses of one image."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, TypeVar

from kcovdbg.errors import CapabilityError
from kcovdbg.model.location import Frame

_Chain = TypeVar("_Chain")


def find_symbolizer() -> str | None:
    """Find llvm-symbolizer: what ``LLVM_SYMBOLIZER_PATH`` says (as for the sanitizers), or the one in ``PATH``."""
    return shutil.which(os.environ.get("LLVM_SYMBOLIZER_PATH") or "llvm-symbolizer")


def _feed(stream: IO[bytes], addresses: Iterable[int]) -> None:
    try:
        with stream:
            stream.write("".join([f"{address:#x}\n" for address in addresses]).encode())
    except BrokenPipeError:
        # It has died; its exit status tells more.
        pass


def _number(text: str) -> int | None:
    # 0 is its word for "unknown", and DWARF's for a line that no source line stands for.
    return int(text) or None


def _parse_frames(block: str) -> tuple[Frame, ...]:
    lines = block.split("\n")
    frames = []
    for index in range(0, len(lines) - 1, 2):
        function, place = lines[index], lines[index + 1]
        file, line, column = place.rsplit(":", 2)
        frames.append(
            Frame(None if function == "??" else function, None if file == "??" else file, _number(line), _number(column))
        )
    if len(frames) == 1 and frames[0] == (None, None, None, None):
        return ()
    return tuple(frames)


def symbolize(
    symbolizer: str,
    image: Path,
    addresses: Sequence[int],
    make_chain: Callable[[tuple[Frame, ...]], _Chain],
    *,
    function_names: str = "short",
) -> list[_Chain]:
    """Resolve addresses of a linked image, with inlined frames, innermost first.

    :param addresses: of instructions: for return addresses, one less.
    :param make_chain: called once for each distinct chain of frames; its result stands for the chain. Files are relative to
        the build root.
    :param function_names: "short" for names as in DWARF, which is what drgn gives; "linkage" for names of ELF symbols
        where these are nearer, with suffixes such as ``.isra.0``.
    :return: one result for each address.
    :raises CapabilityError: when llvm-symbolizer fails, or is one that answers in another form.
    """
    # Since LLVM 12 in this form; without a function's short name it doesn't fall back to the symbol table.
    command = [
        symbolizer,
        f"--obj={image}",
        f"--functions={function_names}",
        "--inlines",
        "--relativenames",
        "--no-demangle",
        "--output-style=LLVM",
    ]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        raise CapabilityError(f"{symbolizer}: {error}") from error
    assert process.stdin is not None
    assert process.stdout is not None
    feeder = threading.Thread(target=_feed, args=(process.stdin, addresses), daemon=True)
    feeder.start()
    known: dict[str, _Chain] = {}
    chains: list[_Chain] = []
    rest = ""
    try:
        with process.stdout:
            while data := process.stdout.read(1 << 20):
                # Cut at whole answers; a cut inside a character can't be at a line's end.
                rest += data.decode("utf-8", "surrogateescape")
                *blocks, rest = rest.split("\n\n")
                for block in blocks:
                    chain = known.get(block)
                    if chain is None:
                        chain = known[block] = make_chain(_parse_frames(block))
                    chains.append(chain)
    except ValueError as error:
        process.kill()
        raise CapabilityError(f"{symbolizer} answers in a form that is not known: {error}") from error
    finally:
        status = process.wait()
        feeder.join()
    if status != 0 or len(chains) != len(addresses):
        raise CapabilityError(f"{symbolizer} gave {len(chains)} answers for {len(addresses)} addresses, status {status}")
    return chains
