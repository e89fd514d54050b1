"""Renders a model folder's chat template in a separate process; run as a script, it imports no model code.

A template is untrusted code. Here it has limited memory, none of our names, and can be killed at any time. The first
line of stdin is the template with its limits, every further one a conversation; each is answered by one line.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant output; it has no effect on the text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Parse to the tag's body."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class Raised(Exception):
    """An error raised by the template."""


def raise_exception(message: object) -> None:
    """Called by templates to reject a conversation."""
    raise Raised(str(message))


def as_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
            sort_keys: bool = False) -> str:  # fmt: skip
    """JSON without ASCII or HTML escaping."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compiled(source: str, most: int) -> Callable[[dict[str, Any]], str]:
    """Compile a template to a function that renders a conversation to at most `most` characters."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols], optimized=False
    )
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = raise_exception
    template = environment.from_string(source)

    def render(given: dict[str, Any]) -> str:
        parts: list[str] = []
        size = 0
        for part in template.generate(given):
            parts.append(part)
            size += len(part)
            if size > most:
                raise Raised(f"the template writes more than {most} characters")
        return "".join(parts)

    return render


def answer(render: Callable[[dict[str, Any]], str], line: str) -> dict[str, str]:
    """The text of a conversation, or an error message."""
    try:
        return {"text": render(json.loads(line))}
    except Raised as error:
        return {"error": str(error)}
    except TemplateError as error:
        return {"error": str(error.message)}
    except MemoryError:
        return {"error": "the template needs too much memory"}
    except RecursionError:
        return {"error": "the template calls itself without end"}
    except Exception as error:
        return {"error": f"{type(error).__name__} in the template"}


def main() -> None:
    """Render until stdin ends."""
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # only the end of stdin ends it
    say({})  # ready; from here on the timeout applies
    first = json.loads(sys.stdin.readline() or "null")
    if first is None:
        return
    resource.setrlimit(resource.RLIMIT_AS, (first["memory"], first["memory"]))
    try:
        render = compiled(first["template"], first["most"])
        told: dict[str, str] = {}
    except TemplateError as error:
        told = {"error": f"{error.message}"}
    except Exception as error:
        told = {"error": type(error).__name__}
    say(told)
    for line in sys.stdin if not told else ():
        say(answer(render, line))


def end_with_parent(parent: int) -> None:
    """Exit even inside an endless template if the server was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def say(told: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
