"""Replaced token detection: a loss on every token, and the corruption for it (ELECTRA, 2003.10555)."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import Draw
from anyformer.objectives.masked import Masked
from anyformer.objectives.objective import IGNORED, BatchSource, Objective, full


class ReplacedTokenDetection(Objective):
    """Binary cross-entropy of one logit a token (B,T,1); targets (B,T) are 1 replaced, 0 original, -100 padding."""

    task: ClassVar[str] = "replaced"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return detection_losses(model(*batch.inputs, **batch.named).logits, batch.targets).sum()

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        return row_mean(detection_losses(output.logits, batch.targets), batch.targets)


def detection_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of every token (B,T) of logits (B,T,1), 0 where it is ignored."""
    scores = full(logits[..., 0])
    known = targets != IGNORED
    each = F.binary_cross_entropy_with_logits(scores, targets.where(known, 0).to(scores), reduction="none")
    return torch.where(known, each, 0.0)


def corrupt(
    tokens: Tensor, logits: Tensor, chosen: Tensor, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Ids (B,T) with samples from a generator's logits (B,T,V) where `chosen` (B,T) is True, and the targets.

    The targets (B,T) are those of `ReplacedTokenDetection`: a sample equal to the original token counts as original.
    Sampling has no gradient.
    """
    shares = full(logits.detach())[chosen].softmax(-1)  # (chosen, V)
    drawn = torch.multinomial(shares, 1, generator=generator)[:, 0] if len(shares) else tokens.new_zeros(0)
    corrupted = tokens.masked_scatter(chosen, drawn.to(tokens.dtype))
    return corrupted, (corrupted != tokens).long()


class ElectraNets(Protocol):
    """A discriminator module that contains the generator, a masked language model."""

    def read_hidden(self, tokens: Tensor, *, mask: Tensor | None = None, segments: Tensor | None = None) -> Any:
        """The generator's forward pass without its head."""

    def name_tokens(self, hidden: Tensor, context: Any) -> Tensor:
        """The generator's logits (B,K,V) of hidden states (B,K,D)."""


class Replacement(NamedTuple):
    """Texts in which a generator has replaced tokens."""

    tokens: Tensor  # (B,T) inputs of the discriminator
    targets: Tensor  # (B,T) 1 replaced, 0 original, -100 padding
    words: Tensor  # (B,T) the generator's loss at each masked token, 0 elsewhere
    named: Tensor  # (B,T) the generator's argmax at each masked token, -100 elsewhere


class ReplacedByGenerator(Objective):
    """A generator is trained to name hidden tokens, a discriminator to find those where a sample of it is another.

    The loss is the sum of the generator's cross-entropy, a mean over the hidden tokens, and of `detection` times the
    discriminator's, a mean over all tokens of a row, begin and end included. Both learn in one step; nothing of the
    discriminator's loss reaches the generator, whose samples have no gradient.
    """

    masked: Masked = Masked(random=0.0, keep=0.0)
    """What is hidden from the generator."""
    detection: float = 50.0
    """Weight of the discriminator's loss."""

    def check(self) -> None:
        if self.masked.pairs != "none":
            raise UserError("a discriminator is asked for no pairs", where="objective.masked.pairs", fix="leave it out")
        if self.detection < 0:
            raise UserError(f"detection {self.detection} is below 0", where="objective", fix="use 50")

    def corrupt(self, batch: Batch, draw: Draw, source: BatchSource) -> Batch:
        return self.masked.corrupt(batch, draw, source)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.sum_losses(model, batch, self.replace_tokens(cast(ElectraNets, model), batch))

    def sum_losses(self, model: nn.Module, batch: Batch, made: Replacement) -> Tensor:
        """Generator and discriminator loss of texts with replaced tokens."""
        found = detection_losses(model(made.tokens, **batch.named).logits, made.targets)
        hidden = (batch.targets != IGNORED).sum(1)
        # The row mean is added per masked token, so that micro-batches add up to the whole batch.
        return made.words.sum() + self.detection * (row_mean(found, made.targets) * hidden).sum()

    def replace_tokens(self, nets: ElectraNets, batch: Batch, noise: Tensor | None = None) -> Replacement:
        """The texts with a sample of the generator at every masked token; `noise` (B,K,V) is drawn if not given."""
        tokens, asked = batch.inputs[0], batch.targets != IGNORED
        out = nets.read_hidden(tokens, **batch.named)
        places = hidden_places(batch)  # (B,K)
        logits = full(nets.name_tokens(gather_places(out.hidden, places), out.context))  # (B,K,V)
        wanted = batch.targets.gather(1, places)
        each = F.cross_entropy(logits.transpose(1, 2), wanted, ignore_index=IGNORED, reduction="none")  # (B,K)
        drawn, best = sample_tokens(logits, noise), logits.argmax(-1)
        text = torch.where(asked, batch.targets, tokens)  # the original text
        samples = text.scatter(1, places, torch.where(wanted != IGNORED, drawn, text.gather(1, places)))
        targets = (samples != text).long()
        mask = batch.named.get("mask")
        words = torch.zeros_like(targets, dtype=each.dtype).scatter(1, places, each)
        named = torch.full_like(targets, IGNORED).scatter(1, places, torch.where(wanted != IGNORED, best, IGNORED))
        return Replacement(samples, targets if mask is None else targets.where(mask, IGNORED), words, named)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        """The discriminator's losses; `output` and the targets of the batch must be its own."""
        return row_mean(detection_losses(output.logits, batch.targets), batch.targets)


def hidden_places(batch: Batch) -> Tensor:
    """Positions (B,K) of each row's masked tokens, padded with other positions to a fixed K."""
    most = batch.most_targets or batch.targets.shape[1]
    return (batch.targets == IGNORED).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]


def gather_places(hidden: Tensor, places: Tensor) -> Tensor:
    """Hidden states (B,K,D) at positions (B,K)."""
    return hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))


def sample_tokens(logits: Tensor, noise: Tensor | None = None) -> Tensor:
    """Tokens (B,K) sampled from logits (B,K,V), without a gradient.

    The Gumbel-max trick: argmax of logits - log of exponential noise, of fixed shape and without a sync, as CUDA graph
    capture needs. `noise` is that exponential noise.
    """
    with torch.no_grad():
        waits = torch.empty_like(logits).exponential_() if noise is None else noise.to(logits)
        return (logits - waits.log()).argmax(-1)


def row_mean(losses: Tensor, targets: Tensor) -> Tensor:
    """The mean (B,) of losses (B,T) over the targets that count."""
    return losses.sum(1) / (targets != IGNORED).sum(1).clamp(min=1)
