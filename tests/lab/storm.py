# SPDX-License-Identifier: LGPL-2.1-or-later
"""A guest under a storm of KCOV's users, read by kcovdbg meanwhile: through QMP, or in the guest through /proc/kcore."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.lab.errors import LabError
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import Userland
from tests.lab.kcovdbg_run import ROOT
from tests.lab.kernel import Kernel

# Time to end the storm and to answer.
_MARGIN = 120
_SHARED = "/tmp/exchange"
Look: TypeAlias = "Callable[[Kernel, Userland, Storm], dict[str, Any]]"


@dataclass(frozen=True)
class Storm:
    """The load, and how often kcovdbg runs."""

    seconds: int
    cpus: int = 2
    processes: int = 4
    """Processes, with eight threads each."""
    interval: float = 0.0
    """Seconds between commands; every second one is ``check``."""


def storm_from_outside(kernel: Kernel, userland: Userland, wanted: Storm) -> dict[str, Any]:
    """Run kcovdbg on the host, through QMP.

    :return: what :class:`tests.lab.observer.Seen` holds, and the storm's own counts under ``storm``.
    """
    seconds = wanted.seconds
    # The smallest guest has memory for four processes.
    machine = Machine(cpus=wanted.cpus, memory_mib=32 * max(wanted.processes, 4))
    with Guest(kernel, userland, machine) as guest:
        guest.wait_done()
        guest.send(f"storm {seconds} {wanted.processes}")
        guest.wait_truth(lambda line: line.get("state") == "storm" and line.get("running") is True)
        command = [sys.executable, "-m", "tests.lab.observer", *guest.target()]
        command += ["--seconds", str(seconds), "--interval", str(wanted.interval)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=2 * seconds + _MARGIN)
        return _put_together(guest, done.stdout, done.stderr, seconds)


def storm_from_inside(kernel: Kernel, userland: Userland, wanted: Storm) -> dict[str, Any]:
    """Run kcovdbg in the guest, with the host's Python, on ``/proc/kcore``.

    :return: as :func:`storm_from_outside`.
    """
    with tempfile.TemporaryDirectory(prefix="kcovlab-storm-") as directory:
        exchange = Path(directory)
        machine = Machine(
            memory_mib=384, cpus=wanted.cpus, append="kcovlab.mode=none", shares=(("root", "/"),), exchange=str(exchange)
        )
        with Guest(kernel, userland, machine) as guest:
            guest.wait_done()
            words = [sys.executable, "-m", "tests.lab.observer", "-s", str(kernel.vmlinux), "--seconds", str(wanted.seconds)]
            words += ["--interval", str(wanted.interval), "--patience", "300", "--ready", f"{_SHARED}/ready"]
            # The storm waits for any child, so the observer must end after it. With two CPUs
            # and 32 busy threads, it would get a sixteenth of the time.
            looker = f"cd {shlex.quote(str(ROOT))} && nice -n -15 {shlex.join(words)} >{_SHARED}/seen 2>{_SHARED}/said"
            wait = f"until [ -e {_SHARED}/ready ] || [ -e {_SHARED}/over ]; do sleep 0.5; done"
            done = guest.run(f"(({looker}; touch {_SHARED}/over) &)\n{wait}", 600)
            if not (exchange / "ready").exists():
                raise LabError(f"the kernel could not be opened from inside: {done.stderr}{(exchange / 'said').read_text()}")
            guest.send(f"storm {wanted.seconds} {wanted.processes}")
            deadline = time.monotonic() + 4 * wanted.seconds + 600
            while not (exchange / "over").exists():
                if time.monotonic() > deadline or not guest.alive():
                    raise LabError("the observer in the guest did not end")
                time.sleep(1)
            return _put_together(guest, (exchange / "seen").read_text(), (exchange / "said").read_text(), wanted.seconds)


def _put_together(guest: Guest, seen: str, said: str, seconds: int) -> dict[str, Any]:
    if not seen:
        raise LabError(f"the observer printed nothing: {said}")
    ended = guest.wait_truth(
        lambda line: line.get("state") == "storm" and line.get("running") is False, timeout=2 * seconds + _MARGIN
    )
    if not guest.alive():
        raise LabError("the guest died")
    found: dict[str, Any] = json.loads(seen)
    return found | {"storm": ended["ops"]}


def describe(found: dict[str, Any]) -> str:
    """Return a summary of a storm, in a few lines."""
    operations = sum(number for name, number in found["storm"].items() if name != "refused")
    return "\n".join(
        (
            f"looked for {found['seconds']:.0f} s: {found['commands']} commands, {found['checks']} of them check, "
            f"{found['reads']} reads by the walkers, slowest command {found['slowest']:.1f} s",
            f"the storm: {operations} operations done, {found['storm']['refused']} refused by the kernel",
            f"rows: {', '.join(f'{number} of {name}' for name, number in found['rows'].items())}; "
            f"with errors: {', '.join(f'{number} of {name}' for name, number in found['errors'].items() if number) or 'none'}",
            f"inconsistencies gone when read again: {found['settled']}; racing or transient: {found['racing']}; "
            f"refused because the task or object is gone: {found['refused']}",
            f"violations: {len(found['violations'])}; crashes: {len(found['crashes'])}; hangs: {len(found['hangs'])}; "
            f"raw control bytes: {len(found['raw'])}; counts of PCs in buffers for comparisons: {found['counts_of_pcs']}",
            *(f"  {problem}" for name in ("violations", "crashes", "hangs", "raw") for problem in found[name]),
            *(f"  refused {number} times: {text}" for text, number in found["refusals"].items()),
            *(f"  {number} rows say: {text}" for text, number in found["texts"].items()),
        )
    )


def is_clean(found: dict[str, Any]) -> bool:
    return not any(found[name] for name in ("violations", "crashes", "hangs", "raw"))
