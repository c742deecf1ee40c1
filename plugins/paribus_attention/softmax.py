"""What the softmax attentions of this plugin have in common, besides the heads and the road to a kernel."""

from torch import Tensor

from paribus import Cost, Load, Shape, Sight, State, Traits, softmax_cost

SOFTMAX: Traits = {
    "consumes": ["rotate", "bias", "mix"],
    "causal": True,
    "cross": True,
    "documents": True,
    "order": True,
    "residual": True,
    "weights": True,
    "decodes": True,
}


def sight_of(shape: Shape, window: int | None = None) -> Sight:
    """Who sees whom at this place: a memory has no future."""
    return Sight(causal=shape.causal and shape.memory_width is None, window=window)


def empty_cache(shape: Shape, kv_heads: int, batch: int, length: int, like: Tensor) -> State:
    """Room for `length` keys and values; none for those of a memory, which are kept as they come."""
    if shape.memory_width is not None:
        return {}
    size = (batch, kv_heads, length, shape.head_width)  # (B, G, L, K)
    return {"k": like.new_zeros(size), "v": like.new_zeros(size)}


def cost_of(shape: Shape, kv_heads: int, sight: Sight, load: Load) -> Cost:
    """A key counts even where the future hides it: kernels compute most of these, and torch's counter counts them."""
    keys = load.keys if shape.memory_width is None else load.memory
    return softmax_cost(shape, kv_heads, load.queries * sight.span(keys), load)
