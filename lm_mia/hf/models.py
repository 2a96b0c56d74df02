"""Opens causal language models of Hugging Face: folders of weights, and of LoRA adapters of peft.

What can be checked without loading weights is checked by `open_model`; `load_weights` then loads them. Weights are read
from safetensors files only, code of a folder is never run, and nothing is downloaded.
"""

# pyright: reportMissingImports=false
# These packages are an extra, which an environment may lack.

import argparse
import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import logging
import math
import shutil
import warnings
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from lm_mia.config import hf_checkpoint
from lm_mia.errors import UserError

Dtype = Literal["float32", "bfloat16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
_PACKAGES = ("torch", "transformers")
_LENGTH_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "context_length",
)
_UNKNOWN_LENGTH = 10**9  # transformers writes 1e30 where it knows no limit
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "tekken.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
)


class Encoded(NamedTuple):
    """A text as tokens."""

    ids: list[int]
    ends: list[int]
    """For each token, the position in the text, in characters, where it ends."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A causal language model on disk, whose weights are not loaded."""

    given: str
    """As the user names it."""
    folder: Path
    """The folder of the weights, or of the adapter."""
    base: Path | None
    """The folder of the weights to which an adapter is added; None if there is no adapter."""
    config: Any
    """The configuration of transformers: that of the language model, if the model also reads images."""
    length_limit: int | None
    """The largest number of tokens of a text, by the configuration and the tokenizer; None: no limit is known."""
    parameters: int
    """Number of parameters in the files, without those of an adapter."""
    tokenizer: Any
    """A Tokenizer of the tokenizers package, which pads and cuts nothing."""

    @property
    def weights(self) -> Path:
        """The folder of the weights, which is that of the base if the model is an adapter."""
        return self.base or self.folder

    @property
    def vocab_size(self) -> int:
        """Number of rows of the token embedding, which may exceed the vocabulary of the tokenizer."""
        return int(self.config.vocab_size)

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Returns the tokens of texts: those of the tokenizer, with the special tokens that it adds and no others."""
        encodings = self.tokenizer.encode_batch([*texts], add_special_tokens=True)
        return [Encoded(e.ids, [end for _, end in e.offsets]) for e in encodings]


def open_model(given: str) -> Model:
    """Opens a model, and checks everything except the values of its weights.

    Args:
      given: a folder of weights or of a LoRA adapter, or the name of a model in the local cache of Hugging Face.

    Raises:
      UserError: if a package is missing, or the folder is not that of a causal language model in safetensors files.
    """
    require()
    import transformers

    folder = _find_folder(given, f"MODEL={given}")
    base = None
    if (folder / "adapter_config.json").is_file():
        require("peft")
        base = _base_of_adapter(folder, given)
        _weight_files(folder, "adapter_model", given)
    weights = base or folder
    if not (weights / "config.json").is_file():
        raise UserError(
            f"MODEL={given}: {weights} has no config.json and no adapter_config.json; give a folder that "
            "save_pretrained has written"
        )
    with _as_user_error(given, "its configuration"):
        config = transformers.AutoConfig.from_pretrained(
            weights, trust_remote_code=False, local_files_only=True
        )
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UserError(
            f"MODEL={given}: {config.model_type} is not a causal language model of transformers "
            f"{transformers.__version__}; choose another model"
        )
    parameters = _count_parameters(weights, given, hasattr(config, "quantization_config"))
    tokenizer_folder = folder if _has_tokenizer(folder) else weights
    text_config = config.get_text_config()
    return Model(
        given,
        folder,
        base,
        text_config,
        _length_limit(text_config, tokenizer_folder),
        parameters,
        _load_tokenizer(tokenizer_folder, given),
    )


def model_names(models: Sequence[Model]) -> list[str]:
    """Returns a different name for each model: that of its folder, after those of folders above it if these differ.

    Raises:
      UserError: if two models are the same folder.
    """
    paths = [Path(model.given).absolute() for model in models]
    if repeated := sorted({str(path) for path in paths if paths.count(path) > 1}):
        raise UserError(f"MODEL={repeated[0]}: given more than once; give it once")
    for depth in range(1, max((len(path.parts) for path in paths), default=1) + 1):
        names = ["-".join(path.parts[-depth:]) for path in paths]
        if len({*names}) == len(names):
            return names
    raise AssertionError(paths)


def fingerprint(model: Model) -> str:
    """Returns a digest of everything on which the losses of given tokens depend: the weights and their configuration.

    All files of weights are read, at about 1 GB/s.
    """
    files = [*_weight_files(model.weights, "model", model.given), model.weights / "config.json"]
    if model.base:
        files += _weight_files(model.folder, "adapter_model", model.given)
        files.append(model.folder / "adapter_config.json")

    with futures.ThreadPoolExecutor() as pool:
        digests = [*pool.map(hf_checkpoint.file_digest, files)]
    names = [path.name for path in files]
    return hashlib.sha256(json.dumps([*zip(names, digests, strict=True)]).encode()).hexdigest()


def load_weights(model: Model, dtype: Dtype, device: str, device_map: str | None = None) -> Any:
    """Loads a model for evaluation.

    An adapter is not merged into its base, since the sum would be rounded to the dtype of the base.

    Args:
      model: the model.
      dtype: type of the weights and of the computation, whatever the type of the files is.
      device: such as cpu or cuda:0.
      device_map: as in transformers, such as auto, which distributes layers over all devices; `device` is then ignored.

    Returns:
      A model of transformers, also if it has an adapter.

    Raises:
      UserError: if tensors are missing or have wrong shapes, instead of which transformers would draw random numbers;
        if the architecture has no place for some, which transformers would leave out; or if the memory does not
        suffice.
    """
    import torch
    import transformers

    placement = {} if device_map is None else {"device_map": device_map}
    with _as_user_error(model.given, "its weights"), without_reports():
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model.weights,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below
            **placement,
        )
        network, info = loaded
        missing = [*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])]
        if missing:
            raise UserError(
                f"MODEL={model.given}: {len(missing):,} tensors are missing or have another shape than config.json "
                f"says, such as {min(missing)}; save the model again with save_pretrained"
            )
        if unused := sorted(info["unexpected_keys"]):
            raise UserError(
                f"MODEL={model.given}: {len(unused):,} tensors, such as {unused[0]}, are not part of a model with this "
                "config.json; correct it or, if they are not needed, load the model and save it again with "
                "save_pretrained"
            )
        if model.base:
            network = _add_adapter(network, model)
        if device_map is None:
            network = network.to(device)
    return network.eval()


def copy_tokenizer(model: Model, folder: Path) -> None:
    """Copies the files of the tokenizer of a model to another folder."""
    source = model.folder if _has_tokenizer(model.folder) else model.weights
    for pattern in _TOKENIZER_FILES:
        for path in source.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)


def other_tokens(model: Model, texts: Sequence[str]) -> int:
    """Returns for how many texts AutoTokenizer of transformers gives other tokens than tokenizer.json.

    For some types of models, such as qwen2, AutoTokenizer builds a tokenizer of its own from the vocabulary.
    """
    import transformers

    source = model.folder if (model.folder / "tokenizer.json").is_file() else model.weights
    if not (source / "tokenizer.json").is_file():
        return 0
    try:
        other = transformers.AutoTokenizer.from_pretrained(
            source, trust_remote_code=False, local_files_only=True
        )
        found = other([*texts])["input_ids"]
    except (OSError, ValueError, ImportError, KeyError):  # it plays no part in the losses
        return 0
    return sum(a.ids != [*b] for a, b in zip(model.encode(texts), found, strict=True))


def add_device_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag whose value `find_device` reads."""
    parser.add_argument(
        "--device",
        default="",
        metavar="NAME",
        help="cpu, cuda, cuda:1, ... (default: a GPU, if there is one)",
    )


def find_device(given: str) -> str:
    """Returns the given device or, if it is "", a GPU if there is one, else the CPU.

    Raises:
      UserError: if torch cannot use the device.
    """
    import torch

    if not given:
        has_mps = torch.backends.mps.is_available()
        return "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    try:
        torch.zeros(1, device=torch.device(given))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        line = (str(error).splitlines() or [""])[0]
        raise UserError(
            f"--device={given}: torch {torch.__version__} cannot use it ({line}); use --device=cpu, or leave it out"
        ) from error
    return given


def require(*more: str) -> None:
    """Raises UserError unless the packages that all models need, and more of the extra "hf", are installed."""
    missing = [name for name in (*_PACKAGES, *more) if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        raise UserError(
            f"{names}: not installed, but needed for models of Hugging Face; run `python3 -m uv sync --extra hf` in a "
            'checkout, or install the wheel as "lm_mia-VERSION.whl[hf]"'
        )


@contextlib.contextmanager
def _as_user_error(given: str, what: str) -> Iterator[None]:
    """Turns errors of transformers and peft about the files of a model into a UserError."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"MODEL={given}: {what} do not fit into the memory of the device; use --dtype=bfloat16, "
            "--device-map=auto or --device=cpu"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError) as error:
        line = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"MODEL={given}: transformers cannot read {what} ({type(error).__name__}: {line}); check the files of the "
            "folder"
        ) from error


@contextlib.contextmanager
def without_reports() -> Iterator[None]:
    """Keeps transformers from printing bars and tables while it loads a model."""
    from transformers.utils import logging as reports

    verbosity, has_bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity(logging.CRITICAL)
    reports.disable_progress_bar()
    try:
        yield
    finally:
        reports.set_verbosity(verbosity)
        if has_bars:
            reports.enable_progress_bar()


def _find_folder(given: str, where: str) -> Path:
    """Returns a folder, or that of a model in the local cache of Hugging Face, without a download."""
    if Path(given).is_dir():
        return Path(given)
    import huggingface_hub
    from huggingface_hub import errors

    try:
        return Path(huggingface_hub.snapshot_download(given, local_files_only=True))
    except (errors.HFValidationError, errors.LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"{where}: no such folder; check the path, or download a public model first, for example by "
            f"`hf download openai-community/gpt2`"
        ) from error


def _base_of_adapter(folder: Path, given: str) -> Path:
    """Returns the folder of the weights to which an adapter is added."""
    try:
        settings = json.loads((folder / "adapter_config.json").read_bytes())
        kind, base = settings["peft_type"], settings["base_model_name_or_path"]
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"MODEL={given}: its adapter_config.json is damaged; save the adapter again"
        ) from error
    if kind != "LORA":
        raise UserError(
            f"MODEL={given}: is an adapter of type {kind}, not LORA; merge it into its base with merge_and_unload, and "
            "save the result"
        )
    where = f"MODEL={given}: base_model_name_or_path={base} in its adapter_config.json"
    if not isinstance(base, str) or not base:
        raise UserError(f"{where}: the base is missing; write its folder there")
    if not Path(base).is_absolute() and (folder / base).is_dir() and not Path(base).is_dir():
        return folder / base
    found = _find_folder(base, where)
    if (found / "adapter_config.json").is_file():
        raise UserError(f"{where}: is an adapter, too; merge it into its base first")
    return found


def _weight_files(folder: Path, stem: str, given: str) -> list[Path]:
    """Returns the safetensors files of weights ("model") or of an adapter ("adapter_model")."""
    try:
        return hf_checkpoint.weight_files(folder, stem)
    except hf_checkpoint.CheckpointError as error:
        raise UserError(f"MODEL={given}: {error}") from error


def _tensors(folder: Path, given: str) -> dict[str, tuple[str, list[int]]]:
    """Returns the type and the shape of each tensor in the files of weights."""
    import safetensors

    found: dict[str, tuple[str, list[int]]] = {}
    for path in _weight_files(folder, "model", given):
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118 (the file is no mapping)
                    tensor = file.get_slice(name)
                    found[name] = (tensor.get_dtype(), tensor.get_shape())
        except (safetensors.SafetensorError, OSError) as error:
            raise UserError(
                f"MODEL={given}: {path.name} is damaged ({error}); copy or save the model again"
            ) from error
    return found


def _count_parameters(folder: Path, given: str, is_quantized: bool) -> int:
    tensors = _tensors(folder, given)
    wrong = [n for n, (kind, _) in tensors.items() if n.endswith(".weight") and kind not in _FLOATS]
    if wrong and not is_quantized:
        raise UserError(
            f"MODEL={given}: {wrong[0]} holds {tensors[wrong[0]][0]}, and config.json has no quantization_config that "
            "says how to read it; save the model in float32 or bfloat16"
        )
    return sum(math.prod(shape) for kind, shape in tensors.values() if kind in _FLOATS)


def _length_limit(config: Any, tokenizer_folder: Path) -> int | None:
    """Returns the smallest of the limits in the configuration of the language model and of the tokenizer, if any."""
    limits = [getattr(config, name, None) for name in _LENGTH_FIELDS]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        settings = json.loads((tokenizer_folder / "tokenizer_config.json").read_bytes())
        limits.append(settings.get("model_max_length"))
    known = [n for n in limits if isinstance(n, int | float) and 1 < n < _UNKNOWN_LENGTH]
    return int(min(known)) if known else None


def _has_tokenizer(folder: Path) -> bool:
    """Returns whether a folder has a vocabulary, without which AutoTokenizer makes a tokenizer that has no tokens."""
    return any(
        path.is_file()
        for pattern in ("tokenizer.json", "tekken.json", "vocab.*", "*.model")
        for path in folder.glob(pattern)
    )


def _load_tokenizer(folder: Path, given: str) -> Any:
    """Returns the tokenizer of tokenizer.json or, if a folder has none, of AutoTokenizer."""
    import tokenizers
    import transformers

    if not _has_tokenizer(folder):
        raise UserError(
            f"MODEL={given}: {folder} has no tokenizer.json; copy the files of the tokenizer there"
        )
    found: Any = None
    with _as_user_error(given, "its tokenizer"):
        path = folder / "tokenizer.json"
        if path.is_file():
            try:
                found = tokenizers.Tokenizer.from_file(str(path))
            except Exception as error:  # the tokenizers package raises no other class
                raise ValueError(str(error)) from error
        else:
            automatic = transformers.AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
            found = getattr(automatic, "backend_tokenizer", None)
    if not isinstance(found, tokenizers.Tokenizer):
        raise UserError(
            f"MODEL={given}: its tokenizer cannot be saved as tokenizer.json; choose another model"
        )
    found.no_truncation()  # files may hold the settings of a training run
    found.no_padding()
    return found


def _add_adapter(network: Any, model: Model) -> Any:
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # peft calls names that transformers deprecates
        warnings.filterwarnings("error", "Found missing adapter keys", UserWarning)
        try:
            adapted = peft.PeftModel.from_pretrained(network, str(model.folder))
        except UserWarning as warning:
            raise UserError(
                f"MODEL={model.given}: tensors of the adapter are missing ({str(warning)[:200]}); save the adapter "
                "again"
            ) from warning
    return adapted.get_base_model()
