"""Figures for Prometheus, in a registry of their own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from torpor.store.records import Sample, Status

QUICK = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
"""Bounds of durations, in seconds."""

METHODS = frozenset(
    ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "WS")
)


class Metrics:
    """What is counted and measured of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter(
            "torpor_http_requests", "Requests that were answered.", labels, registry=self.registry
        )
        self._request_seconds = Histogram(
            "torpor_http_request_seconds",
            "How long requests took, streams to their end.",
            ("method", "route"),
            buckets=QUICK,
            registry=self.registry,
        )
        self._operations = Counter(
            "torpor_operations",
            "Operations that ended, by kind and result.",
            ("kind", "result"),
            registry=self.registry,
        )
        self._operation_seconds = Histogram(
            "torpor_operation_seconds",
            "How long operations took: a pause is a freeze; a create, resume or rollback a thaw.",
            ("kind",),
            buckets=QUICK,
            registry=self.registry,
        )
        self._sessions = Gauge(
            "torpor_sessions", "Sessions by status.", ("status",), registry=self.registry
        )
        self._cpu = Counter(
            "torpor_machine_cpu_seconds",
            "Processor time that machines took: vcpu, emulator, or waited for (steal).",
            ("mode",),
            registry=self.registry,
        )
        self._resident = self._gauge("machine_resident_bytes", "Memory that machines have.")
        self._private = self._gauge(
            "machine_private_bytes", "Memory that only one machine has, of all together."
        )
        self._free_memory = self._gauge("host_free_memory_bytes", "Memory that can be had now.")
        self._promised_free = self._gauge(
            "host_promised_free_bytes", "Memory that can be promised to new machines."
        )
        self._free_disk = self._gauge("host_free_disk_bytes", "Free bytes where snapshots are.")
        self._stored = self._gauge("stored_bytes", "What all snapshots take.")
        self._last: dict[str, Sample] = {}

    def _gauge(self, name: str, words: str) -> Gauge:
        return Gauge(f"torpor_{name}", words, registry=self.registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. What no route has, and a method that HTTP does not have, is not told
        apart, or anybody could make as many series as there are words."""
        route = route or "none"
        method = method if method in METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(method, route).observe(seconds)

    def operation(self, kind: str, result: str, seconds: float) -> None:
        """Count an operation of a session."""
        self._operations.labels(kind, result).inc()
        self._operation_seconds.labels(kind).observe(seconds)

    def samples(self, samples: list[Sample]) -> None:
        """Take in what the sessions that run use at one moment."""
        for sample in samples:
            before = self._last.get(sample.session)
            same = before is not None and before.machine == sample.machine
            for mode in ("vcpu", "emulator", "waited"):
                earlier = getattr(before, mode) if same else 0.0
                self._cpu.labels(mode).inc(max(0.0, getattr(sample, mode) - earlier))
        self._last = {sample.session: sample for sample in samples}
        self._resident.set(sum(sample.resident for sample in samples))
        self._private.set(sum(sample.private for sample in samples))

    def state(
        self,
        counts: dict[Status, int],
        *,
        free_memory: int,
        promised_free: int,
        free_disk: int,
        stored: int,
    ) -> None:
        """Take in how things stand."""
        for status in Status:
            self._sessions.labels(str(status)).set(counts.get(status, 0))
        self._free_memory.set(free_memory)
        self._promised_free.set(promised_free)
        self._free_disk.set(free_disk)
        self._stored.set(stored)

    def page(self) -> bytes:
        """Return all of it in Prometheus's text format."""
        return generate_latest(self.registry)
