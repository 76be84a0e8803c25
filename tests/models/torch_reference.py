"""The architectures once more, in PyTorch and from the descriptions of the papers.

Written only to be compared with: `state_dict` names are torchvision's (DeiT's for the
transformer), and `head` is whatever follows the pooled features.
"""

import torch
from torch import nn

# On small inputs PyTorch's threads wait for each other a hundred times as long as they work.
torch.set_num_threads(1)


def conv_bn(inputs, outputs, kernel=1, stride=1, groups=1, activation=nn.ReLU):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers = [conv, nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, activation()) if activation else nn.Sequential(*layers)


class ResNetBlock(nn.Module):
    def __init__(self, inputs, planes, stride, bottleneck):
        super().__init__()
        outputs = planes * 4 if bottleneck else planes
        if bottleneck:
            shapes = [(inputs, planes, 1, 1), (planes, planes, 3, stride), (planes, outputs, 1, 1)]
        else:
            shapes = [(inputs, planes, 3, stride), (planes, planes, 3, 1)]
        self.count = len(shapes)
        for index, (a, b, kernel, s) in enumerate(shapes, 1):
            conv = nn.Conv2d(a, b, kernel, s, kernel // 2, bias=False)
            self.add_module(f"conv{index}", conv)
            self.add_module(f"bn{index}", nn.BatchNorm2d(b))
        if stride != 1 or inputs != outputs:
            self.downsample = conv_bn(inputs, outputs, stride=stride, activation=None)
        else:
            self.downsample = nn.Identity()

    def forward(self, x):
        y = x
        for index in range(1, self.count + 1):
            y = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(y))
            if index < self.count:
                y = y.relu()
        return (y + self.downsample(x)).relu()


class ResNet(nn.Module):
    def __init__(self, depths, bottleneck, head, cifar=False, width=64):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, *((3, 1, 1) if cifar else (7, 2, 3)), bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.Identity() if cifar else nn.MaxPool2d(3, 2, 1)
        inputs, self.stages = width, len(depths)
        for stage, depth in enumerate(depths):
            blocks = []
            for index in range(depth):
                stride = 2 if stage and index == 0 else 1
                blocks.append(ResNetBlock(inputs, width * 2**stage, stride, bottleneck))
                inputs = width * 2**stage * (4 if bottleneck else 1)
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = head

    def forward(self, x):
        x = self.pool(self.bn1(self.conv1(x)).relu())
        for stage in range(1, self.stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


class RegNetBlock(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.f = nn.Sequential()
        self.f.add_module("a", conv_bn(inputs, width))
        self.f.add_module("b", conv_bn(width, width, 3, stride, groups=width // 16))
        self.f.add_module("c", conv_bn(width, width, activation=None))
        changes = stride != 1 or inputs != width
        self.proj = conv_bn(inputs, width, 1, stride, activation=None) if changes else None

    def forward(self, x):
        return ((self.proj(x) if self.proj else x) + self.f(x)).relu()


class RegNet(nn.Module):
    def __init__(self, head, last_width=400, cifar=False):
        super().__init__()
        self.stem = conv_bn(3, 32, 3, 1 if cifar else 2)
        self.trunk_output = nn.Sequential()
        inputs = 32
        for s, (depth, width) in enumerate(zip((1, 2, 7, 12), (32, 64, 160, last_width)), 1):  # noqa: B905
            stage = nn.Sequential()
            for index in range(depth):
                stride = 2 if index == 0 and not (cifar and s == 1) else 1
                stage.add_module(f"block{s}-{index}", RegNetBlock(inputs, width, stride))
                inputs = width
            self.trunk_output.add_module(f"block{s}", stage)
        self.fc = head

    def forward(self, x):
        return self.fc(self.trunk_output(self.stem(x)).mean((2, 3)))


class MobileNetBlock(nn.Module):
    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        hidden = inputs * expansion
        layers = [conv_bn(inputs, hidden, activation=nn.ReLU6)] if expansion > 1 else []
        layers.append(conv_bn(hidden, hidden, 3, stride, groups=hidden, activation=nn.ReLU6))
        layers += [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return self.conv(x) + x if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, head, cifar=False):
        super().__init__()
        layers, inputs = [conv_bn(3, 32, 3, 1 if cifar else 2, activation=nn.ReLU6)], 32
        for t, c, n, s in (
            (1, 16, 1, 1), (6, 24, 2, 1 if cifar else 2), (6, 32, 3, 2), (6, 64, 4, 2),
            (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
        ):  # fmt: skip
            for index in range(n):
                layers.append(MobileNetBlock(inputs, c, s if index == 0 else 1, t))
                inputs = c
        self.features = nn.Sequential(*layers, conv_bn(320, 1280, activation=nn.ReLU6))
        self.classifier = nn.Sequential(nn.Dropout(0.2), head)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class ShuffleUnit(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        half, self.stride = outputs // 2, stride
        into = inputs if stride == 2 else half

        def depthwise(width):
            conv = nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False)
            return [conv, nn.BatchNorm2d(width)]

        def pointwise(a):
            return [nn.Conv2d(a, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU()]

        if stride == 2:
            self.branch1 = nn.Sequential(*depthwise(inputs), *pointwise(inputs))
        self.branch2 = nn.Sequential(*pointwise(into), *depthwise(half), *pointwise(half))

    def forward(self, x):
        if self.stride == 2:
            parts = self.branch1(x), self.branch2(x)
        else:
            left, right = x.chunk(2, 1)
            parts = left, self.branch2(right)
        return nn.functional.channel_shuffle(torch.cat(parts, 1), 2)


class AuthorsUnit(nn.Module):
    """The unit of the authors' release: every other channel passes, and nothing is interleaved."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        passed = inputs if stride == 2 else inputs // 2
        hidden, self.stride = outputs // 2, stride

        def layers(conv, activation):
            return [conv, nn.BatchNorm2d(conv.out_channels), *([nn.ReLU()] if activation else [])]

        def depthwise(width):
            conv = nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False)
            return layers(conv, activation=False)

        def pointwise(a, b):
            return layers(nn.Conv2d(a, b, 1, bias=False), activation=True)

        if stride == 2:
            self.branch_proj = nn.Sequential(*depthwise(inputs), *pointwise(inputs, inputs))
        self.branch_main = nn.Sequential(
            *pointwise(passed, hidden), *depthwise(hidden), *pointwise(hidden, outputs - passed)
        )

    def forward(self, x):
        if self.stride == 2:
            return torch.cat((self.branch_proj(x), self.branch_main(x)), 1)
        return torch.cat((x[:, ::2], self.branch_main(x[:, 1::2])), 1)


class AuthorsShuffleNetV2(nn.Module):
    def __init__(self, head, cifar=False):
        super().__init__()
        self.first_conv = conv_bn(3, 24, 3, 1 if cifar else 2)
        self.pool = nn.Identity() if cifar else nn.MaxPool2d(3, 2, 1)
        units, inputs = [], 24
        for width, depth in ((116, 4), (232, 8), (464, 4)):
            for index in range(depth):
                units.append(AuthorsUnit(inputs, width, 1 if index else 2))
                inputs = width
        self.features = nn.Sequential(*units)
        self.conv_last = conv_bn(464, 1024)
        self.classifier = nn.Sequential(head)

    def forward(self, x):
        x = self.features(self.pool(self.first_conv(x)))
        return self.classifier(self.conv_last(x).mean((2, 3)))


class ShuffleNetV2(nn.Module):
    def __init__(self, head, cifar=False):
        super().__init__()
        self.conv1 = conv_bn(3, 24, 3, 1 if cifar else 2)
        self.pool = nn.Identity() if cifar else nn.MaxPool2d(3, 2, 1)
        inputs = 24
        for stage, width, depth in ((2, 116, 4), (3, 232, 8), (4, 464, 4)):
            units = [ShuffleUnit(inputs, width, 2)]
            units += [ShuffleUnit(width, width, 1) for _ in range(depth - 1)]
            self.add_module(f"stage{stage}", nn.Sequential(*units))
            inputs = width
        self.conv5 = conv_bn(464, 1024)
        self.fc = head

    def forward(self, x):
        x = self.stage4(self.stage3(self.stage2(self.pool(self.conv1(x)))))
        return self.fc(self.conv5(x).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(192, 576), nn.Linear(192, 192)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 3, 64)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / 8).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class DeiTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(192, 1e-6), nn.LayerNorm(192, 1e-6)
        self.attn, self.mlp = Attention(), nn.Sequential()
        self.mlp.add_module("fc1", nn.Linear(192, 768))
        self.mlp.add_module("act", nn.GELU())
        self.mlp.add_module("fc2", nn.Linear(768, 192))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class DeiTTiny(nn.Module):
    def __init__(self, head, patch=16, side=14):
        super().__init__()
        self.side = side
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 192))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + side * side, 192))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, 192, patch, patch)
        self.blocks = nn.Sequential(*(DeiTBlock() for _ in range(12)))
        self.norm = nn.LayerNorm(192, 1e-6)
        self.head = head

    def forward(self, x):
        x = self.patch_embed.proj(x)
        grid = self.pos_embed[:, 1:].transpose(1, 2).unflatten(2, (self.side, self.side))
        if x.shape[2:] != grid.shape[2:]:
            grid = nn.functional.interpolate(grid, size=x.shape[2:], mode="bicubic")
        x = (x + grid).flatten(2).transpose(1, 2)
        token = (self.cls_token + self.pos_embed[:, :1]).expand(len(x), -1, -1)
        return self.head(self.norm(self.blocks(torch.cat((token, x), 1)))[:, 0])


RESNETS = {
    "resnet8": ((1, 1, 1), False),
    "resnet14": ((2, 2, 2), False),
    "resnet20": ((3, 3, 3), False),
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
    "resnet200": ((3, 24, 36, 3), True),
}


def create(name, head, *, cifar=False, width=64, last_width=400, channel_order="torchvision"):
    """The network `name`, in evaluation mode, ending in the module `head`."""
    if name in RESNETS:
        model = ResNet(*RESNETS[name], head, cifar, width)
    elif name == "regnetx_400mf":
        model = RegNet(head, last_width, cifar)
    elif channel_order == "authors":
        model = AuthorsShuffleNetV2(head, cifar)
    elif name == "deit_tiny":
        model = DeiTTiny(head, *((4, 8) if cifar else (16, 14)))
    else:
        model = {"mobilenet_v2": MobileNetV2, "shufflenet_v2": ShuffleNetV2}[name](head, cifar)
    return model.eval()


def projection_head(features, hidden, dim, classes):
    """What the method puts in place of the classifier."""
    return nn.Sequential(
        nn.Linear(features, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, dim),
        nn.Linear(dim, classes),
    )


def randomise(model, gain=1.0):
    """Everything drawn, running statistics too; signals keep their size, times `gain` a norm.

    Running variances are small, so that a wrong epsilon shows.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = {}
    for name, tensor in model.state_dict().items():
        if tensor.ndim > 1 and name.endswith("weight"):
            drawn[name] = torch.randn(tensor.shape, generator=generator) / tensor[0].numel() ** 0.5
        elif name.endswith("running_var"):
            drawn[name] = 1e-3 * (0.5 + torch.rand(tensor.shape, generator=generator))
        elif name.endswith("weight"):
            small = 1e-3**0.5 if name.replace("weight", "running_var") in model.state_dict() else 1
            drawn[name] = gain * small * (0.5 + torch.rand(tensor.shape, generator=generator))
        elif tensor.ndim > 0:
            drawn[name] = 0.1 * torch.randn(tensor.shape, generator=generator)
        else:
            drawn[name] = tensor
    model.load_state_dict(drawn)
