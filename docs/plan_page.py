"""Writes what docs/how-to/plan.md shows: a plan, its roofline and the tables of plans and measurements.

python -m docs.plan_page
"""

from __future__ import annotations

import re
from pathlib import Path

from anyformer.planning.model_plan import ModelPlan, plan
from anyformer.planning.page import roofline
from anyformer.planning.text import plan_text
from benchmarks.plan_accuracy import compare_h200, cpu_markdown, markdown

HERE = Path(__file__).parent
PAGE, PICTURE = HERE / "how-to" / "plan.md", HERE / "images" / "plan" / "roofline-gpt2.svg"
SHOWN = re.compile(r"(\$ anyformer plan gpt2 --batch 32 --length 1024\n).*?(?=```)", re.DOTALL)
TABLE = re.compile(r"(<!-- accuracy -->\n\n).*?(?=\n\n<!-- /accuracy -->)", re.DOTALL)
ON_CPU = re.compile(r"(<!-- accuracy on a cpu -->\n\n).*?(?=\n\n<!-- /accuracy on a cpu -->)", re.DOTALL)
STYLE = "<style>text{font:12px system-ui,sans-serif;fill:#333}.axis{stroke:#888}</style>"


def shown_plan() -> ModelPlan:
    """The plan that the page shows."""
    return plan("gpt2", batch=32, length=1024)


def render(page: str) -> str:
    """The page with today's plan and tables."""
    page = SHOWN.sub(lambda found: found[1] + plan_text(shown_plan()) + "\n", page)
    page = TABLE.sub(lambda found: found[1] + markdown(compare_h200()), page)
    return ON_CPU.sub(lambda found: found[1] + cpu_markdown(), page)


def drawn() -> str:
    """The roofline of that plan as a file of its own."""
    found = re.search(r"<svg .*</svg>", roofline(shown_plan()), re.DOTALL)
    assert found is not None
    head, _, rest = found[0].partition(">")
    return head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + ">" + STYLE + rest + "\n"


def main() -> None:
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(drawn(), encoding="utf-8")
    print(PAGE.name, PICTURE.name)


if __name__ == "__main__":
    main()
