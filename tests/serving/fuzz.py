"""schemathesis against a running server: valid and invalid requests of every route, from the server's own schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.serving.figures import Figures, percentile
from tests.serving.server import LEAKS, Server

# A 503 with Retry-After is no error: nothing_leaks stands in for not_a_server_error.
CHECKS = ["status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance", "negative_data_rejection", "unsupported_method", "nothing_leaks"]  # fmt: skip
GOLDEN: dict[str, Any] = {"max_tokens": 24, "temperature": 0.9, "seed": 7, "logprobs": 1}


def run(server: Server, folder: Path, *, examples: int, seed: int = 1, workers: int = 1, timeout: float = 120,
        phases: str = "coverage,fuzzing,stateful") -> tuple[list[dict[str, Any]], str]:  # fmt: skip
    """Every answer as fuzz_checks.py wrote it down, and what schemathesis itself said at the end."""
    seen = folder / f"seen-{seed}.jsonl"
    seen.unlink(missing_ok=True)
    seen.touch()
    here = Path(__file__).parent
    around = os.environ | {"SCHEMATHESIS_HOOKS": "fuzz_checks", "FUZZ_SEEN": str(seen), "FUZZ_LEAKS": LEAKS.pattern,
                           "PYTHONPATH": str(here)}  # fmt: skip
    words = ["run", f"{server.url}/openapi.json", "--phases", phases, "--mode", "all", "-n", str(examples),
             "--seed", str(seed), "--no-shrink", "--continue-on-failure", "--generation-allow-x00", "true",
             "--generation-database", "none", "--workers", str(workers), "--request-timeout", "30",
             "--suppress-health-check", "all", "-c", ",".join(CHECKS), "--no-color", "--warnings", "off"]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "schemathesis.cli", *words], cwd=folder, env=around, text=True,
                          capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL)  # fmt: skip
    answers = [json.loads(line) for line in seen.read_text().splitlines()]
    return answers, f"exit {done.returncode}\n{done.stdout[-8000:]}{done.stderr[-2000:]}"


def prove(server: Server, folder: Path, *, cases: int, examples: int, rounds: int = 1, workers: int = 1,
          timeout: float = 300) -> tuple[Figures, str]:  # fmt: skip
    """The figures of at least `cases` requests: one round with every edge of every field, then others at random."""
    found = Figures("fuzz")
    before = server.complete("The bright", **GOLDEN)
    server.post("/v1/embeddings", {"input": "The"})
    server.complete("The", n=128, max_tokens=8)  # the rows' buffers have their full size from here on
    answers: list[dict[str, Any]] = []
    failed, said, memory = 0, "", server.memory()
    for seed in range(1, rounds + 1):
        phases = "coverage,fuzzing,stateful" if seed == 1 else "fuzzing,stateful"
        some, text = run(server, folder, examples=examples, seed=seed, workers=workers, timeout=timeout, phases=phases)
        answers += some
        if not text.startswith("exit 0\n"):
            failed, said = failed + 1, text
        if len(answers) >= cases:
            break
    after = server.complete("The bright", **GOLDEN)
    paths = {answer["path"] for answer in answers}
    described = set(server.get("/openapi.json").json()["paths"])
    found.at_least("requests", len(answers), cases)
    found.equal("described routes not asked", len(described - paths), 0)
    found.at_least("of them with invalid data", sum("negative" in a["mode"].lower() for a in answers), cases // 10)
    found.at_least("of them answered 200", sum(a["status"] == 200 for a in answers), cases // 20)
    bad = [a for a in answers if a["status"] >= 500 and not (a["status"] == 503 and a["again"])]
    found.equal("answers 5xx but 503 with Retry-After", len(bad), 0)
    found.equal("bodies with a traceback, path or address", sum(bool(a["leak"]) for a in answers), 0)
    found.equal("rounds in which schemathesis found a mismatch with the schema", failed, 0)
    found.equal("a golden request is the same afterwards", float(before == after), 1)
    found.at_most("memory grown, MB", server.memory() - memory, 50)
    found.note("p99 seconds of an answer", percentile([a["seconds"] for a in answers], 0.99))
    statuses = Counter(a["status"] for a in answers)
    return found, f"{dict(statuses)}\n{bad[:3]}\n{said}"
