"""Looking at a trained model: its texts, their probabilities, the head that is drawn, and its curves from the run."""

from __future__ import annotations

import json
import math

import pytest
import torch

from anyformer import preset
from anyformer.data.tokenizers.tokenizer import train_tokenizer
from anyformer.demo import data, inside
from anyformer.demo.learned import DemoResult, thin_points
from anyformer.demo.sampling import complete, text_of
from anyformer.training.train import Run


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(list(data.corpus().training.values())[:3], "bpe", 280).core


@pytest.fixture(scope="module")
def net():
    spec = preset("decoder-mini")
    return spec.replace(embed=spec.embed.replace(vocab=280)).build(seed=0)


def test_the_space_of_a_prompt_is_left_to_the_first_token(net, tokenizer):
    pieces = complete(net, tokenizer, "def ", tokens=3, seed=0, before="x = 1\n")
    ids = tokenizer.encode("x = 1\ndef").ids
    with torch.no_grad():
        odds = net(torch.tensor([ids])).logits[0, -1].softmax(-1)
    fitting = {tokenizer.decode([i]): float(odds[i]) for i in range(280) if tokenizer.decode([i]).startswith(" ")}
    assert fitting[" " + pieces[1].text] == pytest.approx(pieces[1].probability, rel=1e-4) and pieces[1].text.strip()
    # Control: a prompt without a space is taken as it is.
    greedy = complete(net, tokenizer, "(", tokens=1, temperature=0, before="")
    assert greedy[1].text == tokenizer.decode([int(first_choice(net, tokenizer, "("))])


@torch.no_grad()
def first_choice(net, tokenizer, prompt):
    return net(torch.tensor([tokenizer.encode(prompt).ids])).logits[0, -1].argmax()


def test_completions_follow_from_the_seed_and_carry_probabilities(net, tokenizer):
    first, again, other = (complete(net, tokenizer, "def ", tokens=8, seed=seed) for seed in (0, 0, 1))
    assert first == again and first != other and text_of(first).startswith("def ")
    assert first[0].probability is None and all(0 < piece.probability <= 1 for piece in first[1:])
    greedy = [complete(net, tokenizer, "def ", tokens=8, temperature=0, seed=seed) for seed in (0, 1)]
    assert greedy[0] == greedy[1]


@torch.no_grad()
def test_the_cached_steps_give_the_full_pass(net, tokenizer):
    pieces = complete(net, tokenizer, "def f", tokens=6, temperature=0, before="")
    ids = tokenizer.encode("def f").ids
    for piece in pieces[1:]:
        odds = net(torch.tensor([ids])).logits[0, -1].softmax(-1)
        assert float(odds.max()) == pytest.approx(piece.probability, rel=1e-4)
        ids.append(int(odds.argmax()))


def test_brackets_are_paired_and_the_head_is_the_best_one(net, tokenizer):
    assert inside.bracket_pairs("a(b[c]{d})") == [(5, 3), (8, 6), (9, 1)]
    assert inside.bracket_pairs("a)b]") == [] and inside.bracket_pairs("(]") == []
    found = inside.bracket_head(net, tokenizer)
    assert "".join(found.words) == inside.LINE and found.pairs
    for closing, opening in found.pairs:
        assert set(found.words[closing]) & set(")]}") and set(found.words[opening]) & set("([{")
        assert opening < closing
    weights = torch.tensor(found.weights)
    assert torch.allclose(weights.sum(-1), torch.ones(len(found.words)), atol=1e-5) and weights.triu(1).max() == 0
    mean = sum(found.weights[a][b] for a, b in found.pairs) / len(found.pairs)
    assert found.score == pytest.approx(mean, rel=1e-5)
    maps = inside.attention_maps(net, torch.tensor([tokenizer.encode(inside.LINE).ids]))
    every = [float(sum(w[0, h, a, b] for a, b in found.pairs)) / len(found.pairs)
             for calls in maps.values() for w in calls for h in range(w.shape[1])]  # fmt: skip
    assert found.score == pytest.approx(max(every), rel=1e-5) and min(every) < found.score


# ------------------------------------------------------------------------------------------------ a run in figures


def a_run(folder, *, baselines=True):
    """The files of a finished run, as the training writes them; 4 tokens to 8 bytes."""
    steps = [{"step": step, "loss": 4.0 - step / 100} for step in range(1, 301)]
    judged = [{"step": step, "eval": {"split": "valid", "bits_per_byte": 400 / step}} for step in (100, 200, 300)]
    speed = [{"step": step, "seconds": 9.0 if step == 1 else 0.5, "tokens_per_s": 2048.0} for step in range(1, 301)]
    folder.mkdir()
    for name, lines in (("metrics.jsonl", sorted(steps + judged, key=lambda row: row["step"])), ("speed.jsonl", speed)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    others = {"trivial": {"metrics": {"bits_per_byte": 3.5}}, "strong": {"metrics": {"bits_per_byte": 1.5}}}
    files = {
        "run.json": {"step": 300, "total": 300, "status": "done", "seconds": 150.0, "task": "lm"},
        "data.json": {"parts": {"train": {"tokens": 4, "bytes": 8}}},
        "evaluation.json": {"split": "valid", "metrics": {"valid": {"bits_per_byte": 1.25}},
                            "baselines": others if baselines else None},
        "plan.json": {"measured": {"memory_bytes": 5}} if baselines else {},
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "samples").mkdir()
    for step in (100, 200):
        (folder / "samples" / f"step-{step:06}.txt").write_text(f"written at {step}")
    return Run(folder)


@pytest.mark.quick
def test_curves_and_figures_are_those_of_the_files(tmp_path):
    learned = DemoResult.of(a_run(tmp_path / "run"))
    assert learned.total == 300 and learned.bits == 1.25 and learned.held_out == [(100, 4.0), (200, 2.0), (300, 4 / 3)]
    assert (learned.guessing, learned.primed, learned.memory, learned.seconds) == (3.5, 1.5, 5, 150.0)
    assert (learned.per_second, learned.step_seconds) == (2048.0, 0.5)
    assert learned.samples == [(100, "written at 100"), (200, "written at 200")]
    # Three steps a point; a nat a token is half a nat a byte.
    assert learned.training[0] == pytest.approx((2, (4.0 - 0.02) / 2 / math.log(2))) and len(learned.training) == 100


@pytest.mark.quick
def test_a_run_without_baselines_still_has_figures(tmp_path):
    learned = DemoResult.of(a_run(tmp_path / "run", baselines=False))
    assert learned.guessing is None and learned.primed is None and learned.memory is None and learned.bits == 1.25


@pytest.mark.quick
@pytest.mark.parametrize("count", [0, 1, 119, 120, 121, 5000])
def test_a_thinned_curve_keeps_its_mean_and_is_short(count):
    points = [(float(x), x % 7 + 0.5) for x in range(count)]
    found = thin_points(points, 120)
    assert len(found) <= 120 and (count > 120 or found == points)
    if count and count % len(found) == 0:
        assert sum(y for _, y in found) / len(found) == pytest.approx(sum(y for _, y in points) / count)
