"""Attention kernels, one in each file; an attention's and a position's traits select one.

All compute the same as `eager`, the reference, which supports every request and therefore comes last.
"""

from paribus.kernels.blocked import Blocked
from paribus.kernels.eager import Eager
from paribus.kernels.flex import Flex
from paribus.kernels.gathered import Gathered
from paribus.kernels.sdpa import Sdpa
from paribus.parts.context import Kernel

KERNELS: tuple[Kernel, ...] = (Blocked(), Gathered(), Flex(), Sdpa(), Eager())
"""Kernels in order of preference: first those with linear cost; then `flex`, for requests for which `sdpa` would need a
mask of T x S; then `sdpa`; then `eager`."""
