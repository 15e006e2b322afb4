# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcovdbg(1)``, from the declarations of commands and options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kcovdbg import __version__
from kcovdbg.commands import COMMANDS
from kcovdbg.console.argument import BUFFER_FORMS, HANDLE_FORMS, Argument
from kcovdbg.console.command import HELP_OPTION, OUTPUT_OPTIONS, Command
from kcovdbg.frontends.options import GENERAL_OPTIONS, TARGET_OPTIONS, option_help

_SPECIAL = str.maketrans(
    {
        "\\": "\\e",
        "-": "\\-",
        "…": "\\&...",
        "→": "\\(->",
        "–": "\\(en",
        "^": "\\(ha",
        "~": "\\(ti",
        "`": "\\(ga",
        "'": "\\(aq",
    }
)

_EXIT = (
    ("0", "success, partial answers included"),
    ("1", "check found violations, or diff found a difference"),
    (
        "2",
        "usage error, unreadable target, a command failed, or nothing of what it was asked for "
        "could be read",
    ),
    ("3", "check found no violation, but could not judge every rule"),
    ("130", "interrupted"),
)
_ENVIRONMENT = (
    ("NO_COLOR", "disables colors if set and not empty"),
    ("PAGER", "the pager for long answers on a terminal; less by default"),
    (
        "XDG_CACHE_HOME",
        "symbol tables are kept in kcovdbg/symbols under it; ~/.cache by default; under TMPDIR "
        "where that cannot be written",
    ),
    (
        "XDG_STATE_HOME",
        "the shell's history is kept in kcovdbg/history under it; ~/.local/state by default",
    ),
)
_DESCRIPTION = (
    "KCOV passes the Linux kernel's code coverage to fuzzers through a buffer shared with user "
    "space. kcovdbg shows KCOV's own "
    "state: each task's fields, every struct kcov and its references, remote handles, areas, "
    "the saved state of interrupted "
    "sessions, and the coverage buffers, decoded and symbolized.",
    "It reads a crash dump, the running kernel, a QEMU guest or anything with a GDB stub, and "
    "never writes to it. Only collect "
    "acts on a kernel: the running one, through KCOV's own ioctls.",
    "Without a command, each FILE is answered by what its content is: a list of PCs by top, a "
    "log or an oops by sym, a crash "
    "directory or a report of syzkaller by syzkaller, a recording by monitor --summary; a note "
    "says what it was taken for. "
    "Nothing in it is run.",
    "Without a file it is a shell with completion, a pager and pipes. If standard input is not "
    "a terminal, commands are read "
    "from it, up to the first that fails; a log or a list on it is answered as a file is. Its "
    "lines, and those of a file that "
    "begins with #! and names kcovdbg, only read and print: no shell commands, pipes, "
    "redirections, nor commands that write or "
    "run something. A script that --script names may do all that the shell can.",
)


def write_manpage() -> str:
    """Return the page in roff."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield '.\\" SPDX-License-Identifier: LGPL-2.1-or-later'
    # No date, so that the page changes only if the commands do.
    yield f'.TH KCOVDBG 1 "" "kcovdbg {__version__}" "User Commands"'
    yield ".SH NAME"
    yield "kcovdbg \\- show the Linux kernel's KCOV state and coverage buffers"
    yield ".SH SYNOPSIS"
    yield from _synopsis()
    yield ".SH DESCRIPTION"
    yield from _paragraphs(_DESCRIPTION)
    yield ".SH OPTIONS"
    yield "The target is VMLINUX VMCORE, in either order, or one of:"
    for option in TARGET_OPTIONS:
        yield from _program_option(option)
    yield ".PP"
    yield "Other options:"
    for option in GENERAL_OPTIONS:
        yield from _program_option(option)
    yield ".SH COMMANDS"
    yield from _paragraphs([f"WHAT is {BUFFER_FORMS}.", f"HANDLE is {HANDLE_FORMS}."])
    yield ".PP"
    yield "Every command that has rows takes these options, every other one the last:"
    for argument in (*OUTPUT_OPTIONS, HELP_OPTION):
        yield from _argument(argument)
    for command in COMMANDS:
        yield from _command(command)
    yield ".SH EXIT STATUS"
    yield from _terms(_EXIT)
    yield ".PP"
    yield escape(
        "With several commands, the highest. collect exits with its command's status, or 125 "
        "if it failed itself."
    )
    yield ".SH ENVIRONMENT"
    yield from _terms(_ENVIRONMENT)
    yield ".SH SEE ALSO"
    yield ".BR drgn (1),"
    yield ".BR gdb (1),"
    yield ".BR crash (8)"


def _synopsis() -> Iterator[str]:
    for words in (
        r"[\fITARGET\fR] [\fB\-s\fR \fIVMLINUX\fR]\&... [\fB\-e\fR \fICOMMAND\fR]\&... [\fB\-q\fR] [\fIFILE\fR\&...]",
        r"[\fITARGET\fR] [\fB\-s\fR \fIVMLINUX\fR]\&... \fICOMMAND\fR [\fIARGUMENT\fR\&...]",
    ):
        yield ".PP"
        yield f".B kcovdbg\n{words}"


def _program_option(option: Argument) -> Iterator[str]:
    yield ".TP"
    yield _names(option.names, option.placeholder)
    yield escape(option_help(option))


def _command(command: Command) -> Iterator[str]:
    yield f".SS {escape(command.name)}"
    yield f"\\fB{escape(command.name)}\\fR{_arguments(command)}"
    if command.aliases:
        yield ".PP"
        yield escape(f"Also: {', '.join(command.aliases)}")
    yield from _paragraphs(
        [sentence(command.summary), *filter(None, command.description.split("\n\n"))]
    )
    for argument in command.arguments:
        yield from _argument(argument)
    if command.further_needs:
        yield from _paragraphs([f"It needs {' and '.join(command.further_needs)}."])
    for example in command.examples:
        yield ".TP"
        yield f"\\fB{escape(example.line)}\\fR"
        yield escape(example.purpose)


def _arguments(command: Command) -> str:
    # A line may break between arguments, not within one.
    return "".join(
        " " + escape(argument.usage).replace(" ", "\\ ") for argument in command.arguments
    )


def _argument(argument: Argument) -> Iterator[str]:
    yield ".TP"
    yield (
        _names(argument.names, argument.placeholder)
        if argument.is_option
        else f"\\fI{escape(argument.placeholder)}\\fR"
    )
    yield escape(argument.full_help)


def _names(names: Iterable[str], value: str) -> str:
    text = ", ".join(f"\\fB{escape(name)}\\fR" for name in names)
    return f"{text} \\fI{escape(value)}\\fR" if value else text


def _terms(terms: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, text in terms:
        yield ".TP"
        yield f"\\fB{escape(name)}\\fR"
        yield escape(text)


def _paragraphs(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield ".PP"
        yield escape(" ".join(text.split()))


def sentence(text: str) -> str:
    """Return a summary as a sentence."""
    return f"{text[0].upper()}{text[1:]}" + ("" if text.endswith((".", "?", "!")) else ".")


def escape(text: str) -> str:
    """Return text escaped for roff."""
    # A dot or a quote at the beginning of a line starts a request.
    return ("\\&" if text.startswith((".", "'")) else "") + text.translate(_SPECIAL)
