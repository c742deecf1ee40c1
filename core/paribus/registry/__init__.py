"""What is installed: an object with the components' classes, and an index of them that needs no torch."""

from paribus.registry.cache import index
from paribus.registry.component_index import Broken, Entry, Index, Part, Piece, failure
from paribus.registry.registry import Lazy, Registry, installed

__all__ = ["Broken", "Entry", "Index", "Lazy", "Part", "Piece", "Registry", "failure", "index", "installed"]
