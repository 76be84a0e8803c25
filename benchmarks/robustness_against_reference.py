"""Our corruptions beside those of the benchmark's authors, by pixels and by what a network loses.

    python benchmarks/robustness_against_reference.py --weights=mobilenet_v2.safetensors \\
        --data=FOLDER --reference=REFERENCE_ENVIRONMENT/bin/python --output=robustness

REFERENCE_ENVIRONMENT has the package ``imagecorruptions``, which wants NumPy before 2 and so an
environment of its own: ``pip install "numpy<2" imagecorruptions``. FOLDER holds photographs in
folders of ImageNet's classes. All 75 cells of each form are shown to the network: the reference's,
ours with the photographs of frost that the package carries, and our generated frost. The package's
elastic transform is not the benchmark's (it has no affine map, and other strengths), so the
benchmark's stands in its place, written with OpenCV after its published definition; the package's
own is a row of the table, too. What was made is kept below ``--output``, so that a second launch
goes on.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PICTURES = "pictures.npy"
SEVERITIES = (1, 2, 3, 4, 5)
# Height of the displacement, sigma of its smoothing, reach of the affine map: in 244 pixels.
ELASTIC = (
    (2, 0.7, 0.1),
    (2, 0.08, 0.2),
    (0.05, 0.01, 0.02),
    (0.07, 0.01, 0.02),
    (0.12, 0.01, 0.02),
)
# Rows beside the fifteen: the reference's corruption, and ours.
BESIDE = {
    "frost_generated": ("frost", "frost_generated"),
    "elastic_of_package": ("elastic_of_package", "elastic_transform"),
}
CARRIES_FROST = "import imagecorruptions, os; print(os.path.dirname(imagecorruptions.__file__))"


def make_reference(folder: Path) -> None:
    """Runs in the reference's environment: every picture, corruption and severity."""
    import imagecorruptions
    from imagecorruptions import corruptions

    # scikit-image has renamed an argument that the package uses.
    blur = corruptions.gaussian

    def gaussian(*arguments, multichannel=False, **options):
        return blur(*arguments, channel_axis=-1 if multichannel else None, **options)

    corruptions.gaussian = gaussian
    pictures = np.load(folder / PICTURES, allow_pickle=False)
    for name in (*imagecorruptions.get_corruption_names(), "elastic_of_package"):
        path = folder / f"reference_{name}.npy"
        if path.exists():
            continue
        called = name.replace("elastic_of_package", "elastic_transform")

        def corrupted(picture: np.ndarray, severity: int, name: str = called) -> np.ndarray:
            return imagecorruptions.corrupt(picture, corruption_name=name, severity=severity)

        np.random.seed(0)  # noqa: NPY002 - what the package draws from
        make = elastic if name == "elastic_transform" else corrupted
        made = [[make(each, severity) for each in pictures] for severity in SEVERITIES]
        np.save(path, np.array(made, np.uint8))
        print(f"reference: {name}", flush=True)


def elastic(picture: np.ndarray, severity: int) -> np.ndarray:
    """The benchmark's elastic transform of one [H, W, 3] picture, by OpenCV and scikit-image."""
    import cv2
    from scipy.ndimage import map_coordinates
    from skimage.filters import gaussian

    height, sigma, jitter = (244 * part for part in ELASTIC[severity - 1])
    draw = np.random.uniform  # what the package draws from, too
    size = picture.shape[:2]
    centre, reach = np.array(size) // 2, min(size) // 3
    corners = (centre + reach * np.array([[1, 1], [1, -1], [-1, -1]])).astype(np.float32)
    moved = corners + draw(-jitter, jitter, corners.shape).astype(np.float32)
    turn = cv2.getAffineTransform(corners, moved)
    image = picture.astype(np.float32) / 255
    image = cv2.warpAffine(image, turn, size[::-1], borderMode=cv2.BORDER_REFLECT_101)
    across, down = (
        (height * gaussian(draw(-1, 1, size), sigma, mode="reflect", truncate=3)).astype(np.float32)
        for _ in range(2)
    )
    rows, columns = np.indices(size)
    places = np.stack([rows + down, columns + across])
    channels = [
        map_coordinates(image[..., each], places, order=1, mode="reflect") for each in range(3)
    ]
    return np.uint8(np.clip(np.stack(channels, axis=-1), 0, 1) * 255)


def make_ours(folder: Path, frost_folder: str) -> None:
    from cone_jax.evaluation.corruptions import CORRUPTIONS, corrupt

    pictures = np.load(folder / PICTURES, allow_pickle=False)
    forms = [(name, name, frost_folder) for name in CORRUPTIONS]
    for place, name, frost in [*forms, ("frost_generated", "frost", "")]:
        path = folder / f"ours_{place}.npy"
        if path.exists():
            continue
        kind = list(CORRUPTIONS).index(name)
        made = [
            [
                corrupt(
                    each, name, s, np.random.default_rng((0, index, kind, s)), frost_folder=frost
                )
                for index, each in enumerate(pictures)
            ]
            for s in SEVERITIES
        ]
        np.save(path, np.array(made, np.uint8))
        print(f"ours: {place}", flush=True)


def choose(folder: Path, data: str, predictor, count: int) -> np.ndarray:
    """Saves `count` pictures of `data` as the network sees them; returns their labels."""
    from cone_jax.data import transforms
    from cone_jax.data.sources import image_folder
    from cone_jax.evaluation import label_maps
    from cone_jax.interop import published

    source = label_maps.by_name(
        image_folder.open_whole(data), published.class_names(), published.wordnet_ids(), "--data"
    )
    pipeline = transforms.parse(predictor.metadata.transforms)
    records = np.linspace(0, len(source) - 1, count).astype(int).tolist()
    rng = np.random.default_rng(0)
    pixels = [pipeline(pipeline.open(source[record].image), rng) for record in records]
    keep(folder / PICTURES, np.array(pixels, np.uint8))
    return np.array([source[record].label for record in records])


def keep(path: Path, pixels: np.ndarray) -> None:
    """Saves the pictures; what was made of others must not stand beside them."""
    if path.exists() and not np.array_equal(np.load(path, allow_pickle=False), pixels):
        raise SystemExit(f"--output: {path} holds other pictures; name another folder")
    np.save(path, pixels)


def predictions(network, pixels: np.ndarray) -> np.ndarray:
    """The class of each of [..., H, W, 3] pictures."""
    import jax

    mean, std = (
        np.array(each, np.float32) for each in (network.metadata.mean, network.metadata.std)
    )
    forward = jax.jit(lambda x: network.encoder.apply(network.variables, x, train=False).logits)
    flat = pixels.reshape(-1, *pixels.shape[-3:])
    found = [
        np.asarray(forward((flat[at : at + 60] / np.float32(255) - mean) / std)).argmax(-1)
        for at in range(0, len(flat), 60)
    ]
    return np.concatenate(found).reshape(pixels.shape[:-3])


def rows(folder: Path, network, labels: np.ndarray) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Of each corruption, by severity: accuracy, mean change of pixels, predictions kept."""
    from cone_jax.evaluation.corruptions import CORRUPTIONS

    pictures = np.load(folder / PICTURES, allow_pickle=False)
    clean = predictions(network, pictures)
    print(f"clean: {np.mean(clean == labels):.1%} of {len(labels)}")
    for place in (*CORRUPTIONS, *BESIDE):
        found = {}
        names = BESIDE.get(place, (place, place))
        for form, name in zip(("reference", "ours"), names, strict=True):
            pixels = np.load(folder / f"{form}_{name}.npy", allow_pickle=False)
            guess = predictions(network, pixels)
            found[f"{form} accuracy"] = np.mean(guess == labels, axis=1)
            found[f"{form} kept"] = np.mean(guess == clean, axis=1)
            change = np.abs(pixels.astype(np.float32) - pictures)
            found[f"{form} change"] = change.mean(axis=(1, 2, 3, 4))
        yield place, found


def report(found: dict[str, dict[str, np.ndarray]]) -> str:
    """The table, and the severities at which accuracy or pixels differ."""
    from cone_jax.evaluation.corruption_error import ALEXNET, CorruptionErrors, normalise

    lines = ["| corruption | reference % | ours % | pixel change, ours / reference, by severity |"]
    lines.append("|---|---|---|---|")
    for name, row in found.items():
        ratio = row["ours change"] / row["reference change"]
        means = [f"{100 * row[f'{form} accuracy'].mean():.1f}" for form in ("reference", "ours")]
        lines.append(f"| {name} | {' | '.join(means)} | {' '.join(f'{r:.2f}' for r in ratio)} |")
    fourteen = [row for name, row in found.items() if name not in ("frost", *BESIDE)]
    for form in ("reference", "ours"):
        mean = np.mean([row[f"{form} accuracy"].mean() for row in fourteen])
        lines.append(f"{form}: {mean:.1%} over the fourteen without frost")
    for name in ("frost", "frost_generated"):
        kept = [f"{found[name][f'{form} kept'].mean():.1%}" for form in ("reference", "ours")]
        lines.append(f"{name}: predictions kept {kept[0]} and {kept[1]}")
    for form, frost in (("reference", "frost"), ("ours", "frost"), ("ours", "frost_generated")):
        errors = {
            name: tuple(1 - found[frost if name == "frost" else name][f"{form} accuracy"])
            for name in found
            if name not in BESIDE
        }
        mce = normalise(CorruptionErrors(float("nan"), errors), ALEXNET).mce
        lines.append(f"mCE, {form} with {frost}: {mce:.1f}")
    for name, row in found.items():
        for s, (a, b) in enumerate(
            zip(row["reference accuracy"], row["ours accuracy"], strict=True), start=1
        ):
            if abs(a - b) > 0.1:
                lines.append(f"differs by more than 10 points: {name} {s}, {a:.1%} and {b:.1%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", help="a file, or the name of published weights")
    parser.add_argument("--data", help="a folder of folders by class")
    parser.add_argument("--reference", default=sys.executable, help="a Python with the package")
    parser.add_argument("--pictures", type=int, default=60)
    parser.add_argument("--output", type=Path, default=Path("robustness"))
    parser.add_argument("--make_reference", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make_reference:
        make_reference(arguments.output)
        return
    sys.path.insert(0, str(ROOT))
    from cone_jax.training import named_network

    arguments.output.mkdir(parents=True, exist_ok=True)
    network = named_network.open_network(arguments.weights, print)
    labels = choose(arguments.output, arguments.data, network, arguments.pictures)
    python = [arguments.reference, "-W", "ignore"]
    making = [*python, __file__, "--make_reference", f"--output={arguments.output}"]
    subprocess.run(making, check=True)
    package = subprocess.run(
        [*python, "-c", CARRIES_FROST], check=True, capture_output=True, text=True
    ).stdout.strip()
    make_ours(arguments.output, f"{package}/frost")
    print(report(dict(rows(arguments.output, network, labels))))


if __name__ == "__main__":
    main()
