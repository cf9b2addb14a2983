"""Kernel names short enough to be read: what distinguishes one kernel from another, without the rest."""

from __future__ import annotations

import re
from functools import cache

from fathom.trace.event import PROGRAM

# template arguments of very many kernels, which do not distinguish them
_COMMON = (
    "void bool char short int long float double unsigned const true false half std array at native c10 anonymous "
    "namespace lambda operator auto type enable_if ul detail internal binary_internal BinaryFunctor UnaryFunctor "
    "AUnaryFunctor BUnaryFunctor ReduceOp func_wrapper_t gpu_kernel_impl gpu_kernel_impl_nocast TensorListMetadata "
    "TensorIteratorBase TensorIterator TrivialOffsetCalculator OffsetCalculator memory OpaqueType function_traits "
    "LoadWithoutCast StoreWithoutCast LoadWithCast StoreWithCast BFloat16 Half uint32_t int64_t Params "
    "Scalar templates cuda cub at_cuda_detail"
)
PLAIN_NAMES = ("Memcpy", "Memset", PROGRAM)  # words, and no C++
MAX_NAME_LENGTH, MAX_HINTS = 90, 2
_BORDERS = re.compile("[<> (]")


@cache
def short_name(kernel: str) -> str:
    """A kernel's name without return type and call arguments, which can be thousands of characters long.

    Only distinguishing template arguments are kept: names of what is computed, or else the values.
    """
    if kernel.startswith(PLAIN_NAMES):
        return kernel.partition(" (")[0]
    bare, arguments = split_signature(kernel)
    common = _COMMON.split()
    words = dict.fromkeys(word for word in re.findall(r"\b[A-Za-z_]\w*", arguments) if word not in common)
    hint = ", ".join(list(words)[:MAX_HINTS]) or arguments.replace(", ", ",")
    return _shortened(f"{bare}<{hint}>" if hint else bare)


@cache
def split_signature(kernel: str) -> tuple[str, str]:
    """The name of a C++ function and its template arguments; spaces inside brackets do not end the return type."""
    signature = kernel.replace("(anonymous namespace)::", "")
    begin, depth, arguments, opened = 0, 0, "", 0
    for found in _BORDERS.finditer(signature):
        index, character = found.start(), found[0]
        if character == "<":
            opened = index if depth == 0 else opened
            depth += 1
        elif character == ">" and depth:
            depth -= 1
            arguments = signature[opened + 1 : index] if depth == 0 else arguments
        elif character == " " and depth == 0:  # the text so far was the return type
            begin, arguments = index + 1, ""
        elif character == "(" and depth == 0:
            signature = signature[:index]
            break
    return re.sub(r"<.*", "", signature[begin:]), arguments.strip()


def _shortened(name: str) -> str:
    """Removes what all cuBLAS and cuDNN names contain; a name that is still too long is cut in the middle."""
    name = re.sub(r"_execute(?=\w*_kernel)|_kernel__5x_(cublas|cudnn)$", "", name)
    name = re.sub(r"(_c?[bt]?f\d+)(_?c?[bt]?f\d+)+(?=_)", r"\1", name)  # the dtypes of inputs, accumulators and outputs
    if len(name) <= MAX_NAME_LENGTH:
        return name
    kept = MAX_NAME_LENGTH // 3
    return f"{name[:kept]}…{name[kept + 1 - MAX_NAME_LENGTH :]}"
