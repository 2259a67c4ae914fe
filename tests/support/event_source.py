"""Events for the fake engine: as many as a test wants, of which the last ten are kept."""

from dataclasses import dataclass, field

from stemkv.engine.messages import AdminError, AdminReply, EventPage, GetEvents
from stemkv.kvstore.views import CacheEvent


@dataclass
class Events:
    """A stream of events that keeps the last ten, as an engine does."""

    count: int = 0
    asked: list[GetEvents] = field(default_factory=list)

    def add(self, count: int) -> None:
        """Let things happen."""
        self.count += count

    def __call__(self, call: GetEvents) -> AdminReply:
        """Answer a call."""
        self.asked.append(call)
        if call.start > self.count:
            message = f"start: {call.start} is more than {self.count}"
            return AdminError("invalid", message, "start")
        if call.start == -1:
            return EventPage((), self.count, 0)
        first = max(call.start, self.count - 10)
        stop = min(first + call.limit, self.count)
        found = tuple(
            CacheEvent(number, "stored", f"{number:032x}", "acme", number / 2)
            for number in range(first, stop)
        )
        return EventPage(found, stop, first - call.start)
