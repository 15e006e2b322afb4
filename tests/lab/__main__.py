# SPDX-License-Identifier: LGPL-2.1-or-later
"""Command line of the lab: python -m tests.lab build | boot | dump | stop | storm | demo |
generations | list.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.lab import demo, dump, golden, guest, kernel, storm
from tests.lab.errors import LabError, UnavailableError
from tests.lab.initramfs import make_userland
from tests.lab.kcovdbg_run import run_kcovdbg, symbol_options
from tests.lab.recipe import GENERATIONS, RECIPES
from tests.lab.section import STATES, stopped_in


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except UnavailableError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab", description="Real kernels with KCOV, in QEMU."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(
        name: str, run: Callable[[argparse.Namespace], int | None], text: str
    ) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    def with_recipe(added: argparse.ArgumentParser) -> None:
        added.add_argument(
            "--recipe", default="default", choices=sorted(RECIPES), help="which kernel"
        )

    def with_machine(added: argparse.ArgumentParser) -> None:
        with_recipe(added)
        added.add_argument("--cpus", type=int, default=1)
        added.add_argument("--memory", type=int, default=128, metavar="MIB")
        added.add_argument(
            "--append", default="", metavar="TEXT", help="added to the kernel's command line"
        )

    added = verb("build", _build, "build a kernel, unless it is in the cache")
    with_recipe(added)
    added.add_argument("-j", "--jobs", type=int, help="parallel jobs (default: one per CPU)")

    added = verb("boot", _boot, "boot a guest, and stay until C-c")
    with_machine(added)
    added.add_argument(
        "--detach", action="store_true", help="print where to find the guest, and leave it running"
    )

    added = verb(
        "dump", _dump, "dump a guest to FILE, and what the guest printed to FILE.truth.json"
    )
    with_machine(added)
    added.add_argument("--state", choices=sorted(STATES), help="stop inside a remote section first")
    added.add_argument(
        "--say",
        action="append",
        default=[],
        metavar="LINE",
        help="commands for the workload before that",
    )
    added.add_argument("--format", choices=[*sorted(dump.FORMATS), "slice"], default="elf")
    added.add_argument(
        "--guest",
        type=Path,
        metavar="DIRECTORY",
        help="use a detached guest instead of booting one",
    )
    added.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")

    # Guests are named one by one: guests of several people may run under one account.
    added = verb("stop", _stop, "end a detached guest")
    added.add_argument("directory", nargs="+", type=Path, help="as printed by boot --detach")

    added = verb(
        "storm", _storm, "examine a guest under a storm of KCOV's users, and print a summary"
    )
    with_recipe(added)
    added.add_argument("--seconds", type=int, default=600)
    added.add_argument("--cpus", type=int, default=2)
    added.add_argument("--processes", type=int, default=4, help="processes of eight threads each")
    added.add_argument(
        "--interval",
        type=float,
        default=0,
        metavar="SECONDS",
        help="seconds between commands; every second command is check",
    )
    added.add_argument("--from", dest="where", choices=("qmp", "inside"), default="qmp")

    added = verb("demo", _demo, "make examples/demo again")
    added.add_argument(
        "-o", "--output", type=Path, metavar="DIRECTORY", help="write it to this directory instead"
    )

    added = verb(
        "generations",
        _generations,
        "build and test kernels of KCOV's generations, and write slices to tests/golden",
    )
    added.add_argument("name", nargs="*", metavar="NAME", help="which (default: all)")
    added.add_argument("-j", "--jobs", type=int, help="parallel jobs (default: one per CPU)")
    added.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIRECTORY",
        help="write them to this directory instead",
    )

    verb("list", _list, "list recipes with their kernels, and running guests")
    return parser


def _build(options: argparse.Namespace) -> None:
    print(kernel.build(RECIPES[options.recipe], options.jobs).directory)


def _guest(options: argparse.Namespace, *, detached: bool = False) -> guest.Guest:
    built = kernel.build(RECIPES[options.recipe])
    machine = guest.Machine(memory_mib=options.memory, cpus=options.cpus, append=options.append)
    return guest.Guest(built, make_userland(built), machine, detached=detached)


def _boot(options: argparse.Namespace) -> None:
    started = time.monotonic()
    booted = _guest(options, detached=options.detach)
    # Clean up after a signal as after C-c.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    booted.start()
    try:
        booted.wait_done()
        print(
            json.dumps(booted.describe() | {"vmlinux": str(booted.kernel.vmlinux)}, indent=1),
            flush=True,
        )
        print(
            f"all states are set up after {time.monotonic() - started:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        while booted.alive() and not options.detach:
            time.sleep(0.2)
    except BaseException:
        booted.stop()
        raise


def _dump(options: argparse.Namespace) -> None:
    if options.guest is not None:
        _dump_from(guest.Guest.attach(options.guest), options)
        return
    with _guest(options) as booted:
        _dump_from(booted, options)


def _dump_from(source: guest.Guest, options: argparse.Namespace) -> None:
    for line in options.say:
        source.ask(line)
    stop: AbstractContextManager[dict[str, Any] | None]
    stop = source.paused() if options.state is None else stopped_in(source, options.state)
    with stop as section:
        truth = dump.truth_about(source, section)
        if options.format == "slice":
            with tempfile.TemporaryDirectory(prefix="kcovlab-") as directory:
                whole = Path(directory) / "dump"
                dump.write_dump(source, whole)
                symbols = symbol_options(source.kernel, source.userland)
                run_kcovdbg("-c", whole, *symbols, "slice", "-o", options.output, status=0)
        else:
            dump.write_dump(source, options.output, options.format)
    options.output.with_name(f"{options.output.name}.truth.json").write_text(
        json.dumps(truth, indent=1) + "\n"
    )
    print(options.output)


def _stop(options: argparse.Namespace) -> None:
    for running in [guest.Guest.attach(path) for path in options.directory]:
        running.stop()
        print(running.sockets.directory)


def _storm(options: argparse.Namespace) -> int:
    built = kernel.build(RECIPES[options.recipe])
    look = storm.storm_from_inside if options.where == "inside" else storm.storm_from_outside
    found = look(
        built,
        make_userland(built),
        options.seconds,
        options.cpus,
        options.processes,
        options.interval,
    )
    print(storm.describe(found))
    return 0 if storm.is_clean(found) else 1


def _demo(options: argparse.Namespace) -> None:
    demo.make_demo(kernel.build(RECIPES["demo"]), options.output or demo.DESTINATION)


def _generations(options: argparse.Namespace) -> None:
    if unknown := [name for name in options.name if name not in GENERATIONS]:
        raise LabError(f"no generation {unknown[0]!r}; there are: {', '.join(GENERATIONS)}")
    for name in options.name or GENERATIONS:
        golden.make_golden(
            name, GENERATIONS[name], options.output or golden.DESTINATION, options.jobs
        )


def _list(_options: argparse.Namespace) -> None:
    for name, wanted in RECIPES.items():
        built = kernel.find(wanted)
        print(f"recipe {name}: {wanted.package}, {built.directory if built else 'not built'}")
    for running in guest.detached_guests():
        print(
            f"guest {running.sockets.directory}: pid {running.pid}, gdb "
            f"{running.sockets.gdb_remote}"
        )


if __name__ == "__main__":
    sys.exit(main())
