"""Frozen dataclasses as JSON values, by their annotations.

Understood annotations: str, int, float, bool, None, Literal, X | Y, tuple[X, ...],
Mapping[str, X] and dataclasses of these. A float that JSON has no number for is written
{"nonfinite": "nan" | "inf" | "-inf"}. Reading is strict: a missing, unknown or ill-typed field is
an error that names its place.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from typing import Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Json = None | bool | int | float | str | list | dict
Record = TypeVar("Record")

_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


_NONFINITE = ("nan", "inf", "-inf")


class MalformedRecord(ValueError):
    """JSON that is no record of the expected kind; the message names the place."""


def encode(value: object) -> Json:
    """The JSON value of a record. Raises TypeError for a value of any other kind."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(vars(value)[field.name]) for field in dataclasses.fields(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"nonfinite": str(value)}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    raise TypeError(f"no JSON form for {type(value).__name__}")


def dumps(record: object) -> str:
    """One line of JSON. Raises TypeError for what `encode` has no form for."""
    return json.dumps(encode(record), ensure_ascii=False, allow_nan=False)


def loads(kind: type[Record], text: str, schema: str) -> Record:
    """The record that `dumps` wrote, of a class that names its layout in a field `schema`.

    Args:
        kind: a frozen dataclass.
        text: JSON.
        schema: the version that is understood.

    Raises:
        MalformedRecord: not JSON, no such record, or another version; the message names the place.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise MalformedRecord(f"not JSON: {error}") from error
    if isinstance(value, dict) and value.get("schema") != schema:
        raise MalformedRecord(f"$.schema: expected {schema!r}, got {value.get('schema')!r}")
    return decode(kind, value)


def decode(kind: type[Record], value: object, place: str = "$") -> Record:
    """The record of class `kind` that `encode` wrote as `value`; a frozen dataclass.

    Raises:
        MalformedRecord: a field is missing, unknown or of the wrong type.
    """
    if not isinstance(value, dict):
        raise MalformedRecord(f"{place}: expected an object, got {type(value).__name__}")
    hints = get_type_hints(kind)
    if missing := sorted(hints.keys() - value.keys()):
        raise MalformedRecord(f"{place}: missing {', '.join(missing)}")
    if unknown := sorted(value.keys() - hints.keys()):
        raise MalformedRecord(f"{place}: unknown {', '.join(unknown)}")
    return kind(
        **{name: _decode(hint, value[name], f"{place}.{name}") for name, hint in hints.items()}
    )


def _decode(hint: object, value: object, place: str) -> object:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        reasons = []
        # The value's own type first: 1 stays an int where both int and float may stand.
        for option in sorted(arguments, key=lambda option: option is not type(value)):
            try:
                return _decode(option, value, place)
            except MalformedRecord as error:
                reasons.append(str(error))
        raise MalformedRecord(reasons[-1])
    if origin is Literal:
        if value in arguments:
            return value
        raise MalformedRecord(f"{place}: expected one of {arguments}, got {value!r}")
    if origin is tuple:
        if not isinstance(value, list):
            raise MalformedRecord(f"{place}: expected an array, got {type(value).__name__}")
        return tuple(_decode(arguments[0], item, f"{place}[{i}]") for i, item in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise MalformedRecord(f"{place}: expected an object, got {type(value).__name__}")
        return {key: _decode(arguments[1], item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return decode(hint, value, place)
    if hint is float and isinstance(value, dict) and list(value) == ["nonfinite"]:
        name = value["nonfinite"]
        if name not in _NONFINITE:
            raise MalformedRecord(f"{place}.nonfinite: expected one of {_NONFINITE}, got {name!r}")
        return float(name)
    # type() and not isinstance(): JSON's true must not pass as an int.
    if type(value) is hint:
        return value
    if hint is float and type(value) is int:
        return float(value)
    name = _JSON_TYPES.get(hint, str(hint)) if isinstance(hint, type) else str(hint)
    raise MalformedRecord(f"{place}: expected {name}, got {type(value).__name__}")


def json_schema(kind: type) -> dict[str, Json]:
    """The JSON Schema (2020-12) of what `encode` writes for a dataclass."""
    hints = get_type_hints(kind)
    return {
        "title": kind.__name__,
        "type": "object",
        "properties": {name: _schema(hint) for name, hint in hints.items()},
        "required": list(hints),
        "additionalProperties": False,
    }


def _schema(hint: object) -> dict[str, Json]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(option) for option in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if not isinstance(hint, type):
        raise TypeError(f"no JSON form for the annotation {hint}")
    if dataclasses.is_dataclass(hint):
        return json_schema(hint)
    if hint is float:
        nonfinite: dict[str, Json] = {
            "type": "object",
            "properties": {"nonfinite": {"enum": list(_NONFINITE)}},
            "required": ["nonfinite"],
            "additionalProperties": False,
        }
        return {"anyOf": [{"type": "number"}, nonfinite]}
    return {"type": _JSON_TYPES[hint]}
