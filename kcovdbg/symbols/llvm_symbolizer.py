# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source locations of many addresses of an image by llvm-symbolizer."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

from kcovdbg.errors import CapabilityError
from kcovdbg.model.location import Frame

_Item = TypeVar("_Item")


def find_symbolizer() -> str | None:
    """Return the path of llvm-symbolizer: ``LLVM_SYMBOLIZER_PATH``, as for the sanitizers, or the one in ``PATH``."""
    return shutil.which(os.environ.get("LLVM_SYMBOLIZER_PATH") or "llvm-symbolizer")


def _feed(stream: IO[bytes], addresses: Iterable[int]) -> None:
    try:
        with stream:
            stream.write("".join([f"{address:#x}\n" for address in addresses]).encode())
    except BrokenPipeError:
        # It has died; its exit status is checked later.
        pass


def _parse_frame(function: str, place: str) -> Frame:
    file, line, column = place.rsplit(":", 2)
    # 0 is "unknown", and DWARF's line of code without a source line.
    return Frame(None if function == "??" else function, None if file == "??" else file, int(line) or None, int(column) or None)


def symbolize(
    symbolizer: str,
    image: Path,
    addresses: Sequence[int],
    make_frame: Callable[[Frame], _Item],
    *,
    function_names: str = "short",
) -> list[tuple[_Item, ...]]:
    """Resolve addresses of a linked image, with inlined frames, innermost first.

    :param addresses: of instructions: for return addresses, one less.
    :param make_frame: called once for each distinct frame; returns what stands for it. Files are relative to the build root.
    :param function_names: "short" for names as in DWARF, like drgn's; "linkage" for names of ELF symbols where these are
        nearer, with suffixes such as ``.isra.0``.
    :return: a chain of frames for each address, innermost first.
    :raises CapabilityError: when llvm-symbolizer fails, or its output has another form.
    """
    # Options of LLVM 12 and later; without a short name of a function it does not fall back to the symbol table.
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
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            # It continues while its output is parsed.
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)
    known: dict[tuple[str, str], _Item] = {}
    nothing = ("??", "??:0:0")
    chains: list[tuple[_Item, ...]] = []
    rest = b""
    try:
        with process.stdout as stream:
            while data := os.read(stream.fileno(), 1 << 18):
                # Up to the end of an answer, which may arrive in two parts.
                head, mark, rest = (rest + data).rpartition(b"\n\n")
                if not mark:
                    continue
                blocks = head.decode("utf-8", "replace").split("\n\n")
                for block in blocks:
                    lines = iter(block.split("\n"))
                    pairs = list(zip(lines, lines, strict=False))
                    for pair in pairs:
                        if pair not in known:
                            known[pair] = make_frame(_parse_frame(*pair))
                    chains.append(() if pairs == [nothing] else tuple([known[pair] for pair in pairs]))
    except ValueError as error:
        process.kill()
        raise CapabilityError(f"{symbolizer}: unknown form of output: {error}") from error
    finally:
        status = process.wait()
        feeder.join()
    if status != 0 or len(chains) != len(addresses):
        raise CapabilityError(f"{symbolizer}: {len(chains)} answers for {len(addresses)} addresses, exit status {status}")
    return chains
