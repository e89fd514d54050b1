"""SciTLDR: a paper's abstract into one sentence, by an encoder-decoder from nothing but 1,992 pairs.

    python recipes/scitldr.py --data scitldr_a/

ROUGE of the best of each paper's summaries (2 to 4 in the test set), beside the same of the abstract's first sentence
and of the sentence that is best among all of it. Two thousand pairs do not teach a language: without pretraining the
first sentence stays ahead, and the figures are here to say by how much.
hardware: one H200.
reference: BART, pretrained, about 43 / 21 / 35.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from common import arguments, report, settings_of

import anyformer
from anyformer.evaluation.text_scores import rouge
from anyformer.training.train import train

SETTINGS = {
    "data.tokenizer.vocab_size": 8000,
    "data.tokenizer.max_length": 400,
    "training.batch_size": 64,
    "training.steps": 1500,
    "training.eval_every": 50,
    "training.patience": 10.0,
}


def papers_of(path: Path) -> list[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def rows_of(papers: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The abstract and its first summary."""
    return [{"source": " ".join(paper["source"]), "target": paper["target"][0]} for paper in papers]


def best_rouge(said: list[str], papers: list[dict[str, Any]], name: str) -> dict[str, float]:
    """ROUGE 1, 2 and L, each of the summary that is nearest."""
    found = rouge(said, [paper["target"] for paper in papers])
    return {f"{name}_{kind}": round(100 * score, 2) for kind, score in found.items()}


def nearest_sentence(paper: dict[str, Any]) -> str:
    """What nobody who may only copy one sentence can beat."""
    return str(max(paper["source"], key=lambda sentence: rouge([sentence], [paper["target"]])["rouge_1"]))


def main() -> None:
    asked = arguments(__doc__, runs=3)
    papers = {part: papers_of(asked.data / f"{part}.jsonl.xz") for part in ("train", "dev", "test")}
    home = asked.out / "scitldr"
    home.mkdir(parents=True, exist_ok=True)
    files = {part: home / f"{part}.jsonl" for part in papers}
    for part, path in files.items():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(papers[part])), encoding="utf-8")
    test = papers["test"]
    beside = best_rouge([paper["source"][0] for paper in test], test, "lead")
    beside |= best_rouge([nearest_sentence(paper) for paper in test], test, "best_sentence")
    for seed in asked.seeds:
        changes = SETTINGS | settings_of(asked) | {
            "training.seed": seed, "data.split.valid_file": str(files["dev"]),
            "data.split.test_file": str(files["test"]),
        }  # fmt: skip
        run = train(files["train"], "translate", asked.preset or "translator-small", "target", device=asked.device,
                    settings=changes, out=asked.out / f"scitldr-{seed}", progress="lines")  # fmt: skip
        said = anyformer.load(run.path, device=asked.device).predict([row["source"] for row in rows_of(test)])
        report("scitldr", seed, run, asked, **best_rouge(said, test, "test_best"), **beside)


if __name__ == "__main__":
    main()
