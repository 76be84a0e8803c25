"""A data set in COCO's form that a tiny detector can learn: squares and discs on grey."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = {3: "square", 8: "disc"}


def write(root: Path, count: int = 8, *, seed: int = 0, standing: bool = True) -> Path:
    """`instances.json` and `images` with `count` pictures; every third may be standing."""
    rng = np.random.default_rng(seed)
    (root / "images").mkdir(parents=True)
    content: dict[str, list] = {"images": [], "annotations": []}
    content["categories"] = [{"id": key, "name": name} for key, name in NAMES.items()]
    for index in range(count):
        height, width = (64, 48) if standing and index % 3 == 2 else (48, 64)
        pixels = np.full((height, width, 3), 128, np.uint8)
        for category in rng.permutation(list(NAMES))[: rng.integers(1, 3)].tolist():
            side = int(rng.integers(14, 24))
            left, top = (int(rng.integers(0, size - side)) for size in (width, height))
            content["annotations"].append(
                {
                    "id": len(content["annotations"]) + 1,
                    "image_id": index,
                    "category_id": category,
                    "bbox": [left, top, side, side],
                    "area": side * side,
                    "iscrowd": 0,
                    "segmentation": [_outline(category, left, top, side)],
                }
            )
            inside = _mask(category, left, top, side, (height, width))
            pixels[inside] = (220, 40, 40) if category == 3 else (40, 40, 220)
        name = f"{index:03}.png"
        Image.fromarray(pixels).save(root / "images" / name)
        content["images"].append({"id": index, "file_name": name, "height": height, "width": width})
    (root / "instances.json").write_text(json.dumps(content))
    return root


def _outline(category: int, left: int, top: int, side: int) -> list[float]:
    if category == 3:
        right, bottom = left + side, top + side
        return [left, top, right, top, right, bottom, left, bottom]
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    centre = np.array([left, top]) + side / 2
    return (centre + side / 2 * np.stack([np.cos(angles), np.sin(angles)], 1)).ravel().tolist()


def _mask(category: int, left: int, top: int, side: int, size: tuple[int, int]) -> np.ndarray:
    rows, columns = np.mgrid[: size[0], : size[1]]
    y, x = rows - top - side / 2 + 0.5, columns - left - side / 2 + 0.5
    if category == 3:
        return (np.abs(x) <= side / 2) & (np.abs(y) <= side / 2)
    return x**2 + y**2 <= side**2 / 4
