"""Classify pictures with onnxruntime, Pillow and NumPy alone; no part of this project is needed.

python main.py --mode=export --workdir=runs/mine --format=onnx_pixels
python examples/onnx_predict.py runs/mine/exports/onnx_pixels one.jpg another.jpg
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def predict(export: Path, pictures: list[Path]) -> list[tuple[str, float]]:
    """The most probable class of each picture, and its probability."""
    names = json.loads((export / "export.json").read_text())["class_names"]
    session = onnxruntime.InferenceSession(export / "model.onnx")
    found = []
    for path in pictures:
        (probabilities,) = session.run(["probabilities"], {"picture": pixels(path)})
        best = int(probabilities[0].argmax())
        found.append((names[best], float(probabilities[0, best])))
    return found


def pixels(path: Path) -> np.ndarray:
    """A picture upright, on white where it is transparent: RGB, uint8 [height, width, 3]."""
    picture = ImageOps.exif_transpose(Image.open(path))
    if picture.mode.startswith("I"):  # 16 bits of grey; Pillow clips them at 255
        picture = Image.fromarray((np.asarray(picture).astype(np.uint32) >> 8).astype(np.uint8))
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return np.asarray(picture.convert("RGB"))


if __name__ == "__main__":
    for path, (name, probability) in zip(
        sys.argv[2:], predict(Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]]), strict=True
    ):
        print(f"{path}: {name} ({probability:.1%})")
