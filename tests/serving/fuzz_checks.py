"""Loaded by schemathesis itself (SCHEMATHESIS_HOOKS): looks at every answer and writes down what it was."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import schemathesis

SEEN = os.environ["FUZZ_SEEN"]  # a file, one line an answer
LEAKS = re.compile(os.environ["FUZZ_LEAKS"], re.IGNORECASE)


LARGE = {"maxLength": 4096, "maxItems": 128}


@schemathesis.hook
def before_load_schema(context: schemathesis.HookContext, raw_schema: dict[str, Any]) -> None:
    """Large sizes are left out: making a text of a million characters takes long, and test_bounds.py tries them all."""
    waiting: list[Any] = [raw_schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            for name, most in LARGE.items():
                if isinstance(one.get(name), int) and one[name] > most:
                    del one[name]
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


@schemathesis.check
def nothing_leaks(context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """No 5xx but a 503 that says when to come again; no traceback, path or address in any body."""
    text = response.content.decode("utf-8", "replace")
    again = "retry-after" in {name.lower() for name in response.headers}
    leak = LEAKS.search(text)
    # What was sent may hold such words itself; only what the server adds is a leak.
    body = case.body if isinstance(case.body, str | bytes) else json.dumps(case.body, default=str)
    sent = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    shown = leak.group(0) if leak and leak.group(0) not in sent else ""
    line = {"path": case.path, "method": case.method, "status": response.status_code, "again": again, "leak": shown,
            "mode": str(case.meta.generation.mode) if case.meta else "", "seconds": response.elapsed,
            "phase": str(case.meta.phase.name) if case.meta else "", "body": text[:300]}  # fmt: skip
    with open(SEEN, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    assert response.status_code < 500 or (response.status_code == 503 and again), (
        f"{response.status_code}: {text[:300]}"
    )
    assert not shown, f"leaks {shown!r}: {text[:300]}"
