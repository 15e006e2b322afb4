# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tool ``why`` beside syzkaller's disassemble-context, on functions that calls did not reach.

python -m tests.bench.uncovered_targets SYZKALLER [--targets N]

SYZKALLER is a checkout; Go and llvm-objdump must be installed. Its own code of the tool is compiled
without the rest. The lab's kernel makes system calls, and both tools are asked about what every
second of them did not reach and the others did: functions that direct calls lead to, and points of
functions that both ran.

Right is a branch that only the others took towards the target, or a system call that only these
made. ``why`` names it in the first way of its answer, or in another; disassemble-context, if the
branch is anywhere in its text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from kcovdbg.elf.file import ElfFile
from kcovdbg.records.line_states import BlockState
from kcovdbg.symbols.blocks import read_linked
from kcovdbg.symbols.call_graph import CallGraph
from kcovdbg.why.call_ways import Guard, WayFinder
from tests.lab import kernel as kernels
from tests.lab.kcovdbg_run import ROOT
from tests.lab.recipe import RECIPES
from tests.lab.test_call_ways import is_right, make_finder
from tests.lab.test_executed_lines import Truth

_TOOL: Final = "pkg/aflow/tool/syzlang/disassemble.go"
_MODULE: Final = "github.com/google/syzkaller"
# What the file needs of the rest of syzkaller.
_AFLOW: Final = """package aflow

import "fmt"

type Context struct{}

func BadCallError(format string, args ...any) error { return fmt.Errorf(format, args...) }

func NewFuncTool[F any](name string, run F, description string) F { return run }
"""
_STATE: Final = """package syzlang

type reproduceState struct {
	KernelSrc string
	KernelObj string
}

func Disassemble(pc, object, source string) (string, error) {
	state := reproduceState{KernelSrc: source, KernelObj: object}
	result, err := disassembleContext(nil, state, DisassembleContextArgs{PCs: []string{pc}})
	return result.Output, err
}
"""
_MAIN: Final = """package main

import (
	"encoding/json"
	"os"
	"time"

	"github.com/google/syzkaller/pkg/aflow/tool/syzlang"
)

func main() {
	var answers []map[string]any
	for _, pc := range os.Args[3:] {
		start := time.Now()
		text, err := syzlang.Disassemble(pc, os.Args[1], os.Args[2])
		if err != nil {
			panic(err)
		}
		answers = append(answers, map[string]any{"text": text, "seconds": time.Since(start).Seconds()})
	}
	json.NewEncoder(os.Stdout).Encode(answers)
}
"""
_ADDRESS: Final = re.compile(r"^\s*([0-9a-f]{8,16}):", re.MULTILINE)
_WAYS: Final = ("branch-never-taken", "system-call-not-made")


class Target(NamedTuple):
    """Code that did not run."""

    name: str
    """Of the function, or the PC of a point."""
    pc: int
    """Of the point, the first one of a function."""
    guards: frozenset[int]
    """Addresses of the first code behind the branches that led there."""
    branches: Sequence[range]
    """The code that ends with these branches."""
    system_calls: frozenset[str]
    """Those that led there, and were not made before."""


class Found(NamedTuple):
    """What a tool said of a target."""

    rank: int | None
    """Of the first way that is right; None where none is."""
    size: int
    seconds: float


class TargetFinder:
    """Finds what only the later calls reached.

    :param earlier: what is known of the calls that the tools are asked with.
    :param later: of the others.
    """

    def __init__(
        self, truth: Truth, graph: CallGraph, earlier: WayFinder, later: WayFinder
    ) -> None:
        self._parts, self._graph = truth.parts, graph
        self._points = sorted(truth.points)
        self._earlier, self._later = earlier, later

    def _find_points(self, function: int) -> Sequence[int]:
        start, size = self._parts[function][0]
        first, end = (bisect_right(self._points, at) for at in (start, start + size))
        return self._points[first:end]

    def find_functions(self) -> Iterator[Target]:
        """Yield functions that direct calls lead to."""
        for function in sorted(self._later.executed - self._earlier.executed):
            ways = self._earlier.find_ways(function).ways
            points = self._find_points(function)
            if points and any(way.site is None or way.guard is not None for way in ways):
                right = [way for way in ways if is_right(way, self._later)]
                guards = [way.guard for way in right if way.guard is not None]
                made = [way.path[0] for way in right if way.site is None]
                name = self._graph.name(function)
                yield self._make_target(name, points[0], guards, made)

    def find_points(self) -> Iterator[Target]:
        """Yield a point of each function that ran before without it."""
        for function in sorted(self._later.executed & self._earlier.executed):
            for point in sorted(self._find_points(function), key=lambda pc: crc32(b"%d" % pc)):
                guard = self._earlier.find_guard(function, point - 1)
                found = self._later.find_blocks(function)
                index = found.find_index(point - 1)
                if guard and index is not None and found.blocks[index].state is BlockState.EXECUTED:
                    yield self._make_target(f"{point:#x}", point, [guard], [])
                    break

    def _make_target(
        self, name: str, pc: int, guards: Sequence[Guard], system_calls: Sequence[int]
    ) -> Target:
        """Return a target.

        :param guards: that the later calls passed.
        """
        first = {guard.first.address for guard in guards if guard.first is not None}
        branches = []
        for guard in guards:
            for block, _ in guard.branches:
                branches.append(range(block.address, block.address + block.size))
        names = {self._graph.name(function) for function in system_calls}
        return Target(name, pc, frozenset(first), branches, frozenset(names))


def choose(targets: Iterable[Target], most: int) -> list[Target]:
    """Return some targets, from all over the kernel."""
    return sorted(targets, key=lambda target: crc32(target.name.encode()))[:most]


def ask_syzkaller(program: Path, kernel: kernels.Kernel, targets: Sequence[Target]) -> list[Found]:
    """Return what disassemble-context says."""
    with tempfile.TemporaryDirectory() as folder:
        # Debug info of the lab's kernels names the packaged source, which is not at hand.
        objdump = shutil.which("llvm-objdump")
        wrapper = Path(folder) / "llvm-objdump"
        levels = len(Path(kernel.recipe.source_name).parts) - 1
        prefix = f"--prefix={kernel.tree} --prefix-strip={levels}"
        wrapper.write_text(f'#!/bin/sh\nexec {objdump} {prefix} "$@"\n')
        wrapper.chmod(0o755)
        command = [str(program), str(kernel.directory), str(kernel.tree)]
        command += [f"{target.pc:#x}" for target in targets]
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found = []
    for target, answer in zip(targets, json.loads(done.stdout), strict=True):
        addresses = {int(word, 16) for word in _ADDRESS.findall(answer["text"])}
        is_named = any(at in branch for branch in target.branches for at in addresses)
        size = len(answer["text"].encode())
        found.append(Found(0 if is_named else None, size, answer["seconds"]))
    return found


def build_tool(checkout: Path, folder: Path) -> Path:
    """Compile syzkaller's tool, and return the program."""
    package = folder / Path(_TOOL).parent
    files = {
        folder / "go.mod": f"module {_MODULE}\n\ngo 1.24\n",
        folder / "pkg/aflow/aflow.go": _AFLOW,
        package / "state.go": _STATE,
        package / "disassemble.go": (checkout / _TOOL).read_text(),
        folder / "main.go": _MAIN,
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "GOPROXY": "off"}
    subprocess.run(["go", "build", "-o", "tool", "."], cwd=folder, env=environment, check=True)
    return folder / "tool"


async def ask_kcovdbg(
    kernel: kernels.Kernel, folder: Path, trace: str, targets: Sequence[Target]
) -> list[Found]:
    """Return what ``why`` says, by a server that answered before."""
    words = ["-m", "kcovdbg", "--image", "-s", str(kernel.vmlinux), "mcp", "-o", str(folder)]
    server = StdioServerParameters(command=sys.executable, args=words, cwd=ROOT)
    found = []
    async with Client(server) as client:
        for target in (targets[0], *targets):
            given = {"subject": target.name, "function": f"file:{trace}", "pc": "raw"}
            started = time.perf_counter()
            answer = await client.call_tool("why", given)
            seconds = time.perf_counter() - started
            assert not answer.is_error, answer.content
            size = sum(len(part.text.encode()) for part in answer.content if part.type == "text")
            ways = [row for row in answer.structured_content["rows"] if row["code"] in _WAYS]
            ranks = [rank for rank, row in enumerate(ways) if is_right_row(row, target)]
            found.append(Found(min(ranks, default=None), size, seconds))
    return found[1:]


def is_right_row(row: dict[str, Any], target: Target) -> bool:
    """Return whether a row of an answer names a way that led to a target."""
    if row["guard"] is None:
        return row["values"]["function"] in target.system_calls
    return int(str(row["guard"]["pc"]), 0) in target.guards


def describe(name: str, found: Sequence[Found]) -> str:
    """Return a line of the table."""
    first = sum(one.rank == 0 for one in found)
    among = sum(one.rank is not None for one in found)
    sizes = sorted(one.size for one in found)
    return (
        f"{name:<24} {first:>6} {among:>6} {statistics.median(sizes):>8.0f} {sizes[-1]:>8} "
        f"{statistics.median(one.seconds for one in found):>8.3f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.uncovered_targets")
    parser.add_argument("checkout", type=Path, metavar="SYZKALLER")
    parser.add_argument("--targets", type=int, default=50)
    parser.add_argument("--recipe", default="default", choices=sorted(RECIPES))
    options = parser.parse_args()
    kernel = kernels.find(RECIPES[options.recipe])
    if kernel is None:
        parser.error("no kernel: python -m tests.lab build")
    for program in ("go", "llvm-objdump"):
        if shutil.which(program) is None:
            parser.error(f"{program} is not installed")
    with tempfile.TemporaryDirectory() as folder, ElfFile(kernel.vmlinux) as elf:
        scratch = Path(folder)
        tool = build_tool(options.checkout, scratch / "tool")
        truth = Truth(kernel, elf, scratch)
        graph = CallGraph(read_linked(elf, elf.symbols))
        known, others = truth.calls[::2], truth.calls[1::2]
        earlier, later = make_finder(truth, graph, known), make_finder(truth, graph, others)
        finder = TargetFinder(truth, graph, earlier, later)
        exchange = scratch / "traces"
        exchange.mkdir()
        records = [pc for call, _ in known for pc in call.records]
        (exchange / "known.txt").write_text("".join(f"{pc:#x}\n" for pc in records))
        for kind, every in (
            ("functions", finder.find_functions()),
            ("points", finder.find_points()),
        ):
            targets = choose(every, options.targets)
            mine = asyncio.run(ask_kcovdbg(kernel, exchange, "known.txt", targets))
            other = ask_syzkaller(tool, kernel, targets)
            print(
                f"{len(targets):>3} {kind:<20} {'first':>6} {'named':>6} {'bytes':>8} {'most':>8} {'seconds':>8}"
            )
            print(describe("kcovdbg's why", mine))
            print(describe("disassemble-context", other))
    return 0


if __name__ == "__main__":
    sys.exit(main())
