# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel with absurd lists and sizes: ``python -m tests.fuzz.absurd_kernel CLAIM`` prints the
cost of commands on it.

The lists are generated as they are read: an unbounded walk never ends.
"""

from __future__ import annotations

import argparse
import json
import resource
import struct
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from kcovdbg.abi.handle import find_bucket
from tests.support.kernels.asker import Asker
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E9A

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_START = 0xFFFF_B000_0000_0000
_TASK, _REMOTE, _AREA = 16384, 64, 4096
# Far from any other memory of the kernel.
_MANY = 1 << 27
# Structures from the first one of a chain to the first one of the next.
_CHAIN = _MANY >> 5


class Endless:
    """Memory with one structure after another.

    :param kernel: whose other memory is as it was.
    :param step: bytes from one structure to the next.
    :param make: the bytes of the structure with this number.
    """

    def __init__(self, kernel: Kernel, step: int, make: Callable[[int], bytes]) -> None:
        self.reads = 0
        target = kernel.target
        beyond = target.read

        def read(address: int, size: int) -> bytes:
            self.reads += 1
            number, offset = divmod(address - _START, step)
            if address < _START or number >= _MANY:
                # A target that logs its reads would keep all of them.
                target.reads.clear()
                return bytes(beyond(address, size))
            data: bytes = make(number)[offset : offset + size]
            return data if len(data) == size else data + bytes(size - len(data))

        target.read = read


def _patch(template: bytes, places: dict[int, int], width: int = 8) -> bytes:
    data = bytearray(template)
    for offset, value in places.items():
        data[offset : offset + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
    return bytes(data)


def _follow(index: int, number: int) -> int:
    """Return the element after one: where there is a number of elements, the last one leads back
    into the middle.
    """
    return index + 1 if index + 1 != number else number // 2


def _offsets(kernel: Kernel, structure: str, *paths: str) -> Iterator[int]:
    return (kernel.target.member(structure, path).offset for path in paths)


def _claim_tasks(
    kernel: Kernel, number: int, head: int, link: str, *own: str, end: int | None = None
) -> Endless:
    """An endless list of tasks from a head on.

    :param link: the list's member.
    :param own: members with a number of the task's own.
    :param end: what the last one leads to, of a list with an end.
    """
    structure = "struct task_struct"
    template = kernel.target.read(kernel.tasks[40], kernel.target.type_size(structure))
    node, back, signal, *numbered = _offsets(
        kernel, structure, f"{link}.next", f"{link}.prev", "signal", *own
    )

    def make(index: int) -> bytes:
        onwards = (
            end
            if end is not None and index + 1 == number
            else _START + _follow(index, number) * _TASK + node
        )
        links = {node: onwards, back: head if index == 0 else _START + (index - 1) * _TASK + node}
        if link == "tasks":
            links[signal] = 0
        return _patch(_patch(template, links), dict.fromkeys(numbered, 1000 + index % 4000000), 4)

    kernel.write_word(head, _START + node)
    return Endless(kernel, _TASK, make)


def claim_tasks(kernel: Kernel, number: int, *, ends: bool = False) -> Endless:
    """An endless list of processes, one that leads back into itself, or a correct one of that
    many.
    """
    (node,) = _offsets(kernel, "struct task_struct", "tasks.next")
    head = kernel.target.symbol("init_task").address + node
    return _claim_tasks(kernel, number, head, "tasks", "pid", "tgid", end=head if ends else None)


def claim_threads(kernel: Kernel, number: int) -> Endless:
    """A process with an endless list of threads."""
    (node,) = _offsets(kernel, "struct task_struct", "thread_node.next")
    return _claim_tasks(kernel, number, kernel.tasks[40] + node, "thread_node", "pid")


def claim_handles(
    kernel: Kernel, number: int, *, chains: int = 1, objects: bool = False
) -> Endless:
    """One endless chain of handles, or all of them; each handle may have an object of its own."""
    target = kernel.target
    size = target.type_size("struct kcov_remote")
    handle, kcov, node, back = _offsets(
        kernel, "struct kcov_remote", "handle", "kcov", "hnode.next", "hnode.pprev"
    )
    head = target.symbol("kcov_remote_map").address
    handles = [
        number for number in range(1 << 56 | 1, (1 << 56) + 4000) if find_bucket(number, 4, 8) == 0
    ]

    def make(index: int) -> bytes:
        chain, place = divmod(index, _CHAIN)
        places = {
            handle: handles[index % len(handles)],
            kcov: _START + index * _REMOTE if objects else kernel.objects["shared"],
            node: _START + _follow(index, number) * _REMOTE + node,
            back: _START + (index - 1) * _REMOTE + node
            if place
            else head + chain * target.word_size,
        }
        return _patch(bytes(size), places)

    for chain in range(chains):
        kernel.write_word(head + chain * target.word_size, _START + chain * _CHAIN * _REMOTE + node)
    return Endless(kernel, _REMOTE, make)


def claim_areas(kernel: Kernel, number: int) -> Endless:
    """An endless list of free areas."""
    head = kernel.target.symbol("kcov_remote_areas").address

    def make(index: int) -> bytes:
        before = head if index == 0 else _START + (index - 1) * _AREA
        return struct.pack("<QQI", _START + _follow(index, number) * _AREA, before, 512)

    kernel.write_word(head, _START)
    return Endless(kernel, _AREA, make)


def claim_buffer(kernel: Kernel, number: int) -> Endless:
    """A buffer that claims some number of words and as many records; all of its memory is
    readable.
    """
    target = kernel.target
    kcov = kernel.objects["local"]
    target.put(kcov, "struct kcov", {"size": number & 0xFFFFFFFF, "area": _START})
    task = kernel.tasks[40]
    target.put(task, "struct task_struct", {"kcov_size": number & 0xFFFFFFFF, "kcov_area": _START})
    page = struct.pack("<512Q", *(0xFFFFFFFF81000000 + 16 * index for index in range(512)))

    def make(index: int) -> bytes:
        return struct.pack("<Q", number) + page[8:] if index == 0 else page

    return Endless(kernel, _AREA, make)


CLAIMS: dict[str, tuple[Callable[..., Endless], int, tuple[str, ...]]] = {
    "endless-tasks": (
        claim_tasks,
        0,
        ("tasks", "tasks -a --json", "saved", "check --json", "why 40"),
    ),
    "looped-tasks": (claim_tasks, 100_000, ("tasks", "check")),
    "many-tasks": (partial(claim_tasks, ends=True), 20_000, ("tasks", "check")),
    "endless-threads": (claim_threads, 0, ("tasks", "check")),
    "endless-chain": (claim_handles, 0, ("remote", "objects", "check")),
    "endless-map": (partial(claim_handles, chains=16), 0, ("remote", "objects", "check")),
    "endless-objects": (
        partial(claim_handles, chains=16, objects=True),
        0,
        ("remote", "objects --json", "check"),
    ),
    "looped-chain": (claim_handles, 50_000, ("remote", "objects", "check")),
    "endless-areas": (claim_areas, 0, ("areas", "check")),
    "huge-buffer": (claim_buffer, 1 << 31, ("buffer 40 -n 10", "objects", "check")),
    "largest-buffer": (claim_buffer, (1 << 28) - 1, ("objects", "tasks", "check")),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.absurd_kernel")
    parser.add_argument("claim", choices=CLAIMS)
    parser.add_argument(
        "--command", action="append", help="by default those that the claim is about"
    )
    parser.add_argument("--number", type=int, help="of what is claimed, instead of the claim's own")
    parser.add_argument("--memory", type=int, default=2 << 30, help="bytes of address space")
    args = parser.parse_args()
    claim, number, commands = CLAIMS[args.claim]
    number = number if args.number is None else args.number
    resource.setrlimit(resource.RLIMIT_AS, (args.memory, args.memory))
    for command in args.command or commands:
        kernel = Kernel(E9A)
        endless = claim(kernel, number)
        asker = Asker(kernel.target)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        out, err = asker.ask(command)
        facts = {
            "claim": args.claim,
            "command": command,
            "seconds": round(time.process_time() - started, 2),
            "mebibytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10,
            "reads": endless.reads,
            "lines": out.count("\n"),
            "said": err[-2000:] + out[-2000:],
        }
        print(json.dumps(facts), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
