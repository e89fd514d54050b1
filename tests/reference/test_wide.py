"""N-grams beside a head: beside scikit-learn's counts, beside Python's sets, and what they are worth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer import Attention, Block, Model, Pooled, Regress, Stack, Tokens, UserError, WideAndDeep
from anyformer.core.context import lay_out
from anyformer.heads.wide import MODULUS, MULTIPLIER, is_in_other, learn_apart, n_grams

VOCAB = 40


def build(head: WideAndDeep, segments: int = 0) -> torch.nn.Module:
    stack = Stack(width=16, depth=1, block=Block(mixer=Attention(heads=2)))
    return Model(embed=Tokens(vocab=VOCAB, segments=segments), stack=stack, head=head).build(seed=0).eval()


def draw_rows(lengths: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of random ids, padded with 0 on the right, and their mask."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, VOCAB, mask.shape, generator=torch.Generator().manual_seed(seed))
    return ids * mask, mask


def code(gram: tuple[int, ...]) -> int:
    found = len(gram)
    for token in gram:
        found = (found * MULTIPLIER + token + 1) % MODULUS
    return found


@pytest.mark.quick
def test_the_wide_logits_are_those_of_normalised_counts() -> None:
    """Scikit-learn finds the different n-grams of a row and gives them length 1; only where a weight lies is ours."""
    text = pytest.importorskip("sklearn.feature_extraction.text")
    from sklearn.preprocessing import normalize

    net = build(WideAndDeep(deep=Pooled(classes=3, pool="mean"), buckets=2**12, order=3, scale=2.0))
    torch.nn.init.normal_(net.head.wide.weight, generator=torch.Generator().manual_seed(1))
    ids, mask = draw_rows([9, 4, 30, 1])
    out = net(ids, mask=mask)
    deep = net.head.deep(out.hidden, out.context, None).logits

    words = [" ".join(str(i) for i in row[seen].tolist()) for row, seen in zip(ids, mask, strict=True)]
    counter = text.CountVectorizer(ngram_range=(1, 3), token_pattern=r"\S+", binary=True)
    counts = normalize(counter.fit_transform(words).astype(np.float64))
    buckets = [code(tuple(int(i) for i in name.split())) % 2**12 for name in counter.get_feature_names_out()]
    wanted = 2.0 * counts @ net.head.wide.weight.detach().double().numpy()[buckets]
    torch.testing.assert_close((out.logits - deep).double(), torch.from_numpy(wanted), atol=1e-5, rtol=1e-5)
    assert np.abs(wanted - wanted[::-1]).max() > 0.1  # control: rows differ


@pytest.mark.quick
def test_rare_n_grams_count_as_in_tf_idf() -> None:
    """A fitted head knows how rare each n-gram is; scikit-learn's TF-IDF of the same rows, normalised after it."""
    text = pytest.importorskip("sklearn.feature_extraction.text")
    net = build(WideAndDeep(deep=Pooled(classes=3, pool="mean"), buckets=2**12, fitted=True, scale=1.0))
    torch.nn.init.normal_(net.head.wide.weight, generator=torch.Generator().manual_seed(1))
    ids, mask = draw_rows([9, 4, 30, 1])
    words = [" ".join(str(i) for i in row[seen].tolist()) for row, seen in zip(ids, mask, strict=True)]
    counter = text.TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\S+", binary=True)
    counts = counter.fit_transform(words)
    buckets = [code(tuple(int(i) for i in name.split())) % 2**12 for name in counter.get_feature_names_out()]
    plain = net(ids, mask=mask)
    net.head.wide.rarity.data.zero_()[buckets] = torch.from_numpy(counter.idf_).float()
    out = net(ids, mask=mask)
    deep = net.head.deep(out.hidden, out.context, None).logits
    wanted = torch.from_numpy(counts @ net.head.wide.weight.detach().double().numpy()[buckets])
    torch.testing.assert_close((out.logits - deep).double(), wanted, atol=1e-5, rtol=1e-5)
    assert (plain.logits - out.logits).abs().max() > 1e-3  # control: all alike, as a head that learns by steps has it
    net.head.wide.rarity.data.zero_()  # of texts whose words training never had the n-grams say nothing
    torch.testing.assert_close(net(ids, mask=mask).logits, deep)


@pytest.mark.quick
def test_what_two_texts_share_is_what_their_sets_share() -> None:
    rows = [([3, 4, 5, 6], [4, 5, 9]), ([7, 7, 8], [1, 2, 7]), ([1, 2], [3, 4, 5, 6, 7])]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(a + b) for a, b in rows], batch_first=True)
    mask = ids > 0
    first = torch.tensor([len(a) for a, _ in rows])
    segments = (torch.arange(ids.shape[1]) >= first[:, None]).long() * mask
    context = lay_out(*ids.shape, ids.device, mask=mask, tokens=ids, segments=segments)
    for order in (1, 2):
        codes, there = n_grams(context, order)
        shared = is_in_other(codes, there, segments)
        for row, (a, b) in enumerate(rows):
            grams = [{tuple(text[i : i + order]) for i in range(len(text) - order + 1)} for text in (a, b)]
            marked = {tuple(ids[row, at : at + order].tolist()) for at in torch.nonzero(shared[row]).flatten().tolist()}
            assert marked == grams[0] & grams[1]
            assert int(there[row].sum()) == sum(max(0, len(text) - order + 1) for text in (a, b))  # none spans both


def test_two_texts_that_agree_are_told_from_two_that_do_not() -> None:
    """What a network without a trace of the words must learn: are the two texts about the same? Of unseen words."""
    found = {}
    for pair in (True, False):
        torch.manual_seed(0)
        head = WideAndDeep(deep=Regress(outputs=1, pool="mean"), buckets=2**14, scale=1.0, pair=pair)
        net = build(head, segments=2).train()
        optimizer = torch.optim.AdamW(net.head.parameters(), lr=3e-3)
        for step in range(120):
            ids, segments, wanted = draw_pairs(64, 1, VOCAB // 2, step)
            loss = (net(ids, segments=segments).logits[:, 0] - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ids, segments, wanted = draw_pairs(200, VOCAB // 2, VOCAB, 1000)
        said = net.eval()(ids, segments=segments).logits[:, 0] > 0.5
        found[pair] = float((said == (wanted > 0.5)).float().mean())
    assert found[True] > 0.95
    assert found[False] < 0.7  # control: without the comparison


def draw_pairs(rows: int, low: int, high: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two texts of 6 words; the second is the first in another order, or 6 other words."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.stack([torch.randperm(high - low, generator=generator)[:12] + low for _ in range(rows)])
    same = torch.rand(rows, generator=generator) < 0.5
    second = torch.where(same[:, None], first[:, :6].flip(1), first[:, 6:])
    ids = torch.cat([first[:, :6], second], 1)
    return ids, (torch.arange(12) >= 6).long().expand(rows, -1), same.float()


@pytest.mark.quick
def test_each_path_learns_from_its_own_rows() -> None:
    torch.manual_seed(0)
    wide, deep = (torch.randn(4000, 3, requires_grad=True) for _ in range(2))
    learn_apart(wide, deep, 0.3, fitted=False).sum().backward()
    assert torch.equal(wide.grad + deep.grad, torch.ones(4000, 3))  # a row is for one of them, never for both
    assert abs(float(wide.grad.mean()) - 0.3) < 0.03
    (wide + deep).sum().backward()  # control: of a sum both learn
    assert float(wide.grad.min()) == 1.0


@pytest.mark.quick
@pytest.mark.parametrize(
    ("settings", "said"),
    [({"order": 0}, "order 0 is below 1"), ({"buckets": 1}, "buckets 1 is below 2"), ({"scale": 0.0}, "not positive"),
     ({"alone": 1.5}, "alone 1.5 is above 1"), ({"deep": Pooled()}, "nothing to add to")],
)  # fmt: skip
def test_impossible_settings_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        WideAndDeep(**({"deep": Pooled(classes=2)} | settings))
