"""Attention as a dictionary that is looked up softly, and the same weights as a kernel average.

    python examples/soft_dictionary.py

A dictionary returns the value whose key equals the query. Attention returns the mean of all values, weighted by how
well their keys fit. With one-hot keys and a falling temperature the second becomes the first; at infinite temperature
it is the plain average. Seen as a kernel smoother, the weight of key k is exp(q.k / sqrt(C)) over its sum; a kernel
that is a product of features, phi(q).phi(k), lets the sum over keys be made once for all queries.
"""

from __future__ import annotations

import torch

from anyformer import attend
from anyformer.core.attend import Scores

PRICES = {"apple": 3.0, "bread": 5.0, "cheese": 9.0, "dates": 7.0}


def look_up(query: str, temperature: float) -> float:
    """One query against one-hot keys; 1 / temperature is the scale of the scores."""
    words = list(PRICES)
    keys = torch.eye(len(words), dtype=torch.float64)[None, None]  # (B,H,S,C)
    values = torch.tensor(list(PRICES.values()), dtype=torch.float64)[None, None, :, None]  # (B,H,S,1)
    q = keys[:, :, words.index(query)][:, :, None]  # (B,H,1,C)
    return attend(q, keys, values, Scores(scale=1 / temperature)).item()


def kernel_average(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Nadaraya-Watson with the kernel exp(q.k / sqrt(C)): (T,C), (S,C), (S,C') to (T,C')."""
    kernel = (q @ k.T / q.shape[1] ** 0.5).exp()  # (T,S)
    return kernel @ v / kernel.sum(1, keepdim=True)


def feature_average(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel phi(q).phi(k) with phi = elu + 1, key by key (T x S products) and by one sum over keys (T + S)."""
    q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    kernel = q @ k.T
    summed, mass = k.T @ v, k.sum(0)  # (C,C') and (C,): made once, whatever the number of queries
    return kernel @ v / kernel.sum(1, keepdim=True), (q @ summed) / (q @ mass)[:, None]


def main() -> None:
    print(f"dict[cheese] = {PRICES['cheese']}, plain average = {sum(PRICES.values()) / len(PRICES)}")
    for temperature in (1e9, 10.0, 1.0, 0.3, 0.1, 0.01):
        print(f"temperature {temperature:>12g}: attention gives {look_up('cheese', temperature):.6f}")
    torch.manual_seed(0)
    q, k, v = (torch.randn(6, 4, dtype=torch.float64) for _ in range(3))
    attention = attend(q[None, None], k[None, None], v[None, None], Scores(scale=0.5))[0, 0]
    print(f"kernel average minus attention: {(kernel_average(q, k, v) - attention).abs().max():.1e}")
    slow, fast = feature_average(q, k, v)
    print(f"features, key by key minus one sum: {(slow - fast).abs().max():.1e}")


if __name__ == "__main__":
    main()
