"""The description of an export: enough to run it without this run's files."""

import dataclasses
import json
import re
from collections.abc import Mapping
from importlib import metadata as distributions
from pathlib import Path
from typing import Any

import cone_jax
from cone_jax.data import transforms
from cone_jax.errors import Failure, UserError
from cone_jax.models import ModelSpec

FILE = "export.json"


class ExportFailed(Failure):
    """An export that does not compute what the original does. The folder is not created.

    >>> issubclass(ExportFailed, Failure)  # one line for the user, exit code 1
    True
    """


@dataclasses.dataclass(frozen=True)
class ExportMetadata:
    """How pictures become input, and what the outputs mean.

    Input is float32 [B, image_size, image_size, 3], RGB: pixels in [0, 1], less `mean`, by `std`.

    >>> data = ExportMetadata(("owl", "tit"), 224, mean=(0.5,) * 3, std=(0.25,) * 3)
    >>> data.complete_transforms()
    ('resize(224)', 'centre_crop(224)')
    """

    class_names: tuple[str, ...]  # names of the classes, in the order of the logits
    image_size: int  # side of the input in pixels
    mean: tuple[float, ...]  # mean of each channel, for pixels in [0, 1]
    std: tuple[float, ...]  # standard deviation of each channel
    transforms: tuple[str, ...] = ()  # from a decoded picture to uint8 of that size
    pixels: str = "exact"  # how they compute pixels: the field `data.test_pixels`
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # run, step, scores ...

    def complete_transforms(self) -> tuple[str, ...]:
        """Transforms that give any picture the size of the network's input.

        A run whose pictures all have one size may have transforms that leave it as it is.
        """
        if transforms.parse(self.transforms, pixels=self.pixels).output_size() is not None:
            return self.transforms
        return (*self.transforms, f"resize({self.image_size})", f"centre_crop({self.image_size})")


def write(
    directory: Path,
    format: str,
    file: str,
    spec: ModelSpec,
    data: ExportMetadata,
    layout: str | None = None,
) -> None:
    """The description of the export in `directory`; `layout` where its tensors have names."""
    content = {
        "format": format,
        "file": file,
        "model": spec.to_dict(),
        **({"layout": layout} if layout else {}),
        **dataclasses.asdict(data),
        "versions": versions(),
    }
    (directory / FILE).write_text(json.dumps(content, indent=2) + "\n")


def read(directory: Path) -> tuple[dict[str, Any], ModelSpec, ExportMetadata]:
    """Everything in the description, and the two parts of it that have a type."""
    try:
        content = json.loads((directory / FILE).read_text())
        if not re.fullmatch(r"\w[\w.-]*", content["file"]):
            raise ValueError(f"file {content['file']!r} is not beside it")
        spec, described = parse(content)
    except FileNotFoundError:
        raise UserError(f"{directory} is not an export: it has no {FILE}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{directory / FILE} is damaged ({error!r}); export again") from error
    return content, spec, described


def parse(content: Mapping[str, Any]) -> tuple[ModelSpec, ExportMetadata]:
    """The network and its description; errors of mappings where something is missing."""
    fields: dict[str, Any] = {
        field.name: content[field.name]
        for field in dataclasses.fields(ExportMetadata)
        if field.name != "pixels" or "pixels" in content  # which earlier versions do not say
    }
    for name, value in fields.items():
        fields[name] = tuple(value) if isinstance(value, list) else value
    return ModelSpec.from_dict(content["model"]), ExportMetadata(**fields)


def versions() -> dict[str, str]:
    """The versions of this package and of the libraries that affect its numbers."""
    found = {name: distributions.version(name) for name in ("jax", "jaxlib", "flax", "numpy")}
    return {"cone_jax": cone_jax.__version__, **found}
