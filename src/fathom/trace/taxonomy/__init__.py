"""Maps ops and kernels to op types, in the classes A-G of the 2016 paper and H, communication, which it did not have.

An op with a type claims everything that runs inside it: the time of aten::conv2d is convolution, whatever library
implements it. For an op without, the ops inside it are counted instead; what is known by no name has the type "Other",
in a class of its own. A kernel that no op launched is typed by its name. Families put the types together for readers
of today. docs/op-types.md lists all of it.
"""

from fathom.trace.taxonomy.families import FAMILIES, family_of
from fathom.trace.taxonomy.kernels import OTHER, kernel_type
from fathom.trace.taxonomy.names import NAMES, named_type
from fathom.trace.taxonomy.short_names import short_name
from fathom.trace.taxonomy.torch_ops import COMPOSITES, TABLE
from fathom.trace.taxonomy.types import (
    AUTOGRAD,
    ELEMENTWISE_TYPES,
    GROUPS,
    IN_2016,
    LIBRARIES,
    NAMED,
    UNKNOWN,
    group_of,
    leaf_type,
    type_of,
    update_type,
)

__all__ = [
    "AUTOGRAD",
    "COMPOSITES",
    "ELEMENTWISE_TYPES",
    "FAMILIES",
    "GROUPS",
    "IN_2016",
    "LIBRARIES",
    "NAMED",
    "NAMES",
    "OTHER",
    "TABLE",
    "UNKNOWN",
    "family_of",
    "group_of",
    "kernel_type",
    "leaf_type",
    "named_type",
    "short_name",
    "type_of",
    "update_type",
]
