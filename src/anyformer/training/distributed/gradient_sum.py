"""All-reduce of gradients, overlapped with the backward pass.

torch's DDP averages over processes and wraps the model. Here losses are sums, so gradients are too; the loss is
computed, compiled and saved by the same code as in one process; and a parameter that no process used keeps no gradient,
without traversing the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET_BYTES = 25 * 2**20  # bytes per all-reduce: few large messages, the first of them early in the backward pass


@dataclass
class Bucket:
    """Parameters whose gradients are reduced together."""

    parameters: list[nn.Parameter]
    missing: int = 0  # gradients not yet computed in this backward pass
    sent: Tensor | None = None  # the flat gradients, then a flag per parameter whether this process had one
    work: dist.Work | None = field(default=None, repr=False)


class GradientSum:
    """Sums a replicated model's gradients over processes; `arm` before a backward pass, `wait` after it."""

    def __init__(self, model: nn.Module) -> None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        # The last layers get their gradients first.
        self.buckets = [Bucket(group) for group in split_buckets(list(reversed(parameters)))]
        self.bucket_of = {id(p): bucket for bucket in self.buckets for p in bucket.parameters}
        self.next: int | None = None  # the bucket to send next; None: no reduction in this backward pass
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.ready)

    def arm(self) -> None:
        """Reduce gradients during the next backward pass, the step's last."""
        self.next = 0
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def ready(self, parameter: Tensor) -> None:
        """Hook: a gradient is complete; full buckets are sent in the same order in every process."""
        if self.next is None:
            return
        self.bucket_of[id(parameter)].missing -= 1
        while self.next < len(self.buckets) and self.buckets[self.next].missing == 0:
            send(self.buckets[self.next])
            self.next += 1

    def wait(self) -> None:
        """After the backward pass: send the remaining buckets and replace the gradients by their sums."""
        assert self.next is not None
        for bucket in self.buckets[self.next :]:
            send(bucket)
        self.next = None
        for bucket in self.buckets:
            receive(bucket)


def split_buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Group consecutive parameters of one dtype up to the bucket size."""
    group: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        bytes_ = parameter.numel() * parameter.element_size()
        if group and (size + bytes_ > BUCKET_BYTES or parameter.dtype != group[0].dtype):
            yield group
            group, size = [], 0
        group.append(parameter)
        size += bytes_
    if group:
        yield group


def send(bucket: Bucket) -> None:
    """Start the all-reduce of a bucket; a parameter that this process did not use contributes zeros."""
    used = bucket.parameters[0].new_ones(len(bucket.parameters))
    parts = []
    for i, parameter in enumerate(bucket.parameters):
        if parameter.grad is None:
            used[i] = 0
            parts.append(parameter.new_zeros(parameter.numel()))
        else:
            parts.append(parameter.grad.reshape(-1))
    bucket.sent = torch.cat([*parts, used])
    bucket.work = dist.all_reduce(bucket.sent, async_op=True)


def receive(bucket: Bucket) -> None:
    """Wait for a bucket's all-reduce and assign the sums to its parameters' gradients."""
    assert bucket.sent is not None and bucket.work is not None
    bucket.work.wait()
    sums = bucket.sent.split([*(p.numel() for p in bucket.parameters), len(bucket.parameters)])
    totals = {p: total.view_as(p) for p, total in zip(bucket.parameters, sums[:-1], strict=True)}
    for parameter, count in zip(bucket.parameters, sums[-1], strict=True):
        if parameter.grad is None and bool(count):  # only another process used it
            parameter.grad = torch.empty_like(parameter)
    there = [p for p in bucket.parameters if p.grad is not None]
    torch._foreach_copy_([p.grad for p in there if p.grad is not None], [totals[p] for p in there])
    bucket.sent = bucket.work = None
