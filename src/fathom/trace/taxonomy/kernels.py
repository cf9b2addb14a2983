"""The op type of a kernel by its name: of a library by pattern, of torch by its functor, of a compiler by its ops."""

from __future__ import annotations

import re
from functools import cache

from fathom.trace.taxonomy.names import named_type
from fathom.trace.taxonomy.short_names import PLAIN_NAMES, split_signature
from fathom.trace.taxonomy.torch_ops import COMPOSITES, TABLE

OTHER = "Other"
# what TorchInductor names after the ops that it fused: triton_poi_fused_add_mul_3, cpp_fused_relu_0
_INDUCTOR = re.compile(r"(?:^|_)(?:triton|cpp)_(?:(?P<kind>[a-z]+)_)?fused_(?P<ops>\w+?)(?:_\d+)?$")
_REDUCTIONS = {"red", "per", "spl"}  # one or several passes over the reduced dimension, or a scan in parts
_TEMPLATES = ("MatMul", "Conv2D", "ScaledDotProductAttention")
# what a kernel of its own does: a compiled one that is named after it adds its bias, fills its mask, sums its gradient
_EXTERN = {"": {"Conv2D", "Conv2DBackward", "ScaledDotProductAttention", "ScaledDotProductAttentionGrad"}}
_EXTERN["poi"] = _EXTERN[""] | {"MatMul", "ScaledMatMul", "GroupedMatMul"}  # a small product is compiled as a reduction
# what costs nothing in a fused kernel: it decides where a value is read from
_INDEXING = {"Reshape", "Shape", "Allocate", "Transpose", "Tile", "Copy", "Fill"}

_KINDS = {op: kind for kinds in TABLE.values() for kind, ops in kinds.items() for op in ops.split()}
_KINDS |= {op: kind for kind, ops in COMPOSITES.items() for op in ops.split()}
_ARITHMETIC = {kind for letter in "AC" for kind in TABLE[letter]}
_WORD = re.compile(r"[A-Za-z_]\w*")
_SUFFIX = re.compile(r"_?(cuda|kernel|impl|functor|ops|scalar|tensor|self|out)(?=_|$)|(functor|ops|nancudakernelimpl)$")


def is_compiled(name: str) -> bool:
    """Whether TorchInductor named it: a kernel, or on a CPU an op where the kernel profile is switched on."""
    return _INDUCTOR.search(name) is not None


@cache
def kernel_type(kernel: str) -> str:
    """The op type of a kernel by its name; "Other" for a name that tells nothing."""
    fused = _INDUCTOR.search(kernel)
    if fused:
        return _fused_type(fused["kind"] or "", fused["ops"])
    if kernel.startswith(PLAIN_NAMES):
        return named_type(kernel) or OTHER
    bare, arguments = split_signature(kernel)
    found = named_type(f"{bare}<{arguments}>" if arguments else bare) or _functor_type(arguments)
    return found or ("Elementwise" if "elementwise" in bare.lower() else OTHER)


def _functor_type(arguments: str) -> str | None:
    """The type of the first torch op that the template arguments name: sqrt_kernel_cuda, Sqrt<float>, NegFunctor."""
    words = (_SUFFIX.sub("", word.lower()).strip("_") for word in _WORD.findall(arguments))
    kinds = (_KINDS.get(word) for word in words)
    return next((kind for kind in kinds if kind in _ARITHMETIC), None)


def _fused_type(kind: str, ops: str) -> str:
    """The type of a compiled kernel: that of its op if it implements one beside indexing, else a fused one."""
    names, known = _op_names(ops)
    types = dict.fromkeys(_KINDS[name] for name in names)
    if kind == "tem":  # a template with what follows it: the template takes the time
        return next((each for each in _TEMPLATES if each in types), named_type(ops) or OTHER)
    working = [each for each in types if each not in _INDEXING]
    if known and len(working) == 1 and working[0] not in _EXTERN.get(kind, _EXTERN[""]):
        return working[0]
    if known and types and not working:
        return "Copy" if "Copy" in types else next(iter(types))
    reduces = kind in _REDUCTIONS or (not kind and any(each in TABLE["C"] for each in types))
    return "FusedReduction" if reduces else "FusedPointwise"


def _op_names(text: str) -> tuple[list[str], bool]:
    """The ops that a name is made of, the longest first where several fit, and whether all of it was recognised."""
    names: list[str] = []
    known, at = True, 0
    while at < len(text):
        ends = [end for end in range(len(text), at, -1) if end == len(text) or text[end] == "_"]
        end = next((end for end in ends if text[at:end] in _KINDS), None)
        if end is None:
            known, end = False, ends[-1]
        else:
            names.append(text[at:end])
        at = end + 1
    return names, known
