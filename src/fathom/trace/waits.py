"""Which calls of a GPU's runtime make the host wait for the device, by their names."""

from __future__ import annotations

import re
from functools import cache

# of CUDA and HIP, their drivers, MTIA and SYCL. A copy without Async in its name returns when it is done; HIP's
# hipMemcpyWithStream does too. Asynchronous copies from pageable memory may wait, but a trace does not tell which do.
WAIT = re.compile(
    r"\w*Synchronize\w*"
    r"|(cuda|hip)Memcpy(2D|3D|Peer|ToSymbol|FromSymbol|ToArray|FromArray|WithStream)?(_\w+)?"
    r"|cuMemcpy(HtoD|DtoH|DtoD)?(_v2)?"
    r"|(ur|pi)(QueueFinish|EventWait)"
)


@cache
def is_wait(name: str) -> bool:
    """Whether the call returns only when the device has done something."""
    return WAIT.fullmatch(name) is not None
