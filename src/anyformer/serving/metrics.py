"""The engine's counts as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from anyformer.engine.counts import Histogram
from anyformer.engine.engine import Engine

COUNTERS = {
    "requests_accepted": ("accepted", "sequences and calls accepted"),
    "requests_refused": ("rejected", "rejected because the queue was full"),
    "requests_done": ("done", "ended as they should"),
    "requests_cancelled": ("cancelled", "cancelled by the client"),
    "requests_failed": ("failed", "ended by an error"),
    "requests_late": ("deadline", "timed out"),
    "prompt_tokens": ("prompt_tokens", "tokens of prompts, reused ones included"),
    "reused_tokens": ("reused_tokens", "tokens of prompts that were in the KV cache"),
    "generated_tokens": ("new_tokens", "tokens generated"),
    "answered_rows": ("answered_rows", "rows of predictions and embeddings"),
}
GAUGES = {
    "queue_length": ("queue_length", "sequences that wait"),
    "queue_tokens": ("queue_tokens", "tokens of the sequences that wait"),
    "queue_rows": ("queue_rows", "rows of predictions and embeddings that wait"),
    "active_rows": ("active", "sequences being prefilled or decoded"),
    "held_texts": ("paused", "sequences paused because their clients are behind"),
    "requests_in_flight": ("in_flight", "accepted and not finished"),
}
HISTOGRAMS = {
    "time_to_first_token_seconds": ("first_token", "from the request to its first token"),
    "inter_token_seconds": ("between_tokens", "from one token of a text to the next"),
    "queue_seconds": ("queued", "from the request to the first work on it"),
}


class EngineCollector(Collector):
    """Collects the engine's counts on every scrape."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[Metric]:
        """All metrics, with the prefix anyformer."""
        counts = self.engine.counts
        for name, (field, text) in COUNTERS.items():
            yield CounterMetricFamily(f"anyformer_{name}", text, value=getattr(counts, field))
        for name, (field, text) in GAUGES.items():
            yield GaugeMetricFamily(f"anyformer_{name}", text, value=getattr(counts, field))
        for name, (field, text) in HISTOGRAMS.items():
            found: Histogram = getattr(counts, field)
            sums = list(accumulate(found.counts))
            edges = [*(str(edge) for edge in found.edges), "+Inf"]
            buckets = list(zip(edges, sums, strict=True))
            yield HistogramMetricFamily(f"anyformer_{name}", text, buckets=buckets, sum_value=found.sum)
        store = self.engine.store
        if store is not None:
            yield GaugeMetricFamily("anyformer_rows", "sequences that can be decoded at once", value=store.capacity)
            yield GaugeMetricFamily("anyformer_rows_free", "of those, how many are free", value=store.available)
        stuck = min(self.engine.stuck_for, 1e9)
        yield GaugeMetricFamily("anyformer_stuck_seconds", "time without progress while work waits", value=stuck)


class Metrics:
    """A separate registry, without process metrics and other servers."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(EngineCollector(engine))

    def text(self) -> bytes:
        """The body of /metrics."""
        return generate_latest(self.registry)
