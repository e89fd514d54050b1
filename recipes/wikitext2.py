"""WikiText-2, word by word: a decoder of 42 M parameters that is kept from learning 2 million words by heart.

    python recipes/wikitext2.py --data wikitext2/

The protocol of the papers: words split at spaces, `<unk>` as it stands, one `<eos>` a line, 33,278 types. Perplexity
over all words, each predicted from at least 384 of the 512 words before it (a sliding window); no cache and no training
on the test text. `valid_perplexity` and `test_perplexity` of the run itself are of windows side by side.
hardware: one H200.
reference: AWD-LSTM 68.7 / 65.6, fine-tuned 67.4 / 64.7 (valid / test, its README).
"""

from __future__ import annotations

import lzma
import math
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from common import arguments, report, settings_of
from tokenizers import Tokenizer, models, pre_tokenizers

import anyformer
from anyformer.inference.predictor import Predictor
from anyformer.training.optim import AdamW, Muon
from anyformer.training.train import train

CONTEXT, STEP = 512, 128
SETTINGS = {
    "data.tokenizer.max_length": CONTEXT,
    "model.stack.width": 512,
    "model.stack.depth": 8,
    "model.stack.block.mixer.heads": 8,
    "model.stack.block.dropout": 0.4,
    "model.stack.block.mixer.dropout": 0.2,
    "model.embed.dropout": 0.4,
    "training.batch_size": 32,
    "training.steps": 6000,
    "training.eval_every": 250,
    "training.eval_rows": None,
    "training.ema": 0.998,
    "training.optimizer": Muon(lr=0.01, weight_decay=0.3, others=AdamW(lr=1e-3, betas=(0.9, 0.99), weight_decay=0.3)),
    "training.schedule.warmup": 200.0,
}


def write_words(source: Path, target: Path) -> Path:
    """A file of the corpus with `<eos>` written out at the end of each line."""
    with lzma.open(source, "rt", encoding="utf-8", newline="\n") as file:
        words = [" ".join([*line.split(), "<eos>"]) for line in file]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(" ".join(words), encoding="utf-8")
    return target


def write_tokenizer(text: Path, folder: Path) -> Path:
    """A tokenizer that cuts at spaces alone and knows every word of the text, `<unk>` and `<eos>` among them."""
    counts = Counter(text.read_text(encoding="utf-8").split())
    core = Tokenizer(models.WordLevel({word: at for at, (word, _) in enumerate(counts.most_common())}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(parents=True, exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    return folder


@torch.no_grad()
def perplexity(predictor: Predictor, path: Path, context: int = CONTEXT, step: int = STEP) -> float:
    """Of all words but the first, each after at least `context - step` others where there are as many."""
    assert predictor.tokenizer is not None
    ids = torch.tensor(predictor.tokenizer.encode(path.read_text(encoding="utf-8")))
    model, nats, judged = predictor.model.eval(), 0.0, 1
    # All windows but the first judge their last `step` words.
    starts = list(range(0, max(1, len(ids) - 1 - context + step), step))
    for batch in np.array_split(starts, -(-len(starts) // 16)):
        rows = torch.stack([torch.nn.functional.pad(ids[s : s + context + 1], (0, max(0, s + context + 1 - len(ids))))
                            for s in batch.tolist()]).to(predictor.device)  # fmt: skip
        losses = torch.nn.functional.cross_entropy(model(rows[:, :-1]).logits.float().mT, rows[:, 1:], reduction="none")
        for start, row in zip(batch.tolist(), losses.cpu(), strict=True):
            nats += float(row[judged - 1 - start : min(context, len(ids) - 1 - start)].sum())
            judged = min(start + context + 1, len(ids))
    return math.exp(nats / (len(ids) - 1))


def main() -> None:
    asked = arguments(__doc__, runs=3)
    words = {part: write_words(asked.data / f"{part}.txt.xz", asked.out / "wikitext2" / f"{part}.txt")
             for part in ("train", "valid", "test")}  # fmt: skip
    tokenizer = write_tokenizer(words["train"], asked.out / "wikitext2" / "tokenizer")
    for seed in asked.seeds:
        changes = SETTINGS | settings_of(asked) | {
            "training.seed": seed, "data.split.valid_file": str(words["valid"]),
            "data.split.test_file": str(words["test"]), "data.tokenizer.folder": str(tokenizer),
        }  # fmt: skip
        run = train(words["train"], "lm", asked.preset or "decoder-small", device=asked.device, settings=changes,
                    out=asked.out / f"wikitext2-{seed}", progress="lines")  # fmt: skip
        trained = anyformer.load(run.path, device=asked.device)
        report("wikitext2", seed, run, asked, **{
            f"{part}_sliding": round(perplexity(trained, words[part]), 2) for part in ("valid", "test")})  # fmt: skip


if __name__ == "__main__":
    main()
