# SPDX-License-Identifier: LGPL-2.1-or-later
"""Help, made from the command table, and the glossary."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kcovdbg.console.argument import BUFFER_FORMS, Argument, Value
from kcovdbg.console.column import ANY, LIST, Column, RowType
from kcovdbg.console.command import BUFFERS_TOPIC, OUTPUT_OPTIONS, Command, CommandTable, Example
from kcovdbg.console.renderable import Line, Lines, Table, text_lines, wrap_line
from kcovdbg.errors import UsageError

_WIDTH = 80
_USAGE = "Usage: "
_INDENT = 4
_FIRST_EXAMPLES: Final = 2
OUTPUT_TOPIC: Final = "output"
"""A topic of ``help`` beside commands: the options that most of them share."""
_ARGUMENT_WIDTH = 20
_FIRST: Final = (
    "tasks",
    "objects",
    "buffer",
    "top",
    "view",
    "points",
    "why",
    "check",
    "last",
    "collect",
)
"""The commands that help lists first: what there is, what was covered, what is wrong, and how to
collect.
"""

_ARGUMENT_COLUMNS: Final = (
    Column("names", LIST, meaning="the names of an option, or the name of an argument"),
    Column("value", value="value.value", meaning="kind of the value"),
    Column("count", meaning="how many values it takes", null="the usual number"),
    Column("choices", LIST, meaning="the values to choose from"),
    Column("help", meaning="what it is for"),
)
_COMMAND_COLUMNS: Final = (
    Column("command", value="name", meaning="name of the command"),
    Column("summary", meaning="what it does, in a line"),
    Column("aliases", LIST, json_only=True, meaning="its other names"),
    Column("topic", json_only=True, meaning="the group that help lists it in"),
    Column("usage", json_only=True, meaning="the command with its arguments"),
    Column("description", json_only=True, meaning="what the summary does not say; may be empty"),
    Column(
        "needs",
        LIST,
        value=lambda command: sorted(need.name.lower() for need in command.needs),
        json_only=True,
        meaning="what it cannot do without",
    ),
    Column(
        "arguments",
        ANY,
        items=_ARGUMENT_COLUMNS,
        json_only=True,
        meaning="its arguments and options",
    ),
    Column(
        "examples",
        ANY,
        items=(
            Column("line", meaning="the line"),
            Column("purpose", meaning="what it is good for"),
        ),
        json_only=True,
        meaning="lines to type",
    ),
)
COMMAND_ROW: Final = RowType(_COMMAND_COLUMNS)
"""The row of JSON about a command."""
OPTION_ROW: Final = RowType(_ARGUMENT_COLUMNS, when="of `help output`")
"""The row of JSON about an option that commands share."""


def command_list(commands: CommandTable) -> Lines:
    """Return the list of all commands."""
    return Lines(tuple(command_list_lines(commands)), data=Table(_COMMAND_COLUMNS, tuple(commands)))


def command_list_lines(commands: CommandTable) -> Iterator[Line]:
    """Yield the names and summaries of all commands: the most used first, then others by topic."""
    width = max(len(", ".join(command.names)) for command in commands)
    groups: dict[str, list[Command]] = {"First of all": []}
    for command in commands:
        title = "First of all" if command.name in _FIRST else command.topic.value
        groups.setdefault(title, []).append(command)
    groups["First of all"].sort(key=lambda command: _FIRST.index(command.name))
    for number, (title, members) in enumerate(groups.items()):
        if number:
            yield ()
        yield (("header", f"{title}:"),)
        for command in members:
            yield (
                ("command", f"  {', '.join(command.names):<{width}}"),
                ("", f"  {command.summary}"),
            )


def command_schema(command: Command) -> Lines:
    """Return the JSON Schema of what a command writes.

    :raises UsageError: when it writes no JSON of its own.
    """
    if not command.row_types:
        raise UsageError(f"{command.name} has no JSON of its own")
    from kcovdbg.console.json_schema import schema_of

    return text_lines(json.dumps(schema_of(command.name, command.row_types), indent=1))


def command_help(command: Command, width: int | None, prefix: str = "") -> Lines:
    """Return the help of one command.

    :param prefix: the word before the command, with its space: ``kcov-show `` in GDB.
    """
    return Lines(
        tuple(_help_lines(command, min(width or _WIDTH, 100), prefix)),
        data=Table(_COMMAND_COLUMNS, [command]),
    )


def _help_lines(command: Command, width: int, prefix: str) -> Iterator[Line]:
    yield (("command", command.name), ("", f" - {command.summary}"))
    yield ()
    usage = _wrap_usage(command, width - len(_USAGE), prefix)
    yield (("header", _USAGE), ("", usage[0]))
    for line in usage[1:]:
        yield (("", " " * len(_USAGE) + line),)
    if command.aliases:
        yield (("header", "Also: "), ("", ", ".join(command.aliases)))
    if command.further_needs:
        yield (("header", "Needs: "), ("", " and ".join(command.further_needs)))
    yield from _example_lines("Examples:", command.examples[:_FIRST_EXAMPLES], width, prefix)
    yield ()
    by_topic: defaultdict[str | None, list[Argument]] = defaultdict(list)
    for option in command.options:
        by_topic[OUTPUT_TOPIC if option in OUTPUT_OPTIONS else option.topic].append(option)
    yield from _argument_lines(by_topic[None], width)
    for topic in (BUFFERS_TOPIC, OUTPUT_TOPIC):
        names = [option.names[0] for option in by_topic[topic]]
        if names:
            yield from _wrap(f"{' '.join(names)} ({prefix}help {topic})", width, _INDENT)
    for paragraph in filter(None, command.description.split("\n\n")):
        yield ()
        yield from _wrap(paragraph, width, 0)
    yield from _example_lines("More examples:", command.examples[_FIRST_EXAMPLES:], width, prefix)


def _example_lines(
    title: str, examples: Sequence[Example], width: int, prefix: str
) -> Iterator[Line]:
    if not examples:
        return
    yield ()
    yield (("header", title),)
    for example in examples:
        # A line for the host's shell is typed as it is.
        line = example.line if example.line.startswith("!") else prefix + example.line
        yield (("", " " * _INDENT), ("command", line))
        yield from _wrap(example.purpose, width, 2 * _INDENT, "hint")


_ANY_ANSWER: Final = (
    "Any answer can be piped and redirected: tasks --json | jq ., objects > objects.txt"
)


def output_help(width: int | None) -> Lines:
    """Return the help of the options that all commands with rows share."""
    lines = (
        (("", "Options of every command that has rows, unless it has one of that name itself:"),),
        (),
        *_argument_lines(OUTPUT_OPTIONS, min(width or _WIDTH, 100)),
        (),
        (("", _ANY_ANSWER),),
    )
    return Lines(lines, data=Table(_ARGUMENT_COLUMNS, OUTPUT_OPTIONS))


BUFFER_NAMES: Final = (
    ("41", "the buffer that task 41 collects into"),
    (
        "NAME, 'kc-*', all",
        "the buffers of the task with a name, of tasks by a pattern, of all tasks",
    ),
    ("kcov:0xffff…", "the buffer of an object"),
    ("area:0xffff…", "an area of a remote section, in use or cached"),
    ("fd:41/3", "the buffer of descriptor 3 of task 41"),
    (
        "saved:0, saved:t41",
        "the session that a softirq section interrupted on CPU 0, or in task 41",
    ),
    ("file:PATH", "a trace file, a list of PCs, a directory of them, or a pattern: file:cov/*"),
    ("@name", "the buffer that keep has kept under this name"),
)


_RETURN_ADDRESSES: Final = (
    "KCOV records the return address of each call of its callback, without the KASLR offset"
)


def buffers_help(options: Iterable[Argument], width: int | None) -> Lines:
    """Return the help of buffer names, and of the options of commands that read trace files.

    :param options: the options of all commands.
    """
    chosen = {option.names: option for option in options if option.topic == BUFFERS_TOPIC}
    size = min(width or _WIDTH, 100)
    column = _ARGUMENT_WIDTH + _INDENT
    names: list[Line] = []
    for name, meaning in BUFFER_NAMES:
        names += wrap_line(
            (("key", f"{' ' * _INDENT}{name} ".ljust(column)), ("", meaning)), size, column
        )
    lines = (
        (("", "WHAT is the name of a buffer:"),),
        *names,
        (),
        (("", "Trace files of other tools; without these options, kcovdbg looks at the content:"),),
        *_argument_lines(chosen.values(), size),
        (),
        (("", f"{_RETURN_ADDRESSES}. Lists of other"),),
        (("", "tools hold other addresses; a note says which convention kcovdbg found."),),
    )
    return Lines(lines, data=Table(_ARGUMENT_COLUMNS, tuple(chosen.values())))


def _wrap_usage(command: Command, width: int, prefix: str) -> list[str]:
    """Return the usage, with line breaks only between arguments."""
    lines = [prefix + command.name]
    for word in (argument.usage for argument in command.arguments):
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append(" " * _INDENT + word)
        else:
            lines[-1] += f" {word}"
    return lines


def _argument_lines(arguments: Iterable[Argument], width: int) -> Iterator[Line]:
    for argument in arguments:
        text = argument.full_help
        if argument.value is Value.BUFFER:
            text += f" ({BUFFER_FORMS})"
        column = _ARGUMENT_WIDTH + _INDENT
        head = f"{' ' * _INDENT}{argument.heading} "
        if len(head) > column:
            yield (("key", head),)
            head = ""
        yield from wrap_line((("key", head.ljust(column)), ("", text)), width, column)


def _wrap(text: str, width: int, indent: int, style: str = "") -> Iterator[Line]:
    return wrap_line(((style, " " * indent + " ".join(text.split())),), width, indent)


VOCABULARY: Final[Mapping[str, str]] = {
    "object": (
        "one struct kcov: each open() of /sys/kernel/debug/kcov makes one, with at most one buffer"
    ),
    "buffer": (
        "the memory that the kernel records into and user space maps; its first word is the number "
        "of records"
    ),
    "record": "one entry of a buffer: a PC, a comparison, or an entry or exit of a function",
    "PC": (
        "what the kernel records: the return address of the compiler's callback, minus the KASLR "
        "offset"
    ),
    "address": (
        "a PC plus the KASLR offset, as in the kernel's memory; its source location is looked up "
        "for the byte before"
    ),
    "coverage point": (
        "one call of the sanitizer's callback in the kernel's text; code without one is never "
        "recorded"
    ),
    "trace": "a sequence of records in order, kept in memory or in a trace file",
    "area": (
        "memory that the kernel records a remote section into; the section's end copies it to the "
        "owner's buffer"
    ),
    "handle": (
        "a name such as usb:1 that background work announces, to be recorded for the task that "
        "registered it"
    ),
    "section": (
        "the code between kcov_remote_start() and kcov_remote_stop(): background work that is "
        "recorded for another task"
    ),
    "session": (
        "what is recorded in a task at one moment: the task itself (local), a remote section or a "
        "softirq section"
    ),
    "role": (
        "the kind of session: local (the task traces itself), remote-section, softirq-section or "
        "none"
    ),
    "owner": (
        "the task that registered handles by KCOV_REMOTE_ENABLE; it is not traced itself in mode "
        "REMOTE"
    ),
    "saved state": (
        "what a softirq section set aside of the session that it interrupted, per CPU or in the "
        "task"
    ),
    "full": "a full buffer keeps its first records and drops all later ones",
    "mode": (
        "what a task records: TRACE_PC, TRACE_CMP, REMOTE, INIT (a buffer, not enabled) or DISABLED"
    ),
    "generation": "one layout of KCOV in mainline or stable kernels",
    "series": "a posted, unmerged patch series with its own modes or layout",
    "finding": (
        "what check reports; a violation is a finding about an invariant that the kernel guarantees"
    ),
    "transient": "a finding that a held lock or a task inside KCOV may explain",
    "racing": "a finding that kept changing while a running kernel was read",
    "unknown": "this kernel's types do not say",
    "missing": "not in the dump",
    "unreadable": "a fault when it was read",
}
"""The glossary: the words that answers use, for readers who do not know KCOV."""
