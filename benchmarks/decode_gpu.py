"""Decoding on one GPU, ours beside transformers and a plain compiled loop: right first, then fast.

    PYTHONPATH=src python benchmarks/decode_gpu.py OUT.csv [--only right,gpt2,llama,...] [--budget 480]
    PYTHONPATH=src python benchmarks/decode_gpu.py OUT.csv --device cpu --tiny        every path that needs no GPU

64 tokens of prompt and 256 new ones, bf16, random weights; tokens a second are new tokens over the whole call, prompt
included, the median of three calls after two that are not counted. Every section has its own time and its own line if
it fails; lines are written as they come.
"""

from __future__ import annotations

import argparse
import csv
import gc
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyformer
from anyformer.core.attend import ENGINES, Scores
from anyformer.core.context import Context
from anyformer.generation.config import Generation
from anyformer.generation.decode import generate
from anyformer.generation.noise import row_seeds, token_counter
from anyformer.generation.runners.compiled import compiled
from anyformer.generation.runners.device_loop import DeviceLoop
from anyformer.kernels import compile as compiling

PROMPT, NEW, CALLS = 64, 256, 3


class Bench:
    """What all sections share: where they run, how large, and where lines go."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device, self.tiny = torch.device(options.device), options.tiny
        self.cuda = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.started, self.budget = time.monotonic(), options.budget
        self.file = Path(options.out).open("w", newline="", encoding="utf-8")  # noqa: SIM115  open to the end
        self.csv = csv.writer(self.file)
        self.csv.writerow(["section", "what", "batch", "value", "unit", "note"])
        self.section, self.failures = "", 0
        self.new, self.prompt = (8, 6) if self.tiny else (NEW, PROMPT)

    def line(self, what: str, value: float | str, unit: str = "", batch: int | str = "", note: str = "") -> None:
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        self.csv.writerow([self.section, what, batch, shown, unit, note])
        self.file.flush()
        print(f"{self.section:9} {what:44} {batch!s:>5} {shown:>10} {unit:9} {note}", flush=True)

    @property
    def left(self) -> float:
        return self.budget - (time.monotonic() - self.started)

    def sync(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], object], calls: int = CALLS, warm: int = 2) -> float:
        """The median time of a call, after some that are not counted."""
        times = []
        for number in range(warm + calls):
            self.sync()
            start = time.perf_counter()
            call()
            self.sync()
            if number >= warm:
                times.append(time.perf_counter() - start)
        return statistics.median(times)

    def speed(self, what: str, batch: int, call: Callable[[], object], note: str = "", warm: int = 2) -> float:
        start = time.perf_counter()
        took = self.seconds(call, warm=warm)
        rate = batch * self.new / took
        whole = f"{took / self.new * 1e6:.0f} us a step; section so far {time.perf_counter() - start:.0f} s"
        self.line(what, rate, "tok/s", batch, f"{note}; {whole}" if note else whole)
        return rate


class TimeUp(BaseException):
    """Not an Exception: a compiler that catches those and goes on must not catch this."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """`TimeUp` in whatever runs longer, and again should that be swallowed."""

    def ring(*_: object) -> None:
        raise TimeUp(f"more than {seconds:.0f} s")

    old = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, seconds), 10.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def tried(bench: Bench, what: str, call: Callable[[], object]) -> None:
    """One part of a section: what goes wrong is a line, and the next part has its turn."""
    try:
        call()
    except Exception as error:
        bench.failures += 1
        bench.line(what, "ERROR", note=f"{type(error).__name__}: {error}"[:400].replace("\n", " "))
        traceback.print_exc(limit=-4)


# ---------------------------------------------------------------- models


def gpt2(bench: Bench, dtype: torch.dtype | None = None, depth: int | None = None) -> Any:
    spec = anyformer.preset("gpt2-tiny" if bench.tiny else "gpt2")
    if depth is not None:
        spec = anyformer.replace_in(spec, {"stack.depth": depth})
    return lively(spec.build(seed=0, device=bench.device, dtype=dtype or bench.dtype))


def llama(bench: Bench, dtype: torch.dtype | None = None) -> Any:
    """1.1B: 22 layers, 2048 wide, 32 heads, 4 key-value heads, 5632 inside, 32,000 words."""
    from anyformer.presets.decoders import llama as spec_of

    spec = spec_of(64, 2, 4, 2, 96, vocab=512) if bench.tiny else spec_of(2048, 22, 32, 4, 5632, vocab=32000)
    return lively(spec.build(seed=0, device=bench.device, dtype=dtype or bench.dtype))


def lively(model: nn.Module) -> nn.Module:
    """Larger weights in the blocks: a fresh network repeats one token whatever it has read, and hides mistakes."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "stack" in name:
                weight.mul_(3.0)
    return model.eval()


def prompts(bench: Bench, batch: int, vocab: int, length: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    return torch.randint(0, vocab, (batch, length or bench.prompt), generator=generator).to(bench.device)


def lengths(tokens: Tensor) -> Tensor:
    return torch.full((tokens.shape[0],), tokens.shape[1], device=tokens.device)


def written(loop: DeviceLoop, tokens: Tensor, wanted: Generation) -> Tensor:
    """What a loop writes behind prompts (B,T) of one length."""
    loop.start(tokens, lengths(tokens))
    seeds = row_seeds(wanted.seed, len(tokens), 1, loop.device) if wanted.sampled else None
    return loop.generate(wanted, wanted.max_new_tokens or 0, seeds).generated


GREEDY, TOP_K = {}, {"do_sample": True, "top_k": 200, "temperature": 0.8, "seed": 1}


def settings(bench: Bench, choice: dict[str, Any], new: int | None = None) -> Generation:
    return Generation(max_new_tokens=new or bench.new, **choice)


# ---------------------------------------------------------------- sections


def machine(bench: Bench) -> None:
    bench.line("torch", torch.__version__)
    if not bench.cuda:
        return
    import transformers
    import triton

    bench.line("triton", triton.__version__)
    bench.line("transformers", transformers.__version__)
    bench.line("device", torch.cuda.get_device_name())
    source = torch.randn(2**29, device=bench.device)
    target = torch.empty_like(source)
    took = bench.seconds(lambda: target.copy_(source), calls=10)
    bench.line("copy, bytes read and written", 2 * source.numel() * 4 / took / 1e9, "GB/s")


def right(bench: Bench) -> None:
    """The kernel against the definition, the loop's forms against plain generation, graphs over a grid of sizes."""
    if bench.cuda:
        tried(bench, "kernel against the definition", lambda: kernel_right(bench))
    tried(bench, "tokens of the loop", lambda: loop_right(bench))


KERNEL_CASES = [  # heads, groups, queries, channels, columns, dtype, rule
    (12, 12, 1, 64, 321, torch.float32, "plain"),
    (12, 12, 1, 64, 321, torch.bfloat16, "plain"),
    (12, 12, 1, 64, 1025, torch.float32, "all"),
    (32, 4, 1, 64, 321, torch.bfloat16, "plain"),
    (32, 4, 1, 64, 2049, torch.float32, "plain"),
    (32, 4, 1, 64, 2049, torch.bfloat16, "all"),
    (32, 4, 5, 64, 2049, torch.bfloat16, "window"),
    (8, 2, 1, 128, 700, torch.float16, "cap"),
    (8, 8, 1, 256, 700, torch.float32, "alibi"),
    (6, 3, 8, 80, 700, torch.float32, "all"),
]


def kernel_right(bench: Bench) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.device.test_decode_kernel import BOUNDS, described, inputs
    from tests.device.test_decode_kernel import right as definition

    worst: dict[torch.dtype, float] = {}
    for number, (heads, groups, queries, channels, columns, dtype, rule) in enumerate(KERNEL_CASES):
        reach = (columns - 1, queries - 1, 255, 256, columns // 2)
        q, k, v, index = inputs(heads, groups, queries, channels, channels, columns, dtype, reach, seed=number)
        scores = described(rule, index, columns, channels, heads)
        ours, wanted = ENGINES["rows"](q, k, v, scores).double(), definition(q, k, v, scores)
        gap = ((ours - wanted).abs().max() / wanted.abs().max()).item()
        worst[dtype] = max(worst.get(dtype, 0.0), gap)
        assert torch.isfinite(ours).all() and gap <= BOUNDS[dtype], (heads, groups, queries, channels, rule, gap)
    for dtype, gap in worst.items():
        bench.line(f"kernel, largest gap, {dtype}", gap, "relative")


def loop_right(bench: Bench) -> None:
    """float32: every form writes the tokens of plain generation; and nothing is compiled anew over a grid of sizes."""
    from torch._dynamo.utils import counters

    # Three layers: compiling takes as long as a model is deep, and the fourth is like the third.
    models = {
        "gpt2": gpt2(bench, torch.float32, depth=3),
        "llama": None if not bench.tiny else llama(bench, torch.float32),
    }
    for name, model in models.items():
        if model is None:
            continue
        vocab = model.spec.embed.vocabulary[0]
        for form in ("recorded", "fused" if bench.cuda else "compiled"):
            same = []
            for choice in (GREEDY, TOP_K):
                for batch in (1, 4):
                    tokens = prompts(bench, batch, vocab)
                    wanted = generate(model, tokens, settings=settings(bench, choice, 32 // (1 + 3 * bench.tiny)))
                    loop = DeviceLoop(model, batch, 128, form=form)
                    found = written(loop, tokens, settings(bench, choice, wanted.new.shape[1]))
                    same.append((found == wanted.new).double().mean().item())
            # float64 noise and sums in another order: a draw may differ where two tokens are equal to seven digits.
            bench.line(
                f"{name}, float32, {form}: equal tokens", min(same), "share", "1, 4", "greedy and top-k; 1 is right"
            )
        before = counters["stats"]["unique_graphs"]
        for batch in (1, 2, 3, 8, 32):
            for length in (1, 5, 64):
                tokens = prompts(bench, batch, vocab, length)
                for limit in (100, 128):
                    written(DeviceLoop(model, batch, limit, form=form), tokens, settings(bench, GREEDY, 4))
        anew = counters["stats"]["unique_graphs"] - before
        bench.line(f"{name}: compiled anew over 30 sizes", anew, "graphs", "1-32", "after warm-up; 0 is right")


def ours(bench: Bench, name: str, model: Any, batch: int, choice: dict[str, Any], forms: tuple[str, ...]) -> Tensor:
    """Tokens a second of `generate` with the model as it is, compiled, and of loops in other forms."""
    tokens, wanted = prompts(bench, batch, model.spec.embed.vocabulary[0]), settings(bench, choice)
    kind = "top-k 200" if choice else "greedy"
    found: list[Tensor] = []
    for form in forms:

        def whole(form: str = form) -> None:
            if form == "plain":  # far too slow to wait for all of it
                few, loop = settings(bench, choice, bench.new // 8 or 1), DeviceLoop(model, batch, form="plain")
                took = bench.seconds(lambda: written(loop, tokens, few), calls=1, warm=1)
                bench.line(f"{name}, loop, plain, {kind}", batch * (few.max_new_tokens or 0) / took, "tok/s", batch)
                return
            if form in ("generate", "compiled"):
                net = compiled(model) if form == "compiled" else model
                what = f"generate({'compiled(model)' if form == 'compiled' else 'model'})"

                def write() -> None:
                    found[:] = [generate(net, tokens, settings=wanted).new]
            else:
                loop, what = DeviceLoop(model, batch, form="compiled"), "loop without kernels for one row"

                def write() -> None:
                    found[:] = [written(loop, tokens, wanted).clone()]

            bench.speed(f"{name}, {what}, {kind}", batch, write)

        tried(bench, f"{name}, ours, {form}, {kind}", whole)
    return found[0]


def theirs(bench: Bench, name: str, model: Any, batch: int, choice: dict[str, Any]) -> None:
    """transformers with its static cache, whose decoding step it then compiles by itself (reduce-overhead)."""
    from transformers import CompileConfig

    given = {key: value for key, value in choice.items() if key != "seed"}
    tokens = prompts(bench, batch, model.config.vocab_size)
    options = {
        "max_new_tokens": bench.new,
        "do_sample": False,
        "cache_implementation": "static",
        "pad_token_id": 0,
    } | given
    model.generation_config.eos_token_id = None  # nothing ends early, and nothing is looked for
    if bench.cuda:
        options["compile_config"] = CompileConfig(mode="reduce-overhead", fullgraph=False)
    kind = "top-k 200" if choice else "greedy"

    def write() -> None:
        out = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        assert out.shape[1] == bench.prompt + bench.new

    bench.speed(f"{name}, transformers static + compile, {kind}", batch, write)


def their_gpt2(bench: Bench) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512} if bench.tiny else {}
    return GPT2LMHeadModel(GPT2Config(**small)).to(bench.device, bench.dtype).eval()


def their_llama(bench: Bench) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = (64, 2, 4, 2, 96, 512) if bench.tiny else (2048, 22, 32, 4, 5632, 32000)
    width, depth, heads, groups, inner, vocab = sizes
    config = LlamaConfig(
        hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads, num_key_value_heads=groups,
        intermediate_size=inner, vocab_size=vocab, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device(bench.device):
        return LlamaForCausalLM(config).to(bench.dtype).eval()


def gpt2_one(bench: Bench) -> None:
    model = gpt2(bench)
    ours(bench, "gpt2 124M", model, 1, GREEDY, ("plain", "generate", "compiled", "loop"))
    tried(bench, "sampled", lambda: ours(bench, "gpt2 124M", model, 1, TOP_K, ("compiled",)))


def gpt2_many(bench: Bench) -> None:
    model, batch = gpt2(bench), 4 if bench.tiny else 32
    together = ours(bench, "gpt2 124M", model, batch, GREEDY, ("plain", "generate", "compiled"))
    tried(bench, "sampled", lambda: ours(bench, "gpt2 124M", model, batch, TOP_K, ("compiled",)))
    tokens, fast, shares, firsts = prompts(bench, batch, model.spec.embed.vocabulary[0]), compiled(model), [], []
    for row in range(0, batch, max(1, batch // 8)):
        alone = generate(fast, tokens[row : row + 1], settings=settings(bench, GREEDY)).new[0]
        same = alone == together[row]
        shares.append(same.double().mean().item())
        firsts.append(bench.new if bool(same.all()) else int((~same).nonzero()[0]))
    bench.line("gpt2, bf16, alone as among the others", statistics.mean(shares), "share", batch,
               f"tokens until the first difference: {sorted(firsts)}")  # fmt: skip


def gpt2_theirs(bench: Bench) -> None:
    model = their_gpt2(bench)
    for batch in (1, 4 if bench.tiny else 32):
        tried(
            bench, f"transformers, batch {batch}", lambda batch=batch: theirs(bench, "gpt2 124M", model, batch, GREEDY)
        )


def llama_ours(bench: Bench) -> None:
    model = llama(bench)
    bytes_read = sum(p.numel() * p.element_size() for name, p in model.named_parameters() if "embed" not in name)
    bench.line("llama 1.1B, bytes of weights a step", bytes_read / 1e9, "GB")
    ours(bench, "llama 1.1B", model, 1, TOP_K, ("compiled", "generate"))
    tried(bench, "greedy", lambda: ours(bench, "llama 1.1B", model, 1, GREEDY, ("compiled",)))


def llama_theirs(bench: Bench) -> None:
    model = their_llama(bench)
    tried(bench, "transformers, top-k", lambda: theirs(bench, "llama 1.1B", model, 1, TOP_K))


class PlainLlama(nn.Module):
    """The usual plain fast decoder: static cache, a row of a causal mask, repeated key-value heads, a token a call."""

    def __init__(self, width: int, depth: int, heads: int, groups: int, inner: int, vocab: int, length: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size, self.length = heads, groups, width // heads, length
        self.table = nn.Embedding(vocab, width)
        parts = {
            "qkv": (width, (heads + 2 * groups) * self.size), "out": (width, width), "gate": (width, inner),
            "up": (width, inner), "down": (inner, width),
        }  # fmt: skip
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {name: nn.Linear(*sizes, bias=False) for name, sizes in parts.items()}
                | {"one": nn.RMSNorm(width), "two": nn.RMSNorm(width)}
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)

    def prepare(self, device: torch.device, dtype: torch.dtype) -> None:
        """Cache, turns and mask for one row."""
        shape = (len(self.layers), 2, 1, self.groups, self.length, self.size)
        self.cache = torch.zeros(shape, device=device, dtype=dtype)
        powers = 1.0 / 10000 ** (torch.arange(0, self.size, 2, device=device).float() / self.size)
        angles = torch.arange(self.length, device=device).float()[:, None] * powers
        self.turns = torch.stack([angles.cos(), angles.sin()], -1)  # (L, size/2, 2)
        self.mask = torch.ones(self.length, self.length, dtype=torch.bool, device=device).tril()

    def forward(self, tokens: Tensor, at: Tensor) -> Tensor:
        x = self.table(tokens)  # (1,T,D)
        mask, turns = self.mask[None, None, at], self.turns[at]
        for number, layer in enumerate(self.layers):
            fused = layer["qkv"](layer["one"](x)).unflatten(-1, (-1, self.size))
            q, k, v = fused.split([self.heads, self.groups, self.groups], -2)
            q, k, v = (part.transpose(1, 2) for part in (turned(q, turns), turned(k, turns), v))
            keys, values = self.cache[number]
            keys[:, :, at], values[:, :, at] = k, v
            keys, values = (part.repeat_interleave(self.heads // self.groups, 1) for part in (keys, values))
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            x = x + layer["out"](y.transpose(1, 2).flatten(2))
            h = layer["two"](x)
            x = x + layer["down"](F.silu(layer["gate"](h)) * layer["up"](h))
        return self.head(self.norm(x[:, -1]))


def turned(x: Tensor, turns: Tensor) -> Tensor:
    pairs = x.float().unflatten(-1, (-1, 2))
    cos, sin = turns[None, :, None].unbind(-1)
    a, b = pairs.unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)


def drawn(logits: Tensor) -> Tensor:
    """A draw among the 200 best by exponential noise, which needs no look from the host."""
    logits = logits.float() / 0.8
    edge = logits.topk(200).values[:, -1:]
    shares = logits.masked_fill(logits < edge, -torch.inf).softmax(-1)
    return (shares / torch.empty_like(shares).exponential_(1)).argmax(-1)


@torch.no_grad()
def plain_compiled(bench: Bench) -> None:
    """What a careful user gets from torch.compile alone, with the sampling of the lines above."""
    sizes = (64, 2, 4, 2, 96, 512) if bench.tiny else (2048, 22, 32, 4, 5632, 32000)
    with torch.device(bench.device):
        model = PlainLlama(*sizes, length=bench.prompt + bench.new).to(bench.dtype).eval()
    model.prepare(bench.device, bench.dtype)

    def one(tokens: Tensor, at: Tensor) -> Tensor:
        return drawn(model(tokens, at))

    compiled = one
    if bench.cuda:
        import torch._inductor.config as inductor

        inductor.coordinate_descent_tuning = True
        compiled = torch.compile(one, mode="reduce-overhead", fullgraph=True)
    start = prompts(bench, 1, sizes[-1])

    def write() -> None:
        token = one(start, torch.arange(bench.prompt, device=bench.device))
        at = torch.tensor([bench.prompt], device=bench.device)
        for _ in range(bench.new - 1):
            token = compiled(token[None], at).clone()
            at += 1

    bench.speed("llama 1.1B, plain static cache + compile, top-k 200", 1, write)


def attention(bench: Bench) -> None:
    """One layer's attention over rows of different length: the kernel, torch's fused one with a mask, FlexAttention."""
    sizes = [(1, 512), (1, 4096), (1, 32768), (32, 512), (32, 4096)] if not bench.tiny else [(2, 64)]
    for heads, groups in ((12, 12), (32, 4)):
        for batch, columns in sizes:
            tried(bench, f"attention {heads}/{groups} {columns}",
                  lambda h=heads, g=groups, b=batch, c=columns: attention_case(bench, h, g, b, c))  # fmt: skip


def attention_case(bench: Bench, heads: int, groups: int, batch: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    sets = max(1, min(8, int(4e8 // (2 * batch * groups * columns * 64 * 2) + 1)))  # together larger than the cache
    reach = torch.randint(columns // 2, columns, (batch, 1), generator=generator).to(bench.device)
    places = torch.arange(columns, device=bench.device)[None]
    context = Context(positions=reach, index=reach, key_positions=places, key_index=places, ordered=False, gaps=True)
    scores = Scores.among(context, columns, scale=0.125, causal=True, window=None, soft_cap=None,
                          relative=anyformer.NoRelative(), tables=())  # fmt: skip
    data = [
        (torch.randn(batch, heads, 1, 64, device=bench.device, dtype=bench.dtype),
         *(torch.randn(batch, groups, columns, 64, device=bench.device, dtype=bench.dtype) for _ in range(2)))
        for _ in range(sets)
    ]  # fmt: skip
    moved = 2 * int((reach + 1).sum()) * groups * 64 * 2
    name = f"{heads}/{groups} heads, {columns} columns"
    engines = ("rows", "sdpa", "flex") if bench.cuda else ("sdpa",)
    for engine in engines:
        if engine == "flex" and columns not in (4096,):
            continue  # a compilation each

        def call(engine: str = engine) -> None:
            for one in data:
                ENGINES[engine](*one, scores)

        with torch.no_grad():
            took = (graph_seconds(call) if bench.cuda and engine != "flex" else bench.seconds(call)) / sets
        note = f"{moved / took / 1e9:.0f} GB/s of what the rows hold"
        if engine == "sdpa" and bench.cuda:
            backend = backend_of(call)
            note += f"; backend {backend}"
            if backend == "math":
                bench.failures += 1
                bench.line(f"attention {engine}, {name}", "ERROR", "", batch, "torch fell to its math backend")
        bench.line(f"attention {engine}, {name}", took * 1e6, "us", batch, note)


def graph_seconds(call: Callable[[], None], replays: int = 20) -> float:
    """Device time of a call inside a graph, without the gaps between launches from the host."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(replays):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(times)


def backend_of(call: Callable[[], None]) -> str:
    """Which of torch's fused kernels ran, by the names of what the device was given."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    names = " ".join(event.key.lower() for event in seen.key_averages())
    for word, backend in (("cudnn", "cudnn"), ("flash", "flash"), ("fmha", "efficient"), ("mem_eff", "efficient")):
        if word in names:
            return backend
    return "math"


def tuning(bench: Bench) -> None:
    """Other cuts of the kernel's work than the one it takes by itself."""
    from anyformer.kernels.decode import SplitPlan, launch, plan_splits

    for heads, groups, batch, columns in ((12, 12, 1, 320), (12, 12, 32, 320), (32, 4, 1, 320), (32, 4, 1, 4096)):
        lanes = heads // groups
        index = torch.full((batch, 1), columns - 1, device=bench.device)
        data = [
            (torch.randn(batch, heads, 1, 64, device=bench.device, dtype=bench.dtype),
             *(torch.randn(batch, groups, columns, 64, device=bench.device, dtype=bench.dtype) for _ in range(2)))
            for _ in range(12)
        ]  # fmt: skip
        usual = plan_splits(lanes, 64, columns, 2)
        cuts = {usual, usual._replace(chunk=128), usual._replace(chunk=256), usual._replace(block=64, warps=4),
                usual._replace(block=64, warps=8), usual._replace(block=128, warps=8),
                usual._replace(block=32), usual._replace(block=256, warps=8), usual._replace(block=256, warps=16),
                usual._replace(chunk=64, block=64), usual._replace(chunk=128, block=128, warps=8)}  # fmt: skip

        def call(plan: SplitPlan, data: Any = data, index: Tensor = index) -> None:
            for q, k, v in data:
                launch(q, k, v, index, None, 0.125, 0, 0.0, plan)

        for plan in sorted(cuts):
            took = graph_seconds(lambda plan=plan: call(plan)) / len(data)
            bench.line(f"{heads}/{groups} heads, {columns} columns, {tuple(plan)}", took * 1e6, "us", batch,
                       "the one it takes" if plan == usual else "block, chunk, warps, stages")  # fmt: skip


def engine(bench: Bench) -> None:
    """Requests that come and go: 96 prompts of different length in 32 rows, all of them told token by token."""
    from anyformer.engine.engine import Engine
    from anyformer.engine.sequence import Event, Failed, Finished, NewToken, Sequence
    from anyformer.generation.cache.open_store import open_serving_store

    model, count, capacity = gpt2(bench), *((6, 4) if bench.tiny else (96, 32))
    store = open_serving_store(model, capacity=capacity)
    for turn in ("recording", "recorded"):
        engine_ = Engine(store)
        engine_.start()
        over, tokens = threading.Semaphore(0), [0]

        def tell(event: Event, over: threading.Semaphore = over, tokens: list[int] = tokens) -> None:
            tokens[0] += isinstance(event, NewToken)
            if isinstance(event, Finished | Failed):
                over.release()

        start = time.perf_counter()
        for number in range(count):
            prompt = [1 + (7 * number + place) % 500 for place in range(4 + number % bench.prompt)]
            engine_.submit(Sequence(prompt, settings(bench, GREEDY, bench.new // 2 + number % 32), tell))
        for _ in range(count):
            over.acquire()
        took = time.perf_counter() - start
        engine_.stop()
        bench.line(f"engine, gpt2 124M, {count} requests, {turn}", tokens[0] / took, "tok/s", capacity)


def int8(bench: Bench) -> None:
    """Weights in eight bits."""
    from anyformer.kernels.quantise import quantise

    for name, make in (("gpt2 124M", gpt2), ("llama 1.1B", llama)):
        model = quantise(make(bench), "int8")
        ours(bench, f"{name} int8", model, 1, GREEDY, ("compiled", "generate"))


def cost_of_choice(bench: Bench) -> None:
    """What choosing costs by itself: the maximum, noise in float64 over all words, the best 200."""
    from anyformer.generation.logits import logits_warpers
    from anyformer.generation.runners.cuda_graphs import DeviceOutputs
    from anyformer.generation.runners.device_loop import compile_sample_step

    ends = torch.tensor([], dtype=torch.long, device=bench.device)
    for batch, vocab in ((1, 32000), (1, 50257), (32, 50257)):
        raw = torch.randn(batch, vocab, device=bench.device, dtype=bench.dtype)
        for kind, choice in (("greedy", {}), ("drawn", {"do_sample": True, "seed": 1}), ("top-k 200", TOP_K)):
            wanted = Generation(max_new_tokens=256, **choice)
            seeds = torch.arange(batch, device=bench.device)
            noise = (seeds, token_counter(vocab, bench.device)) if choice else None
            warpers = logits_warpers(wanted, device=bench.device) if choice else []
            first = torch.zeros(batch, dtype=torch.long, device=bench.device)
            outputs = DeviceOutputs.start(first, first, 10_000, 0)

            def call(
                raw: Tensor = raw, outputs: DeviceOutputs = outputs, noise: Any = noise, warpers: Any = warpers
            ) -> None:
                compile_sample_step(raw.shape[0] == 1)(raw, outputs, ends, noise, warpers, 0)

            with torch.no_grad(), compiling.load().patch(recompile_limit=compiling.SHAPES):
                bench.line(f"choice, {vocab} words, {kind}", graph_seconds(call) * 1e6, "us", batch)


# What must be known stands first; each with the seconds it may take.
SECTIONS: dict[str, tuple[Callable[[Bench], None], int, bool]] = {  # function, seconds, needs a GPU
    "machine": (machine, 30, False),
    "right": (right, 150, False),
    "gpt2-1": (gpt2_one, 120, False),
    "llama": (llama_ours, 150, False),
    "gpt2-32": (gpt2_many, 120, False),
    "gpt2-hf": (gpt2_theirs, 120, False),
    "engine": (engine, 60, False),
    "plain": (plain_compiled, 120, False),
    "attention": (attention, 60, False),
    "choice": (cost_of_choice, 60, True),
    "tuning": (tuning, 60, True),
    "llama-hf": (llama_theirs, 120, False),
    "int8": (int8, 150, False),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="the table, CSV")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and few tokens: does every path run")
    parser.add_argument("--only", help="sections, with commas: " + ",".join(SECTIONS))
    parser.add_argument("--budget", type=float, default=470.0, help="seconds for all of it")
    options = parser.parse_args()
    bench = Bench(options)
    for name in options.only.split(",") if options.only else SECTIONS:
        section, seconds, needs_gpu = SECTIONS[name]
        bench.section = name
        if needs_gpu and not bench.cuda:
            bench.line(name, "left out", note="needs a GPU")
            continue
        if bench.left < 10:
            bench.line(name, "left out", note="no time left")
            continue
        start = time.monotonic()
        try:
            with alarm(min(seconds, bench.left)):
                section(bench)
        except (Exception, TimeUp) as error:
            bench.failures += 1
            bench.line(name, "ERROR", note=f"{type(error).__name__}: {error}"[:400].replace("\n", " "))
            traceback.print_exc(limit=-6)
        bench.line("section", time.monotonic() - start, "s")
        gc.collect()
        if bench.cuda:
            torch.cuda.empty_cache()
        if name not in ("gpt2-1",):  # the choice compiled there serves the next
            torch._dynamo.reset()
    bench.section = "all"
    bench.line("errors", bench.failures)
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
