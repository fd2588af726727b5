"""What the speech server measures of itself, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)


class Metrics:
    """Counters of one server; they do not share names with those of another one in the process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("lisan_requests", "Requests for speech that have ended.",
                                ("model", "format", "outcome"), registry=self.registry)
        self.waiting = Gauge("lisan_requests_open", "Requests that are computed or wait.", registry=self.registry)
        self.rows = Gauge("lisan_sentences_computed", "Sentences that are computed now.", registry=self.registry)
        self.first_audio = Histogram("lisan_first_audio_seconds", "From the request to its first audio.", ("model",),
                                     buckets=_SECONDS, registry=self.registry)
        self.real_time_factor = Histogram(
            "lisan_real_time_factor", "Seconds from the request to its end, by seconds of speech.", ("model",),
            buckets=_FACTORS, registry=self.registry)
        self.audio_seconds = Counter("lisan_audio_seconds", "Seconds of speech.", ("model",), registry=self.registry)
        self.finish_reasons = Counter("lisan_finish_reasons", "Why the speech of a sentence ended.",
                                      ("model", "reason"), registry=self.registry)
