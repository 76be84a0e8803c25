"""Images a second on one core, side by side with a torch DataLoader that does the same Pillow work.

    python benchmarks/input_pipeline.py [--data=FOLDER] [--cifar=DATA_DIR] [--rounds=5]

Workloads: ImageNet-style crops and flips at 224 pixels, the same with AutoAugment, the first one
again from photographs of 2 megapixels, and CIFAR-style padded crops and flips at 32. The whole
program is bound to one core. The contenders take turns in every round, each from a fresh start,
timed from its first batch to its last; what is compared is the ratio inside a round, since
the speed of a shared machine changes by the minute.

The torch side is written as torchvision does it: decode the whole JPEG, crop, resize, flip,
Pillow's own AutoAugment operations, then to a normalised float tensor. It runs three times: in
the main process, with a worker process, and without the last step (`uint8`), which is all the
work that both sides share: cone_jax leaves normalisation to the device.

Then where the time of the first workload goes, and what part of torch's time is Pillow
decoding and resizing, which neither side can do without: its inverse is the highest ratio that
is possible with the same pixels.

Last comes the share of a training step that is spent waiting for input, on all cores, in the
digits recipe and, given a TFDS DATA_DIR that has it, the CIFAR-100 recipe.

FOLDER is an image folder; without it, 500 x 375 JPEG files with the spectrum of photographs are
made. CIFAR images are random pixels: none of the operations looks at them.
"""

import argparse
import functools
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from ml_collections import ConfigDict
from PIL import Image, ImageEnhance, ImageOps
from torch.utils.data import DataLoader, Dataset, RandomSampler

from cone_jax.data import decode, pipeline, transforms
from cone_jax.data.pipeline import TrainOrder, sample_rng
from cone_jax.data.sources.array import ArraySource
from cone_jax.data.sources.image_folder import ImageFolderSource, open_image_folder
from cone_jax.data.sources.source import Source
from cone_jax.data.transforms import recipes
from cone_jax.data.transforms.auto_augment import policy_table

Augment = Callable[[Image.Image], Image.Image]
ToTensor = Callable[[Image.Image], torch.Tensor]
Contender = Callable[[], Iterator[object]]  # the batches of one pass

MEAN = torch.tensor((0.485, 0.456, 0.406))[:, None, None]
STD = torch.tensor((0.229, 0.224, 0.225))[:, None, None]


def write_photographs(root: Path, count: int, width: int, height: int, quality: int) -> None:
    """JPEG files with the spectrum of photographs; each is there sixteen times, as links."""
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    amplitude = 1.0 / np.maximum(frequency, 1.0 / width)
    for index in range(count):
        phases = rng.random((4, *amplitude.shape))
        planes = np.fft.irfft2(amplitude * np.exp(2j * np.pi * phases), (height, width))
        planes /= planes.std(axis=(1, 2), keepdims=True)
        # Brightness varies more than colour.
        pixels = 120 + 50 * planes[0, ..., None] + 12 * np.moveaxis(planes[1:], 0, -1)
        folder = root / "train" / f"class{index % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{index}.jpg"
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, quality=quality)
        for copy in range(1, 16):
            (folder / f"{index}-{copy}.jpg").hardlink_to(file)


def to_float(image: Image.Image) -> torch.Tensor:
    """Torchvision's ToTensor and Normalize: float32 [3, H, W]."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    return pixels.to(torch.float32).div(255).sub_(MEAN).div_(STD)


def to_uint8(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image))


class TorchPictures(Dataset):
    """Encoded files, decoded and augmented one by one, as an ImageFolder with transforms is."""

    def __init__(self, source: ImageFolderSource, augment: Augment, to_tensor: ToTensor) -> None:
        self.files = [source.describe(index) for index in range(len(source))]
        self.labels = source.labels.tolist()
        self.augment, self.to_tensor = augment, to_tensor

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with open(self.files[index], "rb") as file:
            image = Image.open(file).convert("RGB")
        image = torch_random_resized_crop(image, 224)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return self.to_tensor(self.augment(image)), self.labels[index]


class TorchArrays(Dataset):
    """Pixels in memory, augmented through Pillow, as torchvision's CIFAR is."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, to_tensor: ToTensor) -> None:
        self.images, self.labels, self.to_tensor = images, labels, to_tensor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        padded = ImageOps.expand(Image.fromarray(self.images[index]), 4)
        left, top = random.randint(0, 8), random.randint(0, 8)
        image = padded.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return self.to_tensor(image), int(self.labels[index])


def torch_random_resized_crop(image: Image.Image, size: int) -> Image.Image:
    width, height = image.size
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            break
    else:
        w = h = min(width, height)
        left, top = (width - w) // 2, (height - h) // 2
    cropped = image.crop((left, top, left + w, top + h))
    return cropped.resize((size, size), Image.Resampling.BILINEAR)


def unchanged(image: Image.Image) -> Image.Image:
    return image


def torch_auto_augment(image: Image.Image) -> Image.Image:
    for op, probability, magnitude in random.choice(policy_table("imagenet")):
        if random.random() < probability:
            image = _apply(op, image, magnitude, random.choice((-1, 1)))
    return image


def _apply(op: str, image: Image.Image, magnitude: int, sign: int) -> Image.Image:
    fraction = magnitude / 9
    grey = (128, 128, 128)
    if op in ("Color", "Contrast", "Brightness", "Sharpness"):
        return getattr(ImageEnhance, op)(image).enhance(1 + sign * 0.9 * fraction)
    if op == "Rotate":
        return image.rotate(sign * 30 * fraction, Image.Resampling.BILINEAR, fillcolor=grey)
    if op == "ShearX":
        matrix = (1, -sign * 0.3 * fraction, 0, 0, 1, 0)
        bilinear = Image.Resampling.BILINEAR
        return image.transform(image.size, Image.Transform.AFFINE, matrix, bilinear, fillcolor=grey)
    if op == "Posterize":
        return ImageOps.posterize(image, 8 - round(magnitude / (9 / 4)))
    if op == "Solarize":
        return ImageOps.solarize(image, 255 - 255 * fraction)
    if op == "AutoContrast":
        return ImageOps.autocontrast(image)
    return ImageOps.equalize(image) if op == "Equalize" else ImageOps.invert(image)


def our_batches(
    source: Source, specs: recipes.Specs, batch_size: int, steps: int
) -> pipeline.TrainBatches:
    order = TrainOrder(len(source), batch_size, seed=0, last_batch="carry")
    return pipeline.TrainBatches(source, order, (transforms.parse(specs),), num_steps=steps)


def ours(source: Source, specs: recipes.Specs, batch_size: int, steps: int) -> Contender:
    batches = our_batches(source, specs, batch_size, steps)
    return lambda: pipeline.read_ahead(batches, threads=1, prefetch=2)


def torchs(dataset: Dataset, batch_size: int, steps: int, workers: int = 0) -> Contender:
    sampler = RandomSampler(dataset, replacement=True, num_samples=steps * batch_size)
    loader = DataLoader(dataset, batch_size, sampler=sampler, num_workers=workers)
    return lambda: iter(loader)


def images_per_second(contender: Contender, batch_size: int) -> float:
    stream = contender()
    next(stream)
    start = time.perf_counter()
    batches = sum(1 for _ in stream)
    return batches * batch_size / (time.perf_counter() - start)


def compare(
    name: str,
    source: Source,
    specs: recipes.Specs,
    dataset: Callable[[ToTensor], Dataset],
    *,
    batch_size: int,
    steps: int,
    rounds: int,
) -> None:
    """Prints a row: the median speed of each contender, and ours as a multiple of theirs."""
    contenders = {
        "cone_jax": ours(source, specs, batch_size, steps),
        "torch": torchs(dataset(to_float), batch_size, steps),
        "worker": torchs(dataset(to_float), batch_size, steps, workers=1),
        "uint8": torchs(dataset(to_uint8), batch_size, steps),
    }
    speeds: dict[str, list[float]] = {label: [] for label in contenders}
    for round_number in range(rounds + 1):
        for label, contender in contenders.items():
            speed = images_per_second(contender, batch_size)
            if round_number:  # the first warms file caches
                speeds[label].append(speed)
    row = "".join(f"{statistics.median(values):>10,.0f}" for values in speeds.values())
    for label in ("torch", "worker", "uint8"):
        ratios = [
            mine / other for mine, other in zip(speeds["cone_jax"], speeds[label], strict=True)
        ]
        row += f"{statistics.median(ratios):>8.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    print(f"{name:<24}{row}", flush=True)


STAGES = ("read file", "read header", "decode", "choose crop", "resize", "flip", "to array")


def stage_times(batches: pipeline.TrainBatches) -> np.ndarray:
    """Seconds of each stage of a crop and a flip, [images, len(STAGES)]; a batch is one image."""
    crop, flip = batches.views[0].transforms
    laps = []
    for position in range(len(batches)):
        draw = batches.order[position]
        marks = [time.perf_counter()]
        data, _ = batches.source[draw.record]
        marks.append(time.perf_counter())
        picture = decode.Picture(data)
        marks.append(time.perf_counter())
        picture.full()
        marks.append(time.perf_counter())
        rng = sample_rng(batches.order.seed, draw, 0)
        box = crop.sample_box(*picture.size, rng)
        marks.append(time.perf_counter())
        image = picture.region(box, (crop.size, crop.size))
        marks.append(time.perf_counter())
        image = flip(image, rng)
        marks.append(time.perf_counter())
        np.asarray(image)
        marks.append(time.perf_counter())
        laps.append(np.diff(marks))
    return np.stack(laps)


def batch_times(batches: Iterable[object]) -> np.ndarray:
    """Seconds of each batch."""
    marks = [time.perf_counter()]
    marks.extend(time.perf_counter() for _ in batches)
    return np.diff(marks)


def print_stages(source: ImageFolderSource, images: int, rounds: int) -> None:
    """Where the time of Standard 224 goes, and how fast it could be beside torch at the most.

    Every round does the same work, in batches of one; of each image its fastest round counts.
    """
    batches = our_batches(source, recipes.standard(224), 1, images)
    loader = torchs(TorchPictures(source, unchanged, to_float), 1, images)
    stage_laps, our_laps, their_laps = [], [], []
    for _ in range(rounds):
        random.seed(0)
        torch.manual_seed(0)
        stage_laps.append(stage_times(batches))
        our_laps.append(batch_times(batches[step] for step in range(images)))
        their_laps.append(batch_times(loader()))
    stages = np.min(stage_laps, axis=0).mean(axis=0) * 1e6
    mine, theirs = (np.min(laps, axis=0).mean() * 1e6 for laps in (our_laps, their_laps))
    print(f"\nStandard 224, time of an image: cone_jax {mine:,.0f} us, torch {theirs:,.0f} us")
    for stage, spent in zip((*STAGES, "the rest"), (*stages, mine - sum(stages)), strict=True):
        print(f"  {stage:<12}{spent:>8,.0f} us  {spent / mine:6.1%}")
    pillow = stages[STAGES.index("decode")] + stages[STAGES.index("resize")]
    print(
        f"  decode and resize take {pillow / theirs:.0%} of torch's time: "
        f"nothing that needs them is more than {theirs / pillow:.2f} times as fast\n"
    )


def input_wait(config: ConfigDict, warmup: int, steps: int) -> float:
    """The share of the training time in which the devices have nothing to do but wait for a batch.

    The loop fetches a batch while the step before it runs. Only where that step has ended by the
    time the batch is there did anything wait; then all the time of fetching counts, so this is
    the most that it can have been.
    """
    import jax

    from cone_jax.training.run import Run
    from cone_jax.training.train_step import train_step

    run = Run.open(config)
    state, running, waited = run.init_state(), jax.numpy.zeros(()), 0.0
    stream = run.train_stream(0, print)
    for step in range(warmup + steps):
        if step == warmup:  # compilation is over
            jax.block_until_ready(running)
            began, waited = time.perf_counter(), 0.0
        before = time.perf_counter()
        batch = next(stream)
        if running.is_ready():
            waited += time.perf_counter() - before
        state, metrics = train_step(state, batch)
        jax.block_until_ready(running)
        running = metrics["loss"]
    return waited / (time.perf_counter() - began)


def print_input_wait(cifar_dir: str) -> None:
    from cone_jax import runtime

    runtime.use_fast_cpu_convolutions()  # before JAX starts
    from cone_jax.recipes import cifar, digits

    share = input_wait(digits.get_config(), warmup=22, steps=200)
    print(f"digits recipe: {share:.1%} of the step time is spent waiting for input")
    if cifar_dir:
        config = cifar.get_config("100")
        config.data.path, config.batch_size = cifar_dir, 16
        share = input_wait(config, warmup=2, steps=8)
        print(f"cifar recipe, batch 16 instead of 1,024: {share:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="", help="image folder; made when not given")
    parser.add_argument("--cifar", default="", help="TFDS data_dir with cifar100, for input wait")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    torch.set_num_threads(1)
    print(" " * 24 + "images/s on one core" + " " * 24 + "cone_jax as a multiple of")
    speeds = "".join(f"{name:>10}" for name in ("cone_jax", "torch", "worker", "uint8"))
    print(" " * 24 + speeds + "".join(f"{name:>20}" for name in ("torch", "worker", "uint8")))
    with tempfile.TemporaryDirectory() as made:
        small, large = Path(made, "small"), Path(made, "large")
        if not options.data:
            write_photographs(small, 128, 500, 375, quality=92)
        write_photographs(large, 16, 1632, 1224, quality=80)
        standard, auto = recipes.standard(224), recipes.auto_augment(224)
        for name, folder, specs, augment, steps in (
            ("Standard 224", options.data or small, standard, unchanged, 16),
            ("AutoAugment 224", options.data or small, auto, torch_auto_augment, 16),
            ("Standard 224 of 2 MP", large, standard, unchanged, 4),
        ):
            photos = open_image_folder("train", str(folder), holdout=0.0)
            dataset = functools.partial(TorchPictures, photos, augment)
            compare(name, photos, specs, dataset, batch_size=16, steps=steps, rounds=options.rounds)
        photos = open_image_folder("train", str(options.data or small), holdout=0.0)
        print_stages(photos, images=256, rounds=options.rounds)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (50_000, 32, 32, 3), np.uint8), np.zeros(50_000, int)
    dataset = functools.partial(TorchArrays, images, labels)
    compare(
        "CIFAR Standard 32",
        ArraySource(images, labels, ("all",)),
        recipes.cifar_standard(),
        dataset,
        batch_size=128,
        steps=64,
        rounds=options.rounds,
    )
    os.sched_setaffinity(0, cores)
    print_input_wait(options.cifar)


if __name__ == "__main__":
    main()
