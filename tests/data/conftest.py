"""Small data sets that the tests make themselves."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

MakeFolder = Callable[[Iterable[str]], Path]


def grey_picture(path: Path, value: int, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Makes files below one folder: images by extension, text where there is none."""

    def make(files: Iterable[str]) -> Path:
        root = tmp_path / "photos"
        root.mkdir(exist_ok=True)
        for value, name in enumerate(files):
            path = root / name
            if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp", ".bmp"):
                grey_picture(path, value)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("not an image")
        return root

    return make


class TinyBirds(tfds.core.GeneratorBasedBuilder):
    """Thirty and ten pictures; picture i is grey of value i, a tit when i is odd.

    Image paths instead of arrays let TFDS prepare it without TensorFlow.
    """

    VERSION = tfds.core.Version("1.2.0")
    pictures = Path()

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "mask": tfds.features.Image(shape=(None, None, 1)),
            "label": tfds.features.ClassLabel(names=["owl", "tit"]),
            "colour": tfds.features.ClassLabel(names=["red", "green", "blue"]),
            "unlabelled": tfds.features.ClassLabel(names=["owl", "tit"]),
            "note": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: object) -> dict:
        return {"train": self._generate_examples(30), "test": self._generate_examples(10)}

    def _generate_examples(self, count: int):
        for i in range(count):
            image, mask = self.pictures / f"{i}.png", self.pictures / f"mask{i}.png"
            grey_picture(image, i)
            Image.fromarray(np.zeros((4, 6), np.uint8)).save(mask)
            yield (
                i,
                {
                    "image": image,
                    "mask": mask,
                    "label": i % 2,
                    "colour": i % 3,
                    "unlabelled": -1,
                    "note": "",
                },
            )


@pytest.fixture(scope="session")
def birds_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TFDS data_dir with ``tiny_birds`` prepared as ArrayRecord."""
    tfds.disable_progress_bar()
    TinyBirds.pictures = tmp_path_factory.mktemp("pictures")
    data_dir = tmp_path_factory.mktemp("tfds")
    builder = TinyBirds(data_dir=data_dir, file_format="array_record")
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False)
    )
    return data_dir
