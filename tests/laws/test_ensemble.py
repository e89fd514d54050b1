"""Ensembles: every member is the network that its factors make of the shared weights; losses are the members' own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from anyformer import LM, Batch, Ensemble, Model, Pooled, UserError, preset
from anyformer.core.ensemble import MemberLinear, OwnLinear
from anyformer.objectives import Classify, Distill, Regression
from anyformer.objectives.members import with_member_losses
from anyformer.objectives.objective import Phase
from anyformer.slots import Network

MEMBERS = 3
DRAW = torch.Generator().manual_seed(0)


def inputs(name: str, rows: int = 5) -> tuple[torch.Tensor | None, ...]:
    if "encoder" in name:
        return (torch.randint(1, 500, (rows, 6), generator=DRAW),)
    if "vit" in name:
        return (torch.randn(rows, 3, 32, 32, generator=DRAW, dtype=torch.float64),)
    return (torch.randn(rows, 8, generator=DRAW, dtype=torch.float64), None)


def varied(name: str, **head: object) -> tuple[Model, torch.nn.Module]:
    """A preset as an ensemble whose factors and biases are all different."""
    spec = preset(name)
    assert isinstance(spec, Model)
    spec = spec.replace(ensemble=Ensemble(MEMBERS), head=Pooled(classes=4, pool="mean", **head))
    net = spec.build(seed=0, dtype=torch.float64).eval()
    for path, p in net.named_parameters():
        if path.endswith((".into", ".outof", ".bias", "members.embed")):
            p.data += 0.3 * torch.randn(p.shape, generator=DRAW, dtype=torch.float64)
    return spec, net


def member(spec: Model, net: torch.nn.Module, number: int) -> torch.nn.Module:
    """One member as a plain network, its factors multiplied into its weights."""
    alone = spec.replace(ensemble=None).build(seed=1, dtype=torch.float64).eval()
    weights = {k: v for k, v in net.state_dict().items() if not k.endswith((".into", ".outof")) and "members" not in k}
    for path, layer in net.named_modules():
        if isinstance(layer, MemberLinear):
            into, outof = 1 + layer.into[number, 0], 1 + layer.outof[number, 0]
            weights[f"{path}.weight"] = outof[:, None] * layer.weight * into
        if isinstance(layer, OwnLinear):
            weights[f"{path}.weight"] = layer.weight[number]
        if isinstance(layer, MemberLinear | OwnLinear) and layer.bias is not None:
            weights[f"{path}.bias"] = layer.bias[number, 0]
    alone.load_state_dict(weights)
    signs, embed = net.members.embed[number, 0, 0], alone.embed.forward
    alone.embed.forward = lambda *args, **named: embed(*args, **named) * signs
    return alone


PRESETS = ["encoder-mini", "vit-mini", "ft-transformer-tiny", "table-mini-tiny"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_member_is_the_network_that_its_factors_make(name):
    spec, net = varied(name)
    given = inputs(name)
    with torch.no_grad():
        each = net(*given, each_member=True).logits.unflatten(0, (MEMBERS, -1))
        mean = net(*given).logits
        wanted = torch.stack([member(spec, net, m)(*given).logits for m in range(MEMBERS)])
    torch.testing.assert_close(each, wanted)
    assert (each - wanted.roll(1, 0)).abs().max() > 1e-3  # control: members differ
    torch.testing.assert_close(mean.softmax(-1), each.softmax(-1).mean(0))
    assert (mean.softmax(-1) - each.mean(0).softmax(-1)).abs().max() > 1e-6  # control: logits are not what is averaged


def test_padding_and_neighbours_change_nothing():
    _, net = varied("encoder-mini")
    tokens = torch.randint(1, 500, (4, 7), generator=DRAW)
    mask = torch.arange(7) < torch.tensor([7, 4, 5, 7])[:, None]
    with torch.no_grad():
        together = net(tokens, mask=mask).logits
        alone = net(tokens[1:2, :4]).logits
        blind = net(tokens[1:2]).logits
    torch.testing.assert_close(together[1:2], alone)
    assert (blind - alone).abs().max() > 1e-4  # control: what the mask hides would count


def test_labels_that_may_come_together_are_averaged_as_probabilities_too():
    spec, net = varied("table-mini-tiny")
    assert spec.ensemble is not None
    net.members.spec = spec.ensemble.replace(multi_label=True)
    given = inputs("table")
    with torch.no_grad():
        each, mean = net(*given, each_member=True).logits, net(*given).logits
    torch.testing.assert_close(mean.sigmoid(), each.sigmoid().unflatten(0, (MEMBERS, -1)).mean(0))


@pytest.mark.parametrize("objective", [Classify(), Regression()], ids=["classes", "numbers"])
def test_the_loss_is_the_mean_of_the_members_losses(objective):
    spec, net = varied("table-mini-tiny")
    given, rows = inputs("table"), torch.arange(5)
    targets = rows % 4 if isinstance(objective, Classify) else torch.randn(5, 4, generator=DRAW, dtype=torch.float64)
    batch = Batch(given, targets, rows)
    found = with_member_losses(Phase(objective.loss), net).loss(net, batch)
    alone = [objective.loss(member(spec, net, m), batch) for m in range(MEMBERS)]
    torch.testing.assert_close(found.double(), torch.stack(alone).double().mean(), rtol=1e-5, atol=1e-6)
    assert (found - objective.loss(net, batch)).abs() > 1e-3  # control: the loss of the mean is another
    assert objective.weight(batch) == batch.targets.numel()


def test_blended_rows_are_blended_within_a_member():
    _, net = varied("vit-mini")
    batch = Batch(inputs("vit"), torch.arange(5) % 4, torch.arange(5))
    batch = Classify(mixup=0.8).prepare(batch, torch.Generator().manual_seed(1))
    assert batch.blend is not None
    found = with_member_losses(Phase(Classify().loss), net).loss(net, batch)
    logits = net(*batch.inputs, each_member=True).logits
    partner, share = batch.blend
    wanted = torch.zeros((), dtype=torch.float64)
    for each in logits.unflatten(0, (MEMBERS, -1)):
        wanted += share * F.cross_entropy(each, batch.targets, reduction="sum")
        wanted += (1 - share) * F.cross_entropy(each, batch.targets[partner], reduction="sum")
    torch.testing.assert_close(found, wanted / MEMBERS, rtol=1e-6, atol=1e-6)  # shares are single


def test_members_start_apart_and_one_network_is_left_as_it_is():
    spec = preset("table-mini-tiny")
    assert isinstance(spec, Network)
    net = spec.build(seed=0).eval()
    each = net(*(None if x is None else x.float() for x in inputs("table")), each_member=True).logits
    apart = each.unflatten(0, (net.members.spec.members, -1))
    assert (apart[0] - apart[1]).abs().max() > 1e-2
    assert set(net.members.embed.flatten().tolist()) == {1.0, -1.0}
    plain = preset("ft-transformer-tiny").build(seed=0)
    phase = Phase(Regression().loss)
    assert with_member_losses(phase, plain) is phase


def test_a_head_that_cannot_be_averaged_is_refused():
    with pytest.raises(UserError, match="outputs of LM cannot be averaged"):
        preset("decoder-mini").replace(ensemble=Ensemble(2))
    assert isinstance(preset("decoder-mini").head, LM)
    with pytest.raises(UserError, match="members 1 is"):
        Ensemble(1)


def test_every_member_learns_from_a_teacher():
    spec, net = varied("table-mini-tiny")
    teacher = member(spec, net, 1)
    lesson = Distill(student=Classify(), alpha=0.0, beta=1.0, gamma=0.0)
    batch = Batch(inputs("table"), torch.arange(5) % 4, torch.arange(5))
    found = lesson.loss_beside(teacher, net, batch.for_members(MEMBERS)) / MEMBERS
    alone = [lesson.loss_beside(teacher, member(spec, net, m), batch) for m in range(MEMBERS)]
    torch.testing.assert_close(found, torch.stack(alone).mean())
    assert alone[1] < 1e-9 < alone[0]  # control: one of them is the teacher
