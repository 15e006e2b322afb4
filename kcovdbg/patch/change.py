# SPDX-License-Identifier: LGPL-2.1-or-later
"""A change of source files, as a unified diff says it; the text is untrusted."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import BytesHeaderParser, BytesParser
from itertools import dropwhile
from typing import Final, NamedTuple

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, PatchSet

from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import decode_utf16, unpack_data

_GIT_HEADER: Final = "diff --git "
# Git's own headers are left out: the lines with --- and +++ name each file that has hunks, also
# where names have blanks. No line of a hunk begins with one of these.
_GIT_LINES: Final = (
    "new file mode ",
    "deleted file mode ",
    "old mode ",
    "new mode ",
    "index ",
    "Binary files ",
    "GIT binary patch",
    "rename ",
    "copy ",
    "similarity index ",
    "dissimilarity index ",
)
# The start of each mail in a mailbox: git format-patch writes a commit there, archives an address.
_MAIL: Final = re.compile(
    r"From \S+ (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:"
)
_MAIL_START: Final = re.compile(rb"^(?=%s)" % _MAIL.pattern.encode(), re.MULTILINE)
_ENCODINGS: Final = ("quoted-printable", "base64")
_DIFF_SUFFIXES: Final = (".diff", ".patch")
# Limit for parts of a mail: each one inside of another takes a look at each line.
_MOST_PARTS: Final = 32
# git diff --color
_COLORED: Final = re.compile(r"^\x1b\[[0-9;]{0,20}m(diff --|--- )", re.MULTILINE)
_COLOR: Final = re.compile(r"\x1b\[[0-9;]{0,20}[mK]")
# A merge compared with all of its parents.
_COMBINED: Final = re.compile(r"diff --(cc|combined) |@@@+ ")
_BARE_HEADER: Final = re.compile(r"^(\+\+\+ |diff --git ).*(?<!\r)$", re.MULTILINE)
_PREFIXES: Final = re.compile(r"[abciow12]/")
_ESCAPES: Final = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_ESCAPE: Final = re.compile(rb"\\([0-7]{3}|[abtnvfr\"\\])")
_NO_FILE: Final = "/dev/null"
# Of diff -r: the folder and the name of a file, or folder, that the other side lacks.
_ONE_SIDED: Final = re.compile(r"^Only in (\S+): (\S+)$", re.MULTILINE)
# How unidiff's error for a line of a hunk begins, which the line follows.
_NO_HUNK_LINE: Final = "Hunk diff line expected: "
_MAY_HAVE_CODE: Final = ("", ".c", ".h", ".S", ".rs")
_HINT: Final = "git diff and diff -u write one"
_MAIL_HINT: Final = "an archive, such as lore.kernel.org, has the patch as it was sent"
# diff writes a tab in front of it, of which mail programs make blanks.
_DATE: Final = re.compile(r" \d{4}-\d\d-\d\d \d\d:\d\d:.*")


class TargetLine(NamedTuple):
    """A line of a hunk that is in the file after the change."""

    number: int
    text: str
    is_added: bool


class FileChange(NamedTuple):
    """What is added to a file."""

    file: str
    """The path after the change, relative to the root of the tree."""
    hunks: Sequence[Sequence[TargetLine]]
    """The hunks that add lines."""
    is_inside: bool
    """Whether the path stays in the tree."""

    @property
    def added_lines(self) -> Sequence[TargetLine]:
        """The lines that are added."""
        return [line for hunk in self.hunks for line in hunk if line.is_added]


def decode_diff(data: bytes, name: str) -> str:
    """Return the text of a diff, of mails with diffs, or of a terminal that showed one; it may be
    compressed.

    :param name: of the diff, for errors.
    :raises KcovdbgError: when it is damaged.
    """
    data = decode_utf16(unpack_data(name, data))
    mails = _MAIL_START.split(data)
    text = "".join(_decode_mail(mail, name) for mail in mails)
    return _COLOR.sub("", text) if _COLORED.search(text) else text


def _decode_mail(mail: bytes, name: str) -> str:
    """Return the text of a mail, also if it was encoded for transport, and the text of the diffs
    attached to it.
    """
    header = BytesHeaderParser().parsebytes(mail)
    is_multipart = header.get_content_maintype() == "multipart"
    encoding = str(header.get("Content-Transfer-Encoding", "")).strip().lower()
    if not is_multipart and encoding not in _ENCODINGS:
        return mail.decode("utf-8", "replace")
    if mail.lower().count(b"content-type:") > _MOST_PARTS:
        raise KcovdbgError(f"{name}: a mail of too many parts", hint="git mailinfo decodes one")
    texts = [mail.partition(b"\n")[0].decode("utf-8", "replace")]
    for part in BytesParser().parsebytes(mail).walk():
        if _may_be_diff(part):
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)
            texts.append(payload.decode("utf-8", "replace"))
    return "".join(f"{text}\n" for text in texts)


def _may_be_diff(part: Message) -> bool:
    if part.is_multipart():
        return False
    name = str(part.get_filename(""))
    return part.get_content_maintype() == "text" or name.endswith(_DIFF_SUFFIXES)


def read_diff(text: str, name: str) -> list[FileChange]:
    """Return the files that a diff adds lines to, in its order.

    :param name: of the diff, for errors.
    :raises KcovdbgError: when it is malformed, or no unified diff.
    """
    lines = _trim_mail(_strip_returns(text).split("\n"))
    if any(map(_COMBINED.match, lines)):
        raise KcovdbgError(
            f"{name}: a combined diff of a merge",
            hint="compare with one parent: git diff MERGE^1 MERGE",
        )
    try:
        files = PatchSet(line + "\n" for line in lines if not line.startswith(_GIT_LINES))
    except (UnidiffParseError, ValueError) as error:
        detail = str(error).strip().partition("\n")[0]
        hint = _MAIL_HINT if detail.startswith("Hunk ") else _HINT
        if detail.startswith(_NO_HUNK_LINE):
            line = detail.removeprefix(_NO_HUNK_LINE)
            detail = f"'{line}' begins with neither a blank, + nor -, as where mail wraps a line"
        raise KcovdbgError(f"{name}: not a valid diff: {detail}", hint=hint) from None
    is_of_git = _GIT_HEADER in lines
    if not files and not is_of_git and any(map(str.strip, lines)):
        if find_one_sided(text):
            raise KcovdbgError(
                f"{name}: the files that only one side has have no lines in it", hint="diff -urN"
            )
        raise KcovdbgError(f"{name}: no unified diff", hint=_HINT, wrong_file=name)
    of_files = dropwhile(lambda line: not line.startswith("--- "), lines)
    # Each file has a line with +++ as well.
    expected = len(files) + files.added
    if sum(line.startswith("+") for line in of_files) != expected:
        raise KcovdbgError(
            f"{name}: not a valid diff: a hunk is longer than its header says, as where mail "
            f"wraps a line",
            hint=_MAIL_HINT,
        )
    return list(_find_changes(files, is_of_git=is_of_git))


def find_one_sided(text: str) -> list[str]:
    """Return the paths that diff found in one of two trees only, and of which it shows no lines:
    folders, and files that may have code.
    """
    found = [posixpath.join(*match.groups()) for match in _ONE_SIDED.finditer(text)]
    return [path for path in found if posixpath.splitext(path)[1] in _MAY_HAVE_CODE]


def _find_changes(files: PatchSet, *, is_of_git: bool) -> Iterator[FileChange]:
    for file in files:
        if file.target_file in (None, _NO_FILE):
            continue
        hunks = [_target_lines(hunk) for hunk in file if hunk.added]
        if hunks:
            source, target = _unquote(file.source_file or ""), _unquote(file.target_file)
            path = _clean_path(source, target) if is_of_git else _strip_tree(source, target)
            yield FileChange(path, hunks, is_inside=_is_inside(path))


def _target_lines(hunk: Hunk) -> list[TargetLine]:
    lines = []
    for line in hunk:
        if line.target_line_no is not None and (line.is_added or line.is_context):
            text = line.value.rstrip("\r\n")
            lines.append(TargetLine(line.target_line_no, text, line.is_added))
    return lines


def _strip_returns(text: str) -> str:
    """Return text without the carriage returns that mail programs add to each line, headers
    included.
    """
    if _BARE_HEADER.search(text):
        return text
    return text.replace("\r\n", "\n")


def _trim_mail(lines: Sequence[str]) -> Sequence[str]:
    """Return lines without the message in front of the first file of each patch, which may have any
    text.
    """
    kept: list[str] = []
    is_of_git = is_kept = False
    for line in lines:
        if line.startswith(_GIT_HEADER):
            is_of_git = is_kept = True
            # The names are left out: where they have blanks, it is unknown where one ends.
            line = _GIT_HEADER
        elif _MAIL.match(line):
            is_kept = False
        if is_kept:
            kept.append(line)
    return kept if is_of_git else lines


def _strip_tree(source: str, target: str) -> str:
    """Return a path without the tree's directory, where diff compared two trees: linux.orig/fs/a.c
    and linux/fs/a.c.
    """
    source_tree, _, source_path = source.partition("/")
    target_tree, _, target_path = target.partition("/")
    if source_path and source_path == target_path and source_tree != target_tree:
        return target_path
    return _clean_path(source, target)


def _clean_path(source: str, target: str) -> str:
    has_prefixes = bool(_PREFIXES.match(target)) and (
        source == _NO_FILE or bool(_PREFIXES.match(source))
    )
    return target[2:] if has_prefixes else target


def _unquote(path: str) -> str:
    """Return a path without the date that may follow it. Git may have quoted it as in C."""
    path = _DATE.sub("", path).rstrip()
    if len(path) < 2 or not (path.startswith('"') and path.endswith('"')):
        return path
    data = path[1:-1].encode("utf-8", "surrogateescape")

    def replace(match: re.Match[bytes]) -> bytes:
        escape = match[1].decode()
        return bytes([_ESCAPES[escape] if escape in _ESCAPES else int(escape, 8) & 0xFF])

    return _ESCAPE.sub(replace, data).decode("utf-8", "replace")


def _is_inside(path: str) -> bool:
    normal = posixpath.normpath(path)
    is_strange = "\0" in path or "\n" in path
    return not (
        is_strange or path.startswith("/") or normal in (".", "..") or normal.startswith("../")
    )
