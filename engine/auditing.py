"""Audits of a running engine's store, asked for or by the clock; what they find is repaired."""

import logging
import time
from dataclasses import dataclass, field

from stemkv.engine.messages import AuditReport
from stemkv.kvstore.repair import repair
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.views import RepairReport

logger = logging.getLogger(__name__)

_TOLD = 20
"""Violations that one line of the log has; the report has all."""


@dataclass(slots=True, eq=False)
class Auditor:
    """Audits one store. every_seconds: how often unasked, 0 for never."""

    store: BlockStore
    every_seconds: float
    _next: float = field(init=False)

    def __post_init__(self) -> None:
        """Let the first audit be due after one interval."""
        self._next = self.store.clock() + self.every_seconds

    @property
    def due(self) -> bool:
        """Whether it is time for an audit that nobody asked for."""
        return self.every_seconds > 0 and self.store.clock() >= self._next

    def run(self) -> tuple[RepairReport, float]:
        """Audit, repair what is found, and say so in the log; seconds that the two took.

        Raises RepairError if the store cannot go on.
        """
        begun = time.perf_counter()
        found = repair(self.store)
        seconds = time.perf_counter() - begun
        self._next = self.store.clock() + self.every_seconds
        if found.violations:
            logger.error(
                "the store was found inconsistent, and repaired in %.3f s: quarantined blocks %s, "
                "dropped %d cached blocks, sequences %s are lost; %d violations: %s",
                seconds,
                list(found.quarantined),
                found.dropped,
                list(found.sequences),
                len(found.violations),
                "; ".join(found.violations[:_TOLD]),
            )
        return found, seconds

    def report(
        self, found: RepairReport, seconds: float, sequences: int, failed: int
    ) -> AuditReport:
        """Return what an operator is told.

        sequences: that were open before. failed: requests that the audit has ended.
        """
        return AuditReport(
            violations=found.violations,
            blocks=self.store.config.capacity_blocks,
            sequences=sequences,
            seconds=seconds,
            quarantined=found.quarantined,
            failed_requests=failed,
        )
