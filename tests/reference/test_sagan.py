"""SAGAN against its formulas: attention on maps, spectral norm as torch computes it, and nothing while gamma is 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from anyformer import UserError, preset
from anyformer.core.init import initialise
from anyformer.nets.map_attention import MapAttention
from anyformer.nets.sagan import LAYOUTS, SAGAN, ClassBatchNorm, DownBlock, UpBlock
from anyformer.nets.spectral import Spectral, SpectralConv, SpectralLinear, SpectralTable
from anyformer.objectives.adversarial import discriminator_loss, generator_loss

SMALL = SAGAN(size=32, attention=16, classes=3, width=4, noise=6)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(module: Any, seed: int = 0) -> Any:
    module = module.double()
    initialise(module, "xavier", seed)
    return module


def gap(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


# ---------------------------------------------------------------- attention on maps


def naive_attention(net: MapAttention, x: Tensor, gamma: Tensor) -> Tensor:
    """Place by place, over plain loops; the weights divided by singular values that an SVD gives."""

    def matrix(part: SpectralConv) -> Tensor:
        flat = part.weight.flatten(1)
        return flat / torch.linalg.matrix_norm(flat, 2)

    wq, wk, wv, wo = (matrix(part) for part in (net.query, net.key, net.value, net.out))
    rows = []
    for image in x:
        cells = [image[:, i, j] for i in range(x.shape[2]) for j in range(x.shape[3])]
        seen = []
        for here in cells:
            scores = torch.stack([(wq @ here) @ (wk @ there) for there in cells])
            share = scores.exp() / scores.exp().sum()
            mean = sum((share[n] * (wv @ there) for n, there in enumerate(cells)), torch.zeros(()))
            seen.append(here + gamma * (wo @ mean))
        rows.append(torch.stack(seen, 1).unflatten(1, x.shape[2:]))
    return torch.stack(rows)


def test_attention_on_maps_equals_loops_over_places_forward_and_backward() -> None:
    net = filled(MapAttention(16)).eval()
    with torch.no_grad():
        net.gamma.fill_(0.7)
        for part in (net.query, net.key, net.value, net.out):  # u at the singular vector itself, as SVD has it
            part.weight.mul_(3)
            part.u.copy_(torch.linalg.svd(part.weight.flatten(1))[0][:, 0])
    x = numbers(2, 16, 3, 4).requires_grad_()
    weights = [p for p in net.parameters() if p.requires_grad]
    toward = numbers(2, 16, 3, 4, seed=1)
    ours = torch.autograd.grad((net(x) * toward).sum(), [x, *weights])
    theirs = torch.autograd.grad((naive_attention(net, x, net.gamma) * toward).sum(), [x, *weights])
    assert gap(net(x), naive_attention(net, x, net.gamma)) < 1e-9
    assert max(gap(a, b) for a, b in zip(ours, theirs, strict=True)) < 1e-9
    assert all(g.abs().max() > 1e-3 for g in ours)  # every weight is really used
    assert gap(net(x), naive_attention(net, x, net.gamma * 1.01)) > 1e-4  # control
    share = net.weights(x)
    assert share.shape == (2, 12, 12) and gap(share.sum(-1), torch.ones(2, 12)) < 1e-9


@pytest.mark.quick
def test_channels_of_queries_keys_and_values_are_the_paper_s() -> None:
    net = MapAttention(64)
    assert [p.weight.shape[0] for p in (net.query, net.key, net.value, net.out)] == [8, 8, 32, 64]


@pytest.mark.quick
@pytest.mark.parametrize("training", [True, False])
def test_at_gamma_0_both_nets_equal_those_without_attention_bit_for_bit(training: bool) -> None:
    looking, plain = SMALL.build(seed=0), SMALL.replace(attention=None).build(seed=1)
    kept = {name: value for name, value in looking.state_dict().items() if ".attention." not in name}
    assert len(kept) < len(looking.state_dict())
    plain.load_state_dict(kept)
    looking.train(training), plain.train(training)
    z, labels = numbers(5, 6).float(), torch.tensor([0, 1, 2, 0, 1])
    assert looking.generator.attention.gamma.item() == looking.discriminator.attention.gamma.item() == 0
    images = looking.generate(z, labels)
    assert torch.equal(images, plain.generate(z, labels))
    assert torch.equal(looking.discriminate(images, labels), plain.discriminate(images, labels))
    with torch.no_grad():  # control: a gate that is open shows
        looking.generator.attention.gamma.fill_(0.1)
        looking.discriminator.attention.gamma.fill_(0.1)
    assert not torch.equal(looking.generate(z, labels), images)
    assert not torch.equal(looking.discriminate(images, labels), plain.discriminate(images, labels))


def test_the_gate_learns_from_its_start_at_0() -> None:
    net = SMALL.build(seed=0).train()
    labels = torch.tensor([0, 1, 2, 0])
    net.discriminate(net.generate(numbers(4, 6).float(), labels), labels).mean().backward()
    for part in (net.generator.attention, net.discriminator.attention):
        assert part.gamma.grad.abs().item() > 0
        assert part.out.weight.grad.abs().max() == 0  # behind a closed gate nothing moves yet


# ---------------------------------------------------------------- spectral norm


CASES: dict[str, tuple[Any, Any, Any]] = {
    "linear": (lambda: SpectralLinear(5, 7), lambda: nn.Linear(5, 7), lambda: numbers(3, 5)),
    "conv": (lambda: SpectralConv(3, 6, 3), lambda: nn.Conv2d(3, 6, 3, padding=1), lambda: numbers(2, 3, 5, 4)),
    "table": (lambda: SpectralTable(4, 6), lambda: nn.Embedding(4, 6), lambda: torch.tensor([3, 0, 0, 1])),
}


@pytest.mark.parametrize("name", CASES)
def test_spectral_norm_equals_torch_s_given_the_same_u(name: str) -> None:
    """Over training passes with weights that move between them, forward, backward and the vector itself."""
    make, make_theirs, inputs = CASES[name]
    ours, plain, x = filled(make()), make_theirs().double(), inputs()
    plain.weight.data.copy_(ours.weight.data)
    if ours.bias is not None:
        plain.bias.data.copy_(ours.bias.data.copy_(numbers(*ours.bias.shape, seed=2)))
    theirs = parametrizations.spectral_norm(plain)
    norm, original = theirs.parametrizations.weight[0], theirs.parametrizations.weight.original
    for training in (True, True, False, True):
        ours.train(training), theirs.train(training)
        norm._u.copy_(F.normalize(ours.u.data, dim=0))
        norm._v.copy_(F.normalize(ours.weight.data.flatten(1).T @ norm._u, dim=0))
        before = ours.u.detach().clone()
        a, b = ours(x), theirs(x)
        assert gap(a, b) < 1e-12
        toward = numbers(*a.shape, seed=3)
        (left,) = torch.autograd.grad((a * toward).sum(), [ours.weight])
        (right,) = torch.autograd.grad((b * toward).sum(), [original])
        assert gap(left, right) < 1e-12 and left.abs().max() > 1e-6
        assert gap(ours.u, norm._u) < 1e-12
        assert torch.equal(ours.u, before) != training  # it moves in training alone
        with torch.no_grad():
            step = 0.3 * numbers(*ours.weight.shape, seed=4)
            ours.weight += step
            original += step


@pytest.mark.quick
def test_a_fresh_layer_is_normalised_and_iterations_find_the_singular_value() -> None:
    layer = filled(SpectralConv(6, 8, 3))

    def size() -> float:
        return torch.linalg.matrix_norm(layer.normed().flatten(1), 2).item()

    layer.eval()
    assert abs(size() - 1) < 0.05
    layer.train()
    for _ in range(200):
        layer.normed()
    assert abs(size() - 1) < 1e-9
    with torch.no_grad():  # a running mean of many u is shorter than 1; its length must not count
        layer.eval().u.mul_(0.4)
    assert abs(size() - 1) < 1e-9
    with torch.no_grad():
        layer.u.copy_(numbers(8, seed=9))  # control: any other direction underestimates
    assert size() > 1.05


@pytest.mark.quick
def test_every_weight_of_both_nets_is_under_spectral_norm() -> None:
    net = SMALL.build(device="meta")
    free = [
        name
        for name, module in net.named_modules()
        if not isinstance(module, Spectral)
        for p in module.parameters(recurse=False)
        if p.dim() > 1 and not isinstance(module, ClassBatchNorm)
    ]
    assert free == []
    assert sum(isinstance(module, Spectral) for module in net.modules()) > 20


# ---------------------------------------------------------------- blocks, classes, losses


def test_class_batch_norm_equals_torch_s_with_the_class_s_factor_and_shift() -> None:
    norm, plain = filled(ClassBatchNorm(3, 4)), nn.BatchNorm2d(4, affine=False).double()
    with torch.no_grad():
        norm.weight += numbers(3, 4)
        norm.bias += numbers(3, 4, seed=1)
    labels = torch.tensor([2, 0, 1, 1, 0])
    for training in (True, True, False):
        norm.train(training), plain.train(training)
        x = numbers(5, 4, 3, 3, seed=2 + training).requires_grad_()
        wanted = plain(x) * norm.weight[labels][:, :, None, None] + norm.bias[labels][:, :, None, None]
        assert gap(norm(x, labels), wanted) < 1e-12
    assert gap(norm.mean, plain.running_mean) < 1e-12 and gap(norm.var, plain.running_var) < 1e-12
    assert gap(norm(x, labels), norm(x, labels.roll(1))) > 0.1  # control: another class, another norm


def test_blocks_equal_the_published_order_of_resizing_and_convolving() -> None:
    """Here a shortcut's 1x1 stands before the repeating and after the mean, for less work: nothing else changes."""
    up, down = filled(UpBlock(2, 6, 4)).eval(), filled(DownBlock(3, 5, halve=True, first=False)).eval()
    x, labels = numbers(2, 6, 3, 3), torch.tensor([0, 1])
    large = F.interpolate(x, scale_factor=2)
    wanted = F.interpolate(F.relu(up.norm1(x, labels)), scale_factor=2)
    wanted = up.conv2(F.relu(up.norm2(up.conv1(wanted), labels))) + up.shortcut(large)
    assert up(x, labels).shape == (2, 4, 6, 6) and gap(up(x, labels), wanted) < 1e-12
    x = numbers(2, 3, 4, 4)
    wanted = F.avg_pool2d(down.conv2(F.relu(down.conv1(F.relu(x)))), 2) + F.avg_pool2d(down.shortcut(x), 2)
    assert down(x).shape == (2, 5, 2, 2) and gap(down(x), wanted) < 1e-12


def test_the_score_is_a_projection_on_the_class() -> None:
    net = filled(SMALL.build(dtype=torch.float64)).eval()
    images, labels = numbers(4, 3, 32, 32).tanh(), torch.tensor([2, 0, 1, 1])
    x = images
    for i, block in enumerate(net.discriminator.blocks):
        x = net.discriminator.attention(block(x)) if i == 0 else block(x)
    phi = torch.stack([F.relu(x)[:, :, i, j] for i in range(8) for j in range(8)]).sum(0)
    table, out = net.discriminator.classes.normed(), net.discriminator.out
    wanted = torch.stack(
        [phi[n] @ table[label] + phi[n] @ out.normed()[0] + out.bias[0] for n, label in enumerate(labels)]
    )
    assert gap(net.discriminate(images, labels), wanted) < 1e-9
    assert gap(net.discriminate(images, labels.roll(1)), wanted) > 1e-3  # control


@pytest.mark.quick
def test_hinge_losses_equal_their_formulas() -> None:
    real, fake = torch.tensor([-2.0, 0.5, 3.0]), torch.tensor([-3.0, 0.0, 2.0])
    assert discriminator_loss(real, fake).item() == pytest.approx((3 + 0.5 + 0) / 3 + (0 + 1 + 3) / 3)
    assert generator_loss(fake).item() == pytest.approx(1 / 3)
    assert discriminator_loss(fake, real).item() != pytest.approx(discriminator_loss(real, fake).item())


# ---------------------------------------------------------------- the nets as a whole


@pytest.mark.quick
@pytest.mark.parametrize("size", LAYOUTS)
def test_sizes_shapes_and_range_of_the_presets(size: int) -> None:
    spec = preset(f"sagan-{size}").replace(width=2, classes=3)
    assert spec.size == size and spec.attention == (16 if size == 32 else 32)
    net = spec.build(seed=0).train()
    z, labels = numbers(2, spec.noise).float(), torch.tensor([1, 2])
    images = net(z, labels)
    assert images.shape == (2, 3, size, size) and images.abs().max() <= 1 and images.std() > 0.01
    scores = net.discriminate(images, labels)
    assert scores.shape == (2,) and scores.isfinite().all()
    assert list(net.buffers()) == []


@pytest.mark.quick
def test_parameters_of_the_published_sizes() -> None:
    """81.5 M at 128 is what 1809.11096 counts for this network (table 1); the others are our own count."""

    def learning(name: str) -> int:
        return sum(p.numel() for p in preset(name).build(device="meta").parameters() if p.requires_grad)

    assert learning("sagan-128") == 81_542_470
    assert (learning("sagan-64"), learning("sagan-32")) == (38_567_238, 5_461_894)


def test_a_seed_gives_the_same_nets_and_bf16_is_near() -> None:
    first, second, other = SMALL.build(seed=3), SMALL.build(seed=3), SMALL.build(seed=4)
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a, b) and bool(a.isfinite().all()) for a, b in pairs)
    assert not torch.equal(first.generator.start.weight, other.generator.start.weight)
    rough = SMALL.build(seed=3, dtype=torch.bfloat16).eval()
    first.load_state_dict({name: value.float() for name, value in rough.state_dict().items()})
    z, labels = numbers(3, 6).float(), torch.tensor([0, 1, 2])
    images, near = first.eval().generate(z, labels), rough.generate(z, labels)
    assert near.dtype == torch.bfloat16 and gap(images, near.float()) < 0.1
    assert SAGAN.from_json(SMALL.to_json()) == SMALL


@pytest.mark.quick
def test_what_does_not_fit_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="no maps of both nets have side 32; use one of 8, 16, or None"):
        SAGAN(size=32, attention=32)
    with pytest.raises(UserError, match="width 0 is below 1"):
        SAGAN(width=0)
    net = SMALL.build(seed=0)
    z, labels = numbers(2, 6).float(), torch.tensor([0, 1])
    with pytest.raises(UserError, match=r"noise has shape \(2, 5\)"):
        net.generate(z[:, :5], labels)
    for wrong, what in ((None, "no labels"), (labels[:1], "shape"), (labels.float(), "float32"), (labels + 2, "range")):
        with pytest.raises(UserError, match=what):
            net.generate(z, wrong)
    with pytest.raises(UserError, match="images have shape"):
        net.discriminate(torch.zeros(2, 3, 16, 16), labels)
    with pytest.raises(UserError, match="uint8"):
        net.discriminate(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), labels)
    one = SMALL.replace(classes=1).build(seed=0).eval()
    assert torch.equal(one.generate(z), one.generate(z, torch.zeros(2, dtype=torch.long)))
