"""The price of a look is known from shapes before it runs, equals what is then kept, and a small budget refuses it."""

from __future__ import annotations

import re

import pytest
import torch

from anyformer import Attention, UserError
from anyformer.amounts import decimal_bytes
from anyformer.inspection.budget import bytes_of, check, price, price_call, tokens_of
from anyformer.inspection.capture import Capture, look
from tests.inspection import models
from tests.laws.nets import build, language, pair, tokens


def small(depth: int = 3) -> torch.nn.Module:
    return build(language(mixer=Attention(heads=4), depth=depth), dtype=torch.float32)


@pytest.mark.parametrize(
    "text, size", [("256MB", 256 * 10**6), ("1GiB", 2**30), ("0.5 kb", 500), (77, 77), ("2e", None), ("", None),
                   ("0MB", None), ("-4MB", None), ("MB", None), ("4 parsecs", None), ("1e400MB", None)],
)  # fmt: skip
def test_amounts_are_read_or_refused(text: str, size: int | None) -> None:
    if size is not None:
        assert bytes_of(text) == size
        return
    with pytest.raises(UserError, match="budget"):
        bytes_of(text)


def counted(capture: Capture) -> tuple[int, ...]:
    """Bytes of the stream, of what mixers and feeds added, of what entered mixers, and of the logits."""
    found = capture.found
    stream = [found.blocks[0].before, *(call.after for call in found.blocks)]
    branches = [part for call in found.blocks for part in (call.mixed, call.crossed, call.fed) if part is not None]
    entered = [call.given[0] for call in found.mixers]
    return tuple(
        sum(x.numel() * x.element_size() for x in group)
        for group in (stream, branches, entered, [capture.output.logits])
    )


@pytest.mark.parametrize("batch, length", [(1, 5), (2, 8), (3, 31)])
def test_the_price_is_what_a_pass_then_keeps(batch: int, length: int) -> None:
    model = small()
    ids = tokens(batch, length)
    cost = price(model, *tokens_of(model, (ids,), {}))
    capture = look(model, ids)
    assert (cost.residuals, cost.branches, cost.sites, cost.logits) == counted(capture)
    assert cost.map == capture.weights(0).numel() * 4
    assert cost.overviews == 3 * 4 * min(length, 256) ** 2
    assert price(model, batch, length + 1).residuals != cost.residuals  # control: another length has another price


def test_an_encoder_decoder_has_three_mixers_a_decoder_layer_pays() -> None:
    model = build(pair(), dtype=torch.float32)
    source, target = tokens(1, 9), tokens(1, 4)
    batch, lengths = tokens_of(model, (source, target), {})
    assert (batch, lengths) == (1, {"encoder": 9, "decoder": 4})
    cost = price(model, batch, lengths)
    depth = len(model.encoder.stack.blocks)
    assert [(s.stack, s.queries, s.keys) for s in cost.layers] == [("encoder", 9, 9)] * depth + [
        ("decoder", 4, 4), ("decoder", 4, 9)] * depth  # fmt: skip
    width = model.encoder.spec.stack.width
    assert cost.residuals == (9 + 4) * (depth + 1) * width * 4


def test_a_budget_refuses_with_a_table_and_ways_that_fit() -> None:
    model = small(depth=4)
    cost = price(model, 1, 64)
    limit = price(model, 1, 64, layers=[2, 3]).kept
    assert check(cost, cost.kept) is cost
    with pytest.raises(UserError) as caught:
        check(cost, limit)
    error = caught.value
    assert error.fix == "use layers=[2, 3]" and decimal_bytes(cost.kept) in error.what
    details = "\n".join(error.details)
    assert re.search(rf"together\s+{decimal_bytes(cost.kept)}", details) and re.search(
        r"map of all heads.* 65.5 KB", details
    )
    tokens = int(re.search(r"at most ([\d,]+) tokens", details)[1])
    assert check(price(model, 1, tokens), limit)
    with pytest.raises(UserError):  # control: one token more is too much
        check(price(model, 1, tokens + 1), limit)
    larger = re.search(r'budget="(\w+)"', details)[1]
    assert check(cost, larger)


def test_fewer_rows_of_a_table_are_offered() -> None:
    cost = price(small(), 8, 16)
    with pytest.raises(UserError) as caught:
        check(cost, cost.kept // 2)
    assert "give 4 rows" in " ".join([caught.value.fix, *caught.value.details])


def test_a_look_is_refused_before_it_runs() -> None:
    model = small()
    ran: list[int] = []
    model.stack.blocks[0].register_forward_hook(lambda *given: ran.append(1))
    with pytest.raises(UserError, match="budget is 10 KB"):
        look(model, tokens(1, 64), budget="10KB")
    assert not ran
    assert look(model, tokens(1, 64), budget="1MB").budget == 10**6


def test_a_map_beyond_the_budget_is_refused_and_its_rows_are_not() -> None:
    """What is kept grows with the tokens, a map with their square: a long input is looked at in rows."""
    model = small(depth=1)
    ids = tokens(1, 512)
    capture = look(model, ids, budget="1MB")
    with pytest.raises(UserError, match=r"slice\(0, (\d+)\)") as caught:
        capture.weights(0)
    rows = int(re.search(r"slice\(0, (\d+)\)", str(caught.value))[1])
    found = capture.weights(0, rows=slice(0, rows))
    torch.testing.assert_close(found, look(model, ids, budget="1GB").weights(0)[:, :rows], atol=1e-6, rtol=1e-5)
    with pytest.raises(UserError):
        capture.weights(0, rows=slice(0, rows + 1))


@pytest.mark.parametrize("kind", models.KINDS)
def test_every_kind_of_input_is_priced(kind: str) -> None:
    capture = look(models.predictor(kind), models.inputs(kind))
    cost = price_call(capture.model, capture.given.args, capture.given.options)
    found = capture.found
    stacks = {call.stack: call.before for call in reversed(found.blocks)}
    stream = [*stacks.values(), *(call.after for call in found.blocks)]
    assert cost.residuals == sum(x.numel() * x.element_size() for x in stream)
    assert cost.map == max(capture.weights(site.index).numel() for site in capture.sites) * 4


def test_sizes_read_as_people_say_them() -> None:
    assert [decimal_bytes(n) for n in (0, 999, 1000, 2_500_000, 3e9)] == ["0 B", "999 B", "1 KB", "2.5 MB", "3 GB"]
