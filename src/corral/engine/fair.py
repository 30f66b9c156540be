"""What each tenant has been served by weight, and since when each priority waits: the accounts behind who is next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from corral.ids import TenantId
from corral.tasks import Task

Account = tuple[int, TenantId]
"""A tenant at one priority."""


def account_of(task: Task) -> Account:
    return task.priority, task.tenant


@dataclass(slots=True, eq=False)
class Shares:
    """Virtual counters: for each account the tokens it was served, divided by its weight.

    Prompt tokens count when they are computed for the first time, generated ones when they are drawn; both count one.
    What is reused, or computed again after parking, costs nothing. ``since_ms``: since when somebody of a priority
    waits (in the queue or held) without one of it being admitted. ``last``: the tenant admitted last at a priority.
    """

    age_ms: float = 10_000.0
    served: dict[Account, float] = field(default_factory=dict)
    since_ms: dict[int, float] = field(default_factory=dict)
    last: dict[int, TenantId] = field(default_factory=dict)

    def counter(self, task: Task) -> float:
        """Tokens over weight that the task's account was served, or lifted to."""
        return self.served.get(account_of(task), 0.0)

    def urgency(self, priority: int, now_ms: float) -> int:
        """The priority, and one more for each ``age_ms`` that nobody of it was admitted.

        Means something only while somebody waits.
        """
        return priority + int(max(0.0, now_ms - self.since_ms.get(priority, now_ms)) / self.age_ms)

    # --- what happened ---------------------------------------------------------------------------------------------

    def charge(self, task: Task, n_tokens: int) -> None:
        """The task was served."""
        account = account_of(task)
        self.served[account] = self.served.get(account, 0.0) + n_tokens / task.weight

    def arrive(self, task: Task, others: Iterable[Task], now_ms: float) -> None:
        """The task joins ``others``, who wait. A tenant that did not wait until now has saved up nothing.

        Its counter rises to the least of those that wait at its priority, or, if nobody does, to that of the tenant
        admitted last.
        """
        priority = task.priority
        peers = {other.tenant for other in others if other.priority == priority}
        if not peers:
            self.since_ms[priority] = now_ms
        if task.tenant in peers:
            return
        rivals = peers or {self.last.get(priority, task.tenant)}
        least = min(self.served.get((priority, tenant), 0.0) for tenant in rivals)
        self.served[account_of(task)] = max(self.counter(task), least)

    def admitted(self, task: Task, now_ms: float) -> None:
        """The task got a slot."""
        self.since_ms[task.priority] = now_ms
        self.last[task.priority] = task.tenant
