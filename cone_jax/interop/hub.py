"""Weights by name: from Hugging Face's hub, from the table of published weights, from the web.

    hf://OWNER/NAME[@REVISION]      the repository's model.safetensors, and what it says of itself
    timm:NAME, torchvision:NAME     a row of the table (`cone_jax.interop.published`)
    https://HOST/FILE#sha256=HEX    a file and its hash

The hub is reached through `huggingface_hub`, whose cache, tokens and offline mode apply. Other
files are kept in the user's cache directory, and appear there only once their hash is right.
"""

import hashlib
import http.client
import json
import math
import os
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich import progress

from cone_jax.errors import Failure, UserError, optional_module
from cone_jax.interop import files, published, transformers_names
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.models import ModelSpec

WEIGHTS_FILE = "model.safetensors"
SCHEMES = ("hf://", "timm:", "torchvision:", "https://", "http://")
_HF = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+?))?/?")
# The pages of repositories, which people copy from a browser.
_HUB_PAGE = re.compile(r"https://(?:huggingface|hf)\.co/(?P<repo>[\w.-]+/[\w.-]+)(/.*)?")
_TIMEOUT = 60  # seconds without an answer


class DownloadFailed(Failure):
    """The network or the server failed."""


class _NoSuchFile(UserError):  # noqa: N818 - as its base, it names the user's situation
    """The repository exists, but has no such file."""


class Fetched(NamedTuple):
    """Weights on this disk, and what is known about them besides their tensors."""

    path: Path
    metadata: ExportMetadata | None = None
    options: Mapping[str, Any] = {}  # of the architecture
    network: str = ""  # its name here, where the table has it
    spec: ModelSpec | None = None  # all of it, where an export says so


def is_reference(text: str) -> bool:
    """Whether `text` names weights that are not on this disk.

    >>> is_reference("timm:resnet50.a1_in1k"), is_reference("runs/birds")
    (True, False)
    """
    return text.startswith(SCHEMES)


def fetch(reference: str) -> Fetched:
    """The file that `reference` names, downloaded unless it has been before."""
    if reference.startswith(("timm:", "torchvision:")):
        row = published.find(reference)
        path = _from_hub(row.file) if row.file.startswith("hf://") else _from_web(row.file)
        return Fetched(path, row.metadata, row.options, row.network)
    if reference.startswith("hf://"):
        return _described(reference)
    return Fetched(_from_web(reference))


def cached(reference: str) -> Path | None:
    """Where the weights are on this disk; None: they have not been downloaded."""
    file = published.find(reference).file if reference.startswith(("timm:", "tor")) else reference
    if not file.startswith("hf://"):
        place = _place(file)
        return place if place.exists() else None
    try:
        hub = optional_module("huggingface_hub", "hub")
    except UserError:
        return None
    repo, revision = parse(file)
    found = hub.try_to_load_from_cache(repo, WEIGHTS_FILE, revision=revision)
    return Path(found) if isinstance(found, str) else None


def parse(reference: str) -> tuple[str, str | None]:
    match = _HF.fullmatch(reference)
    if match is None:
        raise UserError(f"{reference} is not a repository; write hf://OWNER/NAME or with @REVISION")
    return match["repo"], match["revision"]


def _from_hub(reference: str, file: str = WEIGHTS_FILE) -> Path:
    """Downloads one file of a repository; an error is one line."""
    hub = optional_module("huggingface_hub", "hub")
    errors = optional_module("huggingface_hub.errors", "hub")
    repo, revision = parse(reference)
    try:
        return Path(hub.hf_hub_download(repo, file, revision=revision))
    except errors.HFValidationError as error:
        raise UserError(f"{reference} is not a repository: {cause(error)}") from error
    except errors.GatedRepoError as error:
        raise UserError(
            f"{reference} is gated; accept its terms on the hub and log in: hf auth login"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{reference} does not exist, or is private (log in with: hf auth login); check its "
            "name"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(
            f"{reference} has no revision {revision!r}; leave it out, or check it"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        if hub.constants.HF_HUB_OFFLINE:
            raise UserError(
                f"{reference}: its {file} is not in the cache, and HF_HUB_OFFLINE is set; unset it "
                "once"
            ) from error
        raise DownloadFailed(f"{reference} cannot be reached ({cause(error)})") from error
    except errors.EntryNotFoundError as error:
        raise _NoSuchFile(
            f"{reference} has no {file}; choose a repository that has, or give one of its files "
            "as https://...#sha256=..."
        ) from error
    except errors.HfHubHTTPError as error:
        if error.response.status_code == 401:
            raise UserError(
                f"{reference} does not exist, or is private, or your token is not valid (401); log "
                "in with: hf auth login"
            ) from error
        raise DownloadFailed(f"{reference}: {cause(error)}") from error
    except transport_errors() as error:
        raise DownloadFailed(f"{reference} could not be downloaded: {cause(error)}") from error


def transport_errors() -> tuple[type[Exception], ...]:
    """The errors of an exchange with the hub, including those of its library's HTTP client."""
    errors = optional_module("huggingface_hub.errors", "hub")
    return (OSError, ValueError, *errors.HfHubHTTPError.__bases__)


def cause(error: BaseException) -> str:
    """The first line of the root cause of an error."""
    inner = error.__cause__ or error
    code = getattr(getattr(inner, "response", None), "status_code", None)
    if code == 429:
        return "too many requests (429); wait a little, or log in"
    return str(inner).strip().partition("\n")[0] or type(inner).__name__


def _described(reference: str) -> Fetched:
    """Weights of a repository, as its config files (timm's or transformers') describe them."""
    path = _from_hub(reference)
    config = _json(reference, "config.json")
    try:
        return _as_described(reference, path, config)
    except UserError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"{reference}: its config.json is damaged ({error!r})") from error


def _as_described(reference: str, path: Path, config: Mapping[str, Any]) -> Fetched:
    if "pretrained_cfg" not in config and {"architecture", "input_size"} <= set(config):
        # timm before 0.9: all in one, the names of classes as "labels".
        own = {"architecture": config["architecture"], "label_names": config.get("labels")}
        config = {**own, "pretrained_cfg": config}
    if "pretrained_cfg" in config:
        arguments = config.get("model_args") or {}
        published.refuse_lookalike(str(config.get("architecture", "")), reference, arguments)
        return Fetched(path, _of_timm(reference, config), spec=_own_spec(config))
    if config.get("model_type") in transformers_names.MODEL_TYPES:
        transformers_names.check(config, reference)
        options = {"stride_in_1x1": True} if config.get("downsample_in_bottleneck") else {}
        preprocessor = _json(reference, "preprocessor_config.json")
        described = transformers_names.describe(reference, config, preprocessor)
        return Fetched(path, described, options)
    return Fetched(path)


def _json(reference: str, file: str) -> dict[str, Any]:
    """A small file of the repository; empty where it has none, which the cache knows, too."""
    hub = optional_module("huggingface_hub", "hub")
    repo, revision = parse(reference)
    known = hub.try_to_load_from_cache(repo, file, revision=revision)
    is_known_absent = known is not None and not isinstance(known, str)
    if hub.constants.HF_HUB_OFFLINE and is_known_absent:
        return {}
    try:
        content = json.loads(_from_hub(reference, file).read_text(encoding="utf-8"))
    except _NoSuchFile:
        return {}
    except ValueError as error:
        raise UserError(f"{reference}: its {file} is damaged ({error})") from error
    return content if isinstance(content, dict) else {}


def _own_spec(config: Mapping[str, Any]) -> ModelSpec | None:
    """The network of a repository that was pushed from here and that timm does not have."""
    return ModelSpec.from_dict(config["cone_jax"]) if "cone_jax" in config else None


def _of_timm(reference: str, config: Mapping[str, Any]) -> ExportMetadata:
    found = config["pretrained_cfg"]
    size = (found.get("test_input_size") or found["input_size"])[-1]
    crop = found.get("test_crop_pct") or found.get("crop_pct") or 0.875
    mode = found.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        raise UserError(
            f"{reference} prepares pictures by crop_mode {mode!r}, which is not known here; choose "
            "weights without that"
        )
    side = math.floor(size / crop)
    names = config.get("label_names") or found.get("label_names") or ()
    count = config.get("num_classes") or found.get("num_classes")
    unnamed = not names and count == len(published.class_names())
    if unnamed or published.is_imagenet(names):
        names = published.class_names()
    return ExportMetadata(
        class_names=tuple(names),
        image_size=size,
        mean=tuple(found["mean"]),
        std=tuple(found["std"]),
        transforms=published.evaluation_transforms(
            side if mode == "center" else (side, side), size, found.get("interpolation", "bicubic")
        ),
        origin={"weights": reference, "licence": found.get("license") or ""},
    )


def _digest(url: str) -> tuple[str, str]:
    """The address, and the digits of the SHA-256 that it contains, as in PyTorch's file names."""
    address, _, given = url.partition("#")
    if given:
        match = re.fullmatch(r"sha256=([0-9a-fA-F]{8,64})", given)
        if match is None:
            raise UserError(f"{url}: what follows # must be sha256= and 8 to 64 digits")
        return address, match[1].lower()
    match = re.search(r"-([0-9a-f]{8,64})\.\w+$", address.partition("?")[0])
    if match is None:
        page = _HUB_PAGE.fullmatch(address)
        cure = f"write hf://{page['repo']}, or " if page else ""
        raise UserError(f"{url} has no hash; {cure}add #sha256=DIGITS, as its publisher names them")
    return address, match[1]


def _place(url: str) -> Path:
    """Where a file from the web is kept."""
    address, digits = _digest(url)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    # What follows a question mark is for the server; the file is known by the end of its name.
    name = address.partition("?")[0].rpartition("/")[2]
    return Path(base) / "cone_jax" / "weights" / digits / name


def _from_web(url: str) -> Path:
    """A file by its address, checked against its hash."""
    address, digits = _digest(url)
    place = _place(url)
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            found = _download(address, file)
        if not found.startswith(digits):
            with open(name, "rb") as kept:
                kind = files.pretender(kept.read(512))
            what = f"{kind}, not weights" if kind else "not what its name says"
            raise DownloadFailed(
                f"{address} is {what}: its SHA-256 begins with {found[: len(digits)]}, not "
                f"{digits}; nothing of it was kept"
            )
        os.replace(name, place)
    finally:
        Path(name).unlink(missing_ok=True)
    return place


def _download(address: str, file: Any) -> str:
    """Writes what is at `address`; its SHA-256."""
    digest = hashlib.sha256()
    try:
        with (
            urllib.request.urlopen(address, timeout=_TIMEOUT) as answer,
            progress.wrap_file(
                answer,
                int(answer.headers.get("Content-Length") or 0),
                description=address.rpartition("/")[2],
            ) as content,
        ):
            expected = int(answer.headers.get("Content-Length") or 0)
            size = 0
            while block := content.read(2**20):
                digest.update(block)
                file.write(block)
                size += len(block)
    except urllib.error.HTTPError as error:
        raise DownloadFailed(f"{address}: the server says {error.code} {error.reason}") from error
    except (http.client.InvalidURL, ValueError) as error:
        raise UserError(f"{address} is not an address: {error}") from error
    except (http.client.HTTPException, OSError) as error:
        raise DownloadFailed(f"{address} cannot be downloaded: {error}") from error
    if size < expected:
        raise DownloadFailed(f"{address} broke off after {size} of {expected} bytes; try again")
    return digest.hexdigest()
