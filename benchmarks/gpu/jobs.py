"""The work that is measured, the most important first; `quick` gives the same list in sizes for a test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.model import Model
from anyformer.heads.lm import LM
from anyformer.mixers.attention import Attention
from anyformer.mixers.hyena import Hyena
from anyformer.norms.layer import LayerNorm
from anyformer.objectives import Batch, Causal, Classify, Regression, Translate
from anyformer.presets.decoders import gpt2, llama
from anyformer.presets.encoders import bert
from anyformer.presets.pairs import t5
from anyformer.presets.tables import ft_transformer
from anyformer.presets.vision import vit
from anyformer.slots import Mixer, Network
from anyformer.training.optim import AdamW, Muon
from benchmarks.gpu import ours, peers
from benchmarks.gpu.text import zipf_text
from benchmarks.gpu.timing import Job, Program, Step
from benchmarks.hyena_cost import module_of, pass_of

OURS = "anyformer"
# Ways to run the same step, as settings of the training. "compiled" is what `train` takes for a long run: a step is
# recorded as a CUDA graph where the model is small.
MODES: dict[str, dict[str, Any]] = {
    "compiled": {},
    "eager": {"compile": False},
    "deterministic": {"deterministic": True},
    "compiled, no CUDA graph": {"cuda_graph": False},
    "eager, no CUDA graph": {"compile": False, "cuda_graph": False},
}


@dataclass(frozen=True)
class Place:
    """Where things run, in which sizes, and where other people's programs are."""

    device: str
    quick: bool = False
    nanogpt: Path | None = None
    rtdl: Path | None = None

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)


@dataclass(frozen=True)
class Decoder:
    """The sizes of a GPT-2-shaped model and of its batch."""

    depth: int
    width: int
    heads: int
    batch: int
    length: int
    vocab: int = 50304  # GPT-2's 50,257 up to a multiple of 64, as nanoGPT has it
    dropout: float = 0.0

    def tokens(self) -> Tensor:
        """A batch (B,T+1)."""
        return zipf_text(self.batch, self.length + 1, self.vocab)

    def network(self) -> Model:
        return gpt2(self.width, self.depth, self.heads, vocab=self.vocab, length=self.length, dropout=self.dropout)

    def shrunk(self) -> Decoder:
        """Sizes that a CPU does in a moment, still different from one job to the next."""
        return replace(self, depth=max(1, self.depth // 12), width=32, heads=2, batch=max(1, self.batch // 16),
                       length=max(8, self.length // 128), vocab=64)  # fmt: skip


def list_jobs(place: Place) -> list[Job]:
    """Every job in its order."""
    return [
        gpt2_124m(place), gpt2_355m(place), llama_1b(place), shakespeare(place), table_rows(place), masked_lm(place),
        images(place), pairs(place), image_inference(place), *hyena_operator(place), *growth(place),
    ]  # fmt: skip


# ---------------------------------------------------------------- language models


GPT2_124M = Decoder(12, 768, 12, batch=32, length=1024)
SHAKESPEARE = Decoder(6, 384, 6, batch=64, length=256, vocab=65, dropout=0.2)


def gpt2_124m(place: Place) -> Job:
    sizes = sized(place, GPT2_124M)
    return decoder_job("gpt2-124m", "GPT-2 124M", sizes, (
        our_decoder(place, sizes), nanogpt(place, sizes), nanogpt(place, sizes, bias=False),
        Program("transformers", "compiled", lambda: peers.transformers_gpt2(
            place.torch_device, sizes.tokens(), depth=sizes.depth, width=sizes.width, heads=sizes.heads,
            vocab=sizes.vocab)),
    ))  # fmt: skip


def gpt2_355m(place: Place) -> Job:
    sizes = sized(place, Decoder(24, 1024, 16, batch=16, length=1024))
    programs = our_decoder(place, sizes), nanogpt(place, sizes)
    return decoder_job("gpt2-355m", "GPT-2 355M", sizes, programs)


def llama_1b(place: Place) -> Job:
    """The shape of TinyLlama: 22 layers, 2,048 wide, four key and value heads."""
    depth, width, heads, kv_heads, inner, vocab = (22, 2048, 32, 4, 5632, 32000)
    batch, length = 8, 2048
    if place.quick:
        depth, width, heads, kv_heads, inner, vocab, batch, length = 2, 64, 4, 2, 96, 64, 2, 16
    network = llama(width, depth, heads, kv_heads, inner, vocab=vocab)
    tokens = partial(zipf_text, batch, length + 1, vocab)
    device = place.torch_device
    mine = Program(OURS, "compiled", lambda: ours.training_step(network, Causal(), ours.text_batch(tokens()), device))
    theirs = Program("transformers", "compiled", lambda: peers.transformers_llama(
        device, tokens(), depth=depth, width=width, heads=heads, kv_heads=kv_heads, inner=inner,
        vocab=vocab))  # fmt: skip
    work = f"Llama-shaped 1.1B, {batch} x {length}"
    return Job("llama-1.1b", "llama", work, "tokens", batch, length, (mine, theirs), depth,
               decoder_flops(network, depth, width, batch, length))  # fmt: skip


def shakespeare(place: Place) -> Job:
    """nanoGPT's train_shakespeare_char: 65 characters, dropout."""
    sizes = sized(place, SHAKESPEARE)
    muon = Muon(lr=0.02, weight_decay=0.1, others=AdamW(lr=3e-3, betas=(0.9, 0.99)))
    settings = ours.settle(sizes.batch, place.torch_device).replace(optimizer=muon)
    with_muon = Program(OURS, "compiled, Muon", lambda: ours.training_step(
        sizes.network(), Causal(), ours.text_batch(sizes.tokens()), place.torch_device, settings))  # fmt: skip
    programs = our_decoder(place, sizes), with_muon, nanogpt(place, sizes, bias=False)
    return decoder_job("shakespeare-char", "shakespeare_char", sizes, programs)


def decoder_job(name: str, words: str, sizes: Decoder, programs: tuple[Program, ...]) -> Job:
    flops = decoder_flops(sizes.network(), sizes.depth, sizes.width, sizes.batch, sizes.length)
    work = f"{words}, {sizes.batch} x {sizes.length}"
    return Job(name, name.partition("-")[0], work, "tokens", sizes.batch, sizes.length, programs, sizes.depth, flops)


def our_decoder(place: Place, sizes: Decoder, mode: str = "compiled") -> Program:
    settings = ours.settle(sizes.batch, place.torch_device).replace(**MODES[mode])
    return Program(OURS, mode, lambda: ours.training_step(
        sizes.network(), Causal(), ours.text_batch(sizes.tokens()), place.torch_device, settings))  # fmt: skip


def nanogpt(place: Place, sizes: Decoder, *, bias: bool = True) -> Program:
    return Program("nanoGPT", "compiled" if bias else "compiled, no biases", lambda: peers.nanogpt(
        place.nanogpt, place.torch_device, sizes.tokens(), depth=sizes.depth, width=sizes.width, heads=sizes.heads,
        vocab=sizes.vocab, dropout=sizes.dropout, bias=bias))  # fmt: skip


def decoder_flops(network: Network, depth: int, width: int, batch: int, length: int) -> float:
    """Of a step, forward and backward, by 6N + 12 L d T a token; a causal model is counted as if it saw everything."""
    return (6 * ours.count_products(network) + 12 * depth * width * length) * float(batch * length)


def sized(place: Place, sizes: Decoder) -> Decoder:
    return sizes.shrunk() if place.quick else sizes


# ---------------------------------------------------------------- tables, encoders, images, pairs


def table_rows(place: Place) -> Job:
    """FT-Transformer with its authors' default settings on eight numbers."""
    rows, columns = (8 if place.quick else 256), 8
    generator = torch.Generator().manual_seed(0)
    numbers, targets = (torch.randn(rows, n, generator=generator) for n in (columns, 1))
    batch, device = Batch((numbers, None), targets, torch.arange(rows)), place.torch_device
    programs = (
        Program(OURS, "compiled", lambda: ours.training_step(ft_transformer(), Regression(), batch, device)),
        *(
            Program("rtdl", mode, partial(peers.rtdl_ft_transformer, place.rtdl, device, numbers, targets,
                                          compiled=mode == "compiled"))
            for mode in ("eager", "compiled")
        ),
    )  # fmt: skip
    return Job("ft-transformer", "tables", f"FT-Transformer, {rows} rows of 8 numbers", "rows", rows, 1, programs, 3)


def masked_lm(place: Place) -> Job:
    """BERT-base with its dropout of .1; 15 % of the tokens are asked for, the loss runs over all of them."""
    depth, width, heads, vocab, batch, length = (2, 64, 2, 64, 2, 16) if place.quick else (12, 768, 12, 30522, 64, 512)
    head = LM(tied=True, transform="gelu", norm=LayerNorm(eps=1e-12), bias=True)
    network = bert(width, depth, heads, vocab=vocab, length=length, pooler=False).replace(head=head)
    tokens = zipf_text(batch, length, vocab)
    asked = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(1)) < 0.15
    targets = tokens.masked_fill(~asked, -100)
    given, device = tokens.masked_fill(asked, 3), place.torch_device
    programs = (
        Program(OURS, "compiled", lambda: ours.training_step(
            network, Causal(), Batch((given,), targets, torch.arange(batch)), device)),
        Program("transformers", "compiled", lambda: peers.transformers_bert(
            device, given, targets, depth=depth, width=width, heads=heads, vocab=vocab)),
    )  # fmt: skip
    work = f"BERT-base masked LM, {batch} x {length}"
    return Job("bert-mlm", "bert", work, "tokens", batch, length, programs, depth,
               decoder_flops(network, depth, width, batch, length))  # fmt: skip


VIT = "vit_base_patch16_224"  # timm's name; vit_tiny is its smallest of this size of image


def images(place: Place) -> Job:
    network, batch, name = image_sizes(place)
    pixels, device = draw_pixels(batch), place.torch_device
    classes = torch.randint(1000, (batch,), generator=torch.Generator().manual_seed(1))
    programs = (
        Program(OURS, "compiled", lambda: ours.training_step(
            network, Classify(), Batch((pixels,), classes, torch.arange(batch)), device)),
        Program("timm", "compiled", lambda: peers.timm_vit(device, pixels, classes, name)),
    )  # fmt: skip
    return Job("vit-train", "vit", f"ViT-B/16 training, {batch} images", "images", batch, 1, programs, 12,
               image_flops(network, batch))  # fmt: skip


def image_inference(place: Place) -> Job:
    network, batch, name = image_sizes(place)
    pixels, device = draw_pixels(batch), place.torch_device
    programs = (
        Program(OURS, "compiled", lambda: ours.inference_step(network, (pixels,), device)),
        Program("timm", "compiled", lambda: peers.timm_vit_inference(device, pixels, name)),
    )
    return Job("vit-infer", "vit", f"ViT-B/16 inference, {batch} images", "images", batch, 1, programs, 12,
               image_flops(network, batch) / 3)  # fmt: skip


def image_sizes(place: Place) -> tuple[Model, int, str]:
    if place.quick:
        return vit(192, 12, 3), 1, "vit_tiny_patch16_224"
    return vit(768, 12, 12), 256, VIT


def draw_pixels(batch: int) -> Tensor:
    return torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def image_flops(network: Model, images: int) -> float:
    """197 tokens an image: 14 x 14 patches and the class token."""
    return decoder_flops(network, network.plain_stack.depth, network.stack.width, images, 197)


def pairs(place: Place) -> Job:
    """T5-small with its dropout of .1: 128 tokens into 128."""
    depth, width, heads, size, vocab, batch, length = 6, 512, 8, 64, 32128, 64, 128
    if place.quick:
        depth, width, heads, size, vocab, batch, length = 1, 32, 2, 16, 64, 2, 8
    source, target = zipf_text(batch, length, vocab), zipf_text(batch, length, vocab, seed=1)
    shifted = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1)
    batch_of_pairs, device = Batch((source, shifted), target, torch.arange(batch)), place.torch_device
    programs = (
        Program(OURS, "compiled", lambda: ours.training_step(
            t5(width, depth, heads, size=size, vocab=vocab), Translate(label_smoothing=0.0), batch_of_pairs, device)),
        Program("transformers", "compiled", lambda: peers.transformers_t5(
            device, source, target, depth=depth, width=width, heads=heads, size=size, vocab=vocab)),
    )  # fmt: skip
    work = f"T5-small, {batch} x ({length} -> {length})"
    return Job("t5-small", "t5", work, "tokens", batch, 2 * length, programs, 2 * depth)


# ---------------------------------------------------------------- an operator alone


def hyena_operator(place: Place) -> list[Job]:
    """Hyena and attention with their projections, forward and backward, at equal tokens a batch."""
    width, tokens, lengths = (64, 256, (64, 256)) if place.quick else (1024, 65536, (65536, 8192, 1024))
    jobs = []
    for length in lengths:
        shape = (tokens // length, length, width)
        mixers: dict[str, Mixer] = {"Hyena": Hyena(order=2, longest=length), "attention": Attention(heads=width // 64)}
        programs = [
            Program(OURS, f"{name}, compiled", partial(run_operator, mixer, shape, place.torch_device))
            for name, mixer in mixers.items()
        ]
        programs += [
            Program("torch", words, partial(peers.plain_attention, place.torch_device, shape, kernel))
            for words, kernel in (("attention, flash", "FLASH_ATTENTION"), ("attention, cuDNN", "CUDNN_ATTENTION"))
        ]
        work = f"operator {width} wide, {tokens} tokens in rows of {length}"
        jobs.append(Job(f"operator-{length}", "operator", work, "tokens", shape[0], length, tuple(programs)))
    return jobs


def run_operator(mixer: Mixer, shape: tuple[int, int, int], device: torch.device) -> Step:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    module: nn.Module = module_of(mixer, shape[2], device.type, dtype)
    if device.type == "cuda":
        module.compile(dynamic=False)
    x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    return pass_of(module, x, backward=True)


# ---------------------------------------------------------------- growth


def growth(place: Place) -> list[Job]:
    """One thing grows at a time from the shape of GPT-2 124M, which is a job already; then other ways to run it."""
    base = GPT2_124M
    tokens = base.batch * base.length
    shapes = {f"length-{n}": replace(base, length=n, batch=tokens // n) for n in (256, 4096, 16384)}
    shapes |= {f"batch-{n}": replace(base, batch=n) for n in (1, 8, 64)}
    shapes |= {f"depth-{n}": replace(base, depth=n) for n in (4, 24)}
    jobs = [
        mode_job(place, "modes-large", "GPT-2 124M", base, ("compiled", "eager", "deterministic")),
        mode_job(place, "modes-small", "shakespeare_char", SHAKESPEARE,
                 ("compiled", "compiled, no CUDA graph", "eager", "eager, no CUDA graph", "deterministic")),
    ]  # fmt: skip
    for name, shape in shapes.items():
        sizes = sized(place, shape)
        words = f"GPT-2 of {sizes.depth} layers"
        jobs.append(decoder_job(name, words, sizes, (our_decoder(place, sizes),)))
    return jobs


def mode_job(place: Place, name: str, words: str, shape: Decoder, modes: tuple[str, ...]) -> Job:
    sizes = sized(place, shape)
    return decoder_job(name, words, sizes, tuple(our_decoder(place, sizes, mode) for mode in modes))
