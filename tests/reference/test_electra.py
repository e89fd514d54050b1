"""ELECTRA's two nets in one: what they share, how tokens are replaced, the sum of losses against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer import UserError, preset
from anyformer.data.datasets.blocks import Blocks
from anyformer.data.sizes import Sizes
from anyformer.nets import Electra
from anyformer.objectives import Batch, Masked, ReplacedByGenerator
from anyformer.objectives.draw import Draw
from anyformer.objectives.objective import IGNORED
from anyformer.objectives.replaced import sample_tokens
from anyformer.tasks import find
from tests.families.parity import quietly
from tests.reference.test_masked import rows_of, rows_where, text_blocks

OBJECTIVE = ReplacedByGenerator()


def electra(blocks: Blocks, name: str = "electra-small-tiny") -> Electra:
    spec = find("replaced").fit_network(preset(name), name, Sizes(parts=["text"], vocab=blocks.vocab, length=128))
    assert isinstance(spec, Electra)
    return spec


def asked(blocks: Blocks, rows: int = 8, objective: ReplacedByGenerator = OBJECTIVE) -> Batch:
    batch = blocks.batch(range(len(blocks)))
    return rows_of(objective.corrupt(batch, Draw(0, 0), blocks), rows)


def test_the_generator_has_a_quarter_of_the_width_and_no_embedding_of_its_own() -> None:
    blocks = text_blocks(2_000)
    spec = electra(blocks)
    assert (spec.generator.stack.width, spec.discriminator.stack.width) == (32, 128)
    assert len(spec.generator.stack.layers) == len(spec.discriminator.stack.layers)
    model = spec.build(seed=0)
    names = [name for name, _ in model.named_parameters()]
    assert not [name for name in names if name.startswith("generator.") and ("table" in name or "position" in name)]
    alone = model.generator_alone()
    assert torch.equal(alone.embed.table.weight, model.discriminator.embed.table.weight)
    tokens = asked(blocks).inputs[0]
    with torch.no_grad():
        out = model.eval().read_hidden(tokens)
        assert (alone.eval()(tokens).logits - model.name_tokens(out.hidden, out.context)).abs().max() < 1e-5
    half = spec.replace(share=0.5).generator.stack
    assert half.width == 64 and half.layers[0].mixer.heads == 2
    with pytest.raises(UserError, match="share"):
        spec.replace(share=0.0)


def test_samples_stand_where_tokens_were_hidden_and_an_equal_one_is_original() -> None:
    blocks = text_blocks(4_000)
    model, batch = electra(blocks).build(seed=0).eval(), asked(blocks)
    torch.manual_seed(0)
    with torch.no_grad():
        made = OBJECTIVE.replace_tokens(model, batch)
    hidden = batch.targets != IGNORED
    text = torch.where(hidden, batch.targets, batch.inputs[0])
    assert torch.equal(made.tokens[~hidden], text[~hidden])
    assert torch.equal(made.targets == 1, made.tokens != text)
    assert (batch.inputs[0][hidden] == blocks.facts.mask_id()).all()  # the generator sees no hidden token
    assert not (made.tokens == blocks.facts.mask_id())[~hidden].any()
    sure = torch.full((len(batch), batch.most_targets or 0, blocks.vocab), 1.0)  # equal waits: the likeliest is drawn
    with torch.no_grad():
        best = OBJECTIVE.replace_tokens(model, batch, sure)
    assert torch.equal(best.tokens[hidden], best.named[hidden])
    known = sure.clone()
    places = (batch.targets == IGNORED).to(torch.uint8).argsort(dim=1, stable=True)[:, : batch.most_targets]
    wanted = batch.targets.gather(1, places).clamp(min=0)
    known.scatter_(2, wanted[..., None], 1e-30)  # the token itself comes at once: every sample is it
    with torch.no_grad():
        none = OBJECTIVE.replace_tokens(model, batch, known)
    assert not none.targets.clamp(min=0).any() and torch.equal(none.tokens, text)


def test_samples_follow_the_shares_of_the_generator() -> None:
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    torch.manual_seed(0)
    drawn = sample_tokens(shares.log().expand(40, 500, 4)).flatten()
    counts = torch.bincount(drawn, minlength=4)
    expected = shares * drawn.numel()
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.3  # three degrees of freedom: one in a thousand
    flat = sample_tokens(torch.zeros(40, 500, 4)).flatten()
    control = torch.bincount(flat, minlength=4)
    assert float(((control - expected) ** 2 / expected).sum()) > 1000


def both_losses(model: Any, batch: Batch, folder: Path) -> Tensor:
    """What transformers' two classes say of the same texts and samples."""
    import transformers

    from anyformer.checkpoints.folder import save_foreign

    torch.manual_seed(3)
    with torch.no_grad():
        made = OBJECTIVE.replace_tokens(model, batch)
    save_foreign(folder / "d", model.discriminator.spec, model.discriminator)
    alone = model.generator_alone()
    save_foreign(folder / "g", alone.spec, alone, config={"model_type": "electra"})
    with quietly():
        judge = transformers.ElectraForPreTraining.from_pretrained(folder / "d").eval()
        namer = transformers.ElectraForMaskedLM.from_pretrained(folder / "g").eval()
    mask = batch.named.get("mask", torch.ones_like(batch.inputs[0], dtype=torch.bool)).long()
    with torch.no_grad():
        named = namer(input_ids=batch.inputs[0], attention_mask=mask, labels=batch.targets).loss
        found = judge(input_ids=made.tokens, attention_mask=mask, labels=made.targets.clamp(min=0)).loss
    return named + 50 * found


@pytest.mark.parametrize("name", ["electra-small-tiny", "bert-base-tiny"])
def test_the_sum_of_both_losses_equals_that_of_transformers(name: str, tmp_path: Path) -> None:
    blocks = text_blocks(4_000, 102)
    model, batch = electra(blocks, name).build(seed=0).eval(), asked(blocks, 16)
    counts = (batch.targets != IGNORED).sum(1)
    batch = rows_where(batch, counts == counts.mode().values)  # rows weigh alike where as many tokens are hidden
    torch.manual_seed(3)
    with torch.no_grad():
        ours = OBJECTIVE.loss(model, batch) / OBJECTIVE.weight(batch)
    wanted = both_losses(model, batch, tmp_path)
    assert abs(float(ours) - float(wanted)) < 1e-5 * float(wanted)


def test_detection_covers_every_token_but_padding_and_teaches_the_generator_nothing() -> None:
    blocks = text_blocks(1_000, 48)
    model = electra(blocks).build(seed=0, dtype=torch.float64).eval()
    last = len(blocks) - 1
    batch = OBJECTIVE.corrupt(blocks.batch([0, last]), Draw(0, 0), blocks)
    assert not batch.named["mask"].all()
    with torch.no_grad():
        torch.manual_seed(0)
        made = OBJECTIVE.replace_tokens(model, batch)
        scores = model(made.tokens, **batch.named).logits[..., 0]
        torch.manual_seed(0)
        ours = OBJECTIVE.loss(model, batch)
    total = 0.0  # written out
    for row in range(2):
        real = [place for place in range(48) if batch.named["mask"][row, place]]
        bce = [float(torch.log1p(torch.exp(-s if made.targets[row, p] == 1 else s)))
               for p, s in ((place, scores[row, place]) for place in real)]  # fmt: skip
        hidden = int((batch.targets[row] != IGNORED).sum())
        total += 50 * hidden * sum(bce) / len(bce) + float(made.words[row].sum())
    assert abs(total - float(ours)) < 1e-9 * total
    assert (made.targets[~batch.named["mask"]] == IGNORED).all()

    def generator_gradients(detection: float) -> dict[str, Tensor]:
        model.zero_grad()
        torch.manual_seed(0)
        ReplacedByGenerator(detection=detection).loss(model, batch).backward()
        return {name: p.grad.clone() for name, p in model.generator.named_parameters() if p.grad is not None}

    with_it, without = generator_gradients(50.0), generator_gradients(0.0)
    assert with_it and all(torch.equal(with_it[name], without[name]) for name in without)
    assert model.discriminator.embed.table.weight.grad is not None  # both teach what they share


def test_parts_of_a_batch_add_up() -> None:
    blocks = text_blocks(1_000, 48)
    model = electra(blocks).build(seed=0, dtype=torch.float64).eval()
    whole = asked(blocks, 6)
    noise = np.random.default_rng(0).exponential(size=(6, whole.most_targets or 0, blocks.vocab))

    def loss(rows: slice) -> float:
        batch = rows_where(whole, torch.isin(torch.arange(6), torch.arange(6)[rows]))
        with torch.no_grad():
            made = OBJECTIVE.replace_tokens(model, batch, torch.from_numpy(noise[rows]))
            return float(OBJECTIVE.sum_losses(model, batch, made))

    assert abs(loss(slice(0, 6)) - loss(slice(0, 2)) - loss(slice(2, 6))) < 1e-8


def test_a_toy_is_learned() -> None:
    """Token t + 1 follows t: what does not fit between its neighbours was replaced."""
    blocks = text_blocks(100)
    ids = blocks.facts.drawable[np.arange(12_000) % 60]
    rows = Blocks(ids, 26, vocab=blocks.vocab, tokenizer=blocks.tokenizer)
    torch.manual_seed(0)
    model = electra(blocks).build(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    order, detected = np.random.default_rng(0), []
    for step in range(60):
        draw = Draw(0, step)
        batch = OBJECTIVE.corrupt(rows.batch(order.integers(0, len(rows), 32), draw), draw, rows)
        loss = OBJECTIVE.loss(model, batch) / OBJECTIVE.weight(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        detected.append(float(loss.detach()))
    assert abs(detected[0] - np.log(blocks.vocab) - 50 * np.log(2)) < 3  # chance: nobody knows anything
    share = 0.15 * (1 - 1 / blocks.vocab)
    shrugging = -50 * (share * np.log(share) + (1 - share) * np.log(1 - share)) + np.log(blocks.vocab)
    assert detected[-1] < 0.8 * shrugging  # better than knowing how many tokens are replaced


def test_pairs_are_refused() -> None:
    with pytest.raises(UserError, match="pairs"):
        ReplacedByGenerator(masked=Masked(pairs="next"))
