"""Who runs next: the order in which waiting requests are admitted and running ones give way."""

from collections.abc import Callable, Mapping
from typing import Protocol


class Candidate(Protocol):
    """What an ordering may know of a request."""

    @property
    def arrival(self) -> int:
        """Number of the request in the order of arrival; kept when it is preempted."""
        ...


OrderingPolicy = Callable[[Candidate], tuple[int, ...]]
"""A sort key: the smallest runs first, the largest is preempted first. Keys must differ."""


def first_come_first_served(candidate: Candidate) -> tuple[int, ...]:
    """Earlier arrivals first, so that a preempted request comes back before newer ones start."""
    return (candidate.arrival,)


ORDERING: Mapping[str, OrderingPolicy] = {"fcfs": first_come_first_served}
"""Name -> policy."""
