"""Log-likelihoods of continuations: those of a loop over tokens in double precision, with few rows of a pass."""

from __future__ import annotations

import random

import pytest
import torch

from anyformer import preset, replace_in
from anyformer.generation import score_continuations as scoring
from anyformer.generation.score_continuations import Continuation, score_continuations, share_rows


def wanted_of(source: bool) -> list[Continuation]:
    """Prompts of unlike lengths, each with choices that share none, some or all of their tokens."""
    rng = random.Random(0)
    found = []
    for length in (1, 3, 7, 12):
        prompt = tuple(rng.choices(range(1, 40), k=length))
        for tokens in ((5,), (6,), (7, 8), (7, 8, 9), (7, 9)):
            found.append(Continuation((2,), tokens, prompt) if source else Continuation(prompt, tokens))
    return found


def naive(model: torch.nn.Module, one: Continuation, *, prefix: bool = False) -> list[float]:
    """One pass for every token, in double precision; the softmax written out."""
    found, read = [], list(one.prefix)
    for token in one.tokens:
        given = (torch.tensor([list(one.source)]), torch.tensor([read])) if one.source else (torch.tensor([read]),)
        whole = {"prefix": torch.tensor([len(one.prefix)])} if prefix else {}
        with torch.no_grad():
            logits = model(*given, **whole).logits[0, -1]
        found.append(float(torch.log(torch.exp(logits)[token] / torch.exp(logits).sum())))
        read.append(token)
    return found


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama3-8b-tiny", "bloom-560m-tiny", "t5-small-tiny"])
def test_they_are_those_of_a_loop(name: str) -> None:
    spec = preset(name)
    model = spec.build(seed=0).eval()
    wanted = wanted_of(source=name == "t5-small-tiny")
    single = [each.clone() for each in score_continuations(model, wanted, batch_size=3)]
    double = score_continuations(model.double(), wanted, batch_size=64)
    for one, low, high in zip(wanted, single, double, strict=True):
        expected = torch.tensor(naive(model, one), dtype=torch.float64)
        assert high.dtype == torch.float64 and torch.allclose(high, expected, atol=1e-9)
        assert torch.allclose(low.double(), expected, atol=1e-4)
        # control: the same tokens behind another prompt are noticed
        other = Continuation((9,), one.tokens, (9, 9) if one.source else ())
        assert not torch.allclose(expected, torch.tensor(naive(model, other), dtype=torch.float64), atol=1e-7)


def test_a_prefix_lm_sees_the_prompt_whole() -> None:
    model = replace_in(preset("gpt2-tiny"), {"stack.causal": "prefix_lm"}).build(seed=0).eval().double()
    wanted = wanted_of(source=False)
    for one, found in zip(wanted, score_continuations(model, wanted, batch_size=3), strict=True):
        expected = torch.tensor(naive(model, one, prefix=True), dtype=torch.float64)
        assert torch.allclose(found, expected, atol=1e-9)
        causal = torch.tensor(naive(model, one), dtype=torch.float64)  # control
        assert len(one.prefix) == 1 or not torch.allclose(causal, expected, atol=1e-7)


def test_rows_are_shared_where_one_begins_another() -> None:
    """Of five choices, those of one token and (7, 8), (7, 9), (7, 8, 9) all stand in the row that reads 7, 8."""
    rows = share_rows(wanted_of(source=False))
    assert len(rows) == 4 and sorted(number for row in rows for number in row.wanted) == list(range(20))
    apart = share_rows([Continuation((1,), (5, 6)), Continuation((1,), (6, 6)), Continuation((2,), (5,))])
    assert [len(row.wanted) for row in apart] == [1, 1, 1]


def test_choices_of_one_token_are_one_row_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace_in(preset("gpt2-tiny"), {"embed.vocab": 64}).build(seed=0)
    seen: list[int] = []
    plain = scoring.hidden_states

    def counting(net: object, ids: torch.Tensor, *rest: object, **named: object) -> torch.Tensor:
        seen.append(ids.shape[0])
        return plain(net, ids, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(scoring, "hidden_states", counting)
    score_continuations(model, [Continuation((prompt, 3), (choice,)) for prompt in (1, 2) for choice in range(10)])
    assert seen == [2]
