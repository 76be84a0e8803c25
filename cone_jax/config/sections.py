"""Every field of a run, with its default, its meaning and its limits.

A recipe in `configs/` starts from `default()`, changes what it needs and returns the result
locked, so that a misspelt field is an error. `validate` checks what can be checked without
data. Defaults follow the released code (preset ``official``); where the paper's text differs,
`apply_preset(config, "paper")` sets the text's value. The points that neither settles are listed
with their fields in docs/recipes.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from cone_jax import objectives


def default() -> ConfigDict:
    """A complete config: CoNe as released, on the bundled digits."""
    config = ConfigDict()
    config.seed = 0
    config.epochs = 100
    config.steps = 0  # when positive, replaces `epochs`
    config.batch_size = 256  # over all devices and processes
    config.accumulate = 1  # parts that a batch is taken in, for the memory of one part
    config.init_from = ""  # weights to start from: .safetensors, .pth, a run or an export
    config.init_strict = True  # every weight must have its place; False: those that fit
    config.data = _data()
    config.model = _model()
    config.objective = ConfigDict({"name": "cone"})
    for name in objectives.names():  # one section a method: config.objective.cone.sup_weight
        config.objective[name] = ConfigDict(objectives.default_settings(name))
    config.bank = _bank()
    config.ema = _ema()
    config.mixing = _mixing()
    config.average = _average()
    config.optimizer = _optimizer()
    config.schedule = _schedule()
    config.linear_stage = _linear_stage()
    config.transfer = _transfer()
    config.nonfinite = ConfigDict()
    config.nonfinite.policy = "stop"  # when a loss or gradient is not finite; or skip the update
    config.nonfinite.skip_limit = 10  # updates skipped in the whole run; one more ends it
    config.log_every = 20  # steps between two records of train metrics
    config.profile_steps = ()  # (first, last): trace these steps into <workdir>/profile
    config.wandb_project = ""  # Weights & Biases project to log to as well; "": none
    config.evaluation = ConfigDict()
    # What is measured, e.g. ("classification", "knn(k=20, network='key', every_epochs=5)");
    # cone_jax/evaluation/registry.py lists the kinds.
    config.evaluation.evaluators = ("classification",)
    config.evaluation.every_epochs = 1.0  # 0: at the end only
    config.evaluation.batch_size = 256
    config.checkpoint = ConfigDict()
    config.checkpoint.every_epochs = 1.0  # 0: at the end only
    config.checkpoint.keep = 2  # the latest so many, and the best one
    config.checkpoint.best_metric = "test/top1"  # of any evaluator; "": no checkpoint is best
    return config


def _data() -> ConfigDict:
    data = ConfigDict()
    data.source = "digits"  # or tfds, image_folder, packed, array, fgvc_aircraft
    data.name = ""  # of a TFDS set: name[/config][:version]
    data.path = ""  # image folder, packed folder, .npz file or folder, or TFDS data_dir
    data.label_key = "label"  # the TFDS feature to learn
    data.holdout = 0.1  # fraction of each class to test on where there is no test part
    data.holdout_seed = 0
    data.cache_bytes = 2**30  # memory for decoded small pictures, a process and split; 0: none
    data.train_split = "train"
    data.test_split = "test"
    data.num_classes = 0  # 0: what the source says
    data.image_size = 8  # of the training images that reach the network
    data.train_transforms = ()  # in order, e.g. ("random_resized_crop(224)", "flip")
    data.key_transforms = ()  # of the second view, the key's; (): as train_transforms
    data.test_transforms = ()
    data.mean = (0.485, 0.456, 0.406)  # of pixels in [0, 1]
    data.std = (0.229, 0.224, 0.225)
    data.views = 1  # augmented views a sample; what the second is for, the objective says
    data.last_batch = "drop"  # of an epoch: drop, or carry into the next epoch
    data.damaged_limit = 0.01  # the fraction of unreadable images that ends the run
    data.threads = 4
    data.workers = 0  # processes that read ahead, each with its own threads; 0: threads alone
    data.prefetch = 4  # batches ready ahead of the step
    return data


def _model() -> ConfigDict:
    model = ConfigDict()
    model.name = "resnet50"
    model.stem = "imagenet"  # or cifar
    model.dtype = "float32"  # of the computation; parameters are float32
    model.options = ConfigDict()  # of the architecture; None: its own default
    model.options.width = placeholder(int)  # ResNets: planes of the first stage
    model.options.last_width = placeholder(int)  # RegNetX-400MF: 400 or 384
    model.options.image_size = placeholder(int)  # DeiT: the size its positions are learned for
    model.options.dropout = placeholder(float)  # before the head
    model.options.stochastic_depth = placeholder(float)  # the last block's rate
    model.options.remat = placeholder(bool)  # recompute activations to save memory
    model.options.bn_momentum = placeholder(float)  # of old running statistics, 0.9
    model.options.bn_groups = placeholder(int)  # 1: global statistics; devices: one set each
    model.projection = True  # False: classifier on pooled features
    model.embedding_dim = 256
    model.head_layers = 1  # hidden layers of the projection head
    model.head_hidden = 0  # 0: max(2 d, 4096)
    model.head_batch_norm = True
    model.head_normalise_input = False
    model.head_output_batch_norm = False
    model.predictor = False  # a second head on the embedding, where the objective needs one
    model.predictor_hidden = 4096
    model.classifier = "linear"  # or cosine, on the unit-norm embedding
    model.classifier_input = "embedding"  # or features
    model.classifier_bias = True
    return model


def _bank() -> ConfigDict:
    bank = ConfigDict()
    bank.size = 65536
    bank.init = "masked"  # rows count once written; "official": noise that counts from step 0
    bank.probs = "stored"  # or recomputed from the embeddings, by the key's classifier of today
    bank.probs_dtype = "float32"
    bank.exclude_self = False  # hide a sample's own older copy from its neighbours
    bank.recall_target = 1.0  # below 1: neighbours by approx_max_k, which may miss some
    bank.sharding = "replicated"  # or sharded: rows split over all devices
    return bank


def _ema() -> ConfigDict:
    ema = ConfigDict()
    ema.momentum = 0.996
    ema.schedule = "official_auto"  # or cosine_to_one, constant
    ema.order = "before_forward"  # or after_update (Algorithm 1 of the paper)
    return ema


def _mixing() -> ConfigDict:
    mixing = ConfigDict()
    mixing.mixup_alpha = 0.0  # 0: no MixUp
    mixing.cutmix_alpha = 0.0  # 0: no CutMix
    mixing.switch = 0.5  # probability of CutMix where both are on
    return mixing


def _average() -> ConfigDict:
    average = ConfigDict()
    average.decay = 0.0  # of the averaged model, which is the one evaluated; 0: none
    average.every = 32  # steps between two updates
    average.rescale = True  # adapt the decay to batch and epochs, as torchvision does
    return average


def _optimizer() -> ConfigDict:
    optimizer = ConfigDict()
    optimizer.name = "sgd"  # or adamw, lamb, lars, rmsprop
    optimizer.learning_rate = 0.1  # for a batch of `reference_batch`
    optimizer.reference_batch = 256  # 0: the learning rate is not scaled by the batch
    optimizer.momentum = 0.9  # of sgd, lars and rmsprop
    optimizer.nesterov = False
    optimizer.beta1 = 0.9  # of adamw and lamb
    optimizer.beta2 = 0.999
    optimizer.rms_decay = 0.9  # of rmsprop's average of squares
    optimizer.epsilon = 1e-8  # of adamw, lamb and rmsprop
    optimizer.trust_coefficient = 1e-3  # of lars
    optimizer.weight_decay = 1e-4
    # Or exclude_1d: not on biases, norms, class token and positions.
    optimizer.decay_scope = "all"
    optimizer.clip_norm = 0.0  # 0: gradients are not clipped
    return optimizer


def _schedule() -> ConfigDict:
    schedule = ConfigDict()
    schedule.warmup_epochs = 5.0  # a step at a time
    schedule.warmup_start = 0.0  # fraction of the peak rate
    schedule.decay = "cosine"  # or linear, constant, steps, exponential
    schedule.milestones = ()  # of decay "steps": pairs (epoch, fraction of the peak from then on)
    schedule.decay_epochs = 1.0  # of decay "exponential": each time, multiply by the factor
    schedule.decay_factor = 1.0
    schedule.unit = "epoch"  # the rate changes once an epoch after warm-up, or each "step"
    schedule.floor = 1e-3  # of the peak rate
    return schedule


def _linear_stage() -> ConfigDict:
    """The second stage of methods whose loss trains no classifier; the others ignore it."""
    stage = ConfigDict()
    stage.epochs = 100
    stage.steps = 0  # when positive, replaces `epochs`
    stage.batch_size = 256
    stage.train_transforms = ()  # (): as data.train_transforms
    stage.optimizer = _optimizer()
    stage.optimizer.weight_decay = 0.0
    stage.schedule = _schedule()
    stage.schedule.warmup_epochs = 0.0
    return stage


def _transfer() -> ConfigDict:
    """The grid of ``--mode=transfer``; other modes ignore it."""
    transfer = ConfigDict()
    transfer.name = ""  # of the data set, as the paper's table heads its column
    transfer.metric = "top1"  # or mean_per_class: what is compared and shown; both are kept
    transfer.learning_rates = ()  # peak rates; every one meets every weight decay
    transfer.weight_decays = ()  # divided by the learning rate
    transfer.train_split = ""  # what the runs of the grid are trained on, and
    transfer.validation_split = ""  # compared on; the last run uses data's own splits
    return transfer
