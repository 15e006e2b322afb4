# SPDX-License-Identifier: LGPL-2.1-or-later
"""The arguments of a command as JSON: their schema, and their values."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from kcovdbg.console.argument import EXPLANATIONS, LARGEST_NUMBER, SEPARATOR, Argument, Count, Value, convert
from kcovdbg.console.argument_parser import common_defaults
from kcovdbg.console.command import Command

_MAX_ITEMS: Final = 1000
_MAX_LENGTH: Final = 4096

_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": _MAX_LENGTH}
_NUMBER_OR_TEXT: Final = {"type": ["integer", "string"], "minimum": 0, "minLength": 1, "maxLength": _MAX_LENGTH}
_TYPES: Final[Mapping[Value, Mapping[str, object]]] = {
    Value.FLAG: {"type": "boolean"},
    Value.NUMBER: {"type": "integer", "minimum": 0, "maximum": LARGEST_NUMBER},
    Value.SECONDS: {"type": "number", "minimum": 0},
    # Words that may be thread ids.
    **dict.fromkeys(
        (Value.TID, Value.TASK, Value.OBJECT, Value.REGISTERED, Value.BUFFER, Value.SUBJECT),
        _NUMBER_OR_TEXT,
    ),
}
_REPEATED: Final = (Count.ANY, Count.SOME)


def arguments_schema(command: Command) -> dict[str, Any]:
    """Return the JSON Schema of a command's arguments; each key is the attribute that a handler reads."""
    return {
        "type": "object",
        "properties": {argument.attribute: _argument_schema(command, argument) for argument in command.arguments},
        "required": [argument.attribute for argument in command.arguments if _is_required(argument)],
        "additionalProperties": False,
    }


def _is_required(argument: Argument) -> bool:
    return argument.is_required or (not argument.is_option and argument.count in (None, Count.ONE, Count.SOME))


def _argument_schema(command: Command, argument: Argument) -> dict[str, object]:
    schema = dict(_TYPES.get(argument.value, _TEXT))
    if argument.choices:
        schema = {"type": "string", "enum": list(argument.choices)}
    if argument.count in _REPEATED:
        schema = {"type": "array", "items": schema, "maxItems": _MAX_ITEMS}
        if argument.count is Count.SOME:
            schema["minItems"] = 1
    text = argument.help
    if argument.value in EXPLANATIONS:
        text += f". {EXPLANATIONS[argument.value]}"
    if command.keeps_separator and argument.count in _REPEATED and not argument.is_option:
        text += f'. The item "{SEPARATOR}" separates two lists'
    return {**schema, "description": text}


def convert_arguments(command: Command, given: Mapping[str, Any]) -> Namespace:
    """Return a command's arguments as its handler takes them.

    No value is taken as an option, whatever it begins with.

    :param given: an object that the schema accepts.
    :raises WordError: when a value is not valid.
    """
    values = common_defaults()
    for argument in command.arguments:
        key = argument.attribute
        if key in given:
            values[key] = _convert(argument, given[key])
        elif argument.value is Value.FLAG:
            values[key] = False
        else:
            # As argparse has it: a list of words, None for an option.
            values[key] = [] if argument.count is Count.ANY and not argument.is_option else argument.default
    return Namespace(**values)


def _convert(argument: Argument, value: Any) -> Any:
    if isinstance(value, list):
        return [_convert(argument, item) for item in value]
    return value if argument.value is Value.FLAG else convert(argument, str(value))
