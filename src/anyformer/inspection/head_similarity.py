"""Pairwise similarity of heads, by their attention maps or their outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from anyformer.core.attend import weights_of
from anyformer.core.head_names import HeadName, LayerName, named_layers, network_of
from anyformer.errors import UserError, did_you_mean
from anyformer.inspection.given import given_to
from anyformer.inspection.maps import prepared
from anyformer.inspection.measure import in_eval_mode
from anyformer.mixers.attention import AttentionInputs

MEASURES = ("maps", "outputs")


@dataclass(frozen=True)
class HeadSimilarity:
    """Similarities `values` (N,N) of all pairs of `heads`, from 0 to 1; nan if their queries or keys differ."""

    heads: tuple[HeadName, ...]
    values: Tensor
    measure: str

    def __str__(self) -> str:
        lines = []
        for name, likeness, other in self.pairs()[:20]:
            lines.append(f"{name!s:>12} {other!s:>12}  {likeness:.3f}")
        return "\n".join(lines)

    def pairs(self) -> list[tuple[HeadName, float, HeadName]]:
        """Every pair once, the most similar first."""
        found = [
            (one, float(self.values[i, j]), two)
            for i, one in enumerate(self.heads)
            for j, two in enumerate(self.heads[:i])
            if not torch.isnan(self.values[i, j])
        ]
        return sorted(found, key=lambda pair: -pair[1])


@torch.no_grad()
def head_similarity(model: Any, inputs: Any, *, measure: Literal["maps", "outputs"] = "maps") -> HeadSimilarity:
    """Pairwise similarity of all heads of a model on one input.

    "maps" is 1 - JS(P, Q) / ln 2, with the Jensen-Shannon divergence of two heads' weights, averaged over the queries:
    1 for equal maps, 0 if they attend to disjoint tokens. "outputs" is linear CKA (1905.00414) of their outputs: 1 if
    one is a rotated and scaled version of the other.

    >>> from anyformer import preset
    >>> net = preset("gpt2-tiny").build(seed=0)
    >>> found = head_similarity(net, torch.arange(8)[None])
    >>> found.values.shape, bool((found.values.diagonal() > 0.999).all())
    (torch.Size([16, 16]), True)
    """
    if measure not in MEASURES:
        raise UserError(f"unknown measure {measure!r}", where="measure", fix=did_you_mean(str(measure), MEASURES))
    network = network_of(model, "head_similarity")
    given = given_to(model if network is not model else None, network, inputs, None)
    with in_eval_mode(model):
        calls = calls_of(network, given)
    heads, found = [], []
    for name, call in calls.items():
        maps = weights_of(call.q, call.k, call.scores)[0]  # (H,T,S)
        values = call.v[0].repeat_interleave(call.q.shape[1] // call.v.shape[1], 0).to(maps)  # (H,S,C')
        for head in range(len(maps)):
            heads.append(HeadName(*name, head))
            found.append(maps[head] if measure == "maps" else maps[head] @ values[head])
    compare = map_likeness if measure == "maps" else linear_cka
    matrix = torch.full((len(heads), len(heads)), torch.nan)
    for i, one in enumerate(found):
        for j, two in enumerate(found[: i + 1]):
            if one.shape == two.shape or (measure == "outputs" and len(one) == len(two)):
                matrix[i, j] = matrix[j, i] = compare(one, two)
    return HeadSimilarity(tuple(heads), matrix, measure)


def calls_of(network: Any, given: Any) -> dict[LayerName, AttentionInputs]:
    """The inputs of every attention, by the name of its layer."""
    seen = prepared(network, *given.args, options=given.options)
    found = {}
    for name, layer, mixer in named_layers(network):
        path = next((path for path, module in network.named_modules() if module is mixer), "")
        if path in seen:
            calls = seen[path]
            found[name] = calls[min(layer.use if layer.uses > 1 else shared_use(network, name, mixer), len(calls) - 1)]
    if not found:
        raise UserError("the network has no attention heads", where="head_similarity", fix="give another model")
    return found


def shared_use(network: Any, name: Any, mixer: Any) -> int:
    """The index of a layer's call of its mixer, if layers share the mixer but not the block."""
    return [known for known, _, other in named_layers(network) if other is mixer].index(name)


def map_likeness(p: Tensor, q: Tensor) -> Tensor:
    """1 - JS / ln 2 of two maps (T,S), averaged over the queries."""
    middle = (p + q) / 2
    divergence = (relative_entropy(p, middle) + relative_entropy(q, middle)) / 2  # (T,)
    return 1 - (divergence / torch.log(torch.tensor(2.0))).mean()


def relative_entropy(p: Tensor, q: Tensor) -> Tensor:
    """KL divergence sum p log(p / q) of each row, with 0 log 0 = 0."""
    return torch.where(p > 0, p * (p.clamp(min=1e-38).log() - q.clamp(min=1e-38).log()), 0.0).sum(-1)


def linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """Linear CKA |X'Y|^2 / (|X'X| |Y'Y|) of centred outputs (T,C) and (T,C'); 1 if either is constant."""
    x, y = x.double() - x.double().mean(0), y.double() - y.double().mean(0)
    scale = (x.T @ x).norm() * (y.T @ y).norm()
    return torch.ones(()) if scale == 0 else ((x.T @ y).square().sum() / scale).float()
