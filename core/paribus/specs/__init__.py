"""A spec: read under guard, overridden, checked against what is installed, resolved, and frozen."""

from paribus.specs.resolve import canonical, freeze, index_of, resolved, spec, spec_hash

__all__ = ["canonical", "freeze", "index_of", "resolved", "spec", "spec_hash"]
