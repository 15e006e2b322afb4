# SPDX-License-Identifier: LGPL-2.1-or-later
"""The programs and headers that building and booting need, and the Debian packages that have
them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.lab.recipe import Architecture, Recipe

# Program or file -> package. Programs are looked up in PATH; files have a slash.
BUILD = {
    "make": "build-essential",
    "gcc": "build-essential",
    "ld": "build-essential",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "depmod": "kmod",
    "patch": "patch",
    "perl": "perl",
    "tar": "tar",
    "xz": "xz-utils",
    "/usr/include/libelf.h": "libelf-dev",
    "/usr/include/openssl/opensslv.h": "libssl-dev",
}
# For the kernel that all tests are about.
BOOT = {"qemu-system-x86_64": "qemu-system-x86", "gcc": "build-essential"}
FILTER = {"makedumpfile": "makedumpfile"}
# Packages of source that the distribution's lists need not have, and the suite of Debian that has
# them.
OTHER_SUITES = {"linux-source-7.3": "trixie-backports"}
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# /usr/sbin is not in every user's PATH on Debian.
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def find_program(name: str) -> str | None:
    return shutil.which(name, path=SEARCH_PATH)


def missing(needed: dict[str, str]) -> list[str]:
    """Return the packages that would provide what is missing."""
    packages = {
        package
        for thing, package in needed.items()
        if (not Path(thing).exists() if "/" in thing else find_program(thing) is None)
    }
    return sorted(packages)


def for_build(recipe: Recipe) -> dict[str, str]:
    """Return what building a recipe needs."""
    needed = dict(BUILD)
    if recipe.compiler != "gcc":
        needed[recipe.compiler] = recipe.compiler
    for argument in recipe.make:
        if argument.startswith("LLVM="):
            # LLVM=-16 asks for the programs of that version.
            version = argument.removeprefix("LLVM=").removeprefix("1")
            needed |= {
                f"clang{version}": f"clang{version}",
                f"ld.lld{version}": f"lld{version}",
                f"llvm-nm{version}": f"llvm{version}",
            }
    if recipe.name == "demo":
        # The configuration that is part of an image has its version, and the demo's image is
        # committed.
        needed["pahole"] = "pahole"
    needed |= recipe.platform.packages
    needed[str(recipe.tarball)] = recipe.package
    return needed


def for_boot(platform: Architecture) -> dict[str, str]:
    """Return what booting a kernel needs."""
    needed = {platform.qemu: platform.qemu_package}
    return needed | {"fdtput": "device-tree-compiler"} if platform.lacks_seed else needed


def for_userland(platform: Architecture) -> dict[str, str]:
    """Return what compiling for a guest needs."""
    return {"gcc": "build-essential", "make": "build-essential", **platform.packages}


def ensure(needed: dict[str, str]) -> None:
    """Install what is missing, as root on Debian; otherwise say how to install it."""
    packages = missing(needed)
    if not packages:
        return
    if not may_install():
        raise UnavailableError(f"missing: {', '.join(packages)}", remedy(packages))
    if any(package_candidate(package) is None for package in packages):
        # On a fresh machine there are no lists, or those of the day when it was made.
        update_package_lists()
    with tempfile.TemporaryDirectory(prefix="kcovdbg-packages-") as directory:
        # One that apt does not know, and is of no suite below, apt-get names.
        other = {
            package
            for package in packages
            if package in OTHER_SUITES and package_candidate(package) is None
        }
        files = [
            str(path)
            for package in other
            for path in download([package], OTHER_SUITES[package], Path(directory))
        ]
        # Another installation holds the lock: apt-get fails at once unless it is told to wait.
        known = [package for package in packages if package not in other]
        command = [*install_command([*known, *files]), "-o", "DPkg::Lock::Timeout=600"]
        print(f"$ {' '.join(command)}", file=sys.stderr, flush=True)
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, check=False, stdout=sys.stderr, env=environment)
    if done.returncode or (packages := missing(needed)):
        raise UnavailableError(f"could not install {', '.join(packages)}", remedy(packages))


def download(packages: Sequence[str], suite: str, directory: Path) -> list[Path]:
    """Download packages from a suite of Debian's that apt is not set up for, and return their
    files.

    The mirror is the one that apt uses, and the signature is checked. The suite's lists are apt's
    for this one call, so that nothing else is installed from there.
    """
    targets = ["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Origin: Debian"]
    if find_program("apt-get") is None:
        raise UnavailableError(
            f"{', '.join(packages)}: there is no apt to download from Debian's {suite} with"
        )
    shown = subprocess.run(targets, check=False, capture_output=True, text=True).stdout.splitlines()
    mirror = next((line.split()[1] for line in shown if line.startswith("Debian ")), None)
    if mirror is None or not _KEYRING.exists():
        raise UnavailableError(
            f"{', '.join(packages)}: in Debian's {suite}, of which apt has no mirror",
            remedy(packages),
        )
    (directory / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {mirror} {suite} main\n")
    (directory / "status").touch()
    settings = {
        "Dir::State": directory,
        "Dir::State::status": directory / "status",
        "Dir::Cache": directory,
        "Dir::Etc::sourcelist": directory / "sources.list",
        "Dir::Etc::sourceparts": "-",
        # The directory is root's alone.
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    for command in (["update", "-q"], ["download", "-q", *packages]):
        done = subprocess.run(
            ["apt-get", *options, *command], check=False, stdout=sys.stderr, cwd=directory
        )
        if done.returncode:
            raise UnavailableError(
                f"could not download {', '.join(packages)} from {suite} at {mirror}",
                remedy(packages),
            )
    return [next(directory.glob(f"{package}_*.deb")) for package in packages]


def may_install() -> bool:
    """Return whether :func:`ensure` can install packages here."""
    return (
        os.geteuid() == 0
        and Path("/etc/debian_version").exists()
        and find_program("apt-get") is not None
    )


def update_package_lists() -> None:
    """Download apt's package lists."""
    subprocess.run(["apt-get", "update", "-q"], check=False, stdout=sys.stderr)


def install_command(packages: Iterable[str]) -> list[str]:
    return ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def remedy(packages: Iterable[str]) -> str:
    """Return the command that installs packages."""
    packages = list(packages)
    text = f"install with: sudo {' '.join(install_command(packages))}"
    if any(package.startswith("linux-source-") for package in packages):
        text += " (Debian 13 and bookworm-backports have linux-source-6.12)"
    return text


def package_version(package: str) -> str | None:
    """Return the installed version of a package."""
    return _first_line(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}\n", package], "installed "
    )


def package_candidate(package: str) -> str | None:
    """Return the version that would be installed; None if the package is in no list."""
    try:
        shown = subprocess.run(
            ["apt-cache", "policy", package], check=False, capture_output=True, text=True
        )
    except OSError:
        return None
    for line in shown.stdout.splitlines():
        if line.strip().startswith("Candidate:"):
            version = line.split()[-1]
            return None if version == "(none)" else version
    return None


def compiler_version(compiler: str) -> str | None:
    """Return the compiler's version line."""
    return _first_line([compiler, "--version"], "")


def _first_line(command: list[str], prefix: str) -> str | None:
    try:
        shown = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError:
        return None
    if shown.returncode or not shown.stdout.startswith(prefix):
        return None
    return shown.stdout.splitlines()[0].removeprefix(prefix).strip()
