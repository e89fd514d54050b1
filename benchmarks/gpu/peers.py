"""The programs that people would use instead, each doing a step as its own trainer does.

Weights in float32 under bf16 autocast, fused AdamW, torch.compile; gradients are clipped where their trainer clips
(nanoGPT's train.py and transformers' Trainer at 1, timm's and rtdl's not at all).
"""

from __future__ import annotations

import importlib.util
import io
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.timing import NotRun, Step


def nanogpt(
    path: Path | None, device: torch.device, tokens: Tensor, *, depth: int, width: int, heads: int, vocab: int,
    dropout: float, bias: bool,
) -> Step:  # fmt: skip
    """karpathy/nanoGPT: its model, its optimizer groups, the step of its train.py. Tokens (B,T+1)."""
    if path is None:
        raise NotRun("no path given (--nanogpt)")
    source = load_file(path / "model.py", "nanogpt_model")
    config = source.GPTConfig(
        block_size=tokens.shape[1] - 1, vocab_size=vocab, n_layer=depth, n_head=heads, n_embd=width,
        dropout=dropout, bias=bias,
    )  # fmt: skip
    with redirect_stdout(io.StringIO()):  # it prints its size
        model = source.GPT(config).to(device)
        optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), device.type)
    compiled = compile_on_gpu(model, device)
    inputs, targets = tokens[:, :-1].contiguous().to(device), tokens[:, 1:].contiguous().to(device)
    return training_step(model, lambda: compiled(inputs, targets)[1], optimizer, device, clip=1.0)


def transformers_gpt2(
    device: torch.device, tokens: Tensor, *, depth: int, width: int, heads: int, vocab: int
) -> Step:  # fmt: skip
    transformers = load_package("transformers")
    config = transformers.GPT2Config(
        n_layer=depth, n_embd=width, n_head=heads, vocab_size=vocab, n_positions=tokens.shape[1] - 1,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return language_model(transformers.GPT2LMHeadModel(config), device, tokens)


def transformers_llama(
    device: torch.device, tokens: Tensor, *, depth: int, width: int, heads: int, kv_heads: int, inner: int, vocab: int
) -> Step:
    transformers = load_package("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=depth, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv_heads,
        intermediate_size=inner, vocab_size=vocab, max_position_embeddings=tokens.shape[1] - 1, use_cache=False,
    )  # fmt: skip
    return language_model(transformers.LlamaForCausalLM(config), device, tokens)


def transformers_bert(device: torch.device, tokens: Tensor, targets: Tensor, *, depth: int, width: int, heads: int,
                      vocab: int) -> Step:  # fmt: skip
    """A masked language model; targets are -100 where nothing is asked."""
    transformers = load_package("transformers")
    config = transformers.BertConfig(
        num_hidden_layers=depth, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width,
        vocab_size=vocab, max_position_embeddings=tokens.shape[1],
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config).to(device)
    compiled, inputs, wanted = compile_on_gpu(model, device), tokens.to(device), targets.to(device)
    return training_step(
        model, lambda: compiled(input_ids=inputs, labels=wanted).loss, adamw(model, device), device, clip=1.0
    )


def transformers_t5(device: torch.device, source: Tensor, target: Tensor, *, depth: int, width: int, heads: int,
                    size: int, vocab: int) -> Step:  # fmt: skip
    transformers = load_package("transformers")
    config = transformers.T5Config(
        num_layers=depth, d_model=width, num_heads=heads, d_kv=size, d_ff=4 * width, vocab_size=vocab, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).to(device)
    compiled, inputs, wanted = compile_on_gpu(model, device), source.to(device), target.to(device)
    return training_step(
        model, lambda: compiled(input_ids=inputs, labels=wanted).loss, adamw(model, device), device, clip=1.0
    )


def timm_vit(device: torch.device, pixels: Tensor, classes: Tensor, name: str) -> Step:
    timm = load_package("timm")
    model = timm.create_model(name, num_classes=1000).to(device).train()
    compiled, images, wanted = compile_on_gpu(model, device), pixels.to(device), classes.to(device)
    return training_step(model, lambda: F.cross_entropy(compiled(images), wanted), adamw(model, device), device)


def timm_vit_inference(device: torch.device, pixels: Tensor, name: str) -> Step:
    timm = load_package("timm")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = timm.create_model(name, num_classes=1000).to(device, dtype).eval()
    compiled, images = compile_on_gpu(model, device), pixels.to(device, dtype)

    def step() -> object:
        with torch.inference_mode():
            return compiled(images)

    return step


def rtdl_ft_transformer(
    path: Path | None, device: torch.device, numbers: Tensor, targets: Tensor, *, compiled: bool
) -> Step:
    """The FT-Transformer of its authors with their default settings, in float32 (TF32 products) as they train it."""
    if path is not None:
        found = [p for p in (path, path / "rtdl_revisiting_models.py", path / "package/rtdl_revisiting_models.py")
                 if p.is_file()]  # fmt: skip
        if not found:
            raise NotRun(f"no rtdl_revisiting_models.py in {path}")
        source = load_file(found[0], "rtdl_revisiting_models")
    else:
        source = load_package("rtdl_revisiting_models", "no path given (--rtdl)")
    model = source.FTTransformer(
        n_cont_features=numbers.shape[1], cat_cardinalities=[], d_out=1, **source.FTTransformer.get_default_kwargs()
    ).to(device)
    optimizer = torch.optim.AdamW(model.make_parameter_groups(), lr=1e-4, weight_decay=1e-5, fused=True)
    forward = compile_on_gpu(model, device) if compiled else model
    given, wanted = numbers.to(device), targets.to(device)
    return training_step(model, lambda: F.mse_loss(forward(given, None), wanted), optimizer, device, half=False)


def plain_attention(device: torch.device, shape: tuple[int, int, int], kernel: str) -> Step:
    """Causal attention with its projections, forward and backward, by one kernel of torch's. Shape (B,T,D)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if kernel == "CUDNN_ATTENTION" and device.type != "cuda":
        raise NotRun("cuDNN needs a GPU")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    batch, length, width = shape
    into, out = (nn.Linear(width, n * width).to(device, dtype) for n in (3, 1))
    x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    upstream = torch.randn_like(x)
    leaves = [x, *into.parameters(), *out.parameters()]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        q, k, v = into(x).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)  # (B,H,T,C) each
        with sdpa_kernel(getattr(SDPBackend, kernel)):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            out(y.transpose(1, 2).flatten(2)).backward(upstream)

    return step


# ---------------------------------------------------------------- what they share


def compile_on_gpu(model: nn.Module, device: torch.device) -> Callable[..., Any]:
    """Compiled as the authors' scripts do it; on a CPU, where only the script itself is tried, as it is."""
    return torch.compile(model) if device.type == "cuda" else model


def language_model(model: nn.Module, device: torch.device, tokens: Tensor) -> Step:
    """A causal model of transformers, which shifts the labels itself and counts one place less."""
    model = model.to(device).train()
    compiled, inputs = compile_on_gpu(model, device), tokens[:, :-1].contiguous().to(device)
    return training_step(
        model, lambda: compiled(input_ids=inputs, labels=inputs).loss, adamw(model, device), device, clip=1.0
    )


def adamw(model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def training_step(
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    *,
    clip: float | None = None,
    half: bool = True,
) -> Step:
    model.train()

    def precision() -> AbstractContextManager[object]:
        return torch.autocast("cuda", torch.bfloat16) if half and device.type == "cuda" else nullcontext()

    def step() -> Tensor:
        with precision():
            loss = loss_of()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def load_package(name: str, otherwise: str = "") -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise NotRun(otherwise or f"{name} is not installed") from error


def load_file(path: Path, name: str) -> ModuleType:
    """A module from a file of somebody's checkout."""
    if not path.is_file():
        raise NotRun(f"no {path.name} in {path.parent}")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look themselves up there
        spec.loader.exec_module(module)
    return sys.modules[name]
