# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcovdbg(1)``, from the command table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kcovdbg import __version__
from kcovdbg.commands import COMMANDS
from kcovdbg.commands.argument import EXPLANATIONS, Argument, Value
from kcovdbg.commands.command import COMMON_OPTIONS, Command
from kcovdbg.frontends.options import GENERAL_OPTIONS, TARGET_OPTIONS, Option

_SPECIAL = str.maketrans(
    {"\\": "\\e", "-": "\\-", "…": "\\&...", "→": "\\(->", "–": "\\(en", "^": "\\(ha", "~": "\\(ti", "`": "\\(ga", "'": "\\(aq"}
)

_EXIT = (
    ("0", "fine, partial answers included"),
    ("1", "check found violations, or diff found a difference"),
    ("2", "bad usage, a target that can't be read, or a command failed"),
    ("130", "interrupted"),
)
_ENVIRONMENT = (
    ("NO_COLOR", "no colours, where it is set and not empty"),
    ("PAGER", "what long answers go through on a terminal; less by default"),
    ("XDG_CACHE_HOME", "symbol tables are kept in its kcovdbg/symbols; by default in ~/.cache"),
    ("XDG_STATE_HOME", "the shell's history is kept in its kcovdbg/history; by default in ~/.local/state"),
    ("LLVM_SYMBOLIZER_PATH", "the llvm-symbolizer that symbol tables are built with"),
)
_DESCRIPTION = (
    "KCOV hands the Linux kernel's code coverage to fuzzers through a buffer shared with user space. kcovdbg shows KCOV's own "
    "state: each task's fields, every struct kcov and who refers to it, the remote handles, the areas, the saved state of "
    "interrupted sessions, and the coverage buffers, decoded and symbolized.",
    "It reads a crash dump, the running kernel, a guest in QEMU or anything with a GDB stub, and never writes to it. Only "
    "collect acts on a kernel: on the running one, through KCOV's own ioctls.",
    "Without a command it is a shell that completes, pages and pipes. Where standard input is no terminal, commands are read "
    "from it.",
)


def write_manpage() -> str:
    """Return the page in roff."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield '.\\" SPDX-License-Identifier: LGPL-2.1-or-later'
    # No date: the page changes with the commands, not with the day on which it is made.
    yield f'.TH KCOVDBG 1 "" "kcovdbg {__version__}" "User Commands"'
    yield ".SH NAME"
    yield "kcovdbg \\- see the Linux kernel's KCOV state"
    yield ".SH SYNOPSIS"
    yield from _synopsis()
    yield ".SH DESCRIPTION"
    yield from _paragraphs(_DESCRIPTION)
    yield ".SH OPTIONS"
    yield "Which kernel to look at: VMLINUX VMCORE, in either order, or one of"
    for option in TARGET_OPTIONS:
        yield from _program_option(option)
    yield ".PP"
    yield "And:"
    for option in GENERAL_OPTIONS:
        yield from _program_option(option)
    yield ".SH COMMANDS"
    yield from _paragraphs(
        [f"WHAT stands for {EXPLANATIONS[Value.BUFFER]}.", f"HANDLE stands for {EXPLANATIONS[Value.HANDLE]}."]
    )
    yield ".PP"
    yield "Every command takes"
    for argument in COMMON_OPTIONS:
        yield from _argument(argument)
    for command in COMMANDS:
        yield from _command(command)
    yield ".SH EXIT STATUS"
    yield from _terms(_EXIT)
    yield ".PP"
    yield escape("Of several commands: the highest. collect exits with its command's status, or 125 when it failed itself.")
    yield ".SH ENVIRONMENT"
    yield from _terms(_ENVIRONMENT)
    yield ".SH SEE ALSO"
    yield ".BR drgn (1),"
    yield ".BR gdb (1),"
    yield ".BR crash (8)"


def _synopsis() -> Iterator[str]:
    for words in (
        r"[\fITARGET\fR] [\fB\-s\fR \fIVMLINUX\fR]\&... [\fB\-e\fR \fICOMMAND\fR]\&... [\fB\-q\fR] [\fISCRIPT\fR]",
        r"[\fITARGET\fR] [\fB\-s\fR \fIVMLINUX\fR]\&... \fICOMMAND\fR [\fIARGUMENT\fR\&...]",
    ):
        yield ".PP"
        yield f".B kcovdbg\n{words}"


def _program_option(option: Option) -> Iterator[str]:
    yield ".TP"
    yield _names(option.names, option.metavar or "")
    text = option.help + ("; repeatable" if option.repeatable else "")
    yield escape(text + (f": {', '.join(option.choices)}" if option.choices else ""))


def _command(command: Command) -> Iterator[str]:
    yield f".SS {escape(command.name)}"
    yield f"\\fB{escape(command.name)}\\fR{_arguments(command)}"
    if command.aliases:
        yield ".PP"
        yield escape(f"Also: {', '.join(command.aliases)}")
    yield from _paragraphs([sentence(command.summary), *filter(None, command.description.split("\n\n"))])
    for argument in command.arguments:
        yield from _argument(argument)
    if command.further_needs:
        yield from _paragraphs([f"It needs {' and '.join(command.further_needs)}."])
    for example in command.examples:
        yield ".TP"
        yield f"\\fB{escape(example.line)}\\fR"
        yield escape(example.purpose)


def _arguments(command: Command) -> str:
    # The usage in words that aren't broken within an argument.
    return "".join(" " + escape(argument.usage).replace(" ", "\\ ") for argument in command.arguments)


def _argument(argument: Argument) -> Iterator[str]:
    yield ".TP"
    yield _names(argument.names, argument.placeholder) if argument.is_option else f"\\fI{escape(argument.placeholder)}\\fR"
    yield escape(argument.help)


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
    """Return text that roff prints as it is."""
    # A dot or a quote at a line's beginning would be a request.
    return ("\\&" if text.startswith((".", "'")) else "") + text.translate(_SPECIAL)
