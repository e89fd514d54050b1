"""One battery for every family: a tiny random model of transformers, opened here, compared, written, opened there."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import anyformer
from anyformer.checkpoints import tensors
from anyformer.checkpoints.folder import Opened, open_folder, save_foreign, save_own

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@dataclass(frozen=True)
class Case:
    """A class of transformers, a configuration, and how both sides are called."""

    name: str
    kind: type
    config: Any
    theirs: Callable[[torch.dtype], dict[str, Any]]  # arguments of their forward
    ours: Callable[[torch.dtype], tuple[tuple[Any, ...], dict[str, Any]]]  # arguments of ours
    real: Tensor | None = None  # (B,T) where answers are compared; None: everywhere
    float64: float | None = 1e-10  # 1e-6 where transformers casts to float32 inside; None where it gives nan
    extra: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """transformers draws progress bars on stderr."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def make(case: Case, dtype: torch.dtype, seed: int = 0) -> Any:
    """Their model with weights large enough that every part matters."""
    torch.manual_seed(seed)
    model = case.kind(case.config).eval().to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = case.extra.get("norms", 0.0) if parameter.dim() == 1 and name.endswith("weight") else 0.0
            if parameter.requires_grad:  # the others are computed, as Marian's sinusoids
                parameter.normal_(mean, 0.15)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":  # zeros in a new model, not in Marian's files
                buffer.normal_(0, 0.15)
        for module in model.modules():  # an untied masked-LM head there keeps a second bias, which nothing reads
            if isinstance(getattr(module, "decoder", None), nn.Linear) and "bias" in module._parameters:
                module.bias.copy_(module.decoder.bias)
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return model


def save(model: Any, folder: Path) -> Path:
    with quietly():
        model.save_pretrained(folder)
    return folder


def their_answer(out: Any) -> Tensor:
    for name in ("logits", "prediction_logits", "start_logits", "last_hidden_state", "pooler_output"):
        value = getattr(out, name, None)
        if value is not None and type(out).__name__ == "ElectraForPreTrainingOutput":
            return value[..., None]  # one score a token, without an axis for it
        if value is not None:
            return torch.stack([out.start_logits, out.end_logits], -1) if name == "start_logits" else value
    raise AssertionError(f"no answer in {type(out).__name__}")


def our_answer(out: anyformer.Output) -> Tensor:
    return out.hidden if out.logits is None else out.logits


def on_real(x: Tensor, real: Tensor | None) -> Tensor:
    return x if real is None or x.dim() < 3 or x.shape[:2] != real.shape else x[real]


@torch.no_grad()
def both(case: Case, theirs: Any, ours: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    given, options = case.ours(dtype)
    a = their_answer(theirs(**case.theirs(dtype)))
    b = our_answer(ours(*given, **options))
    return on_real(a, case.real), on_real(b, case.real)


def check_logits(case: Case, folder: Path) -> None:
    """Answers agree in float32 and float64, and a control (one weight changed) is noticed."""
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, case.float64)):
        if bound is None:
            continue
        theirs = make(case, dtype)
        opened = open_folder(save(theirs, folder / str(dtype)))
        assert opened.unread == [], f"options nobody read: {opened.unread}"
        a, b = both(case, theirs, opened.model, dtype)
        assert a.shape == b.shape
        assert (a - b).abs().max() <= bound * max(1.0, a.abs().max().item())
    with torch.no_grad():
        next(p for n, p in opened.model.named_parameters() if "blocks.0" in n and p.dim() == 2).mul_(1.5)
    a, b = both(case, theirs, opened.model, torch.float64)
    assert (a - b).abs().max() > 1e-6


def check_round_trip(case: Case, folder: Path) -> Opened:
    """Their folder -> ours -> theirs: equal names, byte-equal tensors, no complaint about weights, equal answers."""
    theirs = make(case, torch.float32)
    opened = open_folder(save(theirs, folder / "first"))
    _, family, head = save_foreign(folder / "second", opened.spec, opened.model, config=opened.config)
    assert (family.model_type, head) == (opened.family.model_type if opened.family else None, opened.head)
    a, b = tensors.read_folder(folder / "first"), tensors.read_folder(folder / "second")
    assert sorted(a) == sorted(b)
    assert all(torch.equal(a[name].read(), b[name].read()) for name in a)
    with quietly():
        again, info = case.kind.from_pretrained(folder / "second", output_loading_info=True)
    assert not any(info.values()), info
    first = their_answer(theirs(**case.theirs(torch.float32)))
    second = their_answer(again.eval()(**case.theirs(torch.float32)))
    assert (on_real(first, case.real) - on_real(second, case.real)).abs().max() <= 1e-6
    save_own(folder / "own", opened.spec, opened.model)
    own = open_folder(folder / "own")
    assert own.spec == opened.spec
    assert all(torch.equal(p, q) for p, q in zip(own.model.parameters(), opened.model.parameters(), strict=True))
    return opened


@torch.no_grad()
def check_maps(case: Case, folder: Path) -> None:
    """Every layer's attention map equals their eager map."""
    case.config._attn_implementation = "eager"
    theirs = make(case, torch.float32)
    opened = open_folder(save(theirs, folder / "maps"))
    out = theirs(**case.theirs(torch.float32), output_attentions=True)
    given, options = case.ours(torch.float32)
    maps = [m for calls in anyformer.attention_maps(opened.model, *given, **options).values() for m in calls]
    places = ("encoder_attentions", "decoder_attentions", "cross_attentions", "attentions")
    wanted = [m for name in places for m in (getattr(out, name, None) or ())]
    assert len(maps) == len(wanted) > 0
    unmatched = list(maps)
    for want in wanted:  # encoder-decoders list theirs in another order than module paths
        real = None if case.real is None or want.shape[2] != case.real.shape[1] else case.real
        gaps = [distance(ours, want, real) for ours in unmatched]
        best = gaps.index(min(gaps))
        assert gaps[best] <= 1e-5
        unmatched.pop(best)


def distance(ours: Tensor, theirs: Tensor, real: Tensor | None) -> float:
    """Largest difference on rows of real queries; infinite for other shapes."""
    if ours.shape != theirs.shape:
        return float("inf")
    gap = (ours - theirs).abs().amax(-1)  # (B,H,T)
    return (gap if real is None else gap.transpose(1, 2)[real]).max().item()


def check_config(family: str, kind: type) -> None:
    """Every field of their config class is read, must have one value, or is irrelevant for a reason; defaults agree."""
    from anyformer.families import FAMILIES
    from anyformer.families.config import FamilyConfig

    default = kind()
    data = {name: value for name, value in default.to_dict().items() if value is not None or name in vars(default)}
    for head in dict.fromkeys(FAMILIES[family].heads.values()):
        whole, bare = FamilyConfig(data), FamilyConfig({})
        spec = FAMILIES[family].settings(whole, head)
        assert whole.unread() == [], f"{family} {head}: nobody reads {whole.unread()}"
        assert FAMILIES[family].settings(bare, head) == spec, "a default differs from transformers'"


def text_case(name: str, kind: type, config: Any, *, pad: str = "left", length: int = 11,
              float64: float | None = 1e-10, segments: bool = False,
              positions: bool = False, seed: int = 0, vocab: int = 50) -> Case:  # fmt: skip
    """A case of ids with padding; `positions` passes position_ids from the mask, as causal models of theirs need."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, vocab, (3, length), generator=generator)
    mask = torch.ones(3, length, dtype=torch.long)
    for row, count in ((1, 4), (2, 2)):
        mask[row, slice(0, count) if pad == "left" else slice(length - count, length)] = 0 if pad != "none" else 1
    kinds = torch.randint(0, 2, (3, length), generator=generator)

    def theirs(dtype: torch.dtype) -> dict[str, Any]:
        given: dict[str, Any] = {"input_ids": tokens, "attention_mask": mask}
        given |= {"token_type_ids": kinds} if segments else {}
        return given | ({"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if positions else {})

    def ours(dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (tokens,), {"mask": mask.bool()} | ({"segments": kinds} if segments else {})

    return Case(name, kind, config, theirs, ours, real=mask.bool(), float64=float64)
