"""More of the battery: encoder-decoder cases, hidden states of every layer, maps by place, decoding step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import anyformer
from anyformer.checkpoints.folder import open_folder
from anyformer.core.block import BlockModule
from anyformer.core.stack import StackModule
from anyformer.embeds.tokens import TokensModule
from tests.families.parity import Case, both, make, save


def pair_case(name: str, kind: type, config: Any, *, pad: str = "right", theirs_pad: str | None = None, source: int = 9,
              target: int = 7, target_pad: bool = False, float64: float = 1e-10, vocab: int = 50,
              target_vocab: int = 0, shifted: bool = False, seed: int = 0) -> Case:  # fmt: skip
    """A case of source and target ids with padding.

    `theirs_pad` puts their padding on another side than ours, for families whose absolute positions there count
    padding. `shifted` makes the target from the source, as their classifiers do: one end token closes every source.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([source, source - 4, source - 2] if pad != "none" else [source] * 3)
    ids = torch.randint(4, vocab, (3, source), generator=generator)
    wanted = torch.randint(4, target_vocab or vocab, (3, target), generator=generator)
    seen = torch.arange(source)[None] < lengths[:, None]  # (B,S), padding right
    if shifted:
        ids[torch.arange(3), lengths - 1] = config.eos_token_id
        wanted = torch.cat([torch.full((3, 1), config.decoder_start_token_id), ids[:, :-1]], 1)
    target_seen = torch.arange(wanted.shape[1])[None] < torch.tensor([[wanted.shape[1]], [3], [5]])
    target_seen = seen if shifted else target_seen | torch.tensor(not target_pad)

    def sided(side: str) -> tuple[Tensor, Tensor]:
        if side != "left":
            return ids, seen
        turned = torch.stack([row.roll(source - int(n)) for row, n in zip(ids, lengths, strict=True)])
        return turned, seen.flip(1)

    def theirs(dtype: torch.dtype) -> dict[str, Any]:
        tokens, mask = sided(theirs_pad or pad)
        given: dict[str, Any] = {"input_ids": tokens, "attention_mask": mask.long(), "decoder_input_ids": wanted}
        return given | ({"decoder_attention_mask": target_seen.long()} if target_pad else {})

    def ours(dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
        tokens, mask = sided(pad)
        options: dict[str, Any] = {"source_mask": mask}
        return (tokens, wanted), options | ({"target_mask": target_seen} if target_pad or shifted else {})

    masks = {"encoder": sided(pad)[1], "their encoder": sided(theirs_pad or pad)[1], "decoder": target_seen}
    return Case(name, kind, config, theirs, ours, real=target_seen, float64=float64, extra=masks)


@contextmanager
def layers(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """What leaves the embedding, every block and the stack, by half ("" in a model that is not made of two)."""
    seen: dict[str, list[Tensor]] = {}

    def note(half: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, out: Any) -> None:
            seen.setdefault(half, []).append(out[0] if isinstance(out, tuple) else out)

        return hook

    kinds = (TokensModule, BlockModule, StackModule)
    found = [(path, module) for path, module in model.named_modules() if isinstance(module, kinds)]
    handles = [
        module.register_forward_hook(note(path.split(".")[0] if "coder." in path else "")) for path, module in found
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def check_hidden(case: Case, folder: Path) -> None:
    """The hidden states of every layer agree: the embedding's, each block's, the last one after its norm."""
    theirs = make(case, torch.float32)
    opened = open_folder(save(theirs, folder / "hidden"))
    out = theirs(**case.theirs(torch.float32), output_hidden_states=True)
    given, options = case.ours(torch.float32)
    with layers(opened.model) as seen:
        opened.model(*given, **options)
    names = {"": "hidden_states", "encoder": "encoder_hidden_states", "decoder": "decoder_hidden_states"}
    for half, found in seen.items():
        wanted = getattr(out, names[half])
        kept = [*found[:-2], found[-1]]  # the last block's output counts after the stack's final norm
        assert len(kept) == len(wanted) > 2
        mine = case.extra.get(half, case.real)
        other = case.extra.get(f"their {half}", mine)
        for a, b in zip(wanted, kept, strict=True):
            assert (a[other] - b[mine]).abs().max() <= 1e-5 * max(1.0, a.abs().max().item())


@torch.no_grad()
def check_pair_maps(case: Case, folder: Path) -> None:
    """Encoder, decoder and cross maps equal their eager maps, layer by layer; padding on the same side."""
    case.config._attn_implementation = "eager"
    theirs = make(case, torch.float32)
    opened = open_folder(save(theirs, folder / "maps"))
    out = theirs(**case.theirs(torch.float32), output_attentions=True)
    given, options = case.ours(torch.float32)
    maps = anyformer.attention_maps(opened.model, *given, **options)
    source, target = case.extra["encoder"], case.extra["decoder"]
    for path, name, rows in (
        ("encoder.stack.blocks.{}.mixer", "encoder_attentions", source),
        ("decoder.stack.blocks.{}.mixer", "decoder_attentions", target),
        ("decoder.stack.blocks.{}.cross", "cross_attentions", target),
    ):
        wanted = getattr(out, name)
        assert len(wanted) > 0
        for i, want in enumerate(wanted):
            (map_,) = maps.pop(path.format(i))
            assert map_.shape == want.shape
            assert (map_ - want).abs().amax(-1).transpose(1, 2)[rows].max() <= 1e-5
    assert not maps


@torch.no_grad()
def check_pair_steps(case: Case, folder: Path) -> None:
    """Decoding token by token gives what one pass gives, and what they give with their cache."""
    theirs = make(case, torch.float32)
    opened = open_folder(save(theirs, folder / "steps"))
    full, _ = both(case, theirs, opened.model, torch.float32)
    (source, target), options = case.ours(torch.float32)
    assert "target_mask" not in options
    given, past = case.theirs(torch.float32), None
    state = opened.model.state(source.shape[0])
    mine, yours = [], []
    for i, step in enumerate((target[:, :2], *target[:, 2:].split(1, 1))):
        out = opened.model(source if i == 0 else None, step, state=state, **(options if i == 0 else {}))
        mine.append(out.logits if out.logits is not None else out.hidden)
        answer = theirs(**{**given, "decoder_input_ids": step}, past_key_values=past, use_cache=True)
        past = answer.past_key_values
        yours.append(answer.logits if "logits" in answer else answer.last_hidden_state)
    size = full.abs().max().item()
    assert (torch.cat(mine, 1).flatten(0, 1) - full).abs().max() <= 1e-5 * max(1.0, size)
    assert (torch.cat(mine, 1) - torch.cat(yours, 1)).abs().max() <= 1e-5 * max(1.0, size)


@torch.no_grad()
def check_steps(case: Case, folder: Path) -> None:
    """The same for a decoder alone, with padding."""
    theirs = make(case, torch.float32)
    opened = open_folder(save(theirs, folder / "steps"))
    full, _ = both(case, theirs, opened.model, torch.float32)
    (tokens,), options = case.ours(torch.float32)
    given, past = case.theirs(torch.float32), None
    state = opened.model.state(tokens.shape[0])
    mine, yours, start = [], [], 0
    for step in (tokens[:, :6], *tokens[:, 6:].split(1, 1)):
        stop = start + step.shape[1]
        mine.append(opened.model(step, mask=options["mask"][:, start:stop], state=state).logits)
        asked = {"input_ids": step, "attention_mask": given["attention_mask"][:, :stop]}
        if "position_ids" in given:
            asked["position_ids"] = given["position_ids"][:, start:stop]
        answer = theirs(**asked, past_key_values=past, use_cache=True)
        past, start = answer.past_key_values, stop
        yours.append(answer.logits)
    assert case.real is not None
    size = max(1.0, full.abs().max().item())
    assert (torch.cat(mine, 1)[case.real] - full).abs().max() <= 1e-5 * size
    assert (torch.cat(mine, 1) - torch.cat(yours, 1))[case.real].abs().max() <= 1e-5 * size


def count(model: nn.Module) -> int:
    """Parameters, each once."""
    return sum(parameter.numel() for parameter in model.parameters())
