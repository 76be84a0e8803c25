"""The paper's numbers as data, and which of them belong to a run."""

import json
from decimal import Decimal

import pytest

from cone_jax import workdir
from cone_jax.analysis import paper_comparison
from cone_jax.recipes import cifar, digits, folder, imagenet, imagenet_baselines, imagenet_light

ROWS = paper_comparison.read_paper()


def test_every_table_is_there_whole():
    """The numbers of each table, and their sum."""
    found: dict[str, list[Decimal]] = {}
    for row in ROWS:
        found.setdefault(row.table, []).append(Decimal(row.value))
    assert {table: (len(values), str(sum(values))) for table, values in found.items()} == {
        "cifar": (10, "844.08"),
        "paco_cifar100": (4, "316.2"),
        "imagenet100ep": (12, "926.6"),
        "supcon": (15, "1200.5"),
        "timm": (14, "1108.7"),
        "light": (8, "585.1"),
        "robust": (6, "331.4"),
        "effect": (5, "387.4"),
        "contra_view": (8, "622.1"),
        "other_nn": (5, "385.9"),
        "sweep_sup": (12, "933.4"),
        "sweep_dc": (12, "942.5"),
        "momentum": (4, "314.3"),
        "topN": (4, "314.6"),
        "bank": (4, "314.6"),
        "transfer": (40, "3574.9"),
        "coco": (72, "3257.5"),
        "appendixA": (4, "0.91"),
        "figure_alpha": (6, "1185.6"),
    }
    assert all(float(row.value) > 0 for row in ROWS)
    assert {row.origin.split()[0] for row in ROWS} == {"own", "copied", "matches_public", "unclear"}


def test_rows_are_told_apart_by_what_they_say():
    keys = [tuple(vars(row)[name] for name in vars(row) if name != "value") for row in ROWS]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("module", "options", "expected"),
    [
        (cifar, "10", {("cifar", "96.00")}),
        (cifar, "100", {("cifar", "78.08")}),
        (cifar, "100,supcon", {("cifar", "76.5")}),
        (cifar, "10,simclr", {("cifar", "93.6")}),
        (cifar, "100,strong", {("paco_cifar100", "81.2")}),
        (cifar, "100,paco", {("paco_cifar100", "79.1")}),
        (cifar, "100,joint_supcon", {("paco_cifar100", "78.0")}),
        # The paper's 75.3 says nothing of augmentation or epochs, so any recipe may claim it.
        (cifar, "100,ce_reference", {("cifar", "75.3")}),
        (cifar, "100,strong,cross_entropy", {("cifar", "75.3"), ("paco_cifar100", "77.9")}),
        (
            imagenet,
            "resnet50,100ep",
            {
                (t, "78.7")
                for t in ("imagenet100ep", "effect", "sweep_dc", "momentum", "topN", "bank")
            },
        ),
        (
            imagenet,
            "resnet50,cross_entropy",
            {(table, "76.9") for table in ("imagenet100ep", "effect", "other_nn")},
        ),
        (imagenet, "cross_entropy,projection", {("effect", "76.8")}),
        (imagenet, "no_dc", {(table, "78.1") for table in ("effect", "other_nn", "sweep_sup")}),
        (imagenet, "no_dc,sup_out", {("effect", "76.9")}),
        (imagenet, "no_dc,contrastive_view,randaug", {("contra_view", "77.9")}),
        (imagenet, "cmsf,with_ce", {("other_nn", "77.0")}),
        (imagenet, "nnclr,with_ce", {("other_nn", "77.5")}),
        (imagenet, "resnet50,long", {("supcon", "80.2")}),
        (imagenet, "resnet101,long", {("supcon", "81.4")}),
        (imagenet, "resnet200,long", {("supcon", "81.8")}),
        (imagenet, "resnet18,timm", {("timm", "74.3")}),
        (imagenet, "resnet152,timm", {("timm", "82.7")}),
        (imagenet, "cross_entropy,cutmix,300ep", {("supcon", "78.6")}),
        (imagenet, "cross_entropy,autoaug,300ep", {("supcon", "78.2")}),
        (imagenet, "resnet200,cross_entropy,autoaug,700ep", {("supcon", "80.6")}),
        (imagenet, "resnet200,cross_entropy,stacked,700ep", {("supcon", "80.9")}),
        (imagenet_baselines, "supcon", {("supcon", "78.7")}),
        (imagenet_baselines, "resnet101,supcon", {("supcon", "80.2")}),
        (imagenet_baselines, "resnet200,supcon", {("supcon", "81.4")}),
        (imagenet_baselines, "supcon_bank", {("supcon", "79.1")}),
        (imagenet_baselines, "paco", {("supcon", "79.3")}),
        (imagenet_baselines, "resnet101,paco", {("supcon", "80.9")}),
        (imagenet_baselines, "resnet200,paco", {("supcon", "81.8")}),
        (imagenet_baselines, "cmsf", {("other_nn", "76.4")}),
        (imagenet_baselines, "resnet34,rsb_a1", {("timm", "76.4")}),
        (imagenet_light, "regnetx_400mf", {("light", "74.6")}),
        (imagenet_light, "mobilenet_v2", {("light", "73.8")}),
        (imagenet_light, "shufflenet_v2", {("light", "72.2")}),
        (imagenet_light, "deit_tiny", {("light", "76.0")}),
        (imagenet_light, "deit_tiny,cross_entropy", {("light", "74.4")}),
        # Not in the paper:
        (imagenet, "no_contrast", set()),
        (imagenet, "resnet18,no_dc", set()),
        (imagenet, "resnet50,200ep", set()),
        (imagenet_baselines, "nnclr", set()),
        (digits, "", set()),
        (folder, "", set()),
    ],
)
def test_a_recipe_finds_its_own_numbers(module, options, expected):
    exact, near = paper_comparison.matching_rows(
        paper_comparison.facts(module.get_config(options)), ROWS
    )
    assert {(row.table, row.value) for row in exact} == expected
    assert not (exact and near)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train_split", "train[:5000]"),
        ("test_split", "train[45000:]"),
        ("label_key", "coarse_label"),
    ],
)
def test_a_part_of_a_data_set_or_other_labels_are_not_the_papers(field, value):
    config = cifar.get_config("100").unlock()
    config.data[field] = value
    assert paper_comparison.matching_rows(paper_comparison.facts(config), ROWS) == ([], [])


def test_swept_values_find_their_cell():
    config = imagenet.get_config()
    config.objective.cone.dc_weight = 0.2
    config.objective.cone.dc_temperature = 0.05
    exact, _ = paper_comparison.matching_rows(paper_comparison.facts(config), ROWS)
    assert [(row.table, row.value) for row in exact] == [("sweep_dc", "78.6")]
    config.ema.momentum = 0.98  # now two values differ from the recipe: no such number
    exact, near = paper_comparison.matching_rows(paper_comparison.facts(config), ROWS)
    assert not exact
    assert near[0][1]


def write_run(directory, config, records):
    workdir.claim(directory, config)
    lines = [json.dumps(record) + "\n" for record in records]
    (directory / "metrics.jsonl").write_text("".join(lines))


def test_prints_run_and_paper_side_by_side(tmp_path, capsys):
    records = [{"step": 10, "test/top1": 0.79}, {"step": 20, "test/top1": 0.785}]
    write_run(tmp_path, cifar.get_config("100"), records)
    assert paper_comparison.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "last 78.50%, best 79.00%" in output
    assert "78.08 ± 0.09" in output
    assert "+0.42" in output


def test_says_so_when_nothing_matches(tmp_path, capsys):
    config = cifar.get_config("100").unlock()
    config.model.name = "resnet18"
    write_run(tmp_path, config, [])
    assert paper_comparison.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "no evaluation yet" in output
    assert "no number for this config" in output
    assert "arch (ResNet-18 | ResNet-50)" in " ".join(output.split())
    assert "+" not in output


def test_mistakes_are_one_line(tmp_path, capsys):
    assert paper_comparison.main([str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err
    write_run(tmp_path, digits.get_config(), [])
    assert paper_comparison.main([str(tmp_path), "--paper", str(tmp_path / "none.csv")]) == 2
    assert "none.csv) does not exist" in " ".join(capsys.readouterr().err.split())
