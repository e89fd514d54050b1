"""A batch with decode steps captured as CUDA graphs and sampling on the host: for `generate` and beam search."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

from torch import Tensor

from anyformer.generation.cache.store import Added, SequenceStore, Source
from anyformer.generation.runners.compiled import Compiled
from anyformer.generation.runners.eager import EncoderOutput, LanguageModel, encode
from anyformer.generation.runners.on_device import give_loop, start_loop, take_loop


class GraphStore(SequenceStore):
    """All sequences start and step together, since capture fixes the shapes: no `extend`, no `truncate`."""

    def __init__(
        self,
        model: LanguageModel | Compiled,
        *,
        capacity: int,
        limit: int,
        padding: int = 0,
        prefill_chunk: int | None = None,
    ) -> None:
        self.model = model.model if isinstance(model, Compiled) else model
        self.capacity, self.limit = capacity, limit
        self.padding, self.prefill_chunk = padding, prefill_chunk
        self.loop = take_loop(model, capacity, limit)
        self.sources: list[EncoderOutput] = []
        self.lengths: list[int] = []
        if isinstance(model, Compiled):  # the loop is returned once this store is dropped
            weakref.finalize(self, give_loop, model, self.loop)

    @property
    def available(self) -> int:
        return self.capacity - len(self.lengths)

    @property
    def bytes(self) -> int:
        return sum(buffer.numel() * buffer.element_size() for layer in self.loop.layers for buffer in layer)

    def length(self, sequence: int) -> int:
        return self.lengths[sequence]

    def add(self, prompt: Sequence[int], *, source: Source | None = None, scope: str = "") -> Added:
        self.check_available()
        if source is not None:
            self.sources.append(encode(self.model, source))
        self.lengths.append(0)
        return Added(len(self.lengths) - 1, 0)

    def prefill(self, prompts: Mapping[int, Sequence[int]]) -> Tensor:
        """Prefill all prompts, replicated for their copies; a first step then runs their last tokens."""
        assert len(prompts) == len(self.lengths) and not any(self.lengths)
        copies = self.capacity // len(prompts)
        start_loop(self.loop, list(prompts.values()), self.sources, copies, self.padding, self.prefill_chunk)
        self.lengths = [len(prompt) for prompt in prompts.values()]
        return self.loop.run_next()[::copies].clone()

    def step(self, sequences: Sequence[int], tokens: Tensor) -> Tensor:
        """Logits (N,V), which the next step overwrites."""
        assert len(sequences) == self.capacity
        self.loop.outputs.tokens.copy_(tokens)
        self.lengths = [length + 1 for length in self.lengths]
        return self.loop.run_next()

    def fork(self, copies: int) -> list[int]:
        """The copies exist already: `prefill` made them."""
        assert len(self.lengths) * copies == self.capacity
        self.lengths = [length for length in self.lengths for _ in range(copies)]
        return list(range(self.capacity))

    def select(self, sequences: Sequence[int], origins: Tensor) -> None:
        self.loop.reorder(origins)

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        raise NotImplementedError("a recorded batch has one pass over its prompts, then steps")

    def truncate(self, sequence: int, length: int) -> None:
        raise NotImplementedError("the sequences of a recorded batch advance together")

    def free(self, sequence: int, *, keep: bool = True) -> None:
        raise NotImplementedError("the sequences of a recorded batch end together")
