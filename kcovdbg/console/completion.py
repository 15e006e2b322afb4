# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completion: the word at the cursor, and what it may become."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Final

from kcovdbg.console.argument import Argument, Count, Value
from kcovdbg.console.command import Command, CommandTable
from kcovdbg.console.command_line import Piece, quote, split_pieces, unquote
from kcovdbg.console.completion_index import LIMIT, Candidate, Choices, Index
from kcovdbg.console.text import escape
from kcovdbg.errors import UsageError


class CursorContext(Enum):
    """The kind of word that the cursor is in."""

    WORD = "word"
    FILE = "file"
    """After ``>``."""
    SHELL = "shell"
    """In a shell command."""
    PROGRAM = "program"
    """The name of a program in a shell command."""
    COMMENT = "comment"


@dataclass(frozen=True, slots=True)
class Cursor:
    """The word to complete."""

    context: CursorContext
    words: tuple[str, ...]
    """The words before it, unquoted."""
    prefix: str
    """The part of the word that was typed, unquoted."""
    column: int
    """Column of the word's first character."""


def find_cursor(text: str) -> Cursor:
    """Return the word at the end of a text, which is the line up to the cursor."""
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
            return _find_in_shell(piece, tuple(words))
        elif piece.kind == "comment":
            return Cursor(CursorContext.COMMENT, tuple(words), "", len(text))
        last = piece
    if last is not None and last.kind == "word":
        return Cursor(context, tuple(words), unquote(last.text), last.column)
    return Cursor(context, tuple(words), "", len(text))


def _find_in_shell(piece: Piece, words: tuple[str, ...]) -> Cursor:
    """Return the last word of a shell command."""
    typed = re.search(r"[^\s|!;&]*$", piece.text)
    assert typed is not None
    is_first = piece.text[: typed.start()].rstrip().endswith(("|", "!", ";", "&"))
    return Cursor(CursorContext.PROGRAM if is_first else CursorContext.SHELL, words, typed[0], piece.column + typed.start())


_BUFFER_PREFIXES: Final = (
    Candidate("kcov:", "buffer of an object, by its address"),
    Candidate("area:", "buffer by its address"),
    Candidate("fd:", "buffer behind a descriptor: TID/FD"),
    Candidate("saved:", "buffer of saved state: a CPU, or tTID"),
    Candidate("file:", "trace file"),
)
_DIRECTORY_SCAN: Final = 5000


def find_candidates(cursor: Cursor, commands: CommandTable, index: Index) -> list[Candidate]:
    """Return the candidates for the word at the cursor; each replaces the whole word."""
    if cursor.context is CursorContext.FILE:
        return _limit(_files(cursor.prefix))
    if cursor.context is CursorContext.SHELL:
        return _limit(_files(cursor.prefix)) if cursor.prefix else []
    if cursor.context is CursorContext.PROGRAM:
        return _limit(_files(cursor.prefix) if "/" in cursor.prefix else _programs(cursor.prefix)) if cursor.prefix else []
    if cursor.context is CursorContext.COMMENT:
        return []
    if cursor.words:
        return _limit(_in_command(cursor.words, cursor.prefix, commands, index))
    return _limit(_command_names(cursor.prefix, commands))


def complete_word(line: str, word: str, commands: CommandTable, index: Index) -> list[str]:
    """Return what may take the place of the end of a line, for programs that replace only that.

    :param line: up to the cursor.
    :param word: the end of it that is replaced, as the program splits lines.
    """
    cursor = find_cursor(line)
    typed = line[cursor.column :]
    if not typed.endswith(word):
        return []
    found = [entry.text for entry in find_candidates(cursor, commands, index)]
    head = len(typed) - len(word)
    # The program types what its words have in common: words that begin otherwise would shorten the line.
    first = [text for text in found if text.startswith(cursor.prefix)]
    return [quote(text)[head:] for text in first] or (found if len(found) == 1 and not head else [])


def _limit(entries: Iterable[Candidate]) -> list[Candidate]:
    unique: dict[str, Candidate] = {}
    for entry in entries:
        unique.setdefault(entry.text, entry)
        if len(unique) == LIMIT:
            break
    return list(unique.values())


def _in_command(words: tuple[str, ...], prefix: str, commands: CommandTable, index: Index) -> Iterator[Candidate]:
    try:
        command = commands.find(words[0])
    except UsageError:
        return
    options = {name: argument for argument in command.options if argument.is_option for name in argument.names}
    wanted, preceding, used, rest = _follow(command, options, words[1:])
    if rest is not None:
        if rest.value is Value.COMMAND:
            yield from _in_command(words[preceding:], prefix, commands, index)
        elif prefix:
            yield from _files(prefix)
        return
    if wanted is not None and wanted.is_option:
        yield from _values(command, wanted, prefix, commands, index)
        return
    if prefix.startswith("-"):
        yield from _options(command, prefix, options, used, commands, index)
        return
    if wanted is not None:
        yield from _values(command, wanted, prefix, commands, index)
        if wanted.count is Count.REST:
            return
    if not prefix:
        yield from _options(command, "-", options, used, commands, index)


def _follow(
    command: Command, options: Mapping[str, Argument], words: tuple[str, ...]
) -> tuple[Argument | None, int, frozenset[str], Argument | None]:
    """Assign the words after a command's name to its arguments.

    :return: the argument whose value comes next; how many words, the command's name included, precede the rest; the options
        that were given; the argument that takes the rest of the line, if it has begun.
    """
    positional = [argument for argument in command.arguments if not argument.is_option]
    pending: Argument | None = None
    used: set[str] = set()
    only_positional = False
    taken = 0
    for number, word in enumerate(words, 1):
        if pending is not None:
            pending = None
        elif word == "--" and not only_positional:
            only_positional = True
        elif word.startswith("-") and not only_positional and word.split("=", 1)[0] in options:
            argument = options[word.split("=", 1)[0]]
            if argument.count is not Count.ANY:
                used.update(argument.names)
            if argument.value is not Value.FLAG and "=" not in word:
                pending = argument
        else:
            current = _positional(positional, taken)
            if current is not None and current.count is Count.REST:
                return None, number, frozenset(used), current
            taken += 1
    return pending or _positional(positional, taken), len(words) + 1, frozenset(used), None


def _positional(arguments: list[Argument], index: int) -> Argument | None:
    """Return the positional argument of a word; one that takes many takes all that follow."""
    for number, argument in enumerate(arguments):
        if number == index or argument.count in (Count.ANY, Count.SOME, Count.REST):
            return argument
    return None


def _command_names(prefix: str, commands: CommandTable) -> Iterator[Candidate]:
    for command in commands:
        if command.name.startswith(prefix):
            yield Candidate(command.name, command.summary)
    for command in commands:
        for alias in command.aliases:
            # Do not offer aliases to those who do not know them.
            if prefix and alias.startswith(prefix):
                yield Candidate(alias, command.summary)


def _options(
    command: Command,
    prefix: str,
    options: Mapping[str, Argument],
    used: frozenset[str],
    commands: CommandTable,
    index: Index,
) -> Iterator[Candidate]:
    name, equals, value = prefix.partition("=")
    if equals:
        if name in options and options[name].value is not Value.FLAG:
            for entry in _values(command, options[name], value, commands, index):
                yield Candidate(f"{name}={entry.text}", entry.meta)
        return
    for name, argument in options.items():
        # Offer --all instead of -a, unless the short name was typed.
        is_best = name == max(argument.names, key=len) or prefix == name
        if name.startswith(prefix) and name not in used and is_best:
            yield Candidate(name, argument.full_help)


def _values(command: Command, argument: Argument, prefix: str, commands: CommandTable, index: Index) -> Iterator[Candidate]:
    if argument.choices:
        yield from (Candidate(choice) for choice in argument.choices if choice.startswith(prefix))
    elif argument.find_candidates is not None:
        found = argument.find_candidates()
        yield from (Candidate(name, meaning) for name, meaning in found if name.lower().startswith(prefix.lower()))
    elif argument.value is Value.COMMAND:
        yield from _command_names(prefix, commands)
    elif argument.value is Value.BUFFER:
        yield from _buffers(prefix, index)
    elif argument.value is Value.FUNCTION:
        yield from _code(prefix, index)
    elif argument.value is Value.FILE:
        yield from _files(prefix)
    elif argument.value in (Value.COLUMNS, Value.KEYS):
        yield from _columns(command, prefix, in_text=argument.value is Value.COLUMNS)
    else:
        for choices in _SOURCES.get(argument.value, _nothing)(index):
            yield from choices.matching(prefix)


def _columns(command: Command, prefix: str, *, in_text: bool) -> Iterator[Candidate]:
    """Iterate over keys, or headings in text, that follow those before the last comma."""
    before, comma, typed = prefix.rpartition(",")
    given = before.split(",")
    for row_type in command.row_types:
        from kcovdbg.console.json_schema import keys_of

        meanings = {key.name: key.meaning.text for key in keys_of(row_type)}
        for column in row_type.columns:
            name = column.heading.lower() if in_text else column.key
            if name.startswith(typed) and name not in given and " " not in name and (in_text or not column.text_only):
                yield Candidate(f"{before}{comma}{name}", meanings.get(column.key, ""))


def _nothing(_index: Index) -> tuple[Choices, ...]:
    return ()


_SOURCES: Final[Mapping[Value, Callable[[Index], tuple[Choices, ...]]]] = {
    Value.TID: lambda index: (index.tids,),
    Value.TASK: lambda index: (index.tids, index.comms),
    Value.ADDRESS: lambda index: (index.objects,),
    Value.OBJECT: lambda index: (index.objects, index.collecting, index.comms),
    Value.REGISTERED: lambda index: (index.handles, index.collecting, index.comms),
    Value.HANDLE: lambda index: (index.handles,),
    Value.SUBJECT: lambda index: (index.collecting, index.handles, index.objects, index.tids),
    Value.MODE: lambda index: (index.modes,),
    Value.BUFFER_NAME: lambda index: (index.kept,),
}


def _buffers(prefix: str, index: Index) -> Iterator[Candidate]:
    name, colon, rest = prefix.partition(":")
    if not colon:
        yield from index.collecting.matching(prefix)
        yield from index.kept.matching(prefix)
        yield from (entry for entry in _BUFFER_PREFIXES if entry.text.startswith(prefix))
        return
    sources = {"kcov": index.objects, "area": index.areas, "fd": index.descriptors, "saved": index.saved}
    found: Iterable[Candidate] = _files(rest) if name == "file" else sources[name].matching(rest) if name in sources else ()
    yield from (Candidate(f"{name}:{entry.text}", entry.meta) for entry in found)


def _code(prefix: str, index: Index) -> Iterator[Candidate]:
    """Iterate over functions and source files, those last whose name alone was typed."""
    if "/" not in prefix:
        yield from index.code.functions(prefix)
    yield from index.code.files(prefix)
    if prefix and "/" not in prefix:
        yield from index.code.named_files(prefix)


def _files(prefix: str) -> Iterator[Candidate]:
    """Iterate over files and directories, which end in a slash."""
    head, _, start = prefix.rpartition("/")
    head = prefix[: len(prefix) - len(start)]
    try:
        with os.scandir(Path(head).expanduser() if head else Path()) as scan:
            found = sorted(
                (entry.name, _is_directory(entry)) for entry in islice(scan, _DIRECTORY_SCAN) if entry.name.startswith(start)
            )
    except (OSError, ValueError, RuntimeError):
        # No such directory, not readable, or no such user.
        return
    hidden = start.startswith(".")
    visible = (pair for pair in found if hidden or not pair[0].startswith("."))
    for name, is_directory in visible:
        # A name that cannot be typed cannot be completed.
        if escape(name) == name:
            yield Candidate(f"{head}{name}{'/' if is_directory else ''}", "directory" if is_directory else "")


def _programs(prefix: str) -> Iterator[Candidate]:
    """Iterate over the programs in PATH, for a shell's command."""
    for folder in os.get_exec_path():
        # The current directory is for those who type ./
        for entry in _files(f"{folder}/{prefix}") if folder.startswith("/") else ():
            if os.access(entry.text, os.X_OK) and not entry.text.endswith("/"):
                yield Candidate(entry.text.rpartition("/")[2], folder)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISDIR(entry.stat().st_mode)
    except OSError:
        return False
