"""Test sets other than the run's own, in the classes of the run."""

from cone_jax import storage
from cone_jax.data import staging
from cone_jax.data.sources import image_folder, splits, tfds
from cone_jax.errors import UserError
from cone_jax.evaluation import label_maps
from cone_jax.evaluation.label_maps import RelabelledSource
from cone_jax.evaluation.registry import EvaluatedRun
from cone_jax.settings import Data


def open_set(run: EvaluatedRun, data: str, split: str = "") -> RelabelledSource:
    """A folder ``<class>/*``, or a TFDS set; of the latter `split`, or the part for testing."""
    trained, field = run.dataset.train, f"data ({data})"
    if not storage.path(data).is_dir():
        return label_maps.relabel(open_tfds(run, data, split), trained, field)
    if storage.is_remote(data):
        raise UserError(f"{field} is in a bucket, and single images are read from a disk; copy it")
    folder = image_folder.open_whole(data)
    return label_maps.by_name(folder, trained.class_names, label_maps.class_ids(trained), field)


def open_tfds(
    run: EvaluatedRun, name: str, split: str = "", label_key: str = "label"
) -> tfds.TfdsSource:
    """A TFDS set with labels of its own, from where the run's TFDS data are."""
    if not split:
        builder = tfds.find(name, _data_dir(run, name))
        parts = () if builder is None else tuple(builder.info.splits)
        split = splits.match("test", parts) or "test"
    return tfds.open_tfds(split, name, _data_dir(run, name, split), label_key)


def has_tfds(run: EvaluatedRun, name: str) -> bool:
    """Whether the set is where the run's TFDS data are."""
    try:
        return tfds.find(name, _data_dir(run, name)) is not None
    except UserError:  # a bucket without it
        return False


def _data_dir(run: EvaluatedRun, name: str, split: str = "") -> str:
    """The TFDS ``data_dir`` of the run; empty, hence TFDS's own, for other kinds of data.

    If that is in a bucket: the local copy, with the description of `name` and the files of `split`.
    """
    data = run.config.data
    path = data.path if data.source == "tfds" else ""
    if not storage.is_remote(path):
        return path
    wanted = Data(source="tfds", name=name, path=path, stage=data.stage)
    return staging.localised(wanted, split).path
