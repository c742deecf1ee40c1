"""What is installed: an object with the components' classes, and an index of them that needs no torch."""

from paribus.registry.cache import index
from paribus.registry.classes import Lazy, Registry, installed
from paribus.registry.entries import Broken, Entry, Index, Part, Piece, failure

__all__ = ["Broken", "Entry", "Index", "Lazy", "Part", "Piece", "Registry", "failure", "index", "installed"]
