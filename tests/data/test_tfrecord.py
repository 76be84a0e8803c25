import pytest

from cone_jax.data import preparation
from cone_jax.errors import UserError

# tf.io.TFRecordWriter of TensorFlow 2.21.0 wrote this: b"", b"hello", bytes(range(10)).
WRITTEN = bytes.fromhex(
    "000000000000000029039807d8ea82a20500000000000000eab2043e68656c6c6fbb1f1c190a00000000000000aea3bf3a0001020304050607080930efe4e4"
)


def test_records_that_tensorflow_wrote(tmp_path):
    (tmp_path / "x.tfrecord").write_bytes(WRITTEN)
    records = list(preparation.read_records(tmp_path / "x.tfrecord"))
    assert records == [b"", b"hello", bytes(range(10))]


def test_an_empty_file_has_no_records(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    assert list(preparation.read_records(tmp_path / "x")) == []


@pytest.mark.parametrize("cut", [3, 9, 15, 17, len(WRITTEN) - 5, len(WRITTEN) - 1])
def test_a_truncated_file_is_refused(tmp_path, cut):
    (tmp_path / "x").write_bytes(WRITTEN[:cut])
    with pytest.raises(UserError, match=r"damaged|middle of a record"):
        list(preparation.read_records(tmp_path / "x"))


def test_a_wrong_length_is_noticed(tmp_path):
    spoilt = bytearray(WRITTEN)
    spoilt[16] += 1  # the length of the second record
    (tmp_path / "x").write_bytes(bytes(spoilt))
    with pytest.raises(UserError, match="damaged at 28"):
        list(preparation.read_records(tmp_path / "x"))
