"""Which parameters are trained: all but those frozen by path, or progressively more as the run proceeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from anyformer.errors import UserError, nearest
from anyformer.spec import Spec
from anyformer.training.layers import Layer

WHERE = "training.freeze"


class Unfreeze(Spec, slot=True):
    """`trained_layers(passes, count)`: how many of the last layers are trained, as a pure function of progress."""

    def trained_layers(self, passes: float, count: int) -> int:
        """How many of `count` layers are trained, counted from the head, after that many epochs."""
        raise NotImplementedError


class Gradual(Unfreeze):
    """Unfreeze the last layer first, then one more below it every `epochs` epochs (1801.06146, ULMFiT).

    >>> [Gradual().trained_layers(passes, count=4) for passes in (0.0, 0.9, 1.0, 2.5, 9.0)]
    [1, 1, 2, 3, 4]
    """

    epochs: float = 1.0
    """Epochs after which one more layer is trained."""

    def check(self) -> None:
        if not self.epochs > 0:
            raise UserError(f"epochs {self.epochs} is not positive", where="training.unfreeze.epochs", fix="use 1")

    def trained_layers(self, passes: float, count: int) -> int:
        return min(count, 1 + int(passes / self.epochs + 1e-9))  # a whole epoch may round to just below 1


def prefixes(name: str) -> Iterator[str]:
    """A parameter's path and the paths of all modules that contain it.

    >>> list(prefixes("stack.final.weight"))
    ['stack', 'stack.final', 'stack.final.weight']
    """
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def is_inside(name: str, patterns: Sequence[str]) -> bool:
    """Whether a path, or a module above it, matches one of the patterns; `*` matches anything, dots included."""
    return any(fnmatchcase(path, pattern) for path in prefixes(name) for pattern in patterns)


def freeze(model: nn.Module, patterns: Sequence[str] | None) -> None:
    """Freeze the parameters at these paths: no gradients and no optimizer state."""
    if patterns is None:
        return
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        check_pattern(pattern, names, WHERE)
    for name, parameter in model.named_parameters():
        if is_inside(name, patterns):
            parameter.requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError("nothing is left to train", where=WHERE, fix="freeze less")


def check_pattern(pattern: str, names: Sequence[str], where: str, what: str = "the network has no") -> None:
    """Reject a pattern that matches no parameter; `what` begins the error message."""
    if not any(is_inside(name, [pattern]) for name in names):
        paths = list(dict.fromkeys(path for name in names for path in prefixes(name)))
        near = nearest(pattern, paths)
        fix = (
            f"did you mean {near!r}?"
            if near
            else f"use one of {', '.join(dict.fromkeys(p.split('.')[0] for p in paths))}"
        )
        raise UserError(f"{what} {pattern[:80]!r}", where=where, fix=fix)


def train_last(model: nn.Module, layers: Sequence[Layer], count: int) -> bool:
    """Train only the last `count` of these layers; returns whether the set changed."""
    parameters, changed = dict(model.named_parameters()), False
    for number, layer in enumerate(layers):
        wanted = number >= len(layers) - count
        for name in layer.parameters:
            changed = changed or parameters[name].requires_grad is not wanted
            parameters[name].requires_grad_(wanted)
    return changed
