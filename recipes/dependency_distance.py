"""How far back a convolution, a recurrence and attention can look: repeat the symbol of d tokens ago.

    python recipes/dependency_distance.py

Two layers each of 12 width^2 parameters. The convolutions (kernel 3, dilated 1 and 2) see 6 tokens back and no more.

hardware: one core of a CPU. cost: 4 minutes a seed.
expect: symbols repeated right after 300 steps, seed 0; chance is 12.5.
    distance       1     2     4     6     7     8    12    16
    convolution  100   100   100   100  14.2  12.9  12.0  14.6
    recurrence   100   100  99.8  94.0  83.9  71.6  47.0  36.4
    attention    100   100   100   100   100   100   100   100
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F

from anyformer import LM, MLP, Attention, Block, Convolution, Model, Recurrent, Shaw, Stack, Tokens

SYMBOLS, WIDTH, LENGTH = 8, 32, 48
DISTANCES = (1, 2, 4, 6, 7, 8, 12, 16)
BLOCKS = {
    "convolution": (
        Block(mixer=Convolution(3), feed=MLP(width=9 * WIDTH // 2)),
        Block(mixer=Convolution(3, dilation=2), feed=MLP(width=9 * WIDTH // 2)),
    ),
    "recurrence": (Block(mixer=Recurrent("gru"), feed=MLP(width=3 * WIDTH)),),
    "attention": (Block(mixer=Attention(heads=4), relative=Shaw(24), feed=MLP(width=4 * WIDTH)),),
}


def accuracy(blocks: tuple[Block, ...], distance: int, steps: int, seed: int) -> float:
    """Share of symbols repeated right after so many steps; one in eight is chance."""
    stack = Stack(width=WIDTH, depth=2, causal=True, block=blocks)
    net = Model(embed=Tokens(vocab=SYMBOLS), stack=stack, head=LM(tied=False)).build(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    for step in range(steps + 1):
        text = torch.randint(0, SYMBOLS, (32, LENGTH), generator=generator)
        answers, wanted = net(text).logits[:, distance:], text[:, :-distance]
        if step == steps:
            break
        optimizer.zero_grad()
        F.cross_entropy(answers.flatten(0, 1), wanted.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return (answers.argmax(-1) == wanted).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked = parser.parse_args()
    print("mixer        seed  " + " ".join(f"{distance:7}" for distance in DISTANCES) + "  seconds")
    for name, blocks in BLOCKS.items():
        for seed in asked.seeds:
            begun = time.process_time()
            shares = [accuracy(blocks, distance, asked.steps, seed) for distance in DISTANCES]
            shown = " ".join(f"{100 * share:5.1f} %" for share in shares)
            print(f"{name:12} {seed:4}  {shown}  {time.process_time() - begun:7.1f}", flush=True)


if __name__ == "__main__":
    main()
