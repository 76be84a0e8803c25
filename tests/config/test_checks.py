"""Configs that cannot work are refused by field, value and cure."""

import pytest

from cone_jax import config as config_lib
from cone_jax.errors import UserError


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ("supcon", {"data.views": 1}, r"data.views \(1\) must be 2 for supcon"),
        ("paco", {"data.views": 1}, r"data.views \(1\) must be 2 for paco"),
        ("contrastive_view", {"data.views": 1}, r"data.views \(1\) must be 2 for cone"),
        ("cone", {"data.key_transforms": ("flip",)}, r"set data.views \(1\) to 2"),
        ("cmsf", {"model.predictor": False}, r"model.predictor \(False\)"),
        ("nnclr", {"model.projection": False}, r"model.projection \(False\)"),
        ("l_softmax", {"model.classifier_bias": True}, r"model.classifier_bias \(True\) False"),
        ("l_softmax", {"model.classifier": "cosine"}, r"model.classifier \('cosine'\)"),
        ("supcon", {"mixing.mixup_alpha": 0.2}, r"mixing.mixup_alpha \(0.2\).*for supcon"),
        ("cmsf", {"bank.exclude_self": True}, r"bank.exclude_self \(True\) must be False for cmsf"),
        ("two_views", {"bank.size": 300}, r"at least the global batch \(256 of two rows each\)"),
        (
            "cone",
            {"bank.size": 200},
            r"bank.size \(200\) must be at least the global batch \(256\)",
        ),
        ("cmsf", {"objective.cmsf.neighbours": 70000}, r"objective.cmsf.neighbours \(70000\)"),
        ("cone", {"objective.cone.sup_weight": -1.0}, r"objective.cone.sup_weight \(-1.0\)"),
        ("paco", {"objective.paco.temperature": 0.0}, r"paco.temperature \(0.0\) must be positive"),
        ("paco", {"objective.paco.prior": "even"}, r"objective.paco.prior \('even'\) is unknown"),
        ("large_margin", {"objective.large_margin.layers": ("pixels",)}, r"large_margin.layers"),
        ("l_softmax", {"objective.l_softmax.margin": 5}, r"margin \(5\) must be between 1 and 4"),
        ("cone", {"average.every": 0}, r"average.every \(0\) must be at least 1"),
        ("cone", {"schedule.decay": "cosin"}, r"schedule.decay \('cosin'\).*'cosine'"),
        ("supcon", {"linear_stage.schedule.decay": "cosin"}, r"linear_stage.schedule.decay"),
        ("supcon", {"linear_stage.batch_size": 0}, r"linear_stage.batch_size \(0\)"),
        ("supcon", {"linear_stage.epochs": 0}, r"linear_stage.epochs \(0\) must be positive"),
        ("cone", {"optimizer.decay_scope": "most"}, r"optimizer.decay_scope \('most'\)"),
        ("cone", {"nonfinite.policy": "skp"}, r"nonfinite.policy \('skp'\).*did you mean 'skip'"),
        ("cone", {"nonfinite.skip_limit": -1}, r"nonfinite.skip_limit \(-1\) must be at least 0"),
        ("cone", {"transfer.metric": "top5"}, r"transfer.metric \('top5'\)"),
        ("cone", {"transfer.learning_rates": (0.1, 0.0)}, r"learning_rates \(0.0\) .* positive"),
        ("cone", {"transfer.weight_decays": (-1e-4,)}, r"weight_decays \(-0.0001\) .* at least 0"),
    ],
)
def test_what_does_not_fit_is_named(options, changes, message):
    config = config_lib.apply_options(config_lib.default(), options)
    config_lib.validate(config)
    for field, value in changes.items():
        section, _, name = field.rpartition(".")
        target = config
        for part in section.split("."):
            target = target[part]
        target[name] = value
    with pytest.raises(UserError, match=message) as caught:
        config_lib.validate(config)
    assert "\n" not in str(caught.value)


def test_options_take_effect_in_the_order_of_the_recipe_not_of_the_user():
    applied = []
    recipe = {
        "supcon": lambda config: applied.append("recipe's supcon"),
        "large": lambda config: applied.append("large"),
    }
    for options in ("large,supcon", "supcon, large,"):
        config = config_lib.apply_options(config_lib.default(), options, recipe)
        assert config.objective.name == "cone"  # the recipe's option replaces the common one
    assert applied == ["recipe's supcon", "large"] * 2
