# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fixtures of the lab.

    kernel                              the built kernel: paths of vmlinux, image, sources, …
    userland                            what runs in guests of it: init, modules with debug info
    standing_guest                      a running guest whose states all stand; for looking only
    boot(machine=…, waits=True)         a guest of one's own, ended with the test
    guest                               one with one CPU for the tests of a module, which may do to it what they want
    standing_dump(dump_format="elf")    a dump of the standing states, in a format of dump.FORMATS
    crash_dump(dump_format="elf")       the same after a crash by sysrq
    inflight_dump(state, dump_format="elf")
                                        stopped inside a remote section; the state is a name of section.STATES

Dumps come with the truth about them (situation.Dump), and are kept in the cache. What can't be had
skips the test with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import kernel as kernels
from tests.lab import requirements, situation
from tests.lab.errors import UnavailableError
from tests.lab.guest import Guest, Machine
from tests.lab.initramfs import Userland, make_userland
from tests.lab.recipe import RECIPES

HERE = Path(__file__).parent
# Of a format of dumps, of a state and a format, of a machine.
DumpMaker = StateDumpMaker = Callable[..., situation.Dump]
Booter = Callable[..., Guest]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.lab)


@pytest.fixture(scope="session")
def kernel() -> kernels.Kernel:
    return find_built(os.environ.get("KCOVDBG_LAB_RECIPE", "default"))


@pytest.fixture(scope="session")
def userland(kernel: kernels.Kernel) -> Userland:
    return find_userland(kernel)


def find_built(name: str) -> kernels.Kernel:
    """Return a recipe's kernel; skip the test where it is not built."""
    if name not in RECIPES:
        pytest.fail(f"no recipe {name!r}; there are: {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    found = kernels.find(recipe)
    if found is None:
        # Minutes of building are for who asks for them, not for who runs all tests.
        lacking = requirements.missing(requirements.for_build(recipe))
        also = f"; that needs {', '.join(lacking)}" if lacking else ""
        pytest.skip(f"the kernel isn't built: python -m tests.lab build --recipe {name}{also}")
    return found


def find_userland(kernel: kernels.Kernel) -> Userland:
    """Return what a kernel's guests run; skip the test where they cannot run."""
    platform = kernel.recipe.platform
    lacking = requirements.missing(
        requirements.for_boot(platform) | requirements.for_userland(platform)
    )
    if lacking:
        pytest.skip(f"the lab needs {', '.join(lacking)}; {requirements.remedy(lacking)}")
    return make_userland(kernel)


def built(name: str) -> tuple[kernels.Kernel, Userland]:
    kernel = find_built(name)
    return kernel, find_userland(kernel)


@pytest.fixture(scope="session")
def standing_guest(kernel: kernels.Kernel, userland: Userland) -> Iterator[Guest]:
    with Guest(kernel, userland, situation.machine_for(situation.STANDING)) as guest:
        yield guest


@pytest.fixture(scope="module")
def guest(kernel: kernels.Kernel, userland: Userland) -> Iterator[Guest]:
    with Guest(kernel, userland) as guest:
        yield guest


@pytest.fixture
def boot(kernel: kernels.Kernel, userland: Userland) -> Iterator[Booter]:
    running: list[Guest] = []

    def booted(machine: Machine | None = None, *, waits: bool = True) -> Guest:
        guest = Guest(kernel, userland, machine)
        running.append(guest)
        guest.start()
        if waits:
            guest.wait_done()
        return guest

    yield booted
    for guest in running:
        guest.stop()


@pytest.fixture(scope="session")
def inflight_dump(kernel: kernels.Kernel, userland: Userland) -> StateDumpMaker:
    def made(state: str, dump_format: str = "elf") -> situation.Dump:
        try:
            return situation.dump_of(kernel, userland, state, dump_format)
        except UnavailableError as error:
            pytest.skip(str(error))

    return made


@pytest.fixture(scope="session")
def standing_dump(inflight_dump: StateDumpMaker) -> DumpMaker:
    return lambda dump_format="elf": inflight_dump(situation.STANDING, dump_format)


@pytest.fixture(scope="session")
def crash_dump(inflight_dump: StateDumpMaker) -> DumpMaker:
    return lambda dump_format="elf": inflight_dump(situation.CRASHED, dump_format)
