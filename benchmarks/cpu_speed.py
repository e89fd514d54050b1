"""Speed on a CPU beside torch's own layers, transformers and rtdl, all sides in turns in one process.

    python benchmarks/cpu_speed.py [--rounds 3] [--threads 2] [--only tiny-gpt ...] [--no-compile] [--csv FILE]

tiny-gpt    a training step: 4 layers, 128 wide, 4 heads, 12 x 64 tokens, 65 symbols, AdamW, clipping, no dropout
bert-base   a forward pass of 8 x 128 tokens in inference mode; "products alone" are its linear layers, no more
vit-b16     a forward pass of 8 images of 224 x 224, likewise
ft          a training step of the FT-Transformer's defaults (rtdl's), 8 numbers, 256 rows, dropout on
windows     forward and backward of one attention layer, 4 heads of 64, with and without a sliding window

Ours is what a user gets: the training engine's own step, or `model(x)`. "compiled" sides are torch.compile of the same,
compiling not counted. A round is several passes of each side; the median over the rounds is given, with the spread
(largest - smallest) / median. `ratio` is the best peer's time over ours: above 1, ours is faster. timm is not compared.
With `--threads 1` the time is the processor's, which busy neighbours do not lengthen; else that of a wall clock.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anyformer
from anyformer.core.context import lay_out
from anyformer.core.init import initialise
from anyformer.kernels.compile import compile_function
from anyformer.mixers import Attention
from anyformer.objectives import Batch, Causal, Regression
from anyformer.objectives.objective import Objective
from anyformer.positions.none import NoRelative
from anyformer.presets.decoders import gpt2
from anyformer.training.duration import Plan
from anyformer.training.optim import AdamW
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine

Side = Callable[[], object]
OURS, COMPILED = "anyformer", "anyformer compiled"
PASSES = {"tiny-gpt": 20, "bert-base": 2, "vit-b16": 1, "ft": 5, "windows": 1}  # passes of a round


# ---------------------------------------------------------------- training steps


def engine_step(model: nn.Module, objective: Objective, batch: Batch, compiled: bool) -> Side:
    """The product's own step, with all that it checks and keeps."""
    settings = Training(precision="fp32", optimizer=AdamW(lr=1e-4), threads=torch.get_num_threads())
    engine = TrainingEngine(model, objective, settings, Plan(10**6))
    if compiled:
        engine.compile()
    done = iter(range(10**6))
    return lambda: engine.step(next(done), [batch])


def plain_step(model: nn.Module, loss_of: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Side:
    """A loop as one would write it."""

    def step() -> None:
        loss_of().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class TorchGPT(nn.Module):
    """The same network of torch's own layers."""

    def __init__(self, vocab: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        layer = partial(nn.TransformerEncoderLayer, width, heads, 4 * width, dropout=0.0, activation="gelu")
        self.layers = nn.ModuleList(layer(batch_first=True, norm_first=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


def tiny_gpt(compiled: bool) -> dict[str, Side]:
    from transformers import GPT2Config, GPT2LMHeadModel

    window = torch.randint(65, (12, 65))
    tokens, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
    spec = gpt2(128, 4, 4, vocab=65, length=64, dropout=0.0)
    batch = Batch((tokens,), targets, torch.arange(12))
    plain = TorchGPT(65, 64, 128, 4, 4)
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=65, n_positions=64, n_embd=128, n_layer=4, n_head=4, **none)).train()

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def fused(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    sides = {
        OURS: engine_step(spec.build(seed=0), Causal(), batch, False),
        "torch layers": plain_step(plain, lambda: loss(plain(tokens)), fused(plain)),
        "transformers": plain_step(theirs, lambda: loss(theirs(tokens, use_cache=False).logits), fused(theirs)),
    }
    if compiled:
        net = TorchGPT(65, 64, 128, 4, 4)
        whole = compile_function(lambda: loss(net(tokens)))
        sides[COMPILED] = engine_step(spec.build(seed=0), Causal(), batch, True)
        sides["torch layers compiled"] = plain_step(net, whole, fused(net))
    return sides


def ft(compiled: bool) -> dict[str, Side]:
    from rtdl_revisiting_models import FTTransformer

    numbers, targets = torch.randn(256, 8), torch.randn(256)
    spec, batch = anyformer.preset("ft-transformer"), Batch((numbers,), targets, torch.arange(256))

    def rtdl(compile_it: bool) -> Side:
        defaults = FTTransformer.get_default_kwargs()
        net = FTTransformer(n_cont_features=8, cat_cardinalities=[], d_out=1, **defaults).train()
        optimizer = torch.optim.AdamW(net.make_parameter_groups(), lr=1e-4, fused=True)
        call = compile_function(net) if compile_it else net
        return plain_step(net, lambda: F.mse_loss(call(numbers, None)[:, 0], targets), optimizer)

    sides = {OURS: engine_step(spec.build(seed=0), Regression(), batch, False), "rtdl": rtdl(False)}
    if compiled:
        sides[COMPILED] = engine_step(spec.build(seed=0), Regression(), batch, True)
        sides["rtdl compiled"] = rtdl(True)
    return sides


# ---------------------------------------------------------------- forward passes


def products(rows: int, width: int, depth: int) -> Side:
    """The linear layers of an encoder without anything between them: what nobody can leave out."""
    layers = [
        nn.Linear(*sizes) for sizes in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    ]
    inputs = {width: torch.randn(rows, width), 4 * width: torch.randn(rows, 4 * width)}

    def run() -> None:
        for _ in range(depth):
            for layer in layers:
                layer(inputs[layer.in_features])

    return run


def forward_sides(ours: nn.Module, theirs: nn.Module, x: Tensor, compiled: bool) -> dict[str, Side]:
    sides: dict[str, Side] = {OURS: lambda: ours(x), "transformers": lambda: theirs(x)}
    if compiled:
        fast, faster = compile_function(ours), compile_function(theirs)
        sides |= {COMPILED: lambda: fast(x), "transformers compiled": lambda: faster(x)}
    return sides


def bert_base(compiled: bool) -> dict[str, Side]:
    from transformers import BertConfig, BertModel

    ours = anyformer.preset("bert-base").build(seed=0).eval()
    theirs = BertModel(BertConfig(attn_implementation="sdpa")).eval()
    sides = forward_sides(ours, theirs, torch.randint(30522, (8, 128)), compiled)
    return sides | {"products alone": products(8 * 128, 768, 12)}


def vit_b16(compiled: bool) -> dict[str, Side]:
    from transformers import ViTConfig, ViTModel

    ours = anyformer.preset("vit-b16").build(seed=0).eval()
    theirs = ViTModel(ViTConfig(attn_implementation="sdpa")).eval()
    sides = forward_sides(ours, theirs, torch.randn(8, 3, 224, 224), compiled)
    return sides | {"products alone": products(8 * 197, 768, 12)}


# ---------------------------------------------------------------- sliding windows


def windows(length: int, window: int, causal: bool, dtype: torch.dtype) -> dict[str, Side]:
    """One layer with the window, and with full attention in its place."""

    def layer(size: int | None) -> Side:
        mixer = Attention(heads=4, window=size).build(256, causal=causal, relative=NoRelative())
        initialise(mixer, "gpt2", 0)
        mixer.to(dtype)
        x, context = torch.randn(1, length, 256, dtype=dtype), lay_out(1, length, torch.device("cpu"))
        return lambda: mixer(x, context, None, ()).sum().backward()

    return {OURS: layer(window), "full attention": layer(None)}


def window_works() -> dict[str, Callable[[bool], dict[str, Side]]]:
    works: dict[str, Callable[[bool], dict[str, Side]]] = {}
    for length, window in ((64, 16), (256, 64), (1024, 256), (1024, 512), (4096, 128), (4096, 2048), (8192, 128),
                           (8192, 4096)):  # fmt: skip
        for causal in (True, False):
            for dtype in (torch.float32, torch.bfloat16):
                order = "causal" if causal else "both ways"
                name = f"windows {length} {window} {order} {str(dtype).removeprefix('torch.')}"
                works[name] = lambda _, given=(length, window, causal, dtype): windows(*given)
    return works


# ---------------------------------------------------------------- measuring


def measure(sides: dict[str, Side], rounds: int, passes: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of a pass of each side, in turns."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side(), side()
    for _ in range(rounds):
        for name, side in sides.items():
            began = clock()
            for _ in range(passes):
                side()
            times[name].append((clock() - began) / passes)
    return times


def report(work: str, times: dict[str, list[float]]) -> list[list[str]]:
    medians = {name: statistics.median(values) for name, values in times.items()}
    peers = [m for name, m in medians.items() if name not in (OURS, COMPILED, "products alone")]
    rows = []
    for name, values in times.items():
        spread = (max(values) - min(values)) / medians[name]
        ratio = f"{min(peers) / medians[name]:.2f}" if name in (OURS, COMPILED) else ""
        rows.append([work, name, f"{medians[name] * 1e3:.2f}", f"{spread:.2f}", ratio])
        print(f"{work:38} {name:24} {medians[name] * 1e3:10.2f} ms  spread {spread:5.2f}  {ratio}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(PASSES), default=list(PASSES))
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--csv")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    works: dict[str, Callable[[bool], dict[str, Side]]] = {
        "tiny-gpt": tiny_gpt, "bert-base": bert_base, "vit-b16": vit_b16, "ft": ft,
    }  # fmt: skip
    rows = []
    for name, make in (works | window_works()).items():
        kind = name.split()[0]
        if kind not in options.only:
            continue
        sides = make(not options.no_compile)
        with torch.inference_mode(kind in ("bert-base", "vit-b16")):
            rows += report(name, measure(sides, options.rounds, PASSES[kind], clock))
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["work", "side", "ms", "spread", "best_peer_over_ours"])
            writer.writerows(rows)
            writer.writerow(["torch", torch.__version__, "cpu", f"{options.threads} threads", ""])


if __name__ == "__main__":
    main()
