# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compares the answers of kcovdbg with what the guest said of itself.

The truth comes from the workload's lines (init.c documents them) and, for a section in flight, from
section.py; the answers are the parsed ``--json`` of each command. What disagrees is returned as
sentences, so that one run shows all of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.lab.recipe import ARCHITECTURES

COMMANDS = {
    name: "tasks -a" if name == "tasks" else name
    for name in ("info", "tasks", "objects", "remote", "areas", "saved")
}
Rows = Sequence[Mapping[str, Any]]

# Traffic goes on filling the buffers of the owners whose handles it carries, and those of the tasks
# that make it; a section in flight holds a reference more.
MOVED_BY_TRAFFIC = frozenset({"kc-usb", "kc-remote", "kc-remote2"})


def parse_rows(text: str) -> list[Any]:
    """Split the output of several commands with ``--json``."""
    decoder, answers = json.JSONDecoder(), []
    while text := text.lstrip():
        rows, end = decoder.raw_decode(text)
        answers.append(rows)
        text = text[end:]
    return answers


def parse_outputs(text: str, names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Split the output of several commands with ``--json``, one for each name."""
    return dict(zip(names, parse_rows(text), strict=True))


def lines_of(truth: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the lines about the workload's states, by state, each as printed last."""
    return {
        line["state"]: line for line in truth["lines"] if "state" in line and "missing" not in line
    }


def told_of(states: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the guest was told of its kernel's KCOV; empty if it is mainline's."""
    found = re.search(r"\bkcovlab\.kcov=(\S+)", states["kernel"]["cmdline"])
    return found[1] if found else ""


def assert_agrees(truth: Mapping[str, Any], answers: Mapping[str, Rows]) -> None:
    differences = find_differences(truth, answers)
    assert not differences, "\n".join(differences)


def find_differences(truth: Mapping[str, Any], answers: Mapping[str, Rows]) -> list[str]:
    """Return everything in which truth and answers disagree; empty where all is well."""
    states = lines_of(truth)
    section = truth.get("section")
    moving = frozenset[str]()
    if section:
        states = {name: line for name, line in states.items() if not name.startswith("kc-traffic")}
        moving = MOVED_BY_TRAFFIC
    every = answers
    answers = {
        **every,
        **{
            name: [row for row in every[name] if row.get("device") is None]
            for name in ("objects", "remote")
        },
    }
    objects = match_objects(states, answers["objects"])
    found = [
        *_compare_devices(states, every, exact=not section),
        *_compare_kernel(states["kernel"], truth.get("linked_at"), answers["info"]),
        *_compare_tasks(states, answers["tasks"], exact=not section),
        *_compare_objects(states, objects, answers["objects"], moving, exact=not section),
        *_compare_sessions(states, objects, answers["tasks"], moving, section, told_of(states)),
        *(_compare_paused(answers["tasks"], section) if told_of(states) == "dataflow" else ()),
        *_compare_handles(states, answers["remote"], exact=not section),
        *_compare_areas(states, answers, exact=not section),
        *_compare_references(answers["objects"]),
        *_compare_errors(answers),
    ]
    found += (
        _compare_section(section, answers)
        if section
        else [f"saved state: {row}" for row in answers["saved"]]
    )
    return found


def _compare_devices(
    states: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Rows], *, exact: bool
) -> Iterator[str]:
    """Compare the objects, handles and sessions of kcov_dataflow with what the guest set up."""
    rows = [row for row in answers["objects"] if row.get("device")]
    lines = [line for line in states.values() if "dataflow" in line]
    if len(rows) != len(lines):
        yield f"{len(rows)} objects of a device, the guest made {len(lines)}"
    by_descriptor = {
        (ref["pid"], ref["fd"]): row
        for row in rows
        for ref in row["references"]
        if ref["kind"] == "fd"
    }
    tasks = {row["pid"]: row for row in answers["tasks"]}
    handles = {(row["handle"], row["kcov"]) for row in answers["remote"] if row.get("device")}
    for line in lines:
        its, row = line["dataflow"], by_descriptor.get((line["tgid"], line["dataflow"]["fd"]))
        name = f"device of {line['state']}"
        if row is None:
            yield f"{name}: its object is missing"
            continue
        is_remote = its["handle"] != "0x0"
        facts = {
            "size": its["size"],
            "pid": line["tid"] if its["enabled"] else None,
            "remote": is_remote,
            "mode": "DATAFLOW" if its["enabled"] or is_remote else None,
        }
        if exact or not is_remote:
            facts |= {"refcount": 1 + its["enabled"], "full": False}
        if not is_remote:
            # Sections go on while the guest speaks.
            facts["count"] = its["count"]
        yield from find_disagreements(name, row, facts)
        starts = {ref["start"] for ref in row["references"] if ref["kind"] == "vma"}
        if starts != {its["map"]}:
            yield f"{name}: mappings are at {starts}, the guest says {its['map']}"
        if is_remote and (its["handle"], row["kcov"]) not in handles:
            yield f"{name}: handle {its['handle']} is missing: {handles}"
        sessions = tasks[line["tid"]]["devices"]
        expected = (
            [("local", row["kcov"], row["area"], its["size"], its["count"])]
            if its["enabled"]
            else []
        )
        if [
            (one["role"], one["kcov"], one["area"], one["size"], one["count"]) for one in sessions
        ] != expected:
            yield f"{name}: its task has {sessions}, the guest says {expected}"
    if len(handles) != sum(line["dataflow"]["handle"] != "0x0" for line in lines):
        yield f"handles of a device: {handles}"


def match_objects(
    states: Mapping[str, Mapping[str, Any]], rows: Rows
) -> dict[str, Mapping[str, Any]]:
    """Find the row of each object: by a descriptor where one is left, else by the size, which is no
    other object's then.
    """
    by_size = {row["size"]: row for row in rows if row["size"]}
    by_descriptor = {
        (ref["pid"], ref["fd"]): row
        for row in rows
        for ref in row["references"]
        if ref["kind"] == "fd"
    }
    found = {}
    for line in states.values():
        name = line.get("object")
        if name is None:
            continue
        row = (
            by_descriptor.get((line["tgid"], line["fds"][0]))
            if line["fds"]
            else by_size.get(line["size"])
        )
        if row is not None:
            found[name] = row
    return found


def _compare_kernel(kernel: Mapping[str, Any], linked_at: int | None, info: Rows) -> Iterator[str]:
    """Compare what the guest says of its kernel.

    :param linked_at: where _text is; None in truths that were kept without, of kernels of the
        architecture's usual layout.
    """
    if len(info) != 1:
        yield f"info has {len(info)} rows"
        return
    # The guest said where the image runs.
    offset = int(kernel["symbols"]["_text"], 16) - (
        linked_at or ARCHITECTURES[kernel["machine"]].linked_at
    )
    expected = {key: kernel[key] for key in ("release", "machine", "build_id")} | {
        "kaslr_offset": hex(offset)
    }
    yield from find_disagreements("info", info[0], expected)


def mode_of(line: Mapping[str, Any], key: str = "mode") -> str:
    """A mode as kcovdbg names it: the guest says beside the kernel's mode whether records have a
    type.
    """
    mode: str = line[key]
    return "TRACE_PC_EXT" if line.get("extended") and mode == "TRACE_PC" else mode


def decode_name(line: Mapping[str, Any]) -> str:
    """Return a comm as kcovdbg shows it."""
    return bytes.fromhex(line["comm_hex"]).decode("utf-8", "backslashreplace")


def _compare_tasks(
    states: Mapping[str, Mapping[str, Any]], rows: Rows, *, exact: bool
) -> Iterator[str]:
    listed = [(row["pid"], row["tgid"]) for row in rows]
    for identity, count in Counter(listed).items():
        if count > 1 and identity[0]:
            yield f"task {identity} is listed {count} times"
    # Idle tasks are nowhere in /proc; kernel threads come and go by themselves.
    expected = {(tid, tgid): name for tid, tgid, name, _ in states["tasks"]["tids"]}
    kernel_threads = {
        (row["pid"], row["tgid"]) for row in rows if row["comm"].startswith("kworker/")
    }
    for identity, name in expected.items():
        if identity not in listed and not name.startswith("kworker/"):
            yield f"task {identity} ({name}) is missing"
    if exact:
        for identity in set(listed) - set(expected) - kernel_threads:
            if identity != (0, 0):
                yield f"task {identity} isn't in the guest's /proc"
    names = {row["pid"]: row["comm"] for row in rows}
    for line in states.values():
        if "comm_hex" in line and names.get(line["tid"]) != decode_name(line):
            yield (
                f"task {line['tid']}: comm is {names.get(line['tid'])!r}, the guest says "
                f"{decode_name(line)!r}"
            )


def _compare_objects(
    states: Mapping[str, Mapping[str, Any]],
    objects: Mapping[str, Mapping[str, Any]],
    rows: Rows,
    moving: frozenset[str],
    *,
    exact: bool,
) -> Iterator[str]:
    expected = {line["object"] for line in states.values() if line.get("object")}
    for name in expected - set(objects):
        yield f"object {name} is missing"
    if exact and len(rows) != len(expected):
        yield f"{len(rows)} objects are listed, the guest made {len(expected)}"
    for line in states.values():
        row = objects.get(line.get("object") or "")
        if row is None:
            continue
        name = f"object {line['object']}"
        facts = {
            "mode": mode_of(line, "kcov_mode"),
            "size": line["size"],
            "refcount": line["refcount"],
            "sequence": line["sequence"],
            "remote": line["remote"],
            "remote_size": line["remote_size"],
            "pid": line["owner_tid"],
        }
        if line["object"] in moving:
            del facts["refcount"]
        if line["count"] is not None and line["object"] not in moving:
            facts |= {"count": line["count"], "full": line["full"]}
            if line.get("bitmap_words") and line["mode"] != line["trace"]:
                # The kernel has forgotten the bitmap, and what the guest reads as a count is its
                # first word.
                facts["count"] = None
            # What recorded it isn't in the object any more once it is disabled: then PCs are
            # assumed.
            if line["mode"] == line["trace"]:
                facts["capacity"] = line["capacity"]
            else:
                del facts["full"]
        yield from find_disagreements(name, row, facts)
        descriptors = {
            ref["fd"]
            for ref in row["references"]
            if ref["kind"] == "fd" and ref["pid"] == line["tgid"]
        }
        if descriptors != set(line["fds"]):
            yield (
                f"{name}: descriptors {sorted(descriptors)} of process {line['tgid']}, the guest "
                f"says {line['fds']}"
            )
        if line["mapped"] and line["map_tid"] == line["tid"]:
            starts = {
                int(ref["start"], 16)
                for ref in row["references"]
                if ref["kind"] == "vma" and ref["pid"] == line["tgid"]
            }
            if int(line["map_start"], 16) not in starts:
                yield (
                    f"{name}: no mapping at {line['map_start']} of process {line['tgid']}: "
                    f"{[hex(s) for s in starts]}"
                )


def _compare_sessions(
    states: Mapping[str, Mapping[str, Any]],
    objects: Mapping[str, Mapping[str, Any]],
    rows: Rows,
    moving: frozenset[str],
    section: Mapping[str, Any] | None,
    told: str,
) -> Iterator[str]:
    sessions = [
        line
        for line in states.values()
        if line.get("owner_tid") and line["owner_tid"] == line["tid"]
    ]
    local = {line["tid"] for line in sessions if not line["remote"]}
    remote = {line["tid"]: line for line in sessions if line["remote"]}
    own_member = told == "owner-member"
    tasks = {row["pid"]: row for row in rows if row["pid"]}
    in_section = {section["pid"]} if section else set()
    with_session = set()
    for line in states.values():
        row = tasks.get(line.get("tid"))
        if row is None or row["pid"] in in_section:
            continue
        name = f"task {line['tid']} ({line['state']})"
        expected: dict[str, Any]
        if line.get("owner_tid") == line["tid"]:
            with_session.add(line["tid"])
            kcov = objects.get(line["object"])
            if kcov is None:
                continue
            expected = {
                "kcov_handle": remote.get(line["tid"], line)["common_handle"],
                "owns_remote": line["tid"] in remote,
                "beneath": None,
            }
            if line["remote"] and own_member:
                expected["kcov_remote"] = kcov["kcov"]
            if not (line["remote"] and own_member):
                expected["kcov"] = kcov["kcov"]
            elif line["tid"] not in local:
                expected["kcov"] = "0x0"
            if line["remote"]:
                if line["tid"] in local:
                    # Its own session is another line's.
                    yield from find_disagreements(name, row, expected)
                    continue
                expected |= {"role": "none", "kcov_area": "0x0", "kcov_size": 0}
                expected["kcov_mode"] = (
                    "DISABLED" if own_member or told == "owner-without-mode" else "REMOTE"
                )
            else:
                expected |= {
                    "role": "local",
                    "kcov_area": kcov["area"],
                    "kcov_size": line["size"],
                    "kcov_mode": mode_of(line),
                }
                expected["kcov_sequence"] = line["sequence"]
            if line["count"] is not None and line["object"] not in moving:
                expected |= {"count": line["count"], "full": line["full"]}
        else:
            expected = {
                "kcov": "0x0",
                "kcov_area": "0x0",
                "kcov_size": 0,
                "role": "none",
                "kcov_mode": "DISABLED",
            }
            expected |= {"kcov_handle": line.get("kcov_handle", "0x0"), "owns_remote": False}
        yield from find_disagreements(name, row, expected)
    # Nobody else collects, so nothing else may be listed.
    for row in rows:
        if row["role"] != "none" and row["pid"] not in with_session | in_section and not section:
            yield (
                f"task {row['pid']} ({row['comm']}) has role {row['role']}, the guest knows of no "
                f"session"
            )


def find_disagreements(
    name: str, row: Mapping[str, Any], expected: Mapping[str, Any], source: str = "the guest says"
) -> Iterator[str]:
    for key, value in expected.items():
        if row[key] != value:
            yield f"{name}: {key} is {row[key]!r}, {source} {value!r}"


def _compare_sets(what: str, expected: set[Any], listed: set[Any], *, exact: bool) -> Iterator[str]:
    yield from (f"{what} {missing} is missing" for missing in expected - listed)
    if exact:
        yield from (
            f"{what} {extra} is listed, the guest has none such" for extra in listed - expected
        )


def _compare_paused(rows: Rows, section: Mapping[str, Any] | None) -> Iterator[str]:
    """Check that KCOV_PAUSED, bit 29, is set in every task that is switched out, and not in the one
    stopped in a section.
    """
    switched_out = [row for row in rows if row["in_ctxsw"]]
    if 2 * len(switched_out) < len(rows):
        yield f"{len(switched_out)} of {len(rows)} tasks are switched out"
    for row in rows:
        is_paused = bool(int(row["kcov_mode_raw"], 16) >> 29 & 1)
        if row["in_ctxsw"] and not is_paused:
            yield f"task {row['pid']} is switched out, its mode is {row['kcov_mode_raw']}"
        if section and row["task"] == section["task"] and is_paused:
            yield f"task {row['pid']} is in a section, its mode is {row['kcov_mode_raw']}"


def _compare_handles(
    states: Mapping[str, Mapping[str, Any]], rows: Rows, *, exact: bool
) -> Iterator[str]:
    expected = {
        (handle, line["tid"])
        for line in states.values()
        for handle in line.get("handles", ())
        if line.get("enabled")
    }
    listed = {(row["handle"], row["pid"]) for row in rows}
    yield from _compare_sets("handle", expected, listed, exact=exact)


def areas_of(states: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The areas in the guest's vmallocinfo, which prints pointers: of arm64's kernels, the top byte
    may be a tag.
    """
    found = [dict(area) for area in states["vmalloc"]["areas"]]
    for area in found:
        start = int(area["start"], 16)
        if states["kernel"]["machine"] == "aarch64" and start >> 55 & 1:
            area["start"] = f"{start | 0xFF << 56:#x}"
    return found


def _compare_areas(
    states: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Rows], *, exact: bool
) -> Iterator[str]:
    ours = [row for row in answers["areas"] if row["device"] is None]
    yield from _compare_device_areas(
        states, [row for row in answers["areas"] if row["device"]], exact=exact
    )
    # Those of kcov_dataflow belong to no list of KCOV's.
    allocated = [area for area in areas_of(states) if not area["caller"].startswith("kcov_df")]
    page = states["kernel"]["page_size"]
    if told_of(states) == "unique-maps":
        yield from _compare_map_areas(states, allocated)
        # Beside its buffer an object has one for edges, and memory for the entries of two maps.
        buffers = {row["area"] for row in answers["objects"]}
        allocated = [
            area
            for area in allocated
            if area["start"] in buffers or not _MADE_BY_INIT.match(area["caller"])
        ]
    users = {area["start"] for area in allocated if area["user"]}
    private = {area["start"]: area["size"] for area in allocated if not area["user"]}
    buffers = {row["area"] for row in answers["objects"] if row["area"] not in (None, "0x0")}
    listed = {row["area"]: row for row in ours}
    yield from _compare_sets("the buffer of an object at", users, buffers, exact=exact)
    yield from _compare_sets("the area at", set(private), set(listed), exact=exact)
    if exact:
        for row in ours:
            if row["state"] != "cached":
                yield f"the area at {row['area']} is {row['state']}, no section is in flight"
    for start, size in private.items():
        known = listed.get(start)
        # vmallocinfo counts whole pages and the guard page.
        if (
            known is not None
            and known["size"] is not None
            and (-(-known["size"] * 8 // page) + 1) * page != size
        ):
            yield (
                f"the area at {start} has {known['size']} words, the guest says {size} bytes with "
                f"guard page"
            )


# SCRATCH_WORDS of dataflow.patch.
_DEVICE_AREA = 1 << 20


def _compare_device_areas(
    states: Mapping[str, Mapping[str, Any]], rows: Rows, *, exact: bool
) -> Iterator[str]:
    """Compare the areas of kcov_dataflow's sections with what was allocated for them."""
    # The pages of each area are in an array that the same function allocates.
    allocated = {
        area["start"]
        for area in states["vmalloc"]["areas"]
        if area["caller"].startswith("kcov_df_remote_start") and area["size"] > 8 * _DEVICE_AREA
    }
    listed = {row["area"]: row for row in rows}
    if len(listed) != len(rows):
        yield "an area of kcov_dataflow is listed twice"
    yield from _compare_sets("the area of kcov_dataflow at", allocated, set(listed), exact=exact)
    for row in rows:
        if row["size"] != _DEVICE_AREA:
            yield f"the area of kcov_dataflow at {row['area']} has {row['size']} words"
        if row["state"] not in ("cached", *(() if exact else ("in-use",))):
            yield f"the area of kcov_dataflow at {row['area']} is {row['state']}"


# Of unique-maps.patch, whichever of them are inlined.
_MADE_BY_INIT = re.compile(r"kcov_(map_make|map_init|ioctl)\b")


def _compare_map_areas(
    states: Mapping[str, Mapping[str, Any]], allocated: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Compare what vmallocinfo shows with what each KCOV_INIT_TRACE makes: two buffers, twice 64
    bytes a word for entries.
    """
    sizes = {
        line["object"]: line["size"]
        for line in states.values()
        if line.get("object") and line.get("size")
    }
    expected: Counter[tuple[int, bool]] = Counter()
    for size in sizes.values():
        for length, user in ((size * 8, True), (size * 64, False)):
            pages = -(-length // 4096)
            expected[(pages + 1) * 4096, user] += 2
            if pages * 8 > 4096:
                # What lists so many pages takes more than one itself, and is allocated for the same
                # caller.
                expected[(-(-pages * 8 // 4096) + 1) * 4096, False] += 2
    made = Counter(
        (area["size"], area["user"]) for area in allocated if _MADE_BY_INIT.match(area["caller"])
    )
    if made != expected:
        yield (
            f"the guest's vmallocinfo has {made - expected} more and {expected - made} less than "
            f"its objects take"
        )


def _compare_references(rows: Rows) -> Iterator[str]:
    for row in rows:
        counted = sum(reference["counts"] for reference in row["references"])
        if row["counted"] != counted:
            yield (
                f"object {row['kcov']}: counted is {row['counted']}, its references sum up to "
                f"{counted}"
            )
        if row["refcount"] != counted:
            yield (
                f"object {row['kcov']}: refcount is {row['refcount']}, {counted} were found: "
                f"{row['references']}"
            )


def _compare_errors(answers: Mapping[str, Rows]) -> Iterator[str]:
    for command, rows in answers.items():
        for row in rows:
            for error in row.get("errors") or ():
                if command == "tasks" and "system call" in error and row["role"] == "none":
                    # Slices have the stacks of all tasks only since system calls are read from
                    # them.
                    continue
                if command == "objects" and "bitmap" in error and row["count"] is None:
                    # Of which objects the count is unknown is compared with what the guest did to
                    # them.
                    continue
                yield f"{command}: {error}"


_ROLES = {"local": "local", "remote": "remote-section", None: None}


def _compare_section(section: Mapping[str, Any], answers: Mapping[str, Rows]) -> Iterator[str]:
    """Compare the section in flight with what the stub read at the stop."""
    address = section["task"]
    row = next((row for row in answers["tasks"] if row["task"] == address), None)
    if row is None:
        yield f"task {address}, which is in a section, is missing"
        return
    softirq = section["context"] == "softirq"
    expected = {
        "pid": section["pid"],
        "role": "softirq-section" if softirq else "remote-section",
        "beneath": _ROLES[section["beneath"]],
        "kcov": section["kcov"],
        "kcov_area": section["kcov_area"],
        "kcov_size": section["kcov_size"],
        "kcov_mode_raw": hex(section["kcov_mode"]),
        "kcov_sequence": section["kcov_sequence"],
        "kcov_softirq": section["kcov_softirq"],
    }
    buffer = section["buffers"]["kcov_area"]
    if buffer is not None:
        expected["count"] = buffer["count"]
    yield from find_disagreements(
        f"section of task {section['pid']}", row, expected, "the stub read"
    )
    for kcov, fields in section["objects"].items():
        found = next((row for row in answers["objects"] if row["kcov"] == kcov), None)
        if found is None:
            yield f"object {kcov} of the section is missing"
        else:
            yield from find_disagreements(
                f"object {kcov}", found, {"refcount": fields["refcount"]}, "the stub read"
            )
    area = next((row for row in answers["areas"] if row["area"] == section["kcov_area"]), None)
    if area is None or area["state"] != "in-use" or area["list"] != ("irq" if softirq else "task"):
        yield f"the section's area is {area}"
    elif area["size"] != section["kcov_size"]:
        yield f"the section's area has {area['size']} words, the stub read {section['kcov_size']}"
    yield from _compare_saved(section, answers["saved"])


def _compare_saved(section: Mapping[str, Any], rows: Rows) -> Iterator[str]:
    saved = section["saved"]
    if not int(saved["kcov"], 16):
        for row in rows:
            yield f"saved state is listed, the stub found none: {row}"
        return
    if len(rows) != 1:
        yield f"{len(rows)} saved states are listed, the stub found one"
        return
    expected = {
        "pid": section["pid"],
        "saved_size": saved["size"],
        "saved_area": saved["area"],
        "saved_kcov": saved["kcov"],
        "saved_sequence": saved["sequence"],
    }
    yield from find_disagreements("saved state", rows[0], expected, "the stub read")
