"""What the governors of Linux's sysfs share: a whole number in a file, and the kernel's refusals as errors of ours."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from fathom.core.errors import CappingError, NotPermitted, NotSupported, OutOfRange

KINDS: dict[int | None, type[CappingError]] = {
    errno.EACCES: NotPermitted,
    errno.EPERM: NotPermitted,
    errno.EROFS: NotPermitted,  # as in a container
    errno.EINVAL: OutOfRange,
    errno.ERANGE: OutOfRange,
    errno.ENOENT: NotSupported,
    errno.ENODEV: NotSupported,
    errno.ENODATA: NotSupported,
    errno.EOPNOTSUPP: NotSupported,
}


def read_number(path: Path, scope: str) -> int:
    try:
        return int(path.read_text())
    except OSError as error:
        raise _refusal(error, scope, path) from None
    except ValueError:
        raise NotSupported(f"{scope}: {path} holds no number") from None


def optional_number(path: Path) -> int | None:
    """None where the kernel does not say."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def write_number(path: Path, number: int, scope: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)  # a file that is not there is not made
        try:
            os.write(descriptor, b"%d\n" % number)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _refusal(error, scope, path) from None


def obstacle(path: Path) -> str | None:
    return None if os.access(path, os.W_OK) else f"this user may not write {path}"


def _refusal(error: OSError, scope: str, path: Path) -> CappingError:
    kind = KINDS.get(error.errno, CappingError)
    return kind(f"{scope}: the kernel refuses: {path}: {error.strerror or error}")
