"""A local relation network against a ResNet of equal FLOPs: about as good, and slower (L3; R53, worked example W13)."""

from __future__ import annotations

import time
from statistics import mean

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict, spread
from anyformer.lab.claims.data_hunger import CLASSES, HELD_OUT, KNOWN, SIZE, digits, logits_of, train
from anyformer.lab.fit import lab_device
from anyformer.mixers.local_relation import Relation
from anyformer.nets.lr_net import LRNet
from anyformer.nets.resnet import ResNet
from anyformer.nets.stages import Staged
from anyformer.presets.maps import classifier

# 7 x 7 windows, 8 channels per set of weights, as in LR-Net-50, which also has more middle channels than a ResNet.
NETS: dict[str, Staged] = {
    "resnet": ResNet(depths=(1, 1), width=16, stem="small", colours=1),
    "lr-net": LRNet(depths=(1, 1), width=16, middle=18, stem="small", colours=1),
}
SHARES, BATCH = (0.25, 1.0), 32  # of 1,400 digits
# A first form had 3e-3 and 150 steps, after which LR-Net had 62 % right with all digits: too early to compare.
LEARNING_RATE, STEPS = 1e-2, 300
MEH, SLOWER, EQUAL = 0.02, 0.8, 0.05  # gain of accuracy and share of the images/s, at most; largest difference in FLOPs


def cases(full: bool) -> list[Case]:
    seeds, steps = (10, 2000) if full else (3, STEPS)
    return [{"net": name, "seed": seed, "steps": steps} for name in NETS for seed in range(seeds)]


def network(net: str, seed: int, device: torch.device) -> nn.Module:
    return classifier(NETS[net], size=SIZE, classes=CLASSES).build(seed=seed, device=device)


def measure(case: Case) -> Result:
    device, seed = lab_device(case["steps"] > STEPS), case["seed"]
    images, labels = (part.to(device) for part in digits())
    accuracy = []
    for share in SHARES:
        net = network(case["net"], seed, device)
        count = round(share * KNOWN)
        rows = HELD_OUT + torch.randperm(KNOWN, generator=torch.Generator().manual_seed(seed))[:count]
        train(net, images[rows.to(device)], labels[rows.to(device)], steps=case["steps"], seed=seed, lr=LEARNING_RATE)
        with torch.no_grad():
            right = logits_of(net, images[:HELD_OUT]).argmax(-1) == labels[:HELD_OUT]
        accuracy.append(right.float().mean().item())
    return {
        "accuracy": accuracy,
        "flops": flops(net, images[:1]),
        "parameters": sum(p.numel() for p in net.parameters() if p.requires_grad),
        "images_per_second": {
            "training": images_per_second(net, images[:BATCH], train=True),
            "inference": images_per_second(net, images[:BATCH], train=False),
        },
    }


@torch.no_grad()
def flops(net: nn.Module, image: torch.Tensor) -> int:
    """FLOPs of one image: torch's count, and the weighted sums over neighbours, which torch does not count."""
    sums = []

    def count(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        assert isinstance(module, Relation)
        sums.append(2 * module.window**2 * output[0].numel())

    hooks = [module.register_forward_hook(count) for module in net.modules() if isinstance(module, Relation)]
    with FlopCounterMode(display=False) as counter:
        net(image)
    for hook in hooks:
        hook.remove()
    return counter.get_total_flops() + sum(sums)


def images_per_second(net: nn.Module, images: torch.Tensor, *, train: bool) -> float:
    """From the fastest of five passes after one to warm up; on a CPU in processor time of one thread."""
    gpu, threads = images.device.type == "cuda", torch.get_num_threads()

    def clock() -> float:
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter() if gpu else time.process_time()

    torch.set_num_threads(1)
    try:
        taken = []
        for _ in range(6):
            began = clock()
            with torch.set_grad_enabled(train):
                answers = logits_of(net, images)
                if train:
                    answers.square().mean().backward()
            taken.append(clock() - began)
    finally:
        torch.set_num_threads(threads)
    return len(images) / min(taken[1:])


def judge(found: Measurements) -> Finding:
    each = {name: found.where(net=name) for name in NETS}
    curves = {name: one.values("accuracy") for name, one in each.items()}
    gains = [
        mean(lr[at] - res[at] for lr, res in zip(curves["lr-net"], curves["resnet"], strict=True))
        for at in range(len(SHARES))
    ]
    speeds = {
        name: {way: [value[way] for value in one.values("images_per_second")] for way in ("training", "inference")}
        for name, one in each.items()
    }
    slow = {way: mean(speeds["lr-net"][way]) / mean(speeds["resnet"][way]) for way in ("training", "inference")}
    counts = [one.mean("flops") for one in each.values()]
    equal = max(counts) / min(counts) - 1 <= EQUAL
    meh, slower = max(gains) <= MEH, max(slow.values()) <= SLOWER
    verdict = Verdict.NOT_HERE
    if equal and (meh or slower):
        verdict = Verdict.HOLDS if meh and slower else Verdict.IN_PART
    return Finding(
        measured=f"LR-Net's accuracy less the ResNet's {', '.join(f'{100 * gain:+.1f}' for gain in gains)} points on "
        f"{', '.join(f'{share:.0%}' for share in SHARES)} of the images; {slow['training']:.2f} of its images/s in "
        f"training, {slow['inference']:.2f} in inference",
        verdict=verdict,
        reason=f"the gain is {100 * max(gains):+.1f} points at most (bound {100 * MEH:.0f}) at {counts[1] / 1e6:.2f} "
        f"against {counts[0] / 1e6:.2f} MFLOP an image, and the speed {max(slow.values()):.0%} of the ResNet's at most "
        f"(bound {SLOWER:.0%}): {'it does not justify' if meh and slower else 'it may justify'} the slowdown over "
        "convolutions",
        table=ResultTable(
            ("network", "parameters", "MFLOP", *(f"{share:.0%} of the images" for share in SHARES),
             "images/s trained", "images/s answered"),
            [
                (name, f"{one.mean('parameters'):,.0f}", f"{one.mean('flops') / 1e6:.2f}",
                 *(spread(values, ".1%") for values in zip(*curves[name], strict=True)),
                 *(spread(speeds[name][way], ",.0f") for way in ("training", "inference")))
                for name, one in each.items()
            ],
        ),
        plots=[
            Plot(
                "Digits told apart at equal FLOPs", "digits trained on", "accuracy",
                {name: mean_line(each_curve) for name, each_curve in curves.items()}, log_across=True,
            )
        ],
    )  # fmt: skip


def mean_line(each: list[list[float]]) -> list[tuple[float, float]]:
    return [(KNOWN * share, mean(values)) for share, values in zip(SHARES, zip(*each, strict=True), strict=True)]


CLAIM = Claim(
    name="local-relation",
    claim='Self-attention on pixels is "meh": it is not worth its complexity and its slowdown compared with '
    "convolutions",
    lecture="L3",
    source="the lecture, vision on pixels; 1904.11491, table of stages",
    quoted="LR-Net-50 (7 x 7, m = 8) 23.3 M parameters against ResNet-50's 25.5 M at 4.3 GFLOP each; 77.3 against "
    "76.9 % on ImageNet in the table of Axial-DeepLab",
    method="handwritten digits of 8 x 8 pixels, 397 held out: bottleneck blocks with 7 x 7 local relations against 3 "
    "x 3 convolutions, two stages each, equal FLOPs and steps; images/s in processor time of one thread",
    cost="3 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
    measures_time=lambda case: True,
)
