"""An encoder reads both ways: each end of a text moves the answer at the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.laws.nets import build, language, tokens

GIVEN = tokens(1, 9)


def slope(spec: Any, answer: int, token: int) -> float:
    """The largest derivative of one token's answer by the vector of another token."""
    net = build(spec)
    rows: list[torch.Tensor] = []

    def keep(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        rows.append(out.detach().requires_grad_())
        return rows[0]

    net.embed.register_forward_hook(keep)
    net(GIVEN).logits[:, answer].sum().backward()
    assert rows[0].grad is not None
    return rows[0].grad[:, token].abs().max().item()


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_the_last_answer_has_a_gradient_at_the_first_token_and_the_first_at_the_last(depth: int) -> None:
    both = language(causal=False, depth=depth)
    assert slope(both, -1, 0) > 1e-6 < slope(both, 0, -1)
    causal = language(causal=True, depth=depth)  # control
    assert slope(causal, -1, 0) > 1e-6 and slope(causal, 0, -1) == 0.0
