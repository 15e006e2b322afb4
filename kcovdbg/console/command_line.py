# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parse command lines: words with quotes, several commands, a pipeline to the shell, redirection,
comments.

::

    tasks --mode trace-pc       # a comment
    buffer 41 | grep ext4       the rest of the line goes to sh as it is
    objects --json > state.json
    collect -- sleep 60 &       in the background
    tasks; objects              one after the other; an error ends the line
    < look.kcovdbg              the commands in a file, as in crash
    ! dmesg | tail              a shell command
    tasks?                      help tasks, as is ?tasks
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from kcovdbg.errors import LineError


class Word(NamedTuple):
    """One word, unquoted."""

    text: str
    column: int
    """Column of its first character."""


class Redirection(NamedTuple):
    """A file for the output."""

    path: str
    append: bool
    column: int


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A line in its parts."""

    source: str
    words: tuple[Word, ...] = ()
    redirection: Redirection | None = None
    pipeline: str | None = None
    """The shell command that reads the output."""
    is_background: bool = False
    """Whether the line ends with ``&``."""
    shell: str | None = None
    """A shell command, for a line that has no command of ours."""
    script: Word | None = None
    """A file of command lines to run."""

    @property
    def texts(self) -> list[str]:
        """The texts of the words."""
        return [word.text for word in self.words]


# Quotes may be open at the end of the line, because the line may still be typed.
_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+)
    | (?P<comment>\#.*)
    | (?P<pipe>\|)
    | (?P<redirect>>>?)
    | (?P<refused>[0-9]+> | [<;&])
    # "[<ffffffff8108cb35>]" of an oops is no redirection.
    | (?P<word>(?: \[<[0-9a-fA-Fx]+>\] | [^\s"'\\|<>;&] | \\.?
                 | "(?:[^"\\]|\\.)*(?:"|\\?$) | '[^']*'? )+)""",
    re.VERBOSE | re.DOTALL,
)
_CLOSED: Final = re.compile(
    r"""(?: [^"'\\] | \\. | "(?:[^"\\]|\\.)*" | '[^']*' )*""", re.VERBOSE | re.DOTALL
)
_BLANK = re.compile(r"\s*(?:#.*)?", re.DOTALL)
_QUOTING: Final = re.compile(
    r"""\\(?P<escaped>.?) | "(?P<double>(?:[^"\\]|\\.)*)(?:"|\\?$)
    | '(?P<single>[^']*)'? | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)
_REFUSALS = {
    "<": "< FILE stands alone: it runs the commands in a file",
    ";": "only one command here",
    "&": "& must end the line: collect -- COMMAND &",
}


# The end of an operator of the shell behind which a file follows that is written.
_WRITES: Final = re.compile(r">\|?$|>&$")


def find_outputs(pipeline: str) -> list[str]:
    """Return the paths that redirections in a shell command write to, also inside of parentheses.

    Files that its programs write, as tee does, cannot be known.
    """
    words = shlex.shlex(pipeline, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    words.commenters = ""
    try:
        tokens = list(words)
    except ValueError:
        # The shell reports an open quote.
        return []
    # The number in >&2 is a descriptor, and hardly the name of an input.
    return [path for token, path in pairwise(tokens) if _WRITES.search(token)]


def split_commands(source: str) -> list[str]:
    """Return the commands of a line, which semicolons separate. A shell command or a pipeline
    extends to the end of the line.
    """
    commands: list[str] = []
    start = 0
    for match in _TOKEN.finditer(source):
        if match.lastgroup in ("comment", "pipe") or source[start:].lstrip().startswith("!"):
            break
        if match[0] == ";":
            commands.append(source[start : match.start()])
            start = match.end()
    return [*commands, source[start:]]


def parse_line(source: str) -> CommandLine:
    """Parse one command of a line.

    :raises LineError: when it is wrong.
    """
    stripped = source.lstrip()
    if stripped.startswith("!"):
        return CommandLine(source, shell=stripped[1:].strip())
    if stripped.startswith("<"):
        return _parse_script(source, len(source) - len(stripped))
    if stripped.startswith("?"):
        # Parse the rest as the words of any other command.
        line = parse_line(source.replace("?", " ", 1))
        return replace(
            line, source=source, words=(Word("help", len(source) - len(stripped)), *line.words)
        )
    words: list[Word] = []
    redirection: Redirection | None = None
    pending: re.Match[str] | None = None
    for match in _TOKEN.finditer(source):
        kind, text, column = match.lastgroup, match[0], match.start()
        if kind == "word":
            _refuse_open_quote(source, match)
            word = Word(unquote(text), column)
            if pending is None:
                words.append(word)
            else:
                redirection = Redirection(word.text, pending[0] == ">>", column)
                pending = None
        elif kind == "comment":
            break
        elif kind == "refused" or (kind == "redirect" and redirection is not None):
            is_redirected = redirection is not None or pending is not None
            is_last = _BLANK.fullmatch(source, match.end()) is not None
            if text == "&" and words and is_last and not is_redirected:
                return CommandLine(source, tuple(words), is_background=True)
            raise LineError(
                _REFUSALS.get(text, "only standard output can be redirected, and only once"),
                source,
                column,
            )
        elif pending is not None and kind in ("redirect", "pipe"):
            break
        elif kind == "redirect":
            pending = match
        elif kind == "pipe":
            return _pipe(source, words, redirection, match)
    if pending is not None:
        raise LineError(f"missing file after '{pending[0]}'", source, pending.end())
    if redirection is not None and not words:
        raise LineError("missing command before the redirection", source, 0)
    return CommandLine(source, _expand_help(words), redirection)


def _parse_script(source: str, column: int) -> CommandLine:
    words = parse_line(source.replace("<", " ", 1)).words
    if not words:
        raise LineError("missing file after '<'", source, column)
    if len(words) > 1:
        raise LineError(_REFUSALS["<"], source, column)
    return CommandLine(source, script=words[0])


def _pipe(
    source: str, words: list[Word], redirection: Redirection | None, match: re.Match[str]
) -> CommandLine:
    if not words:
        raise LineError("missing command before '|'", source, match.start())
    if redirection is not None:
        raise LineError(
            "the output already goes to a file",
            source,
            match.start(),
            hint="use tee in the pipeline",
        )
    pipeline = source[match.end() :].strip()
    if not pipeline:
        raise LineError("missing shell command after '|'", source, match.end())
    return CommandLine(source, _expand_help(words), pipeline=pipeline)


def _expand_help(words: list[Word]) -> tuple[Word, ...]:
    """Turn ``tasks?`` into ``help tasks``."""
    if len(words) == 1 and len(words[0].text) > 1 and words[0].text.endswith("?"):
        name = words[0]
        return Word("help", name.column), Word(name.text[:-1], name.column)
    return tuple(words)


def _refuse_open_quote(source: str, word: re.Match[str]) -> None:
    closed = _CLOSED.match(word[0])
    end = 0 if closed is None else closed.end()
    if end < len(word[0]):
        mark = word[0][end]
        message = f"unterminated quote: {mark}"
        if mark == "\\":
            message = "unexpected end of line after '\\'"
        raise LineError(message, source, word.start() + end)


def unquote(text: str) -> str:
    """Return a word without its quotes, also if they are open."""
    if not any(character in text for character in "\\\"'"):
        return text
    parts: list[str] = []
    for match in _QUOTING.finditer(text):
        if match["double"] is not None:
            # Within double quotes, a backslash quotes only these characters, as in sh.
            parts.append(re.sub(r'\\(["\\$`])', r"\1", match["double"]))
        else:
            parts += filter(None, match.group("escaped", "single", "plain"))
    return "".join(parts)


class Piece(NamedTuple):
    """A piece of a line. All pieces together are the line."""

    kind: str
    """``blank``, ``word``, ``redirect``, ``pipe`` (to the line's end), ``comment``, ``shell``
    (from ``!`` on) or ``other``.
    """
    text: str
    column: int


def split_pieces(text: str) -> Iterator[Piece]:
    """Split a line into its pieces; it may still be typed, or be wrong."""
    stripped = text.lstrip()
    if stripped.startswith("!"):
        blanks = len(text) - len(stripped)
        if blanks:
            yield Piece("blank", text[:blanks], 0)
        yield Piece("shell", stripped, blanks)
        return
    for match in _TOKEN.finditer(text):
        assert match.lastgroup is not None
        if match.lastgroup == "pipe":
            yield Piece("pipe", text[match.start() :], match.start())
            return
        kind = match.lastgroup
        if kind == "refused":
            kind = "redirect" if match[0].endswith(">") else "other"
        yield Piece(kind, match[0], match.start())
