import numpy as np
import pytest
from array_record.python import array_record_module
from array_record.python.array_record_data_source import ArrayRecordDataSource

from cone_jax.data import array_record_file
from cone_jax.errors import UserError

RECORDS = [np.random.default_rng(i).bytes(100) * i for i in range(30)]


@pytest.mark.parametrize("compress", [False, True])
def test_records_are_read_back_one_by_one(tmp_path, compress):
    path = tmp_path / "x.array_record"
    array_record_file.write(path, iter(RECORDS), 30, compress=compress)
    source = ArrayRecordDataSource([str(path)])
    assert [source[i] for i in range(29, -1, -1)] == RECORDS[::-1]
    options = array_record_module.ArrayRecordReader(str(path)).writer_options_string()
    assert "group_size:1," in options
    assert ("uncompressed" in options) != compress


def test_a_wrong_number_of_records_leaves_no_file(tmp_path):
    with pytest.raises(UserError, match="30 of 31 records were written"):
        array_record_file.write(tmp_path / "x", RECORDS, 31, compress=True)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_noticed(tmp_path, monkeypatch):
    class FullDisk(array_record_module.ArrayRecordWriter):
        def write(self, record):
            pass

    monkeypatch.setattr(array_record_file.array_record_module, "ArrayRecordWriter", FullDisk)
    with pytest.raises(UserError, match="0 of 30 records were written; is the disk full"):
        array_record_file.write(tmp_path / "x", RECORDS, 30, compress=True)
