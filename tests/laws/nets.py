"""Small models around one part, inputs for them, and the distances the laws compare."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyformer import (
    LM,
    Attention,
    Block,
    Cross,
    Embed,
    Feed,
    Head,
    Joint,
    Mixer,
    Model,
    Patches,
    Position,
    Relative,
    Seq2Seq,
    Stack,
    Table,
    Tokens,
)  # fmt: skip
from anyformer.checks import answer_of
from anyformer.core.init import initialise
from tests.laws.examples import gathered
from tests.laws.parts import HEADS, MEMORY_WIDTH, VOCAB, WIDTH

EXACT = 1e-9  # what float64 leaves of two ways to compute the same


def block(**settings: Any) -> Block:
    return Block(**({"mixer": Attention(heads=HEADS)} | settings))


def model(
    *, embed: Embed | None = None, head: Head | None = None, causal: bool = True, depth: int = 2, width: int = WIDTH,
    position: Position | None = None, stack: dict[str, Any] | None = None, init: str = "xavier", **settings: Any,
) -> Model:  # fmt: skip
    """A small model; what is not said is the plainest choice. `xavier` starts large enough for differences to show."""
    return Model(
        embed=Tokens(vocab=VOCAB, position=position) if embed is None else embed,
        stack=Stack(width=width, depth=depth, causal=causal, block=block(**settings), **(stack or {})),
        head=head, init=init,
    )  # fmt: skip


def language(**settings: Any) -> Model:
    return model(head=LM(), **settings)


def around(mixer: Mixer, *, causal: bool | None = None, **settings: Any) -> Model:
    """A model with this mixer, as causal as it can be, over what it can read."""
    embed = {"embed": Patches(size=8, patch=2, channels=2)} if mixer.needs_grid else {"head": LM()}
    return model(mixer=mixer, causal=mixer.causal_form if causal is None else causal, **(embed | settings))


def looking(mixer: Mixer, batch: int = 2, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """What a mixer that reads a memory is given besides."""
    return {"memory": memory(batch, width=WIDTH).to(dtype)} if mixer.looks_at_memory else {}


def rounding(part: Mixer | Feed, dtype: torch.dtype = torch.float64) -> float:
    """How much of the future may reach the past, relative to the answers: nothing, or what the part rounds."""
    return 0.0 if part.exact else 1e-12 if dtype == torch.float64 else 1e-6


def pair(*, relative: Relative | None = None, position: Position | None = None, cross: Mixer | None = None,
         head: Head | None = None, share: str = "table", **settings: Any) -> Seq2Seq:  # fmt: skip
    """A small encoder-decoder."""
    extra = {} if relative is None else {"relative": relative}
    looking = settings | {"cross": Cross(heads=HEADS) if cross is None else cross}
    return Seq2Seq(
        encoder=model(causal=False, position=position, **settings, **extra),
        decoder=model(position=position, **looking, **extra),
        head=LM() if head is None else head, share=share,
    )  # fmt: skip


def build(spec: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """The network in float64, in evaluation mode, with every parameter at random: zeros would hide what they touch."""
    net = spec.build(dtype=dtype, seed=seed).eval()
    stir(net, seed)
    return net


def filled(module: Any, seed: int = 0) -> Any:
    """A part built by itself: tables are left as allocated until the model as a whole is filled, here at once."""
    if next(module.parameters(), None) is not None:
        initialise(module, "xavier", seed)
        stir(module, seed)
    return module


def stir(net: nn.Module, seed: int = 0) -> None:
    """Move biases, norms and layer scales off their starts."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)


def tokens(batch: int = 2, length: int = 8, *, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(embed: Embed, batch: int = 2, length: int = 8, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Any:
    """What a model with this embedding is called with, as a tuple."""
    if isinstance(embed, Tokens):
        return (tokens(batch, length, seed=seed, vocab=embed.vocab),)
    if isinstance(embed, Patches):
        return (numbers(batch, embed.channels, *embed.pixels, seed=seed, dtype=dtype),)
    if isinstance(embed, Table):
        counts = embed.categories or ()
        columns = [tokens(batch, 1, seed=seed + j, vocab=count) for j, count in enumerate(counts)]
        given = numbers(batch, embed.numbers, seed=seed, dtype=dtype) if embed.numbers else None
        return given, torch.cat(columns, 1) if columns else None
    if isinstance(embed, Joint):
        parts = [inputs(part, batch, length, seed=seed + i, dtype=dtype) for i, part in enumerate(embed.parts)]
        return tuple(part if len(part) > 1 else part[0] for part in parts)
    others = gathered("INPUTS")
    if type(embed) in others:
        return others[type(embed)](embed, batch, length, seed, dtype)
    raise NotImplementedError(f"say in tests/laws/examples what a model with {type(embed).__name__} is called with")


def memory(batch: int = 2, length: int = 5, *, seed: int = 0, width: int = MEMORY_WIDTH) -> Tensor:
    return numbers(batch, length, width, seed=seed)


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference; nan where either has one, so that no comparison passes by accident."""
    return (a - b).abs().max().item() if a.numel() else 0.0


def leak(run: Any, given: Tensor, vocab: int = VOCAB) -> float:
    """Replace all tokens after t by other random ones; the largest change at or before t, over all t, relative to the
    largest answer.

    Random tokens, not a constant shift: LayerNorm removes constants, and a leak would pass unseen.
    """
    base, worst = answer_of(run(given)), 0.0
    generator = torch.Generator().manual_seed(7)
    for t in range(given.shape[1] - 1):
        changed = given.clone()
        after = changed[:, t + 1 :]
        changed[:, t + 1 :] = (after + torch.randint(1, vocab, after.shape, generator=generator)) % vocab
        worst = max(worst, gap(answer_of(run(changed))[:, : t + 1], base[:, : t + 1]))
    return worst / base.abs().max().item()


def stepwise(net: Any, given: Tensor, cuts: list[int], state: Any, **options: Any) -> Tensor:
    """The answers of a text fed in pieces that begin at `cuts`, through one state."""
    stops = [*cuts[1:], given.shape[1]]
    parts = [answer_of(net(given[:, a:b], state=state, **options)) for a, b in zip(cuts, stops, strict=True) if b > a]
    return torch.cat(parts, 1)
