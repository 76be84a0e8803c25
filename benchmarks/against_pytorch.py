"""The CoNe step beside the same step in plain PyTorch, in turns, on the same cores.

    python benchmarks/against_pytorch.py [--model=resnet18] [--batch=128] [--width=64] [--rounds=5]

The PyTorch side does what the released code does, the plain way: two copies of the network in
train mode, `channels_last`, EMA parameter by parameter, similarities with a clone of the bank,
`topk`, softmax over all rows, `kl_div`, SGD with momentum, rows copied into the bank. Both sides
use all cores, float32 and, since they share a process, the same memory allocation. The networks are
compared in tests/models; here only time is.
"""

import argparse
import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "models")]

import interleaved
import torch
import torch.nn.functional as F
import torch_reference
import train_step
from torch import nn

CPU_THREADS = len(os.sched_getaffinity(0))
DEPTHS = {"resnet18": ((2, 2, 2, 2), False), "resnet50": ((3, 4, 6, 3), True)}


class TorchEncoder(nn.Module):
    """Backbone, projection head, classifier."""

    def __init__(self, model: str, width: int, stem: str, classes: int, dim: int = 256) -> None:
        super().__init__()
        depths, bottleneck = DEPTHS[model]
        self.backbone = torch_reference.ResNet(
            depths, bottleneck, nn.Identity(), cifar=stem == "cifar", width=width
        )
        features = width * 8 * (4 if bottleneck else 1)
        hidden = max(2 * features, 4096)
        self.head = nn.Sequential(
            nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim)
        )
        self.classifier = nn.Linear(dim, classes)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embedding = self.head(self.backbone(images))
        return embedding, self.classifier(embedding)


class TorchCone:
    """The whole step, with its state."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.query = TorchEncoder(
            arguments.model, arguments.width, arguments.stem, arguments.classes
        ).to(memory_format=torch.channels_last)
        self.key = copy.deepcopy(self.query)
        self.optimizer = torch.optim.SGD(
            self.query.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
        )
        self.neighbours = arguments.neighbours
        self.bank = F.normalize(torch.randn(arguments.bank, 256), dim=1)
        self.probs = torch.softmax(torch.randn(arguments.bank, arguments.classes), dim=1)
        self.labels = torch.randint(arguments.classes, (arguments.bank,))
        self.pointer = 0
        size = (arguments.batch, 3, arguments.size, arguments.size)
        self.images = torch.randn(size).to(memory_format=torch.channels_last)
        self.targets = torch.randint(arguments.classes, (arguments.batch,))

    def __call__(self) -> float:
        with torch.no_grad():
            for k, q in zip(self.key.parameters(), self.query.parameters(), strict=True):
                k.mul_(0.996).add_(q, alpha=0.004)
            key_embedding, key_logits = self.key(self.images)
            key = F.normalize(key_embedding, dim=1)
        embedding, logits = self.query(self.images)
        loss = F.cross_entropy(logits, self.targets)
        loss = loss + 0.7 * self.contrast(F.normalize(embedding, dim=1))
        loss = loss + 0.4 * self.consistency(key, logits)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        rows = (self.pointer + torch.arange(len(key))) % len(self.bank)
        self.bank[rows], self.labels[rows] = key, self.targets
        self.probs[rows] = torch.softmax(key_logits, dim=1)
        self.pointer = (self.pointer + len(key)) % len(self.bank)
        return loss.item()

    def contrast(self, query: torch.Tensor) -> torch.Tensor:
        similarity = query @ self.bank.clone().T
        top, rows = similarity.topk(self.neighbours, dim=1)
        share = torch.softmax(top / 0.1, dim=1)
        positive = (self.labels[rows] == self.targets[:, None]).float()
        mass = (share * positive).sum(dim=1)
        return -torch.log(mass[mass > 1e-8]).sum() / len(query)

    def consistency(self, key: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weights = torch.softmax(key @ self.bank.clone().T / 0.07, dim=1)
            target = weights @ self.probs
        return F.kl_div(torch.log_softmax(logits, dim=1), target, reduction="batchmean")


class TorchCrossEntropy:
    """The same network with cross-entropy alone."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.cone = TorchCone(arguments)

    def __call__(self) -> float:
        cone = self.cone
        loss = F.cross_entropy(cone.query(cone.images)[1], cone.targets)
        cone.optimizer.zero_grad()
        loss.backward()
        cone.optimizer.step()
        return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    train_step.add_arguments(parser, batch=128)
    arguments = parser.parse_args()
    torch.set_num_threads(CPU_THREADS)  # the reference models ask for one
    torch.manual_seed(0)
    ours = train_step.steps(arguments)
    programs: dict[str, Callable[[], object]] = {
        "cross-entropy, PyTorch": TorchCrossEntropy(arguments),
        "cross-entropy, cone_jax": ours["cross-entropy"],
        "CoNe, PyTorch": TorchCone(arguments),
        "CoNe, cone_jax": ours["CoNe"],
    }
    print(
        f"{arguments.model} ({arguments.stem} stem, width {arguments.width}), batch "
        f"{arguments.batch}, bank {arguments.bank}, {arguments.size} px, {CPU_THREADS} threads, "
        f"torch {torch.__version__}"
    )
    seconds = interleaved.fastest(programs, arguments.rounds)
    for name, time_of_it in seconds.items():
        print(f"{name:26} {time_of_it:8.3f} s {arguments.batch / time_of_it:8.1f} images/s")
    for method in ("cross-entropy", "CoNe"):
        ratio = seconds[f"{method}, PyTorch"] / seconds[f"{method}, cone_jax"]
        print(f"{method}: cone_jax at {ratio:.2f} x the speed of PyTorch")


if __name__ == "__main__":
    main()
