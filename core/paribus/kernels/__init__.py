"""Ways to compute attention: one a file, chosen from what an attention and a position declare of themselves.

All agree with `eager`, the readable one, which serves every demand and so comes last.
"""

from paribus.kernels.blocked import Blocked
from paribus.kernels.eager import Eager
from paribus.kernels.flex import Flex
from paribus.kernels.gathered import Gathered
from paribus.kernels.sdpa import Sdpa
from paribus.parts.context import Kernel

KERNELS: tuple[Kernel, ...] = (Blocked(), Gathered(), Flex(), Sdpa(), Eager())
"""In the order in which they are asked: those whose work is linear; then `flex`, which serves where `sdpa` would need a
mask of T x S; then `sdpa`."""
