"""Makes serve.svg: a real server asked by curl. Give it a folder that writes: python docs/images/serve.py runs/demo"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from docs.images.demo import FORMAT
from tests.serving.server import Server

WIDTH = 112
ASKED = [
    ("/completions", {"prompt": "def get_", "max_tokens": 40, "temperature": 0}),
    ("/completions", {"prompt": "YEAR = ", "regex": "(19|20)[0-9]{2}", "seed": 1}),
    ("/completions", {"prompt": "x = 1", "max_tokens": 0, "echo": True, "logprobs": 1}),
    ("/completions", {"prompt": "def ", "max_tokns": 40}),
]


def curl(server: Server, path: str, body: dict[str, object]) -> str:
    """What curl prints; of a choice only what a reader looks for."""
    command = ["curl", "-s", f"{server.url}/v1{path}", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if "choices" not in found:
        return json.dumps(found)
    choice = {name: value for name, value in found["choices"][0].items() if value is not None and name != "index"}
    if "logprobs" in choice:
        chances = [value if value is None else round(value, 2) for value in choice["logprobs"]["token_logprobs"]]
        choice["logprobs"] = {"tokens": choice["logprobs"]["tokens"], "token_logprobs": chances}
    return f'{{"choices": [{json.dumps(choice)}], "usage": {json.dumps(found["usage"])}}}'


def main() -> None:
    folder = Path(sys.argv[1])
    screen = Console(record=True, width=WIDTH, force_terminal=True, color_system="truecolor", file=io.StringIO())

    def typed(line: str) -> None:
        screen.print(Text("$ ", style="bold green") + Text(line, style="bold"), soft_wrap=False)

    with Server(folder, "--port", "8000") as server:
        typed(f"anyformer serve {folder}")
        screen.print(Text(server.errors().rstrip(), style="dim"))
        for path, body in ASKED:
            screen.print()
            typed(
                f"curl -s localhost:8000/v1{path} -H 'Content-Type: application/json' \\\n    -d '{json.dumps(body)}'"
            )
            screen.print(Text(curl(server, path, body)))
    svg = screen.export_svg(title="anyformer serve", theme=MONOKAI, code_format=FORMAT, unique_id="serve")
    target = Path(__file__).resolve().with_suffix(".svg")
    target.write_text(svg.replace("&#160;", "\u00a0"), encoding="utf-8")
    sys.stdout.write(f"{target} {target.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
