"""Test sets other than the run's own, in the classes of the run."""

from cone_jax import storage
from cone_jax.data.sources import image_folder, splits, tfds
from cone_jax.evaluation import label_maps
from cone_jax.evaluation.label_maps import RelabelledSource
from cone_jax.evaluation.registry import EvaluatedRun


def open_set(run: EvaluatedRun, data: str, split: str = "") -> RelabelledSource:
    """A folder ``<class>/*``, or a TFDS set; of the latter `split`, or the part for testing."""
    trained, field = run.dataset.train, f"data ({data})"
    if not storage.path(data).is_dir():
        return label_maps.relabel(open_tfds(run, data, split), trained, field)
    folder = image_folder.open_whole(data)
    return label_maps.by_name(folder, trained.class_names, label_maps.class_ids(trained), field)


def open_tfds(
    run: EvaluatedRun, name: str, split: str = "", label_key: str = "label"
) -> tfds.TfdsSource:
    """A TFDS set with labels of its own, from where the run's TFDS data are."""
    path = tfds_path(run)
    if not split:
        builder = tfds.find(name, path)
        parts = () if builder is None else tuple(builder.info.splits)
        split = splits.match("test", parts) or "test"
    return tfds.open_tfds(split, name, path, label_key)


def tfds_path(run: EvaluatedRun) -> str:
    """The TFDS ``data_dir`` of the run; empty, hence TFDS's own, for other kinds of data."""
    data = run.config.data
    return data.path if data.source == "tfds" else ""
