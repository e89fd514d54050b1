"""Claims on images: good figures hold, bad ones do not, and cheap cases really measured keep their bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from anyformer import extras
from anyformer.errors import UserError
from anyformer.lab.claim import Case, Claim, Measurements, Result, Verdict
from anyformer.lab.claims import data_hunger, gan_attention, local_relation, receptive_field

Change = Callable[[Case], dict[str, Any]]


def good_field(case: Case) -> Result:
    across = [0.0] * 15 + [1.0] + [0.0] * 16
    if case["net"] != "cnn":
        seen = receptive_field.SIZE**2 if case["net"] == "vit" else receptive_field.PATCH**2
        return {"pixels": seen, "sides": [32, 32], "across": across}
    side = receptive_field.field_side(case["kernel"], case["depth"])
    return {"pixels": side**2, "sides": [side, side], "across": across}


def good_hunger(case: Case) -> Result:
    few = {"cnn": 0.6, "vit": 0.4, "pretrained vit": 0.55}[case["net"]]
    return {"accuracy": [few, 0.8, 0.9, 0.98], "parameters": 1000}


def good_relation(case: Case) -> Result:
    speed = 100.0 if case["net"] == "lr-net" else 400.0
    return {"accuracy": [0.9, 0.97], "flops": 1000, "parameters": 1000,
            "images_per_second": {"training": speed, "inference": 2 * speed}}  # fmt: skip


def good_gan(case: Case) -> Result:
    return {"fid": 1.0 if case["way"] == "attention" else 2.0, "fid_before": 10.0, "fid_of_real": 0.1,
            "curve": [10.0, 2.0], "steps": [0, 10],
            "gamma": [0.1, 0.2] if case["way"] == "attention" else [], "parameters": 1000}  # fmt: skip


CLAIMS: dict[str, tuple[Claim, Callable[[Case], Result]]] = {
    "receptive-field": (receptive_field.CLAIM, good_field),
    "data-hunger": (data_hunger.CLAIM, good_hunger),
    "local-relation": (local_relation.CLAIM, good_relation),
    "gan-attention": (gan_attention.CLAIM, good_gan),
}


def only(change: dict[str, Any], **where: Any) -> Change:
    """The change, for the cases that have these values."""
    return lambda case: change if all(case.get(name) == value for name, value in where.items()) else {}


BROKEN: list[tuple[str, Change, Verdict]] = [
    ("receptive-field", only({"pixels": 1000}, net="vit"), Verdict.NOT_HERE),
    ("receptive-field", only({"pixels": 17}, net="vit without attention"), Verdict.NOT_HERE),
    ("receptive-field", only({"pixels": 8}, net="cnn", kernel=3, depth=1), Verdict.IN_PART),
    ("receptive-field", only({"pixels": 82}, net="cnn", kernel=3, depth=4), Verdict.IN_PART),
    ("data-hunger", only({"accuracy": [0.58, 0.8, 0.9, 0.98]}, net="vit"), Verdict.NOT_HERE),
    ("data-hunger", only({"accuracy": [0.6, 0.8, 0.9, 0.9]}, net="vit"), Verdict.NOT_HERE),
    ("data-hunger", only({"accuracy": [0.4, 0.8, 0.9, 0.98]}, net="pretrained vit"), Verdict.IN_PART),
    ("data-hunger", only({"accuracy": [0.55, 0.8, 0.9, 0.9]}, net="pretrained vit"), Verdict.IN_PART),
    ("data-hunger", only({"parameters": 2000}, net="cnn"), Verdict.NOT_HERE),
    ("local-relation", only({"accuracy": [0.95, 0.97]}, net="lr-net"), Verdict.IN_PART),
    ("local-relation", only({"images_per_second": {"training": 900.0, "inference": 900.0}}, net="lr-net"),
     Verdict.IN_PART),
    ("local-relation", only({"flops": 2000}, net="lr-net"), Verdict.NOT_HERE),
    ("gan-attention", only({"fid": 3.0}, way="attention"), Verdict.NOT_HERE),
    ("gan-attention", only({"fid": 2.5}, way="attention", seed=0), Verdict.IN_PART),
    ("gan-attention", only({"fid_before": 2.0}, way="plain"), Verdict.NOT_HERE),  # nothing was learnt
]  # fmt: skip


def judged(name: str, change: Change = lambda case: {}, *, full: bool = False) -> Verdict:
    claim, good = CLAIMS[name]
    return claim.judge(Measurements([(case, {**good(case), **change(case)}) for case in claim.cases(full)])).verdict


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", CLAIMS)
def test_good_measurements_hold(name: str, full: bool) -> None:
    assert CLAIMS[name][0].name == name
    assert judged(name, full=full) is Verdict.HOLDS


@pytest.mark.parametrize(("name", "change", "verdict"), BROKEN)
def test_bad_measurements_do_not_hold(name: str, change: Change, verdict: Verdict) -> None:
    assert judged(name, change) is verdict


def test_attention_sees_the_whole_image_and_a_convolution_its_kernel() -> None:
    assert receptive_field.measure({"net": "vit", "depth": 1, "seed": 0})["pixels"] == 1024
    assert receptive_field.measure({"net": "vit without attention", "depth": 1, "seed": 0})["pixels"] == 16
    two = receptive_field.measure({"net": "cnn", "kernel": 5, "depth": 2, "seed": 0})
    assert (two["pixels"], two["sides"]) == (81, [9, 9])


def test_networks_that_are_compared_are_of_one_size() -> None:
    device = torch.device("cpu")
    sizes = [sum(p.numel() for p in data_hunger.network(net, 0, device).parameters() if p.requires_grad)
             for net in ("cnn", "vit")]  # fmt: skip
    assert max(sizes) <= (1 + data_hunger.EQUAL) * min(sizes)
    image = torch.zeros(1, 1, data_hunger.SIZE, data_hunger.SIZE)
    flops = [local_relation.flops(local_relation.network(net, 0, device), image) for net in local_relation.NETS]
    assert max(flops) <= (1 + local_relation.EQUAL) * min(flops)


def test_a_local_relation_is_slower_than_a_convolution() -> None:
    images = torch.randn(16, 1, data_hunger.SIZE, data_hunger.SIZE)
    resnet, lr_net = (
        local_relation.images_per_second(local_relation.network(net, 0, torch.device("cpu")), images, train=True)
        for net in ("resnet", "lr-net")
    )
    assert lr_net < local_relation.SLOWER * resnet


def test_drawn_characters_are_alike_within_a_class() -> None:
    """What pretraining learns from: two drawings of one character are nearer to each other than to others."""
    drawings = data_hunger.drawn(torch.arange(20).repeat(2), torch.Generator().manual_seed(0)).flatten(1)
    apart = torch.cdist(drawings[:20], drawings[20:])
    assert apart.diagonal().mean() < 0.8 * apart.mean()


def test_a_gan_starts_far_from_the_digits_it_is_scored_by() -> None:
    pytest.importorskip("sklearn")
    pictures, labels = gan_attention.images()
    assert pictures.shape == (1797, 1, 32, 32) and pictures.abs().max() <= 1 and labels.max() == 9
    spec = gan_attention.SAGAN(size=32, classes=10, attention=16, width=2, noise=gan_attention.NOISE, colours=1)
    net, mean_net = spec.build(seed=0), spec.build(seed=0)
    before = gan_attention.fid(mean_net, pictures[:100], labels[:100])
    gan_attention.AlternatingTraining(net, mean_net, 0.5, 4, 0, lr=1e-3).run(pictures, labels, 2)
    assert before > 1.0 and gan_attention.fid(mean_net, pictures[:100], labels[:100]) != before


def test_digits_say_which_extra_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "sklearn")
    data_hunger.digits.cache_clear()
    with pytest.raises(UserError, match=r"handwritten digits need the package scikit-learn.*anyformer\[train\]"):
        data_hunger.digits()
