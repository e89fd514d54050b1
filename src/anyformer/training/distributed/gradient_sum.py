"""Adding up the gradients of all processes while the backward pass still runs.

Torch's own wrapper takes the mean of its processes and wants to be called in place of the model. Here losses are sums,
so gradients are too; the loss is computed, compiled and saved by the same code as in one process; and a parameter that
no process used keeps no gradient, without a walk through the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET_BYTES = 25 * 2**20  # gradients sent at once: few large messages, the first of them early in the backward pass


@dataclass
class Bucket:
    """Parameters whose gradients travel together."""

    parameters: list[nn.Parameter]
    missing: int = 0  # gradients that this backward pass has not given yet
    sent: Tensor | None = None  # their gradients end to end, then for each whether this process had one
    work: dist.Work | None = field(default=None, repr=False)


class GradientSum:
    """Gradients of a model with the same weights in every process; `arm` before a backward pass, `wait` after it."""

    def __init__(self, model: nn.Module) -> None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        # The last layers have their gradients first.
        self.buckets = [Bucket(group) for group in split_buckets(list(reversed(parameters)))]
        self.bucket_of = {id(p): bucket for bucket in self.buckets for p in bucket.parameters}
        self.next: int | None = None  # the bucket to send next; None: this backward pass is not added up
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.ready)

    def arm(self) -> None:
        """The next backward pass completes the gradients of the step."""
        self.next = 0
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def ready(self, parameter: Tensor) -> None:
        """A gradient is complete; buckets leave in one order in every process, each as soon as it is full."""
        if self.next is None:
            return
        self.bucket_of[id(parameter)].missing -= 1
        while self.next < len(self.buckets) and self.buckets[self.next].missing == 0:
            send(self.buckets[self.next])
            self.next += 1

    def wait(self) -> None:
        """After the backward pass: send what is left, and put the sums in the place of the gradients."""
        assert self.next is not None
        for bucket in self.buckets[self.next :]:
            send(bucket)
        self.next = None
        for bucket in self.buckets:
            receive(bucket)


def split_buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Neighbours of one type, up to the size of a bucket."""
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
    """Start the sum of a bucket; a parameter that this process did not use adds nothing."""
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
    """Wait for the sum of a bucket and hand it to its parameters."""
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
