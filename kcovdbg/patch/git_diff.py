# SPDX-License-Identifier: LGPL-2.1-or-later
"""Have git make the diff of a range of commits.

The configuration of the tree is not trusted: git runs no program that it names.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kcovdbg.child_process import child_environment
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.limits import TEXT_SIZE, find_limit, over_limit

# Seconds that git may take. It compares two releases of the kernel in less.
_PATIENCE: Final = 60
# Values for the settings with which a repository can make git run programs. The names of filters
# differ, so _find_filters() asks for them.
_SETTINGS: Final = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "protocol.allow=never",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
)
_OPTIONS: Final = (
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--ignore-submodules=all",
    "--no-relative",
    "--patch",
    "--unified=3",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--find-renames",
    "--inter-hunk-context=0",
    "-O/dev/null",
    "--end-of-options",
)
_LIST_FILTERS: Final = (
    "config",
    "--includes",
    "--null",
    "--name-only",
    "--get-regexp",
    r"^filter\.",
)


def git_diff(tree: Path, revisions: str) -> str:
    """Return the diff of a range of commits, or of a commit and the files of the tree.

    :param tree: a directory in the tree.
    :param revisions: as git diff takes it.
    :raises KcovdbgError: when git is missing or fails.
    """
    if revisions.startswith("-") or "\0" in revisions or not revisions:
        raise KcovdbgError(
            f"'{revisions}' is not a range of commits", hint="HEAD~3.., v6.12..topic or a commit"
        )
    environment = _find_environment()
    filters = _find_filters(tree, environment)
    command = [*_configure_git(filters), "diff", *_OPTIONS, revisions, "--"]
    return _run(tree, command, environment).decode("utf-8", "replace")


def _configure_git(settings: Iterable[str] = ()) -> list[str]:
    """Return git's command line up to its subcommand, with settings that replace the tree's."""
    command = ["git", "--no-pager", "--no-optional-locks"]
    for setting in (*_SETTINGS, *settings):
        command += ("-c", setting)
    return command


def _find_environment() -> dict[str, str]:
    """Return git's environment, without variables that name another repository, configuration or
    program.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment.pop("SSH_ASKPASS", None)
    return {
        **environment,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        # git does not fetch the missing objects of a partial clone.
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "LC_ALL": "C",
    }


def _find_filters(tree: Path, environment: Mapping[str, str]) -> list[str]:
    """Return settings that disable the filters in the tree's configuration, which git diff would
    run on files of the tree.
    """
    command = [*_configure_git(), *_LIST_FILTERS]
    found = _run(tree, command, environment, may_find_nothing=True)
    names = found.decode("utf-8", "surrogateescape").split("\0")
    settings: list[str] = []
    for driver in sorted({name.rpartition(".")[0] for name in names}):
        if "." not in driver:
            continue
        if "=" in driver or "\n" in driver:
            # For -c, the name of a setting ends at the first =.
            raise KcovdbgError(
                f"{tree}: its configuration has a filter with a name that cannot be disabled",
                hint="git diff >FILE",
            )
        settings += (
            f"{driver}.clean=",
            f"{driver}.smudge=",
            f"{driver}.process=",
            f"{driver}.required=false",
        )
    return settings


def _run(
    tree: Path,
    command: list[str],
    environment: Mapping[str, str],
    *,
    may_find_nothing: bool = False,
) -> bytes:
    limit = find_limit(TEXT_SIZE)

    def limit_files() -> None:
        # At the limit SIGXFSZ ends git, which is to leave no core in the tree.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # A lower limit of the user is as good.
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit + 1, limit + 1))

    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            done = subprocess.run(
                command,
                cwd=tree,
                env=child_environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                timeout=_PATIENCE,
                preexec_fn=limit_files,
            )
        except FileNotFoundError as error:
            if error.filename == os.fspath(tree):
                raise KcovdbgError(f"{tree}: no such directory") from None
            raise CapabilityError(
                "a range of commits needs git",
                hint="git diff RANGE >FILE elsewhere, then patch FILE",
            ) from None
        except subprocess.TimeoutExpired:
            raise KcovdbgError(
                f"git: no answer in {_PATIENCE} s", hint="git diff RANGE >FILE, then patch FILE"
            ) from None
        output.seek(0)
        errors.seek(0)
        text, said = output.read(), errors.read()
    if len(text) > limit:
        raise over_limit(TEXT_SIZE, "git diff")
    if done.returncode == 1 and may_find_nothing:
        return b""
    if done.returncode:
        reason = "failed"
        for line in said.decode("utf-8", "replace").splitlines():
            if line.startswith(("fatal: ", "error: ")):
                reason = line.partition(": ")[2]
                break
        raise KcovdbgError(
            f"git: {reason}",
            hint="a range is as git diff takes it; --source-dir names the tree",
        )
    return text
