# SPDX-License-Identifier: LGPL-2.1-or-later
"""Somebody before a terminal: collects in the background, looks at the running collector from the same shell, and ends it.

What is to be seen is waited for; anything else ends with the screen on standard error. Arguments: the command that is the
shell, and the path of a program that ticks. Prints what it read off the screen.
"""

import json
import re
import sys

from tests.unit.screen import Screen

PATIENCE = 300
*command, program = sys.argv[1:]
found = {}


def at_prompt(screen):
    return screen.lines[screen.screen.cursor.y] == "kcovdbg>"


with Screen(*command, rows=50, columns=150, answers_cursor=True, XDG_STATE_HOME="/tmp/exchange") as screen:

    def ask(line):
        screen.type(line + "\r")
        screen.wait(line, PATIENCE)
        screen.wait(at_prompt, PATIENCE)
        text = screen.text
        screen.type("\x0c")
        screen.wait(lambda screen: line not in screen.text, PATIENCE)
        return text

    screen.wait(at_prompt, PATIENCE)
    started = ask(f"collect -- {program} &")
    found["collector"] = int(re.search(r"\[1\] collector (\d+):", started)[1])
    while not (name := re.search(r"fd:\d+/\d+", jobs := ask("jobs"))) or "tick" not in (tasks := ask("tasks")):
        pass
    found["name"], found["jobs"], found["tasks"] = name[0], jobs, tasks
    found["buffer"] = ask(f"buffer {name[0]} -n 5")
    screen.type(f"view {name[0]}\r")
    screen.wait("look 1", PATIENCE)
    first = int(re.search(r"1/(\d+) ", screen.text)[1])
    screen.wait("look 4", PATIENCE)
    screen.type("G")
    screen.wait(lambda screen: re.search(r"(\d+)/\1  100%", screen.text), PATIENCE)
    found["grew"] = int(re.search(r"(\d+)/\1  100%", screen.text)[1]) - first
    screen.wait("look 6", PATIENCE)
    found["view"] = screen.text
    screen.type("q")
    screen.wait(at_prompt, PATIENCE)
    screen.type("\x0c")
    found["end"] = ask("jobs --end 1")
    found["kept"] = ask("keep")
    # One more, that leaving ends.
    ask(f"collect -- {program} &")
    screen.type("exit\r")
    found["status"] = screen.end(PATIENCE)
    found["last"] = screen.text
print(json.dumps(found))
