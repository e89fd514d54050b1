"""Every field of a request has a bound: the walk that finds those without, and the values that try each of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from anyformer.serving import request_schemas

BOUNDS = {
    "integer": [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")],
    "number": [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")],
    "string": [("maxLength", "pattern", "enum", "const")],
    "array": [("maxItems",)],
    "object": [("maxProperties", "properties")],
}
PARTS = ("items", "additionalProperties", "propertyNames", "anyOf", "oneOf", "allOf", "properties", "prefixItems")
NOT_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999")


def requests() -> list[type[BaseModel]]:
    """Every model of the module that says what may be asked."""
    found = [one for _, one in inspect.getmembers(request_schemas, inspect.isclass) if issubclass(one, BaseModel)]
    return [one for one in found if one is not BaseModel]


def unbounded(model: type[BaseModel]) -> list[str]:
    """Places in a model's JSON schema where something may be as large as the sender likes."""
    whole = model.model_json_schema()
    found, seen = list[str](), set[str]()

    def walk(schema: Any, where: str) -> None:
        if isinstance(schema, bool):
            if schema:
                found.append(f"{where}: anything")
            return
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            if name not in seen:
                seen.add(name)
                walk(whole["$defs"][name], f"{where}<{name}>")
            return
        kind = schema.get("type")
        if kind is None and not any(part in schema for part in ("anyOf", "oneOf", "allOf", "const", "enum")):
            found.append(f"{where}: anything")
        for names in BOUNDS.get(kind, []) if not {"enum", "const"} & set(schema) else []:
            if not any(name in schema for name in names):
                found.append(f"{where}: {kind} without {names[0]}")
        if kind == "object":
            # An object is either a list of named fields and no others, or a bounded map with bounded keys.
            if "properties" in schema and schema.get("additionalProperties") is not False:
                found.append(f"{where}: object with fields nobody named")
            if "properties" not in schema and "maxLength" not in schema.get("propertyNames", {}):
                found.append(f"{where}: keys without maxLength")
        if kind == "array" and "items" not in schema and "prefixItems" not in schema:
            found.append(f"{where}: items of any kind")
        for part in PARTS:
            inside = schema.get(part)
            if isinstance(inside, list):
                for at, one in enumerate(inside):
                    walk(one, f"{where}|{at}")
            elif part == "properties" and inside:
                for name, one in inside.items():
                    walk(one, f"{where}.{name}")
            elif isinstance(inside, dict) and part in ("items", "additionalProperties"):
                walk(inside, f"{where}[]")

    walk(whole, model.__name__)
    return found


def branches(schema: Any, whole: Any) -> Iterator[Any]:
    """The kinds a field may be of, with references followed."""
    if "$ref" in schema:
        yield from branches(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    elif "anyOf" in schema or "oneOf" in schema:
        for one in schema.get("anyOf", []) + schema.get("oneOf", []):
            yield from branches(one, whole)
    else:
        yield schema


def beyond(schema: Any) -> Iterator[str]:
    """JSON texts that this kind of field must refuse (if no other kind of the same field takes them)."""
    kind = schema.get("type")
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        step = 1 if kind == "integer" else max(1.0, abs(high) * 1e-6)
        yield from (f"{low - step}", f"{high + step}", *NOT_NUMBERS, '"5"', "true", "[1]", "{}")
        if "exclusiveMinimum" in schema:
            yield f"{low}"
        if kind == "integer":
            yield "1.5"
        if high < 10**9:
            yield from ("1000000000", "-1000000000")
    elif kind == "string" and "maxLength" in schema:
        yield '"' + "x" * (schema["maxLength"] + 1) + '"'
        yield "{}"
    elif kind == "array":
        yield "[" + ",".join(["1"] * (schema["maxItems"] + 1)) + "]"
        yield "[{}]"
    elif kind == "boolean":
        yield from ('"true"', "1", "[]")


def within(schema: Any) -> Iterator[str]:
    """Values at the limits, which are answered without an error of the server."""
    if schema.get("type") in ("integer", "number"):
        yield from (str(schema[name]) for name in ("minimum", "maximum") if name in schema)
    elif schema.get("type") == "string" and "maxLength" in schema:
        yield '"' + "x" * schema["maxLength"] + '"'
