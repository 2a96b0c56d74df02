"""Runs NanoDO (github.com/google-deepmind/nanodo) from a checkout: its train step, training loop and loss.

Nothing of it is copied, or changed on disk. It needs clu, flax, grain, ml-collections, tensorboard, tensorflow and
tensorflow-datasets besides the dependencies of lm-mia. Its train step is used unchanged, with its metrics (means and
mean squares of all weights, gradients and updates) except those of every single weight matrix, which one of its own
settings turns off. Its training loop cannot train references unchanged: `train_reference` and `_patch` describe what is
replaced, always in NanoDO's favor.

B: samples of a batch, L: tokens per sequence, R: sequences, T: training steps, N2: samples of the population.
"""

import argparse
import importlib
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from lm_mia import config
    from lm_mia.model import transformer

Settings = dict[str, Any]

SCORED = 128  # samples per call


_PACKAGES = {  # modules that NanoDO imports, and the packages that provide them
    "clu": "clu",
    "flax": "flax",
    "grain": "grain",
    "ml_collections": "ml-collections",
    "tensorboard": "tensorboard",
    "tensorflow": "tensorflow",
    "tensorflow_datasets": "tensorflow-datasets",
}


def check(path: Path) -> None:
    """Exits with code 2 if the path is not a checkout of NanoDO, or if packages that it needs are missing."""
    if not (path / "nanodo" / "train.py").is_file():
        _exit(
            f"--nanodo={path}: nanodo/train.py does not exist; give the path of a checkout of NanoDO"
        )
    missing = [name for module, name in _PACKAGES.items() if not importlib.util.find_spec(module)]
    if missing:
        _exit(
            f"--nanodo={path}: NanoDO needs packages that are not installed; run `pip install {' '.join(missing)}`"
        )


def _exit(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


def load(path: Path) -> SimpleNamespace:
    """Imports NanoDO's modules and returns them by name (train, data, ...)."""
    check(path)
    # It donates its int32 input, which no output can reuse.
    warnings.filterwarnings("ignore", "Some donated buffers were not usable")
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))
    names = ("data", "evaluate", "model_factory", "train", "configs.default")
    modules = {name.split(".")[0]: importlib.import_module(f"nanodo.{name}") for name in names}
    if Path(modules["train"].__file__ or "").resolve().parent.parent != path.resolve():
        _exit(
            f"--nanodo={path}: another nanodo package is installed and imported first; uninstall it"
        )
    return SimpleNamespace(**modules)


def settings(
    model: "transformer.ModelConfig",
    optimizer_config: "config.Optimizer",
    batch_size: int,
    steps: int,
    grad_accumulation_steps: int = 1,
) -> Settings:
    """Returns NanoDO's settings for our model and optimizer, as plain values that JSON can hold."""
    return {
        "vocab_size": model.vocab_size,
        "batch_size": batch_size,
        "model": {
            "D": model.width,
            "H": model.heads,
            "L": model.length_tokens,
            "N": model.layers,
            "F": 4 * model.width,
            "dtype": model.dtype,
        },
        "opt": {
            "num_train_steps": steps,
            "peak_learning_rate": optimizer_config.peak_learning_rate,
            "init_learning_rate": optimizer_config.init_learning_rate,
            "final_learning_rate": optimizer_config.final_learning_rate,
            "warmup_steps": optimizer_config.warmup_steps,
            "decay_type": optimizer_config.schedule,  # the names are the same
            "weight_decay": optimizer_config.weight_decay,
            "clip_by_global_norm": None
            if optimizer_config.clip_norm == "none"
            else optimizer_config.clip_norm,
            "grad_accumulation_steps": grad_accumulation_steps,
        },
    }


def nanodo_config(nanodo: SimpleNamespace, nanodo_settings: Settings) -> Any:
    """Returns NanoDO's default config with the given settings."""
    c = nanodo.configs.get_config()
    c.batch_size, c.log_internal_metrics = nanodo_settings["batch_size"], False
    c.model.update(nanodo_settings["model"])
    c.opt.update(nanodo_settings["opt"])
    c.eval_max_target_length = nanodo_settings["model"]["L"]
    return c


def trainer(nanodo: SimpleNamespace, nanodo_settings: Settings) -> Any:
    """Returns NanoDO's Trainer with new parameters, on the first device, created as its training loop does."""
    import jax

    c, mesh = (
        nanodo_config(nanodo, nanodo_settings),
        jax.sharding.Mesh(jax.local_devices()[:1], ("data",)),
    )
    module, get_loss_fn = nanodo.model_factory.get_model_and_loss(c, nanodo_settings["vocab_size"])
    rng = jax.random.PRNGKey(c.seed)
    shardings, state = nanodo.train._init_train_state(c, module, rng=rng, mesh=mesh)
    return nanodo.train.Trainer(c, state, mesh, shardings, get_loss_fn)


def lowered(nanodo: SimpleNamespace, nanodo_settings: Settings) -> Any:
    """Returns NanoDO's lowered train step, created without allocating arrays."""
    import jax

    trainers: list[Any] = []

    def state() -> Any:
        trainers.append(trainer(nanodo, nanodo_settings))
        return trainers[0].state

    abstract = jax.eval_shape(state)
    shape = nanodo_settings["batch_size"], nanodo_settings["model"]["L"]
    return trainers[0].step_fn.lower(abstract, jax.ShapeDtypeStruct(shape, np.int32))


def to_nanodo_params(params: "transformer.Params") -> Settings:
    """Converts our parameters to NanoDO's names and shapes."""
    import jax

    nanodo_params: Settings = {
        "embed": params["token_embed"],
        "pos_embed": params["pos_embed"],
        "out_ln": params["ln_out"],
    }
    for i in range(len(params["blocks"]["ln_attn"]["scale"])):
        block = jax.tree.map(lambda leaf: leaf[i], params["blocks"])  # noqa: B023
        attn, mlp = block["attn"], block["mlp"]
        nanodo_params[f"blocks_{i}"] = {
            "LayerNorm_0": block["ln_attn"],
            "CausalAttn_0": {
                "query": attn["query"],
                "key": attn["key"],
                "value": attn["value"],
                "attn_out_proj": attn["out"],
            },
            "LayerNorm_1": block["ln_mlp"],
            "Mlp_0": {
                "Dense_0": mlp["up"],
                "Dense_1": mlp["down"],
            },
        }
    return nanodo_params


def set_params(trainer: Any, params: "transformer.Params") -> None:
    """Replaces the parameters of NanoDO's Trainer by ours."""
    meta = importlib.import_module("flax.core.meta")
    boxed = meta.replace_boxed(trainer.state.params, to_nanodo_params(params))
    trainer.state = trainer.state.replace(params=boxed)


def sample_losses(nanodo: SimpleNamespace, nanodo_settings: Settings) -> Any:
    """Returns the compiled function (params, x_BxL) -> loss_B, in nats per token.

    It uses NanoDO's model, and the inputs and the loss of its evaluator, but not its Evaluator (`_patch` explains why).
    The parameters come from `to_nanodo_params`. They are not donated, so that they can score the next batch. The
    function accepts any B; padding is 0.
    """
    c = nanodo_config(nanodo, nanodo_settings)
    return _sample_losses(
        nanodo, nanodo.model_factory.get_model_and_loss(c, nanodo_settings["vocab_size"])[0]
    )


def _sample_losses(nanodo: SimpleNamespace, module: Any) -> Any:
    import jax

    cross_entropy = nanodo.evaluate.losses.softmax_cross_entropy_with_integer_labels

    def losses(params: Any, in_BxL: Any) -> Any:
        x_BxL, y_BxL, weights_BxL = nanodo.data.get_in_out(in_BxL)
        losses_BxL = cross_entropy(module.apply({"params": params}, x_BxL), y_BxL)
        return (losses_BxL * weights_BxL).sum(1) / weights_BxL.sum(1)

    return jax.jit(losses)


def concatenated(
    nanodo: SimpleNamespace, samples: Sequence[np.ndarray], length_tokens: int
) -> np.ndarray:
    """Returns x_BxL, int32, packed by NanoDO's own NOAM packing, which concatenates samples and cuts them every L
    tokens."""
    grain = importlib.import_module("grain.python")
    records = (
        grain.Record(grain.RecordMetadata(index=i, record_key=i), ids.tolist())
        for i, ids in enumerate(samples)
    )
    pack = nanodo.data._NoamPack(context_size=length_tokens)
    return np.stack([record.data for record in pack(records)])


def train_reference(
    nanodo: SimpleNamespace, nanodo_settings: Settings, folder: Path, out: Path, as_it_comes: bool
) -> None:
    """Trains with NanoDO's training loop on given batches, scores the population and writes the losses to a file.

    In NanoDO's favor, batches come from memory, where it would tokenize on the fly, and nothing is saved or evaluated
    during training. Its loop makes one step more than configured, which ends here because no batches are left.

    Args:
      nanodo: result of `load`.
      nanodo_settings: result of `settings`.
      folder: holds batches.npy (T x B x L), population.npy (N2 x L) and tokenizer.model.
      out: the .npy file for the losses.
      as_it_comes: whether to write metrics after every step (the default of its configs) and to trace steps 10 to 15
        (which no setting turns off). Otherwise, metrics are written every T / 20 steps and nothing is traced.
    """
    c = nanodo_config(nanodo, nanodo_settings)
    c.vocab_path, c.workdir = str(folder / "tokenizer.model"), str(out.with_suffix(""))
    c.train_epochs, c.checkpoint = 1, False
    steps = nanodo_settings["opt"]["num_train_steps"]
    c.eval_every_steps = c.checkpoint_every_steps = c.write_perf_metrics_every_steps = steps + 1
    if not as_it_comes:
        c.write_train_metrics_every_steps = max(steps // 20, 1)
        nanodo.train.periodic_actions.Profile = lambda **_: lambda step: None
    _patch(nanodo, folder, out)
    nanodo.train.train_and_evaluate(c)


def _patch(nanodo: SimpleNamespace, folder: Path, out: Path) -> None:
    """Replaces functions that NanoDO's training loop calls and that no setting changes, in this process only.

    - Input: the loop always concatenates samples, but training of references needs one sample per sequence.
    - Evaluator: it fails (clu requires a boolean mask and gets floats), does not keep the losses of single samples, and
      also runs at step 0. Here the same forward pass and loss score the whole population once, at the end.
    """

    def batches(*, split: str, **_: object) -> Iterator[np.ndarray]:
        yield from np.load(folder / "batches.npy") if split == "train" else ()

    def evaluator(c: Any, module: Any, *_: object) -> SimpleNamespace:
        compiled, calls = _sample_losses(nanodo, module), iter(range(2))

        def evaluate(params: Any) -> dict[str, float]:
            if next(calls) == 0:
                return {}
            x_N2xL = np.load(folder / "population.npy")
            parts = np.split(x_N2xL, range(SCORED, len(x_N2xL), SCORED))
            loss_N2 = np.concatenate([compiled(params, in_BxL) for in_BxL in parts])
            np.save(out, loss_N2)
            return {"eval_loss": float(loss_N2.mean())}

        return SimpleNamespace(eval=evaluate)

    nanodo.data.py_batched_tfds = batches
    nanodo.evaluate.Evaluator = evaluator


def main() -> None:
    """Trains and scores one reference in this process, and prints the seconds that its imports took."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    for name in ("nanodo", "folder", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--as-it-comes", action="store_true")
    c = parser.parse_args()
    began = time.perf_counter()
    nanodo = load(c.nanodo)
    print(time.perf_counter() - began)
    nanodo_settings = json.loads((c.folder / "settings.json").read_text())
    train_reference(nanodo, nanodo_settings, c.folder, c.out, c.as_it_comes)


if __name__ == "__main__":
    main()
