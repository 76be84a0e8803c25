"""What a user's process does with the hub: the library reads HF_ENDPOINT when it is imported.

python -m tests.interop.hub_client fetch REFERENCE...     a JSON line per reference
python -m tests.interop.hub_client cone JSON              commands, each a list of arguments
python -m tests.interop.hub_client timm NAME IN OUT       timm's logits of an array, NumPy files
"""

import contextlib
import json
import sys

import numpy as np

from cone_jax import __main__ as command
from cone_jax.errors import Failure, UserError
from cone_jax.interop import hub


def main(kind: str, *given: str) -> None:
    if kind == "fetch":
        for reference in given:
            try:
                found = hub.fetch(reference)
                described = found.metadata and found.metadata.transforms
                line = {"path": str(found.path), "transforms": described, **found._asdict()}
                line["metadata"] = found.metadata and vars(found.metadata)
            except (UserError, Failure) as error:
                kind = "UserError" if isinstance(error, UserError) else type(error).__name__
                line = {"kind": kind, "error": str(error)}
            print(json.dumps(line, default=str))
    elif kind == "timm":
        read_by_timm(*given)
    else:
        for arguments in json.loads(given[0]):
            with contextlib.redirect_stderr(sys.stdout):
                code = command.main(arguments)
            print(f"exit {code}")


def read_by_timm(name: str, images: str, output: str) -> None:
    import torch

    from tests.detection import torchvision_oracle  # noqa: F401 - before timm

    import timm  # isort: skip

    model = timm.create_model(name, pretrained=True).eval()
    with torch.inference_mode():
        np.save(output, model(torch.from_numpy(np.load(images))).numpy())
    print(json.dumps(model.pretrained_cfg))


if __name__ == "__main__":
    main(*sys.argv[1:])
