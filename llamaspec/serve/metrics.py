"""What happened, for Prometheus: a registry of each app's own."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llamaspec.completion import Completion
from llamaspec.session import Session

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LONG = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOTALS = {
    "completions": ("requests", "Texts that were asked for"),
    "completions_finished": ("finished", "Texts that came to an end"),
    "completions_failed": ("failed", "Texts that ended with an error"),
    "completions_cancelled": ("cancelled", "Texts that nobody waited for any more"),
    "rounds": ("rounds", "Rounds of draft, verify, accept"),
    "draft_tokens": ("drafted", "Proposals that were verified"),
    "draft_tokens_accepted": ("accepted", "Proposals that became part of a text"),
    "completion_tokens": ("completion_tokens", "Tokens of texts"),
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts"),
    "prompt_tokens_cached": ("cached_tokens", "Tokens of prompts that were not computed again"),
}
_NOW = {
    "sequences_active": ("active", "Texts under way"),
    "queue_length": ("waiting", "Texts that wait for a place"),
    "kv_cells_used": ("cells_used", "Positions in use of the KV cache"),
    "kv_cells": ("cells_total", "Positions of the KV cache"),
}


class _Totals(Collector):
    """The session's own counters, read when asked."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def collect(self) -> Iterable[Metric]:
        counters = self._session.counters
        for name, (field, text) in _TOTALS.items():
            value = getattr(counters, field)
            yield CounterMetricFamily(f"llamaspec_{name}", text + ".", value=value)
        for name, (field, text) in _NOW.items():
            value = getattr(counters, field)
            yield GaugeMetricFamily(f"llamaspec_{name}", text + ".", value=value)
        rate = counters.accepted / counters.drafted if counters.drafted else 0.0
        yield GaugeMetricFamily(
            "llamaspec_accept_rate", "Accepted of verified proposals, since the start.", value=rate
        )
        tau = 1 + counters.accepted / counters.rounds if counters.rounds else 0.0
        yield GaugeMetricFamily("llamaspec_tau", "Tokens a round, since the start.", value=tau)
        used = counters.cells_used / counters.cells_total if counters.cells_total else 0.0
        yield GaugeMetricFamily(
            "llamaspec_kv_usage", "Part of the KV cache in use, 0 to 1.", value=used
        )


class Metrics:
    """What the server counts itself, beside the session's counters."""

    def __init__(self, session: Session) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Totals(session))
        self.replies = Counter(
            "llamaspec_http_requests",
            "Requests by route and status.",
            ["route", "status"],
            registry=self.registry,
        )
        self.gone = Counter(
            "llamaspec_clients_gone", "Requests whose client left.", registry=self.registry
        )
        self._first = Histogram(
            "llamaspec_time_to_first_token_seconds",
            "From a text's request to its first token, the queue included.",
            buckets=_SHORT,
            registry=self.registry,
        )
        self._queue = Histogram(
            "llamaspec_queue_seconds",
            "Waiting for a place.",
            buckets=_SHORT,
            registry=self.registry,
        )
        self._whole = Histogram(
            "llamaspec_completion_seconds",
            "From a text's request to its last token.",
            buckets=_LONG,
            registry=self.registry,
        )

    def observe(self, done: Completion) -> None:
        """Count a finished text."""
        stats = done.stats
        self._first.observe(stats.time_to_first_token_s)
        self._queue.observe(stats.queue_s)
        self._whole.observe(stats.total_s)

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)
