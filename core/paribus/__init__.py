"""Paribus: swap one part of a transformer, keep all else equal, and learn whether it mattered.

`__init__.pyi` lists the public API. Names are imported on first use, so `import paribus` does not import torch. Plugins
import from here and nowhere else.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
