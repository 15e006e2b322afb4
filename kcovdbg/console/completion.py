# SPDX-License-Identifier: LGPL-2.1-or-later
"""Complete the word at the cursor of a line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.console.argument import Argument, Count, Value
from kcovdbg.console.command import Command, CommandTable
from kcovdbg.console.command_line import Piece, split_pieces, unquote
from kcovdbg.console.completion_index import Candidate, Index, find_matching
from kcovdbg.console.help_text import BUFFER_NAMES
from kcovdbg.console.text import escape
from kcovdbg.errors import UsageError
from kcovdbg.inputs.input_commands import quote
from kcovdbg.user_folder import expand_user


class CursorContext(Enum):
    """The kind of word that the cursor is in."""

    WORD = "word"
    FILE = "file"
    """After ``>`` or in a shell command."""
    PROGRAM = "program"
    """The name of a program in a shell command."""
    NONE = "none"
    """In a comment, or before a word of a shell command."""


class Cursor(NamedTuple):
    """The word to complete."""

    context: CursorContext
    words: tuple[str, ...]
    """The words before the word, without quotes."""
    prefix: str
    """The typed part of the word, without quotes."""
    column: int
    """Column of the word's first character."""


def find_cursor(text: str) -> Cursor:
    """Return the word at the end of a text.

    :param text: the line up to the cursor.
    """
    words: list[str] = []
    context = CursorContext.WORD
    last: Piece | None = None
    for piece in split_pieces(text):
        if last is not None and last.kind == "word":
            if context is CursorContext.WORD:
                words.append(unquote(last.text))
            context = CursorContext.WORD
        if piece.kind == "redirect" or (piece.text == "<" and not words):
            context = CursorContext.FILE
        elif piece.text == ";":
            words, context = [], CursorContext.WORD
        elif piece.kind in ("pipe", "shell"):
            typed = re.split(r"[\s|!;&]", piece.text)[-1]
            before = piece.text.removesuffix(typed).rstrip()
            context = CursorContext.FILE
            if not typed:
                context = CursorContext.NONE
            elif "/" not in typed and before.endswith(("|", "!", ";", "&")):
                context = CursorContext.PROGRAM
            return Cursor(context, tuple(words), typed, len(text) - len(typed))
        elif piece.kind == "comment":
            return Cursor(CursorContext.NONE, tuple(words), "", len(text))
        last = piece
    if last is not None and last.kind == "word":
        return Cursor(context, tuple(words), unquote(last.text), last.column)
    return Cursor(context, tuple(words), "", len(text))


LIMIT: Final = 200
"""Limit for the candidates in a menu. Nobody reads a longer one, and it is slow to draw."""
_DIRECTORY_SCAN: Final = 5000


def find_candidates(cursor: Cursor, commands: CommandTable, index: Index) -> list[Candidate]:
    """Return the candidates for the word at the cursor; each replaces the whole word."""
    if cursor.context is CursorContext.NONE:
        return []
    if cursor.context is CursorContext.FILE:
        found = _files(cursor.prefix)
    elif cursor.context is CursorContext.PROGRAM:
        found = _programs(cursor.prefix)
    elif cursor.words:
        found = _in_command(cursor.words, cursor.prefix, commands, index)
    else:
        found = _command_names(cursor.prefix, commands)
    unique: dict[str, Candidate] = {}
    for entry in found:
        unique.setdefault(entry.text, entry)
        if len(unique) == LIMIT:
            break
    return list(unique.values())


def complete_word(line: str, word: str, commands: CommandTable, index: Index) -> list[str]:
    """Return the words that may replace the last word of a line, for another program that
    completes.

    :param line: the line up to the cursor.
    :param word: the last word, as the program splits lines; it may be only the end of ours.
    """
    cursor = find_cursor(line)
    typed = line[cursor.column :]
    if not typed.endswith(word):
        return []
    found = [entry.text for entry in find_candidates(cursor, commands, index)]
    head = len(typed) - len(word)
    # The program inserts the common beginning of the words. Words that do not begin with the typed
    # part would make it shorter than that.
    first = [quote(text)[head:] for text in found if text.startswith(cursor.prefix)]
    if first or len(found) > 1 or head:
        return first
    return found


def _in_command(
    words: tuple[str, ...], prefix: str, commands: CommandTable, index: Index
) -> Iterator[Candidate]:
    try:
        command = commands.find(words[0])
    except UsageError:
        return
    options: dict[str, Argument] = {}
    for argument in command.options:
        if argument.is_option:
            options.update(dict.fromkeys(argument.names, argument))
    wanted, rest = _follow(command, options, words[1:])
    if wanted is not None and rest:
        if wanted.value is Value.COMMAND:
            yield from _in_command(rest, prefix, commands, index)
        elif prefix:
            yield from _files(prefix)
        return
    if wanted is not None and (wanted.is_option or not prefix.startswith("-")):
        yield from _values(command, wanted, prefix, commands, index)
        if wanted.is_option or wanted.takes_rest:
            return
    if not prefix or prefix.startswith("-"):
        yield from _options(command, prefix or "-", options, commands, index)


def _follow(
    command: Command, options: Mapping[str, Argument], words: tuple[str, ...]
) -> tuple[Argument | None, tuple[str, ...]]:
    """Assign the words after a command's name to its arguments.

    :return: the argument whose value comes next, and if that argument takes the rest of the line,
        its words so far.
    """
    positional = [argument for argument in command.arguments if not argument.is_option]
    pending: Argument | None = None
    only_positional = False
    taken = 0
    for number, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if pending is not None:
            pending = None
        elif word == "--" and not only_positional:
            only_positional = True
        elif word.startswith("-") and not only_positional and name in options:
            if options[name].value is not Value.FLAG and not equals:
                pending = options[name]
        else:
            current = _positional(positional, taken)
            if current is not None and current.takes_rest:
                return current, words[number:]
            taken += 1
    return pending or _positional(positional, taken), ()


def _positional(arguments: list[Argument], index: int) -> Argument | None:
    """Return the positional argument of a word. An argument that takes several words takes all
    words that follow.
    """
    for number, argument in enumerate(arguments):
        if number == index or argument.count in (Count.ANY, Count.SOME, Count.REST):
            return argument
    return None


def _command_names(prefix: str, commands: CommandTable) -> Iterator[Candidate]:
    for command in commands:
        for name in command.names:
            # Offer an alias only when its beginning was typed.
            if name.startswith(prefix) and (prefix or name == command.name):
                yield Candidate(name, command.summary)


def _options(
    command: Command,
    prefix: str,
    options: Mapping[str, Argument],
    commands: CommandTable,
    index: Index,
) -> Iterator[Candidate]:
    name, equals, value = prefix.partition("=")
    if equals and name in options:
        found = _values(command, options[name], value, commands, index)
        yield from (Candidate(f"{name}={entry.text}", entry.meta) for entry in found)
    for name, argument in options.items():
        # Offer --all instead of -a, unless the short name was typed.
        is_best = name == max(argument.names, key=len) or prefix == name
        if name.startswith(prefix) and is_best:
            yield Candidate(name, argument.full_help)


def _values(
    command: Command, argument: Argument, prefix: str, commands: CommandTable, index: Index
) -> Iterator[Candidate]:
    if argument.choices:
        yield from (Candidate(choice) for choice in argument.choices if choice.startswith(prefix))
    elif argument.find_candidates is not None:
        for name, meaning in argument.find_candidates():
            if name.lower().startswith(prefix.lower()):
                yield Candidate(name, meaning)
    elif argument.value is Value.COMMAND:
        yield from _command_names(prefix, commands)
    elif argument.value is Value.BUFFER:
        yield from _buffers(prefix, index)
    elif argument.value is Value.FUNCTION:
        yield from index.code.matching(prefix)
    elif argument.value is Value.SUBJECT:
        yield from find_matching(index.words.get(argument.value, ()), prefix)
        if prefix and not prefix[0].isdigit():
            yield from index.code.matching(prefix)
    elif argument.value is Value.FILE:
        yield from _files(prefix)
    elif argument.value in (Value.COLUMNS, Value.KEYS):
        yield from _columns(command, prefix, in_text=argument.value is Value.COLUMNS)
    else:
        yield from find_matching(index.words.get(argument.value, ()), prefix)


def _columns(command: Command, prefix: str, *, in_text: bool) -> Iterator[Candidate]:
    """Iterate over the keys or headings of columns that are not before the last comma yet."""
    before, comma, typed = prefix.rpartition(",")
    given = before.split(",")
    for row_type in command.row_types:
        for column in row_type.columns:
            name = column.heading.lower() if in_text else column.key
            is_there = in_text or not column.text_only
            if is_there and name.startswith(typed) and name not in given and " " not in name:
                yield Candidate(f"{before}{comma}{name}", column.meaning)


def _buffers(prefix: str, index: Index) -> Iterator[Candidate]:
    name, colon, rest = prefix.partition(":")
    if not colon:
        words = [*index.words.get(Value.BUFFER, ()), *index.words.get(Value.BUFFER_NAME, ())]
        for form, meaning in BUFFER_NAMES:
            kind, is_kind, _ = form.partition(":")
            if is_kind:
                words.append(Candidate(f"{kind}:", meaning))
        yield from find_matching(words, prefix)
        return
    found = find_matching(index.words.get(f"{name}:", ()), rest)
    if name == "file":
        found = _files(rest)
    yield from (Candidate(f"{name}:{entry.text}", entry.meta) for entry in found)


def _files(prefix: str) -> Iterator[Candidate]:
    """Iterate over files and directories; names of directories end with a slash."""
    start = prefix.rpartition("/")[2]
    head = prefix.removesuffix(start)
    try:
        with os.scandir(expand_user(head) if head else Path()) as scan:
            every = list(islice(scan, _DIRECTORY_SCAN))
    except (OSError, ValueError, RuntimeError):
        # The directory is missing or unreadable, or there is no such user.
        return
    for entry in sorted(every, key=attrgetter("name")):
        name = entry.name
        is_hidden = name.startswith(".") and not start.startswith(".")
        # A name that cannot be typed cannot be completed.
        if is_hidden or not name.startswith(start) or escape(name) != name:
            continue
        if os.path.isdir(entry):  # noqa: PTH112 - False where it cannot be read
            yield Candidate(f"{head}{name}/", "directory")
        else:
            yield Candidate(f"{head}{name}")


def _programs(prefix: str) -> Iterator[Candidate]:
    """Iterate over the programs in PATH, for a shell command."""
    for folder in os.get_exec_path():
        # Programs of the current directory are typed with ./
        if not folder.startswith("/"):
            continue
        for entry in _files(f"{folder}/{prefix}"):
            if os.access(entry.text, os.X_OK) and not entry.text.endswith("/"):
                yield Candidate(entry.text.rpartition("/")[2], folder)
