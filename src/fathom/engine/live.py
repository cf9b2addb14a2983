"""Live bytes of a step: every storage that its ops make is counted from its first tensor to its last.

On the meta device, whose tensors have no data, this takes no memory and no arithmetic; on others it counts the same
step as it runs. The peak is what a caching allocator would have handed out, in blocks of 512 bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fathom.engine.sparse_rows import ON_ROWS, has_rows

BLOCK = 512  # bytes: what the CUDA caching allocator rounds to
OnOp = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
Temporary = Callable[[Any, tuple[Any, ...], Any], int]  # op, arguments, result -> bytes that it takes and gives back
NONE: Mapping[Any, Callable[..., Any]] = {}
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
aten = torch.ops.aten
ZEROS = (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default)
# Gradients of what was chosen are added to zeros in place. To a mode torch shows ops that copy these instead.
INTO_ZEROS: Mapping[Any, Any] = {
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.put.default: aten.put_.default,
}


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, counts the storages of all results. hold() adds what was there before."""

    def __init__(
        self,
        on_op: OnOp | None = None,
        stand_ins: Mapping[Any, Callable[..., Any]] = NONE,
        temporary: Temporary | None = None,
    ) -> None:
        """Each op is shown to on_op() first; one that has a stand-in is not run, and its stand-in is.

        What temporary() says of an op is live beside its arguments and results, and gone after it.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._on_op, self._stand_ins, self._temporary = on_op, stand_ins, temporary
        self._zeros: int | None = None  # the storage that the op before made in a backward pass
        self._held: dict[int, tuple[Any, int]] = {}  # storage -> its weak reference and its bytes

    def hold(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._count(tensor)

    def restart_peak(self) -> None:
        """The peak from now on: a first step also makes what all later ones find."""
        self.peak = self.live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if torch.is_inference_mode_enabled() and func not in self._stand_ins and _is_composite(func):
            with self:  # only in inference mode does an op that consists of others come here whole
                return func._op_dk(COMPOSITE, *args, **given)
        if func in ON_ROWS and has_rows(args):
            with self:
                return ON_ROWS[func](*args, **given)
        if self._on_op is not None:
            self._on_op(func, args, given)
        if func in INTO_ZEROS and self._zeros is not None and _storage_of(args[0]) == self._zeros:
            func = INTO_ZEROS[func]
        result = self._stand_ins.get(func, func)(*args, **given)
        self._zeros = _storage_of(result) if func in ZEROS and torch._C._current_graph_task_id() != -1 else None
        if isinstance(result, Tensor):
            self._count(result)
        elif result is not None:
            self.hold(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        if self._temporary is not None:
            self.peak = max(self.peak, self.live + self._temporary(func, args, result))
        return result

    def _count(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            return  # a sparse tensor's parts are counted when they are made
        storage = tensor.untyped_storage()
        key, size = storage._cdata, _rounded(storage.nbytes())
        reference, before = self._held.get(key, (None, 0))
        if reference is None:
            reference = weakref.ref(storage, partial(self._freed, key))
        if size != before:
            self._held[key] = reference, size
            self.live += size - before
            self.peak = max(self.peak, self.live)

    def _freed(self, key: int, _: object) -> None:
        self.live -= self._held.pop(key)[1]


def _storage_of(tensor: Tensor) -> int | None:
    """None of a sparse tensor, whose parts have theirs."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else None


def _rounded(nbytes: int) -> int:
    return -(-nbytes // BLOCK) * BLOCK


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """What these tensors hold, in the allocator's blocks; views of one storage count once."""
    return sum({each.untyped_storage()._cdata: _rounded(each.untyped_storage().nbytes()) for each in tensors}.values())


def _is_composite(func: Any) -> bool:
    """By torch's C++: in Python it also has parts of ops that are one kernel, such as interpolation."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE)
