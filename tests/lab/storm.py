# SPDX-License-Identifier: LGPL-2.1-or-later
"""A guest under a storm of KCOV's users, read by kcovdbg meanwhile: through QMP, or in the guest
through /proc/kcore.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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
# Whatever of these is found is an error of kcovdbg's.
PROBLEMS = ("violations", "crashes", "hangs", "raw")
Look: TypeAlias = Callable[..., dict[str, Any]]


def storm_from_outside(
    kernel: Kernel,
    userland: Userland,
    seconds: int,
    cpus: int = 2,
    processes: int = 4,
    interval: float = 0.0,
) -> dict[str, Any]:
    """Run kcovdbg on the host, through QMP.

    :param processes: with eight threads each.
    :param interval: seconds between commands; every second one is ``check``.
    :return: what :class:`tests.lab.observer.Seen` holds, and the storm's own counts under
        ``storm``.
    """
    # The smallest guest has memory for four processes.
    machine = Machine(cpus=cpus, memory_mib=32 * max(processes, 4))
    with Guest(kernel, userland, machine) as guest:
        guest.send(f"storm {seconds} {processes}")
        guest.wait_truth(lambda line: line.get("state") == "storm" and line.get("running") is True)
        command = _observe(seconds, interval, *guest.target())
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * seconds + _MARGIN,
        )
        return _put_together(guest, done.stdout, done.stderr, seconds)


def storm_from_inside(
    kernel: Kernel,
    userland: Userland,
    seconds: int,
    cpus: int = 2,
    processes: int = 4,
    interval: float = 0.0,
) -> dict[str, Any]:
    """Run kcovdbg in the guest, with the host's Python, on ``/proc/kcore``; as
    :func:`storm_from_outside`.
    """
    with tempfile.TemporaryDirectory(prefix="kcovlab-storm-") as directory:
        exchange = Path(directory)
        machine = Machine(
            memory_mib=384,
            cpus=cpus,
            append="kcovlab.mode=none",
            shares=(("root", "/"),),
            exchange=str(exchange),
        )
        with Guest(kernel, userland, machine) as guest:
            words = _observe(
                seconds,
                interval,
                "-s",
                str(kernel.vmlinux),
                "--patience",
                "300",
                "--ready",
                f"{_SHARED}/ready",
            )
            # The storm waits for any child, so the observer must end after it. With two CPUs
            # and 32 busy threads, it would get a sixteenth of the time.
            looker = (
                f"cd {shlex.quote(str(ROOT))} && nice -n -15 {shlex.join(words)} >{_SHARED}/seen "
                f"2>{_SHARED}/said"
            )
            wait = f"until [ -e {_SHARED}/ready ] || [ -e {_SHARED}/over ]; do sleep 0.5; done"
            done = guest.run(f"(({looker}; touch {_SHARED}/over) &)\n{wait}", 600)
            if not (exchange / "ready").exists():
                raise LabError(
                    f"the kernel could not be opened from inside: "
                    f"{done.stderr}{(exchange / 'said').read_text()}"
                )
            guest.send(f"storm {seconds} {processes}")
            deadline = time.monotonic() + 4 * seconds + 600
            while not (exchange / "over").exists():
                if time.monotonic() > deadline or not guest.alive():
                    raise LabError("the observer in the guest did not end")
                time.sleep(1)
            return _put_together(
                guest, (exchange / "seen").read_text(), (exchange / "said").read_text(), seconds
            )


def _observe(seconds: int, interval: float, *words: str) -> list[str]:
    command = [sys.executable, "-m", "tests.lab.observer", *words]
    return [*command, "--seconds", str(seconds), "--interval", str(interval)]


def _put_together(guest: Guest, seen: str, said: str, seconds: int) -> dict[str, Any]:
    if not seen:
        raise LabError(f"the observer printed nothing: {said}")
    ended = guest.wait_truth(
        lambda line: line.get("state") == "storm" and line.get("running") is False,
        timeout=2 * seconds + _MARGIN,
    )
    if not guest.alive():
        raise LabError("the guest died")
    found: dict[str, Any] = json.loads(seen)
    return found | {"storm": ended["ops"]}


def describe(found: dict[str, Any]) -> str:
    """Return a summary of a storm: numbers, counts by name, and each problem."""
    lines = [
        ", ".join(
            f"{name} {value:g}" for name, value in found.items() if isinstance(value, int | float)
        )
    ]
    for name, value in found.items():
        if isinstance(value, dict):
            lines.append(
                f"{name}: "
                + (", ".join(f"{number} {what}" for what, number in value.items()) or "none")
            )
    return "\n".join(lines + [f"{name}: {problem}" for name in PROBLEMS for problem in found[name]])


def is_clean(found: dict[str, Any]) -> bool:
    return not any(found[name] for name in PROBLEMS)
