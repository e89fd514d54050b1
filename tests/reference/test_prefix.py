"""A decoder that sees a prefix whole: its mask, its loss, and decoding step by step, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anyformer
from anyformer import LM, Alibi, Attention, Block, Buckets, Learned, Model, Rope, Stack, Tokens, UserError
from anyformer.core.attend import reference
from anyformer.data.datasets.blocks import SourceBlocks
from anyformer.generation import Generation, generate
from anyformer.generation.score import score
from anyformer.objectives import Prefix
from anyformer.objectives.draw import EVALUATION, Draw

V, B, T = 40, 3, 11
PREFIX = torch.tensor([1, 5, 9])
POSITIONS: dict[str, dict[str, Any]] = {
    "learned": {"position": Learned(32)}, "rope": {"relative": Rope()}, "alibi": {"relative": Alibi()},
    "buckets": {"relative": Buckets()},
}  # fmt: skip
each_position = pytest.mark.parametrize("kind", POSITIONS)


def build(kind: str = "rope", *, causal: Any = "prefix_lm", kv_heads: int | None = None) -> Any:
    chosen = dict(POSITIONS[kind])
    embed = Tokens(vocab=V, position=chosen.pop("position")) if "position" in chosen else Tokens(vocab=V)
    block = Block(mixer=Attention(heads=4, kv_heads=kv_heads), **chosen)
    stack = Stack(width=16, depth=2, causal=causal, block=block)
    model = Model(embed=embed, stack=stack, head=LM(tied=True)).build(seed=0).double()
    with torch.no_grad():  # weights large enough that every token matters
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    return model.eval()


def ids(seed: int = 0, length: int = T) -> Tensor:
    return torch.randint(0, V, (B, length), generator=torch.Generator().manual_seed(seed))


def seen_by(model: Any, **named: Any) -> Tensor:
    """Which tokens (S) reach the logits of which (T), by changing them one at a time: bool (B,T,S)."""
    tokens = ids()
    plain = model(tokens, **named).logits
    found = []
    for place in range(T):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 7) % V
        found.append((model(changed, **named).logits - plain).abs().amax(-1) > 1e-9)
    return torch.stack(found, -1)


def allowed(prefix: Tensor) -> Tensor:
    """The mask of a prefix LM, spelled out (B,T,T)."""
    query, key = torch.arange(T)[None, :, None], torch.arange(T)[None, None]
    return (key <= query) | (key < prefix[:, None, None])


@each_position
def test_a_prefix_sees_itself_whole_and_the_rest_is_causal(kind: str) -> None:
    model = build(kind)
    # Through two layers a token also sees what the tokens it sees have seen, which here is nothing more.
    wanted = allowed(PREFIX)
    wanted |= torch.eye(T, dtype=torch.bool)
    assert torch.equal(seen_by(model, prefix=PREFIX), wanted)
    assert torch.equal(seen_by(model), allowed(torch.zeros(B)))  # without one the stack is causal
    assert not torch.equal(seen_by(build(kind, causal=True)), wanted)  # control: a causal stack is noticed


@pytest.mark.parametrize("kind", ["learned", "rope", "alibi"])
def test_a_prefix_equals_a_mask_spelled_out(kind: str) -> None:
    """A stack without causal order under the same rule: other code, the same logits.

    Buckets of a causal stack have none for keys to the right, which are at distance 0: they have no such twin.
    """
    model, free = build(kind), build(kind, causal=False)
    free.load_state_dict(model.state_dict())
    found = model(ids(), prefix=PREFIX).logits
    assert torch.allclose(found, free(ids(), mask=allowed(PREFIX)[:, None]).logits, atol=1e-10)
    assert not torch.allclose(found, free(ids(), mask=allowed(PREFIX - 1)[:, None]).logits, atol=1e-3)  # control


@each_position
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_decoding_with_a_cache_equals_the_full_pass(kind: str, kv_heads: int | None) -> None:
    model, tokens, prompt = build(kind, kv_heads=kv_heads), ids(), 6
    full = model(tokens, prefix=torch.full((B,), prompt)).logits
    state = model.state(B)
    steps = [model(tokens[:, :prompt], state=state).logits]
    steps += [model(tokens[:, at : at + 1], state=state).logits for at in range(prompt, T)]
    assert torch.allclose(torch.cat(steps, 1), full, atol=1e-10)
    state = model.state(B)  # several tokens at once behind the prompt: causal again
    pair = [model(tokens[:, part], state=state).logits for part in (slice(0, prompt), slice(prompt, T))]
    assert torch.allclose(torch.cat(pair, 1), full, atol=1e-10)
    causal = model(tokens).logits  # control: a prompt that is read causally is noticed
    assert not torch.allclose(causal, full, atol=1e-3)


def test_prompts_of_unlike_lengths_are_read_whole_beside_each_other() -> None:
    model = build()
    tokens, lengths = ids(), [3, 7, T]
    mask = torch.arange(T)[None] >= T - torch.tensor(lengths)[:, None]
    settings = Generation(max_new_tokens=5)
    together = generate(model, tokens, mask, settings=settings).ids[:, T:]
    for row, length in enumerate(lengths):
        prompt = tokens[row : row + 1, T - length :]
        for chunk in (None, 2):  # a prompt is never cut
            alone = generate(model, prompt, settings=Generation(max_new_tokens=5, prefill_chunk_size=chunk)).ids
            assert torch.equal(alone[0, length:], together[row])
        by_hand = prompt
        for _ in range(5):
            logits = model(by_hand, prefix=torch.tensor([length])).logits[:, -1]
            by_hand = torch.cat([by_hand, logits.argmax(-1, keepdim=True)], 1)
        assert torch.equal(by_hand[0, length:], together[row])


def test_beams_and_scores_of_a_prefix_lm() -> None:
    model = build()
    assert generate(model, ids()[:1], settings=Generation(max_new_tokens=4, num_beams=3)).ids.shape == (1, T + 4)
    # The chain rule reads no token before it is scored.
    logits = model(ids()).logits.log_softmax(-1)
    wanted = logits[:, :-1].gather(2, ids()[:, 1:, None])[..., 0].sum(1)
    assert torch.allclose(score(model, ids()).total.double(), wanted, atol=1e-5)


def test_what_a_prefix_cannot_do_is_said() -> None:
    block = Block(mixer=Attention(heads=4, window=3))
    with pytest.raises(UserError, match="Attention has no bidirectional prefix"):
        Stack(width=16, depth=1, causal="prefix_lm", block=block)
    with pytest.raises(UserError, match=r"this stack has no prefix.*causal=\"prefix_lm\""):
        build(causal=True)(ids(), prefix=PREFIX)
    with pytest.raises(UserError, match="prefix has shape"):
        build()(ids(), prefix=PREFIX[:2])
    model = build()
    state = model.state(B)
    model(ids(), state=state)
    with pytest.raises(UserError, match="belongs to the first pass"):
        model(ids(), prefix=PREFIX, state=state)
    with pytest.raises(UserError, match="must see it whole"):
        generate(model, ids()[:1], settings=Generation(prompt_lookup_num_tokens=2))
    from anyformer.generation.cache.open_store import open_serving_store

    with pytest.raises(UserError, match="a prefix LM must see each whole"):
        open_serving_store(model)


def test_no_published_family_takes_a_prefix_lm_for_a_causal_one(tmp_path: Any) -> None:
    from anyformer.checkpoints.folder import save_foreign

    spec = anyformer.preset("gpt2-tiny")
    prefix = spec.replace(stack=spec.stack.replace(causal="prefix_lm"))
    with pytest.raises(UserError, match="no family there has this network"):
        save_foreign(tmp_path / "new", prefix, prefix.build(seed=0))
    save_foreign(tmp_path / "causal", spec, spec.build(seed=0))  # control: the causal one is GPT-2
    assert Model.from_json(prefix.to_json()) == prefix


# ---------------------------------------------------------------- the loss


def source_of(length: int = T) -> SourceBlocks:
    return SourceBlocks(np.random.default_rng(0).integers(1, V, 60), length, vocab=V)


def test_loss_and_gradients_equal_a_plain_loop() -> None:
    model, source, objective = build(), source_of(), Prefix()
    batch = objective.corrupt(source.batch([0, 2, 5]), EVALUATION, source)
    rows, prefix = source.batch([0, 2, 5]), batch.named["prefix"]
    total = torch.zeros((), dtype=torch.float64)
    for row, (tokens, seen) in enumerate(zip(rows.inputs[0], prefix.tolist(), strict=True)):
        count = int((rows.targets[row] != -100).sum())  # the last block is shorter
        for place in range(seen, count):
            before = tokens[None, :place]
            scored = model(before, prefix=torch.tensor([seen])).logits[0, -1].log_softmax(-1)
            total = total - scored[tokens[place]]
    found = objective.loss(model, batch)
    assert torch.allclose(found, total, rtol=1e-9)
    weights = list(model.parameters())
    for mine, theirs in zip(*(torch.autograd.grad(loss, weights) for loss in (found, total)), strict=True):
        assert (mine - theirs).abs().max() < 1e-8
    causal = model(batch.inputs[0]).logits  # control: a prefix read causally has another loss
    other = torch.nn.functional.cross_entropy(causal.mT, batch.targets, reduction="sum")
    assert (other - total).abs() > 1e-3


def test_the_place_of_the_cut_is_the_rows_own_and_changes_with_the_epoch() -> None:
    source, objective = source_of(), Prefix()
    first, again, later = (
        objective.corrupt(source.batch([1, 2], draw), draw, source).named["prefix"]
        for draw in (Draw(0, 0), Draw(0, 0), Draw(0, 5))
    )
    assert torch.equal(first, again) and not torch.equal(first, later)
    assert bool(((first >= 1) & (first < T)).all())
    assert objective.corrupt(source.batch([2], Draw(0, 0)), Draw(0, 0), source).named["prefix"] == first[1]


def test_the_fused_path_is_taken() -> None:
    """The prefix is ranks compared, no tensor of all pairs: the engines of causal order run it, with its answers."""
    from anyformer.core import attend as seam

    model = build()
    mixer = model.stack.blocks[0].mixer
    found: list[float] = []

    def compare(q: Tensor, k: Tensor, v: Tensor, scores: Any, *, dropout: float = 0.0) -> Tensor:
        assert scores.allowed is None and scores.causal
        out = seam.attend(q, k, v, scores, dropout=dropout)
        found.append((out - reference(q, k, v, scores)).abs().max().item())
        return out

    import anyformer.mixers.attention as module

    kept = module.attend
    try:
        module.attend = compare  # type: ignore[assignment]
        model(ids(), prefix=PREFIX)
    finally:
        module.attend = kept
    assert mixer.causal and len(found) == 2 and max(found) < 1e-12
