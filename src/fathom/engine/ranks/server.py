"""Server: the weights that asynchronous ranks share, and the bound on how far one may run ahead of another.

It knows nothing of processes. A worker hands in gradients with the number of updates that it has made, its clock; the
server applies them and gives the weights back, at once or, for a worker too far ahead, when the slowest has caught up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch import Tensor

Reply = Callable[[], None]  # sends the weights of now to the worker that waits for them


class Server:
    def __init__(self, apply: Callable[[Tensor], None], workers: int, bound: int) -> None:
        """`apply` takes the gradients, flat, and updates the weights."""
        self._apply, self.bound = apply, bound
        self._clocks = dict.fromkeys(range(workers), 0)  # of those that have not finished
        self._versions = dict.fromkeys(range(workers), 0)  # of the weights that each has
        self._held: list[tuple[int, Reply]] = []
        self._lock = threading.Lock()
        self.version = 0  # updates that were applied
        self.staleness: list[int] = []  # per update: those of others since the worker got the weights that it used

    def push(self, worker: int, gradients: Tensor, reply: Reply) -> None:
        """Applies the gradients. The reply comes now, or from a later call."""
        with self._lock:
            self.staleness.append(self.version - self._versions[worker])
            self._apply(gradients)
            self.version += 1
            self._clocks[worker] += 1
            self._held.append((worker, reply))
            self._release()

    def finish(self, worker: int) -> None:
        """No more gradients come from it, and nobody waits for it."""
        with self._lock:
            del self._clocks[worker]
            self._release()

    @property
    def running(self) -> set[int]:
        """The workers that have not finished."""
        return set(self._clocks)

    def _release(self) -> None:
        slowest = min(self._clocks.values(), default=0)
        waiting, self._held = self._held, []
        for worker, reply in waiting:
            if worker not in self._clocks or self._clocks[worker] - slowest <= self.bound:
                self._versions[worker] = self.version
                reply()
            else:
                self._held.append((worker, reply))
