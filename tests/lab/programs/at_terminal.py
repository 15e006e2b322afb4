# SPDX-License-Identifier: LGPL-2.1-or-later
"""A user at a terminal: collects in the background, examines the running collector from the same
shell, and ends it.

It waits for each expected text, and fails with the screen on standard error if that does not
appear. Arguments: the command that runs the shell, and the path of a program that ticks. Prints
what it read from the screen.
"""

import json
import os
import re
import sys
from typing import Any

from tests.support.screen import Screen

PATIENCE = 300
*command, program = sys.argv[1:]
found: dict[str, Any] = {}


def at_prompt(screen):
    return screen.lines[screen.screen.cursor.y] == "kcovdbg>"


folders = {"XDG_STATE_HOME": "/tmp/exchange", "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
with Screen(*command, rows=50, columns=150, answers_cursor=True, **folders) as screen:

    def ask(line):
        screen.type(line + "\r")
        screen.wait(line, PATIENCE)
        screen.wait(at_prompt, PATIENCE)
        text = screen.text
        screen.type("\x0c")
        screen.wait(lambda screen: line not in screen.text, PATIENCE)
        return text

    def wait_for(pattern):
        screen.wait(lambda screen: re.search(pattern, screen.text), PATIENCE)
        return re.search(pattern, screen.text)

    screen.wait(at_prompt, PATIENCE)
    started = ask(f"collect -- {program} &")
    collector = re.search(r"\[1\] collector (\d+):", started)
    assert collector is not None
    found["collector"] = int(collector[1])
    while not (name := re.search(r"fd:\d+/\d+", jobs := ask("jobs"))) or "tick" not in (
        tasks := ask("tasks")
    ):
        pass
    found["name"], found["jobs"], found["tasks"] = name[0], jobs, tasks
    found["buffer"] = ask(f"buffer {name[0]} --function __do_sys_getppid -n 5")
    screen.type(f"view {name[0]}\r")
    # The cursor's record, their number, and how often the buffer was read: 1/5123  0%  read once.
    shown = r"\d+/(\d+)  \d+%  read (once|\d+ times)"
    first = wait_for(shown)
    screen.wait(
        lambda screen: (now := re.search(shown, screen.text)) and now[2] != first[2], PATIENCE
    )
    found["grew"] = int(wait_for(shown)[1]) - int(first[1])
    found["view"] = screen.text
    screen.type("q")
    screen.wait(at_prompt, PATIENCE)
    screen.type("\x0c")
    found["end"] = ask("jobs --end 1")
    found["kept"] = ask("keep")
    # Another collector, which ends with the shell.
    ask(f"collect -- {program} &")
    screen.type("exit\r")
    found["status"] = screen.end(PATIENCE)
    found["last"] = screen.text
print(json.dumps(found))
