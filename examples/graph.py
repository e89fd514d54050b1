"""A graph as a sequence of nodes: an embedding of your own, an adjacency mask, any head.  python examples/graph.py
Each node sees its neighbours only. The model learns whether two steps lead from the first node to the last.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from anyformer import Attention, Block, Embed, Model, Pooled, Stack
from anyformer.core.context import Context, lay_out


class Nodes(Embed):
    """Features of nodes (B,T,features) and who is joined (B,T,T) into tokens that see their neighbours."""

    features: int

    def build(self, width: int) -> nn.Module:
        return NodeEmbedding(self.features, width)


class NodeEmbedding(nn.Module):
    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(features, width)

    def layout(self, nodes, joined, *, mask=None, positions=None, documents=None, segments=None, state=None) -> Context:
        seen = (joined | torch.eye(joined.shape[1], dtype=torch.bool))[:, None]  # a node sees itself; (B,1,T,T)
        return lay_out(*nodes.shape[:2], nodes.device, mask=seen if mask is None else (mask, seen))

    def forward(self, nodes: Tensor, joined: Tensor, *, context: Context) -> Tensor:
        return self.project(nodes)


def graphs(count: int, size: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    upper = (torch.rand(count, size, size) < 0.3).triu(1)
    joined = upper | upper.mT
    return torch.eye(size).expand(count, size, size), joined, (joined[:, 0] & joined[:, -1]).any(-1).long()


def main(steps: int = 150) -> tuple[float, float]:
    torch.manual_seed(0)
    stack = Stack(width=32, depth=3, block=Block(mixer=Attention(heads=4)))
    model = Model(embed=Nodes(features=6), stack=stack, head=Pooled(classes=2)).build(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        *inputs, answer = graphs(64)
        optimizer.zero_grad()
        cross_entropy(model(*inputs).logits, answer).backward()
        optimizer.step()
    *inputs, answer = graphs(512)
    right = (model(*inputs).logits.argmax(-1) == answer).double().mean().item()
    commoner = answer.double().mean().sub(0.5).abs().add(0.5).item()
    print(f"right on new graphs: {right:.0%}; always the commoner answer: {commoner:.0%}")
    return right, commoner


if __name__ == "__main__":
    main()
