"""What the tests of BERT and its relatives share: cases of text, and every layer compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.checkpoints.folder import open_folder
from anyformer.core.model import ModelModule, Output
from tests.families.parity import Case, make, on_real, save


def encoder_case(
    name: str, kind: type, config: Any, *, pad: str = "left", length: int = 11, segments: bool = True,
    counted: bool = False,
) -> Case:  # fmt: skip
    """Ids with padding on one side; token types take every value there is.

    `counted` families count positions from the ids themselves; others must be told about padding on the left.
    """
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(5, config.vocab_size, (3, length), generator=generator)
    mask = torch.ones(3, length, dtype=torch.long)
    for row, count in ((1, length // 2), (2, 2)):
        mask[row, slice(0, count) if pad == "left" else slice(length - count, length)] = int(pad == "none")
    tokens = tokens.where(mask.bool(), torch.full_like(tokens, config.pad_token_id or 0))
    kinds = torch.randint(0, getattr(config, "type_vocab_size", 1), (3, length), generator=generator)
    theirs = {"input_ids": tokens, "attention_mask": mask}
    ours: dict[str, Any] = {"mask": mask.bool()}
    if segments:
        theirs["token_type_ids"] = ours["segments"] = kinds
    if not counted:
        theirs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    # Norms near 1: after five layers of norms near 0 nothing would be left of the first.
    return Case(
        name,
        kind,
        config,
        lambda dtype: theirs,
        lambda dtype: ((tokens,), ours),
        real=mask.bool(),
        extra={"norms": 1.0},
    )


@torch.no_grad()
def check_layers(case: Case, folder: Path) -> None:
    """Hidden states after every layer, and the pooled vector where there is one, in float32 and float64."""
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        theirs = make(case, dtype)
        model = open_folder(save(theirs, folder / str(dtype))).model
        given, options = case.ours(dtype)
        ours, seen = with_layers(model, given, options)
        out = theirs(**case.theirs(dtype), output_hidden_states=True)
        wanted = out.hidden_states[1:]
        assert len(seen) == len(wanted) == case.config.num_hidden_layers
        for a, b in zip(seen, wanted, strict=True):
            assert (on_real(a, case.real) - on_real(b, case.real)).abs().max() <= bound * max(1.0, b.abs().max().item())
        pooled = getattr(out, "pooler_output", None)
        assert (pooled is None) == (ours.pooled is None or ours.logits is not None)
        if pooled is not None and first_is_real(case):
            assert (ours.pooled - pooled).abs().max() <= bound


def with_layers(model: ModelModule, given: tuple[Any, ...], options: dict[str, Any]) -> tuple[Output, list[Tensor]]:
    """The answer, and what left each layer; a block that serves several layers is seen once for each."""
    seen: list[Tensor] = []
    for block in model.stack.blocks:
        block.register_forward_hook(lambda block, given, out: seen.append(out[0]))
    return model(*given, **options), seen


def first_is_real(case: Case) -> bool:
    """They pool the first place even where it holds padding; here it is the first real token."""
    return case.real is None or bool(case.real[:, 0].all())
