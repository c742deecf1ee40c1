"""Synthetic corpus of images of shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias, final

from paribus import Corpus, CorpusTraits, Document, Pixels, Range, Split, image_document
from paribus_text.holdout import digest

if TYPE_CHECKING:
    import numpy as np

SUBPIXELS: Final = 16  # positions across a pixel
LEVELS: Final = 80  # number of dark values, from 0, and of light values, up to 255

Grid: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Shape = Callable[["Grid", "Grid", int], "Grid"]  # of distances across and down from the center, and the radius

SHAPES: Final[Mapping[str, Shape]] = {
    "disc": lambda x, y, r: x * x + y * y <= r * r,
    "cross": lambda x, y, r: ((4 * abs(x) <= r) | (4 * abs(y) <= r)) & (abs(x) <= r) & (abs(y) <= r),
    "ring": lambda x, y, r: (x * x + y * y <= r * r) & (4 * (x * x + y * y) >= r * r),
    "triangle": lambda x, y, r: (abs(y) <= r) & (2 * abs(x) <= y + r),
    "square": lambda x, y, r: (8 * abs(x) <= 7 * r) & (8 * abs(y) <= 7 * r),
    "bars": lambda x, y, r: (abs(x) <= r) & (abs(y) <= r) & (3 * abs(y) >= r),
    "diamond": lambda x, y, r: abs(x) + abs(y) <= r,
    "frame": lambda x, y, r: (abs(x) <= r) & (abs(y) <= r) & ((2 * abs(x) >= r) | (2 * abs(y) >= r)),
}
"""Shapes in the order of the classes; integers only, so the images are the same on every machine."""


@final
class Shapes(Corpus):
    """Images of one shape each, of random position, size and colours, with noise; the shape is the label.

    Image i of a split depends on the seed, the split and i only, so a larger corpus extends a smaller one. Random bits
    are those of SHAKE-256, the same on every machine. The sizes of the classes differ by at most one.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["documents", "labels"],
        "modality": "images",
        "document_facts": {"image": "image", "channels": "channels", "classes": "classes"},
    }

    def __init__(
        self,
        *,
        image: Annotated[int, "height and width of an image, in pixels", Range(4, 4096)] = 32,
        channels: Annotated[int, "values of a pixel: 1 is grey, 3 colour", Range(1, 64)] = 3,
        classes: Annotated[int, "number of shapes", Range(2, len(SHAPES))] = 4,
        images: Annotated[int, "images of the training split", Range(1, 10_000_000)] = 4096,
        held_out: Annotated[int, "images of the validation split", Range(1, 1_000_000)] = 512,
        noise: Annotated[int, "maximum change of a value by noise, of 255", Range(0, 255)] = 32,
        seed: Annotated[int, "seed of all images", Range(0)] = 0,
    ) -> None:
        self._side = image
        self._channels = channels
        self._kinds = tuple(SHAPES)[:classes]
        self._counts: Mapping[Split, int] = {"train": images, "val": held_out}
        self._noise = noise
        self._seed = seed

    def documents(self, split: Split) -> Iterator[Document]:
        for index in range(self._counts[split]):
            label = index % len(self._kinds)
            name = f"{split} {index}"
            yield image_document(f"{name}, a {self._kinds[label]}", self._draw(name, SHAPES[self._kinds[label]]), label)

    def fingerprint(self) -> str:
        """Return a hash of the options and of the code that draws."""
        options = (self._side, self._channels, *self._kinds, *self._counts.values(), self._noise, self._seed)
        return digest([*map(str, options), Path(__file__).read_text(encoding="utf-8")])

    def _draw(self, name: str, is_inside: Shape) -> Pixels:
        """Return one image, (height, width, channels)."""
        import numpy as np

        numbers = _numbers(f"{self._seed} {name}", 3 + 3 * self._channels)
        side = self._side * SUBPIXELS
        radius = side // 4 + numbers[0] % (side // 5)
        x, y = (radius + number % (side - 2 * radius + 1) for number in numbers[1:3])
        centers = np.arange(self._side) * SUBPIXELS + SUBPIXELS // 2
        shape = is_inside(centers[None, :] - x, centers[:, None] - y, radius)[:, :, None]
        dark, light, is_inverted = np.array(numbers[3:]).reshape(3, self._channels)
        levels = np.where(is_inverted % 2, [light % LEVELS, 255 - dark % LEVELS], [255 - light % LEVELS, dark % LEVELS])
        values = np.where(shape, levels[0], levels[1])
        pixels: Pixels = np.clip(values + self._noise_values(name, values.shape), 0, 255).astype(np.uint8)
        return pixels

    def _noise_values(self, name: str, shape: tuple[int, ...]) -> Grid:
        """Return uniform noise from -noise to noise."""
        import numpy as np

        bits = hashlib.shake_256(f"{self._seed} {name} noise".encode()).digest(2 * int(np.prod(shape)))
        uniform = np.frombuffer(bits, "<u2").astype(np.int64).reshape(shape)
        return uniform * (2 * self._noise + 1) // 65536 - self._noise


def _numbers(key: str, count: int) -> list[int]:
    """Return random 32-bit integers."""
    import numpy as np

    bits = hashlib.shake_256(key.encode()).digest(4 * count)
    return [int(number) for number in np.frombuffer(bits, "<u4")]
