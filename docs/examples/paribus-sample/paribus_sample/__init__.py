"""Plugin: registers the component under its slot and name."""

from collections.abc import Mapping

from paribus import Attention, hookimpl
from paribus_sample.query_key_norm import QueryKeyNorm


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"qk-norm": QueryKeyNorm}
