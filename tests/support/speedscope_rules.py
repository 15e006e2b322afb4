# SPDX-License-Identifier: LGPL-2.1-or-later
"""The requirements of speedscope's file format: those of file-format-schema.json, and those of its reader.

Schema: which members there must be and of what type; unknown ones are allowed. The reader: frames are closed in the
order opposite to their opening, ``at`` never goes back, and nothing stays open.
"""

UNITS = {"bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"}


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def text(value):
    return isinstance(value, str)


def require(record, needed, optional=()):
    """Check members and their types."""
    assert isinstance(record, dict)
    for name, is_right in dict(needed).items():
        assert name in record, f"no {name}"
        assert is_right(record[name]), f"{name}: {record[name]!r}"
    for name, is_right in dict(optional).items():
        assert name not in record or is_right(record[name]), f"{name}: {record[name]!r}"


def check_file(content):
    require(
        content,
        {
            "$schema": lambda value: value == "https://www.speedscope.app/file-format-schema.json",
            "profiles": is_list,
            "shared": lambda value: isinstance(value, dict),
        },
        {"name": text, "exporter": text, "activeProfileIndex": number},
    )
    require(content["shared"], {"frames": is_list})
    frames = content["shared"]["frames"]
    for frame in frames:
        require(frame, {"name": text}, {"file": text, "line": number, "col": number})
    assert content["profiles"]
    assert 0 <= content.get("activeProfileIndex", 0) < len(content["profiles"])
    for profile in content["profiles"]:
        check_evented(profile, len(frames))


def is_list(value):
    return isinstance(value, list)


def check_evented(profile, frames):
    require(
        profile,
        {
            "type": lambda value: value == "evented",
            "name": text,
            "unit": UNITS.__contains__,
            "startValue": number,
            "endValue": number,
            "events": is_list,
        },
    )
    stack, at = [], profile["startValue"]
    for event in profile["events"]:
        require(event, {"type": lambda value: value in ("O", "C"), "at": number, "frame": number})
        assert event["frame"] in range(frames)
        assert event["at"] >= at, "goes back"
        at = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert stack.pop() == event["frame"], "closes what isn't innermost"
    assert not stack, "stays open"
    assert at <= profile["endValue"]
