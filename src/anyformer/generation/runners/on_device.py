"""When generation runs on the device: entirely if sampling needs no host, else one captured step per token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anyformer.core.model import Seq2Seq
from anyformer.generation.config import Generation
from anyformer.generation.logits import logits_processors
from anyformer.generation.noise import row_seeds
from anyformer.generation.prompts import GenerationInputs, max_positions, supports_static_cache
from anyformer.generation.result import Generated, find_reasons
from anyformer.generation.runners.compiled import Compiled
from anyformer.generation.runners.device_loop import DeviceLoop, weight_addresses
from anyformer.generation.runners.eager import EncoderOutput, LanguageModel, device_of

WORTH = 12  # new tokens from which capturing a step, which costs four of them, pays off
MOST = 8192  # new tokens up to which the cache is preallocated; a longer cache grows as it is filled
DEVICES = ("cuda",)  # that support graph capture
LEAST = 512  # columns of a kept loop; larger sizes are powers of two, so that different lengths share a loop
KEPT = 4  # loops kept for the next call of a compiled model


def uses_graphs(model: LanguageModel | Compiled, new: int) -> bool:
    """Whether steps are captured for this many new tokens: on a GPU, if all layers support a static cache."""
    net = model.model if isinstance(model, Compiled) else model
    if new > MOST or (new < WORTH and not isinstance(model, Compiled)):
        return False
    return device_of(net).type in DEVICES and supports_static_cache(net)


def needs_host(settings: Generation, inputs: GenerationInputs) -> str | None:
    """Why sampling needs the host, in words, or None."""
    if settings.num_beams > 1:
        return "beam search moves rows"
    if settings.prompt_lookup_num_tokens is not None:
        return "tokens are proposed"
    if inputs.stops is not None or settings.logprobs:
        return "stop strings and lists of log-probabilities are looked at token by token"
    if logits_processors(settings, 1 << 30, torch.device("cpu")):
        return "a logits processor looks back at the text"
    return None


def take_loop(model: LanguageModel | Compiled, batch: int, limit: int) -> DeviceLoop:
    """Take a loop for this many rows and tokens, for exclusive use until it is given back."""
    if not isinstance(model, Compiled):
        return DeviceLoop(model, batch, limit)
    most, _ = max_positions(model.spec)
    columns = LEAST
    while columns < limit:
        columns *= 2
    columns, now = columns if most is None else min(columns, most), weight_addresses(model.model)
    model.idle[:] = [loop for loop in model.idle if loop.weights == now]
    for loop in model.idle:
        if (loop.batch, loop.limit) == (batch, columns):
            model.idle.remove(loop)
            return loop
    return DeviceLoop(model.model, batch, columns, form="fused")


def give_loop(model: Compiled, loop: DeviceLoop) -> None:
    """Return a loop for the next call."""
    model.idle[:] = [*model.idle, loop][-KEPT:]


def start_loop(
    loop: DeviceLoop,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[EncoderOutput],
    copies: int,
    padding: int,
    chunk: int | None,
) -> None:
    """Prefill `copies` of each prompt, except for their last tokens."""
    if sources:
        masks = [source.mask for source in sources if source.mask is not None]
        loop.set_source(
            EncoderOutput(
                torch.cat([source.hidden for source in sources]).repeat_interleave(copies, 0),
                torch.cat(masks).repeat_interleave(copies, 0) if masks else None,
            )
        )
    longest = max(map(len, prompts))
    tokens = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=loop.device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=loop.device)
    loop.start(tokens.repeat_interleave(copies, 0), lengths.repeat_interleave(copies), padding, chunk)


def generate_on_device(model: LanguageModel | Compiled, inputs: GenerationInputs, settings: Generation) -> Generated:
    """`generate` entirely on the device."""
    copies = settings.num_return_sequences
    loop = take_loop(model, len(inputs.ids) * copies, inputs.longest + inputs.new)
    sources = inputs.encode_sources(model) if isinstance(model.spec, Seq2Seq) else []
    start_loop(loop, inputs.prompts, sources, copies, settings.padding, settings.prefill_chunk_size)
    seeds = row_seeds(settings.seed, len(inputs.ids), copies, loop.device) if settings.sampled else None
    outputs = loop.generate(settings, inputs.new, seeds)
    prompts = inputs.ids.repeat_interleave(copies, 0)
    ends = torch.tensor(settings.ends, dtype=torch.long, device=loop.device)
    by_eos = (outputs.generated[:, :, None] == ends).any(-1)  # (R,N)
    lengths = torch.where(by_eos.any(1), by_eos.to(torch.int32).argmax(1) + 1, outputs.generated.shape[1])
    longest = int(lengths.max())
    logprobs = outputs.logprobs[:, :longest].clone()
    by_stop = torch.zeros_like(lengths, dtype=torch.bool)
    found = Generated(
        ids=torch.cat([prompts, outputs.generated[:, :longest]], 1), prompt=prompts.shape[1], logprobs=logprobs,
        scores=logprobs.sum(1), lengths=lengths, reasons=find_reasons(by_eos.any(1), by_stop),
    )  # fmt: skip
    if isinstance(model, Compiled):
        give_loop(model, loop)
    return found
