"""Prints the table of docs/how-to/serve.md, what every field of a request may hold: python -m docs.serve_limits"""

from __future__ import annotations

from typing import Any

from anyformer.serving.request_schemas import ChatRequest, CompletionRequest, EmbeddingRequest, PredictRequest

ROUTES = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/predict": PredictRequest,
}


def table() -> str:
    """One row a field; fields of several routes stand once, with the routes that have them."""
    found: dict[tuple[str, str], list[str]] = {}
    for route, model in ROUTES.items():
        schema = model.model_json_schema()
        for name, field in schema["properties"].items():
            said = bound(field, schema.get("$defs", {}))
            found.setdefault((name, said), []).append(route.removeprefix("/v1/"))
    lines = ["| field | routes | what it may be |", "|---|---|---|"]
    for (name, said), routes in found.items():
        lines.append(f"| `{name}` | {', '.join(routes) if len(routes) < len(ROUTES) else 'all'} | {said} |")
    return "\n".join(lines)


def bound(field: dict[str, Any], named: dict[str, Any], depth: int = 0) -> str:
    """A field's bounds in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return "any JSON, bounded at every level" if name == "Json" else bound(named[name], named, depth + 1)
    if "anyOf" in field or "oneOf" in field:
        parts = [bound(one, named, depth) for one in field.get("anyOf", field.get("oneOf"))]
        return " or ".join(dict.fromkeys(part for part in parts if part != "nothing"))
    if "const" in field:
        return f'"{field["const"]}"'
    if "enum" in field:
        return " or ".join(f'"{value}"' for value in field["enum"])
    kind = field.get("type")
    if kind == "string":
        return f"text of {span(field.get('minLength', 0), field['maxLength'])} characters"
    if kind in ("integer", "number"):
        least, most = field.get("minimum"), field["maximum"]
        above = f"above {field['exclusiveMinimum']:g} " if "exclusiveMinimum" in field else f"{plain(least)} "
        return f"{'whole number' if kind == 'integer' else 'number'} {above}to {plain(most)}"
    if kind == "array":
        inner = bound(field["items"], named, depth + 1)
        return f"list of {span(field.get('minItems', 0), field['maxItems'])} x ({inner})"
    if kind == "object":
        if "properties" in field:
            inner = ", ".join(f"{name}: {bound(one, named, depth + 1)}" for name, one in field["properties"].items())
            return f"{{{inner}}}"
        inner = bound(field["additionalProperties"], named, depth + 1)
        return f"object of {span(field.get('minProperties', 0), field['maxProperties'])} x ({inner})"
    return {"boolean": "true or false", "null": "nothing"}[str(kind)]


def span(least: int, most: int) -> str:
    return f"{least:,} to {most:,}" if least else f"up to {most:,}"


def plain(value: float) -> str:
    """A number as people read it; the largest whole ones by their power.

    >>> plain(2**63 - 1), plain(-(2**63)), plain(1_000_000), plain(2.0), plain(1e308)
    ('2^63 - 1', '-2^63', '1,000,000', '2', '1e+308')
    """
    if isinstance(value, int) and abs(value) >= 2**31 - 1:
        return f"2^{value.bit_length()} - 1" if value > 0 else f"-2^{(-value).bit_length() - 1}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


if __name__ == "__main__":
    print(table())
