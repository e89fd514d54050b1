"""Parameters, FLOPs and norms of the stream, against formulas, torch's own counter and a pass by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer import LM, MLP, Attention, Block, Hyena, Learned, Model, Recurrent, RMSNorm, Stack, Tokens, UserError
from anyformer.core import attend as attend_module
from anyformer.inspection.answer import Query, ViewAnswer
from anyformer.inspection.capture import look
from anyformer.inspection.flow import measure, model_summary, stream_norms
from anyformer.inspection.shadow import shadow
from anyformer.inspection.views import flow
from tests.inspection import models
from tests.inspection.test_every_preset import captured

IDS = torch.tensor([[3, 14, 15, 9, 26, 5, 35, 8]])


def network(block=None, *, depth=3, width=32, **stack):
    block = block or Block(mixer=Attention(heads=4))
    stack = Stack(width=width, depth=depth, block=block, **stack)
    return Model(embed=Tokens(vocab=50, position=Learned(300)), stack=stack, head=LM()).build(seed=0).eval()


@pytest.mark.parametrize("kind", models.KINDS)
def test_every_parameter_is_in_one_part(kind):
    capture = look(models.predictor(kind), models.inputs(kind))
    found = measure(capture.model, capture.given.args, capture.given.options)
    assert found.parameters == sum(p.numel() for p in capture.model.parameters())
    assert not [part for part in found.parts if part.role == "other"]


@pytest.mark.parametrize(("causal", "kv_heads"), [(True, None), (False, None), (True, 2)])
def test_flops_are_those_of_the_formulas(causal, kv_heads):
    t, d, h = 8, 32, 4
    found = model_summary(network(Block(mixer=Attention(heads=h, kv_heads=kv_heads)), causal=causal), IDS)
    keys = d if kv_heads is None else kv_heads * d // h
    attention = 2 * t * d * (d + 2 * keys) + 2 * t * d * d + 2 * h * t * t * 2 * (d // h)
    assert [part.flops for part in found.parts if part.role == "mixer"] == [attention] * 3
    assert [part.flops for part in found.parts if part.role == "feed"] == [2 * t * d * 4 * d * 2] * 3
    assert [part.flops for part in found.parts if part.role == "head"] == [2 * t * d * 50]


def test_flops_are_those_of_torchs_counter():
    model = network(causal=True)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # products it knows
        model(IDS)
    assert model_summary(model, IDS).flops == counter.get_total_flops()
    assert model_summary(model, length=16).flops > counter.get_total_flops()  # control: a longer text


def test_flops_do_not_depend_on_the_kernel(monkeypatch):
    """Compiled kernels cannot run inside of torch's counting: they run outside, and their products are known."""
    model = network(causal=True)
    wanted = model_summary(model, length=300).flops
    padded = torch.arange(300)[None] < 280  # another engine: blocks of queries that see different keys
    assert model_summary(model, torch.zeros(1, 300, dtype=torch.long), mask=padded).flops == wanted

    def compiled_kernel(*given, **named):
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
        return reference(*given, **named)

    reference = attend_module.attend
    monkeypatch.setattr("anyformer.inspection.flow.attend", compiled_kernel)
    assert model_summary(model, length=300).flops == wanted


def test_feeds_hold_two_thirds_of_a_block():
    found = model_summary(network(Block(mixer=Attention(heads=4)), width=64), length=16)
    assert found.share("feed") == pytest.approx(2 / 3, abs=0.01)
    assert found.share("mixer") == pytest.approx(1 / 3, abs=0.01)
    narrow = model_summary(network(Block(mixer=Attention(heads=4), feed=MLP(width=64)), width=64), length=16)
    assert narrow.share("feed") == pytest.approx(1 / 3, abs=0.01)  # control: a feed no wider than the model
    assert "feed-forward networks hold 66% of the blocks' parameters" in str(found)


def test_equal_layers_are_one_line_and_others_are_not():
    text = str(model_summary(network(), length=8))
    assert "layers 0 to 2" in text and "each" in text
    blocks = (Block(mixer=Attention(heads=4)), Block(mixer=Hyena(filter_width=8)))
    mixed = model_summary(network(blocks, depth=4), length=8)
    assert [len(run) for run in mixed.groups() if run[0][0].layer >= 0] == [1, 1, 1, 1]
    assert len([run for run in model_summary(network(), length=8).groups() if run[0][0].layer >= 0]) == 1


def test_shared_weights_are_counted_once_and_run_in_every_layer():
    found = model_summary(network(groups=1), IDS)
    mixers = [part for part in found.parts if part.role == "mixer"]
    assert [part.layer for part in mixers] == [0, 1, 2]
    assert mixers[0].parameters > 0 and mixers[1].parameters == mixers[2].parameters == 0
    assert mixers[0].flops == mixers[2].flops > 0


def test_shapes_are_those_of_the_pass():
    found = model_summary(network(), IDS)
    assert {part.left for part in found.blocks()} == {(1, 8, 32)}
    assert next(part for part in found.parts if part.role == "embed").entered == (1, 8)
    assert next(part for part in found.parts if part.role == "head").left == (1, 8, 50)


def test_a_recurrence_is_run_and_counted():
    found = model_summary(network(Block(mixer=Recurrent("gru")), causal=True), IDS)
    (first, *_) = [part for part in found.parts if part.role == "mixer"]
    assert first.flops >= 2 * 8 * 32 * 96 and first.left == (1, 8, 32)


def test_counting_leaves_no_trace():
    model = network()
    model_summary(model, IDS)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    copied = shadow(model)
    measure(copied, (IDS,), {})
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in copied.modules())
    with pytest.raises(UserError, match="nothing to run"):
        model_summary(model)
    with pytest.raises(UserError, match="give one of them"):
        model_summary(model, IDS, length=8)


@pytest.mark.parametrize("place", ["pre", "post", "sandwich", "branch"])
def test_norms_of_the_stream_are_those_of_a_pass_by_hand(place):
    model = network(Block(mixer=Attention(heads=4), place=place, norm=RMSNorm()))
    capture = look(model, IDS)
    found = stream_norms(capture)
    with torch.no_grad():
        context = model.embed.layout(IDS)
        x = model.embed(IDS, context=context)
        torch.testing.assert_close(found.stream[0], x[0].norm(dim=-1))
        for layer, block in enumerate(model.stack.blocks):
            mixed = block.around_mixer.inside(block.mixer(block.around_mixer.before(x), context, None, ()))
            x = block.around_mixer.after(x + mixed)
            fed = block.around_feed.inside(block.feed(block.around_feed.before(x), context))
            x = block.around_feed.after(x + fed)
            torch.testing.assert_close(found.mixer[layer], mixed[0].norm(dim=-1))
            torch.testing.assert_close(found.feed[layer], fed[0].norm(dim=-1))
            torch.testing.assert_close(found.stream[layer + 1], x[0].norm(dim=-1))


def test_shares_of_a_layer_sum_to_one_and_a_silent_branch_has_none():
    model = network()
    shares = stream_norms(look(model, IDS)).shares()
    torch.testing.assert_close(shares["mixer"] + shares["feed"], torch.ones(3))
    with torch.no_grad():
        model.stack.blocks[1].feed.down.weight.zero_()
        model.stack.blocks[1].feed.down.bias.zero_()
    silenced = stream_norms(look(model, IDS)).shares()
    assert silenced["feed"][1] == 0 and silenced["feed"][0] == pytest.approx(shares["feed"][0].item())


def test_an_encoder_decoder_has_a_share_of_cross_attention():
    capture = look(models.t5(), models.TEXT)
    assert set(stream_norms(capture, "decoder").shares()) == {"mixer", "cross", "feed"}
    assert set(stream_norms(capture, "encoder").shares()) == {"mixer", "feed"}
    with pytest.raises(UserError, match="unknown stack"):
        stream_norms(capture, "middle")


def test_parts_outside_of_blocks_stand_alone():
    runs = model_summary(network(), IDS).groups()
    assert [run[0][0].role for run in runs] == ["embed", "mixer", "final", "head"]
    assert [len(run[0]) for run in runs] == [1, 3, 1, 1]


def test_the_factors_of_a_branch_are_counted_with_its_norms():
    found = model_summary(network(Block(mixer=Attention(heads=4), layer_scale=0.1)), IDS)
    assert [part.parameters for part in found.parts if part.role == "norms"] == [2 * 64 + 2 * 32] * 3
    assert not [part for part in found.parts if part.role == "other"]


SOME = ["albert-base-tiny", "bart-base-tiny", "clip-b32-tiny", "detr-r50-tiny", "hyena-small-tiny", "lstm-lm-tiny",
        "mixtral-tiny", "patchtst-tiny", "pyramid-small-tiny", "vilbert-base-tiny"]  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_every_kind_of_model_has_a_flow(name):
    """Parameters are counted once and only once, and FLOPs as torch counts them."""
    capture = captured(name)
    answer = flow.answer(capture, Query())
    assert answer.facts["parameters"] == sum(p.numel() for p in capture.model.parameters())
    assert sum(group["flops"] for group in answer.facts["groups"]) == answer.facts["flops"] > 0
    for number, stack in enumerate(answer.facts["stacks"]):
        assert answer.arrays[f"stream{number}"].shape[0] == stack["layers"] + 1
        assert sum(share[0] for share in stack["shares"].values()) == pytest.approx(1)
    assert ViewAnswer.from_bytes(answer.to_bytes()).facts["flops"] == answer.facts["flops"]


def test_a_pyramid_has_fewer_tokens_higher_up():
    capture = captured("pyramid-small-tiny")
    norms = stream_norms(capture)
    there = (~norms.stream.isnan()).sum(1).tolist()
    assert there == [len(x[0]) for x in capture.residuals()] and there[0] > there[-1]
