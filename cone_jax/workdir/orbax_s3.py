"""Orbax, taught to write checkpoints to ``s3://``: by itself it knows disks and ``gs://`` alone.

Orbax asks a handful of functions whether a directory is in a bucket, and where TensorStore finds
it. They get a second answer here; all else that Orbax does for ``gs://`` (the file that makes a
checkpoint count, deletion, the parts of several processes) then holds for ``s3://`` as well.
So whoever needs Orbax takes it from here. This relies on inner names of its pinned version:
`tests/workdir/test_buckets.py` trains, kills and resumes runs in S3.
"""

from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint._src.path import gcs_utils
from orbax.checkpoint._src.serialization import tensorstore_utils

from cone_jax import storage

__all__ = ["ocp"]

_in_gcs = gcs_utils.get_kvstore_for_gcs


def _where(url: str) -> dict[str, Any]:
    """What TensorStore calls a directory in a bucket."""
    return storage.array_store(url) if url.startswith("s3://") else _in_gcs(url)


gcs_utils._GCS_PATH_PREFIX = tuple(f"{scheme}://" for scheme in storage.SCHEMES)
gcs_utils.get_kvstore_for_gcs = _where
tensorstore_utils._use_gcs_driver = storage.is_remote
tensorstore_utils._normalize_path = storage.normalised
