# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make tests/golden/generations: of each generation's kernel a slice, slim debug info, and the
truth that its guest printed.

A kernel is tested in every situation that it can be in before one of them is kept: what kcovdbg
answers is the truth, references add up, and check is silent. What is kept answers the same as the
whole dump and the whole debug info.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from tests.lab import requirements, situation, slim_debug_info
from tests.lab.comparison import COMMANDS, find_differences, parse_outputs
from tests.lab.contents import find_wrong_contents
from tests.lab.errors import LabError
from tests.lab.initramfs import make_userland
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.lab.kernel import build
from tests.lab.recipe import Recipe

DESTINATION = Path(__file__).parent.parent / "golden" / "generations"
SLICE, DEBUG_INFO, TRUTH = "slice.zst", "vmlinux.zst", "truth.json.zst"
LIMIT_OF_ALL = 25 << 20
# The commands that each kernel is asked. Their answers are compared with the truth; check must find
# nothing.
LINES = {**COMMANDS, "check": "check"}
# Remarks that are right for a kernel whose debug info is of few objects.
_NO_LOG = re.compile(
    "kcovdbg: note: the kernel's log is unreadable: the debug info has no struct printk_ringbuffer$"
)
# Some slices were made before a rule read each CPU's preempt count; they lack the page that has it.
_NO_PREEMPT_COUNT = "task \\d+: whether it serves a softirq could not be read: could not read "
_UNJUDGED = re.compile(f"it could not be judged: {_NO_PREEMPT_COUNT}")
# What is rightly said of what is kept: it is a slice, it is compressed, and the module's debug info
# isn't there.
_NOTES = re.compile(
    "kcovdbg: note: (missing debugging symbols for kcovlab_keep$|this is a slice: |the "
    "kernel's log is unreadable: "
    f"|.* was (decompressed to a|unpacked to) |{_NO_PREEMPT_COUNT})"
)


def ask_all(target: Sequence[str | Path]) -> dict[str, list[dict[str, Any]]]:
    """Ask everything of one opened target."""
    done = run_kcovdbg(
        *target, *(word for line in LINES.values() for word in ("-e", f"{line} --json"))
    )
    # check's findings give 1, and rules that it could not judge 3; both are in the answers.
    if done.returncode not in (0, 1, 3):
        raise LabError(f"kcovdbg failed with {done.returncode}: {done.stderr.strip()}")
    answers = parse_outputs(done.stdout, LINES)
    answers["stderr"] = [
        {"line": line} for line in done.stderr.splitlines() if not _NO_LOG.match(line)
    ]
    return answers


def find_faults(truth: Mapping[str, Any], answers: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Return all that the answers about a healthy guest have wrong, as sentences."""
    expected = truth["generation"]
    found = find_differences(truth, {name: answers[name] for name in COMMANDS})
    found += [f"check: {row['rule']} {row['object']}: {row['message']}" for row in answers["check"]]
    found += [f"said: {row['line']}" for row in answers["stderr"]]
    info = answers["info"][0]
    if info["generation"] != expected["era"]:
        found.append(f"info: the generation is {info['generation']}, this is {expected['era']}")
    if list(info["variants"]) != list(expected["variants"]):
        found.append(f"info: the variants are {info['variants']}, these are {expected['variants']}")
    lacking = sorted(
        line["state"] for line in truth["lines"] if "missing" in line and "state" in line
    )
    return found + ([f"the workload lacks {lacking}"] if lacking else [])


def make_golden(
    name: str, recipe: Recipe, destination: Path = DESTINATION, jobs: int | None = None
) -> None:
    """Build, boot, compare in every situation, and write the directory of one generation."""
    requirements.ensure(slim_debug_info.TOOLS)
    kernel = build(recipe, jobs)
    userland = make_userland(kernel)
    about = {
        "era": recipe.era,
        "variants": list(recipe.variants),
        "situation": recipe.situation,
        **{
            fact: kernel.facts[fact]
            for fact in ("package", "package_version", "compiler_version", "release")
        },
    }
    kept = None
    for stop in situation.SITUATIONS:
        if stop in (*recipe.never, situation.CRASHED):
            continue
        dump = situation.dump_of(kernel, userland, stop)
        truth = dump.truth | {"generation": about}
        answers = ask_all(dump.target)
        if faults := find_faults(truth, answers) + find_wrong_contents(dump.target, truth, answers):
            raise LabError("\n".join((f"{name}, {stop}:", *faults)))
        print(
            f"{name}: {stop}: {len(answers['tasks'])} tasks and {len(answers['objects'])} "
            f"objects agree",
            flush=True,
        )
        if stop == recipe.situation:
            kept = dump, truth, answers
    if not recipe.kept:
        return
    assert kept is not None
    dump, truth, answers = kept
    with tempfile.TemporaryDirectory(prefix="kcovdbg-golden-") as directory:
        work, final = Path(directory), Path(directory) / name
        final.mkdir()
        run_kcovdbg(*dump.target, "slice", "-o", work / "slice", status=0)
        sources = {f"{path.removesuffix('.o')}.c" for path in recipe.debug_info_of}
        slim_debug_info.slim(kernel.vmlinux, work / "vmlinux", sources, recipe.platform.tools)
        (work / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
        for file in ("slice", "vmlinux", "truth.json"):
            slim_debug_info.compress(work / file, final)
        _require_same(answers, ask_golden(final))
        size = sum(path.stat().st_size for path in final.iterdir())
        if size > recipe.limit:
            sizes = {path.name: path.stat().st_size for path in final.iterdir()}
            raise LabError(f"{name} takes {size} bytes, {recipe.limit} are allowed: {sizes}")
        destination.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(destination / name, ignore_errors=True)
        shutil.copytree(final, destination / name)
    print(f"{destination / name}: {size >> 10} KiB", flush=True)


def golden_target(directory: Path) -> list[str]:
    """Return kcovdbg's options that name a kept slice and its debug info."""
    return ["-c", str(directory / SLICE), "-s", str(directory / DEBUG_INFO)]


def ask_golden(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Ask a kept directory in the way that users do."""
    answers = ask_all(golden_target(directory))
    answers["stderr"] = [row for row in answers["stderr"] if not _NOTES.match(row["line"])]
    answers["check"] = [row for row in answers["check"] if not _is_of_an_old_slice(row)]
    return answers


def _is_of_an_old_slice(finding: Mapping[str, Any]) -> bool:
    return finding["severity"] == "unknown" and _UNJUDGED.match(finding["message"]) is not None


def read_truth(directory: Path) -> dict[str, Any]:
    """Return the truth about a kept directory."""
    truth: dict[str, Any] = json.loads(zstandard.decompress((directory / TRUTH).read_bytes()))
    return truth


def _require_same(whole: Mapping[str, Any], slimmed: Mapping[str, Any]) -> None:
    """Every answer is the same, but the target's name, and the kernel's log, of which the slim
    debug info lacks structures.
    """

    def nameless(answers: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            name: [{**row, "target": None, "log": None} for row in rows]
            for name, rows in answers.items()
        }

    ours, theirs = nameless(whole), nameless(slimmed)
    different = [f"{name}: {row}" for name in ours for row in theirs[name] if row not in ours[name]]
    different += [
        f"{name} lacks {row}" for name in ours for row in ours[name] if row not in theirs[name]
    ]
    if different:
        raise LabError("the slice with slim debug info answers otherwise:\n" + "\n".join(different))
