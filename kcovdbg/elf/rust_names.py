# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of Rust functions as LLVM's tools print them: ``_RNvCs1_6kernel4init`` is ``kernel::init``.

The kernel has names of the v0 scheme, which RFC 2603 of Rust describes. The legacy scheme, ``_ZN…17h<hash>E``, is a list of
identifiers, which remain as they are, the hash included.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

# Names are hostile: references to earlier parts let a short one grow without end.
_MAX_SIZE: Final = 4096
_MAX_TEXT: Final = 1 << 16
_MAX_STEPS: Final = 1 << 14
_MAX_DEPTH: Final = 128
_MAX_NUMBER: Final = (1 << 64) - 2

_LEGACY: Final = re.compile(r"_ZN((?:\d+[A-Za-z_$.][\w$.]*)+17h[0-9a-f]{16})E(\..*)?", re.ASCII | re.DOTALL)
_V0: Final = re.compile(r"_R([A-Z][0-9A-Za-z_]*)(\..*)?", re.ASCII | re.DOTALL)
_DECIMAL: Final = re.compile(r"0|[1-9]\d*", re.ASCII)
_HEXADECIMAL: Final = re.compile(r"(0|[1-9a-f][0-9a-f]*)_")
_DIGITS: Final = {
    character: value for value, character in enumerate("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
}
_BASIC_TYPES: Final = dict(
    zip(
        "abcdefhijlmnopstuvxyz",
        "i8 bool char f64 str f32 u8 isize usize i32 u32 i128 u128 _ i16 u16 () ... i64 u64 !".split(),
        strict=True,
    )
)
_INTEGERS: Final = frozenset("ahijlmnostxy")
_SIGNED: Final = frozenset("ailnsx")
_ESCAPES: Final = {"\t": r"\t", "\r": r"\r", "\n": r"\n", "'": r"\'", "\\": r"\\"}


@lru_cache(1 << 16)
def demangle_rust(name: str) -> str:
    """Return the name of a Rust function as LLVM's tools print it; other names, and damaged ones, as they are."""
    if len(name) > _MAX_SIZE:
        return name
    try:
        if found := _V0.fullmatch(name):
            text = _Parser(found[1]).parse()
        elif found := _LEGACY.fullmatch(name):
            text = _split_legacy(found[1])
        else:
            return name
    except (ValueError, LookupError, OverflowError):
        # UnicodeError of punycode included.
        return name
    return text if found[2] is None else f"{text} ({found[2]})"


def _split_legacy(text: str) -> str:
    parts = []
    while text:
        digits = _DECIMAL.match(text)
        if digits is None:
            raise ValueError("no length")
        end = digits.end() + int(digits[0])
        if end > len(text):
            raise ValueError("truncated")
        parts.append(text[digits.end() : end])
        text = text[end:]
    return "::".join(parts)


class _Parser:
    """The parser of one name, without its prefix and suffix. Methods raise for what is not a name."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._parts: list[str] = []
        self._size = 0
        self._steps = 0
        self._depth = 0
        self._is_shown = True
        # Of the binders ("for<'a>") that the current part is in.
        self._lifetimes = 0

    def parse(self) -> str:
        self._path(in_type=False)
        if self._at < len(self._text):
            # The crate that asked for the instance.
            self._hidden(self._path, in_type=False)
        if self._at < len(self._text):
            raise ValueError("something follows")
        return "".join(self._parts)

    # Characters.

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        character = self._text[self._at]
        self._at += 1
        return character

    def _skip(self, character: str) -> bool:
        found = self._peek() == character
        self._at += found
        return found

    def _base62(self) -> int:
        """Read a number: nothing before the ``_`` is 0."""
        if self._skip("_"):
            return 0
        value = 0
        while (character := self._next()) != "_":
            value = 62 * value + _DIGITS[character]
        if value >= _MAX_NUMBER:
            raise ValueError("more than 64 bits")
        return value + 1

    def _optional(self, tag: str) -> int:
        return self._base62() + 1 if self._skip(tag) else 0

    def _identifier(self) -> tuple[int, str]:
        """Return an identifier and what distinguishes it from others of the same name."""
        return self._optional("s"), self._plain_identifier()

    def _plain_identifier(self) -> str:
        is_punycode = self._skip("u")
        digits = _DECIMAL.match(self._text, self._at)
        if digits is None:
            raise ValueError("no length")
        self._at = digits.end()
        self._skip("_")
        end = self._at + int(digits[0])
        if end > len(self._text):
            raise ValueError("truncated")
        name, self._at = self._text[self._at : end], end
        if is_punycode:
            # A delimiter that mangled names can have.
            before, mark, after = name.rpartition("_")
            name = f"{before}{'-' if mark else ''}{after}".encode("ascii").decode("punycode")
            # Refuse surrogates, and what ends strings.
            if b"\0" in name.encode("utf-8"):
                raise ValueError("not text")
        return name

    # Text.

    def _show(self, text: str) -> None:
        if self._is_shown:
            self._parts.append(text)
            self._size += len(text)
            if self._size > _MAX_TEXT:
                raise ValueError("too long")

    def _hidden(self, read: Callable[..., object], **arguments: bool) -> None:
        before, self._is_shown = self._is_shown, False
        read(**arguments)
        self._is_shown = before

    def _list(self, read: Callable[[], object], separator: str = ", ") -> int:
        """Read until an E; return the number of items."""
        count = 0
        while not self._skip("E"):
            if count:
                self._show(separator)
            read()
            count += 1
        return count

    def _enter(self) -> None:
        self._steps += 1
        self._depth += 1
        if self._steps > _MAX_STEPS or self._depth > _MAX_DEPTH:
            raise ValueError("too complex")

    def _reference(self, read: Callable[[], object]) -> None:
        """Read an earlier part of the name again."""
        start = self._at - 1
        target = self._base62()
        if target >= start:
            raise ValueError("not an earlier part")
        if self._is_shown:
            back, self._at = self._at, target
            read()
            self._at = back

    # The grammar.

    def _path(self, *, in_type: bool, is_open: bool = False) -> bool:
        """Read a path.

        :param is_open: whether to leave out the ``>`` after generic arguments.
        :return: whether it was left out.
        """
        self._enter()
        left_open = False
        kind = self._next()
        if kind == "C":
            self._show(self._identifier()[1])
        elif kind in "MX":
            self._optional("s")
            self._hidden(self._path, in_type=in_type)
            self._implementation(has_trait=kind == "X")
        elif kind == "Y":
            self._implementation(has_trait=True)
        elif kind == "N":
            self._nested(in_type=in_type)
        elif kind == "I":
            self._path(in_type=in_type)
            self._show("<" if in_type else "::<")
            self._list(self._generic)
            left_open = is_open
            if not is_open:
                self._show(">")
        elif kind == "B":

            def again() -> None:
                nonlocal left_open
                left_open = self._path(in_type=in_type, is_open=is_open)

            self._reference(again)
        else:
            raise ValueError("not a path")
        self._depth -= 1
        return left_open

    def _implementation(self, *, has_trait: bool) -> None:
        self._show("<")
        self._type()
        if has_trait:
            self._show(" as ")
            self._path(in_type=True)
        self._show(">")

    def _nested(self, *, in_type: bool) -> None:
        space = self._next()
        if not space.isalpha():
            raise ValueError("not a namespace")
        self._path(in_type=in_type)
        number, name = self._identifier()
        if space.isupper():
            kind = {"C": "closure", "S": "shim"}.get(space, space)
            self._show(f"::{{{kind}{':' if name else ''}{name}#{number}}}")
        elif name:
            self._show(f"::{name}")

    def _generic(self) -> None:
        if self._skip("L"):
            self._lifetime(self._base62())
        elif self._skip("K"):
            self._constant()
        else:
            self._type()

    def _lifetime(self, index: int) -> None:
        if index > self._lifetimes:
            raise ValueError("an unbound lifetime")
        depth = self._lifetimes - index
        self._show("'_" if not index else f"'{chr(ord('a') + depth)}" if depth < 26 else f"'z{depth - 25}")

    def _binder(self) -> int:
        """Read lifetimes that the following part is generic over; return how many there were before."""
        before, count = self._lifetimes, self._optional("G")
        if count > _MAX_SIZE:
            raise ValueError("too many lifetimes")
        if count:
            self._show("for<")
            for number in range(count):
                self._lifetimes += 1
                self._show(", " if number else "")
                self._lifetime(1)
            self._show("> ")
        return before

    def _type(self) -> None:
        self._enter()
        kind = self._next()
        if kind in _BASIC_TYPES:
            self._show(_BASIC_TYPES[kind])
        elif kind in "AS":
            self._show("[")
            self._type()
            if kind == "A":
                self._show("; ")
                self._constant()
            self._show("]")
        elif kind == "T":
            self._show("(")
            self._show(",)" if self._list(self._type) == 1 else ")")
        elif kind in "RQ":
            self._show("&")
            if self._skip("L") and (lifetime := self._base62()):
                self._lifetime(lifetime)
                self._show(" ")
            self._show("mut " if kind == "Q" else "")
            self._type()
        elif kind in "PO":
            self._show("*const " if kind == "P" else "*mut ")
            self._type()
        elif kind == "F":
            self._function()
        elif kind == "D":
            self._dynamic()
        elif kind == "B":
            self._reference(self._type)
        else:
            self._at -= 1
            self._path(in_type=True)
        self._depth -= 1

    def _function(self) -> None:
        lifetimes = self._binder()
        self._show("unsafe " if self._skip("U") else "")
        if self._skip("K"):
            convention = "C" if self._skip("C") else self._plain_identifier().replace("_", "-")
            self._show(f'extern "{convention}" ')
        self._show("fn(")
        self._list(self._type)
        self._show(")")
        if not self._skip("u"):
            self._show(" -> ")
            self._type()
        self._lifetimes = lifetimes

    def _dynamic(self) -> None:
        self._show("dyn ")
        lifetimes = self._binder()
        self._list(self._trait, " + ")
        self._lifetimes = lifetimes
        if not self._skip("L"):
            raise ValueError("no lifetime")
        if lifetime := self._base62():
            self._show(" + ")
            self._lifetime(lifetime)

    def _trait(self) -> None:
        is_open = self._path(in_type=True, is_open=True)
        while self._skip("p"):
            self._show(", " if is_open else "<")
            is_open = True
            self._show(f"{self._plain_identifier()} = ")
            self._type()
        self._show(">" if is_open else "")

    def _constant(self) -> None:
        self._enter()
        kind = self._next()
        if kind == "B":
            self._reference(self._constant)
        elif kind == "p":
            self._show("_")
        elif kind in _INTEGERS:
            self._show("-" if kind in _SIGNED and self._skip("n") else "")
            digits = self._hexadecimal()
            self._show(str(int(digits, 16)) if len(digits) <= 16 else f"0x{digits}")
        elif kind == "b":
            self._show({"0": "false", "1": "true"}[self._hexadecimal()])
        elif kind == "c":
            self._show(_quote(chr(int(self._hexadecimal(), 16))))
        else:
            raise ValueError("not a constant")
        self._depth -= 1

    def _hexadecimal(self) -> str:
        found = _HEXADECIMAL.match(self._text, self._at)
        if found is None:
            raise ValueError("not a number")
        self._at = found.end()
        return found[1]


def _quote(character: str) -> str:
    if character in _ESCAPES:
        return f"'{_ESCAPES[character]}'"
    return f"'{character}'" if " " <= character <= "~" else f"'\\u{{{ord(character):x}}}'"
