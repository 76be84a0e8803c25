"""The table of the paper, with ours in it."""

import pytest

from cone_jax.errors import UserError
from cone_jax.sweeps import transfer_results

# The paper's last row (arXiv 2308.10761), typed from it.
CONE = "| CoNe | 97.9 | 86.2 | 88.5 | 91.9 | 77.6 | 94.7 | 97.7 | 88.0 | 94.4 | 90.8 |"


def record(dataset, top1, mean_per_class=0.5, metric="top1", init_from="runs/a"):
    return {
        "dataset": dataset,
        "metric": metric,
        "network": "resnet18",
        "init_from": init_from,
        "chosen": {"learning_rate": 0.01, "weight_decay": 1e-4, "validation": 0.61},
        "test": {"top1": top1, "mean_per_class": mean_per_class},
        "grid": {"runs": 4, "finished": 3, "diverged": ["0.1_0"]},
    }


def test_the_papers_rows_and_ours():
    records = [record("Pets", 0.7, 0.65, "mean_per_class"), record("DTD", 0.55)]
    records.append(record("my birds", 0.9, init_from="runs/b"))
    lines = transfer_results.as_markdown(records).splitlines()
    columns = "CIFAR10 | CIFAR100 | Food | Cars | DTD | Pets | Flowers | Aircraft | Caltech101"
    assert f"| method | {columns} | Mean | my birds |" in lines
    assert CONE[:-1] + "| – |" in lines
    ours = [line for line in lines if line.startswith("| here")]
    assert ours == [
        "| here: resnet18, runs/a | – | – | – | – | 55.0 | 65.0 | – | – | – | – | – |",
        "| here: resnet18, runs/b | – | – | – | – | – | – | – | – | – | – | 90.0 |",
    ]
    assert "| Pets | runs/a | 0.01 | 0.0001 | 61.00 | 70.00 | 65.00 | 3 of 4 |" in lines


def test_the_mean_is_over_all_nine():
    records = [record(name, i / 10) for i, name in enumerate(transfer_results.COLUMNS)]
    ours = [line for line in transfer_results.as_markdown(records).splitlines() if "| here" in line]
    assert ours[0].split(" | ")[-1] == "40.0 |"


def test_files(tmp_path):
    transfer_results.write(tmp_path, record("DTD", 0.5))
    assert transfer_results.read(tmp_path) == record("DTD", 0.5)
    with pytest.raises(UserError, match=r"nowhere has no transfer\.json"):
        transfer_results.read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="DTD twice for runs/a"):
        transfer_results.as_markdown([record("DTD", 0.5), record("DTD", 0.6)])
