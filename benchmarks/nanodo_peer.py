"""NanoDO (github.com/google-deepmind/nanodo): its own train step, train loop and loss, from a checkout.

Nothing of it is copied or changed on disk. It needs clu, flax, grain, ml-collections, tensorboard,
tensorflow and tensorflow-datasets beside what lm-mia needs. Its train step is used as it is, with its
metrics (means and mean squares of all weights, gradients and updates), but for those of every weight
matrix, which a setting of its own turns off. Its train loop cannot train references as it is:
`train_reference` and `_stand_ins` say what is used otherwise, always in its favour.

B: samples of a batch, L: tokens of a row, T: steps, N2: samples of the population.
"""

import argparse
import importlib
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from lm_mia import config
    from lm_mia.model import transformer

Settings = dict[str, Any]

SCORED = 128  # samples a call


def check(path: Path) -> None:
    """SystemExit where the path is no checkout of it."""
    if not (path / "nanodo" / "train.py").is_file():
        sys.exit(f"--nanodo={path}: no nanodo/train.py there; give a checkout of NanoDO")


def load(path: Path) -> SimpleNamespace:
    """Its modules by name (train, data, ...)."""
    check(path)
    # it donates its int32 input, which no output can take the place of
    warnings.filterwarnings("ignore", "Some donated buffers were not usable")
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))
    names = ("data", "evaluate", "model_factory", "train", "configs.default")
    found = {name.split(".")[0]: importlib.import_module(f"nanodo.{name}") for name in names}
    if Path(found["train"].__file__ or "").resolve().parent.parent != path.resolve():
        sys.exit(f"--nanodo={path}: another nanodo is installed and loaded first; uninstall it")
    return SimpleNamespace(**found)


def settings(
    shape: "transformer.ModelConfig", recipe: "config.Optimizer", batch_size: int, steps: int
) -> Settings:
    """What NanoDO is told, to train our model by our recipe; plain values, ready for JSON."""
    return {
        "vocab_size": shape.vocab_size,
        "batch_size": batch_size,
        "model": {
            "D": shape.width,
            "H": shape.heads,
            "L": shape.length_tokens,
            "N": shape.layers,
            "F": 4 * shape.width,
            "dtype": shape.dtype,
        },
        "opt": {
            "num_train_steps": steps,
            "peak_learning_rate": recipe.peak_learning_rate,
            "init_learning_rate": recipe.init_learning_rate,
            "final_learning_rate": recipe.final_learning_rate,
            "warmup_steps": recipe.warmup_steps,
            "decay_type": recipe.schedule,  # of the same names
            "weight_decay": recipe.weight_decay,
            "clip_by_global_norm": recipe.clip_norm or None,
        },
    }


def config_of(nanodo: SimpleNamespace, given: Settings) -> Any:
    """Its default config with our settings."""
    c = nanodo.configs.get_config()
    c.batch_size, c.log_internal_metrics = given["batch_size"], False
    c.model.update(given["model"])
    c.opt.update(given["opt"])
    c.eval_max_target_length = given["model"]["L"]
    return c


def trainer(nanodo: SimpleNamespace, given: Settings) -> Any:
    """Its Trainer with fresh parameters, on the first device, made as its loop makes it."""
    import jax

    c, mesh = config_of(nanodo, given), jax.sharding.Mesh(jax.local_devices()[:1], ("data",))
    module, get_loss_fn = nanodo.model_factory.get_model_and_loss(c, given["vocab_size"])
    rng = jax.random.PRNGKey(c.seed)
    shardings, state = nanodo.train._init_train_state(c, module, rng=rng, mesh=mesh)
    return nanodo.train.Trainer(c, state, mesh, shardings, get_loss_fn)


def lowered(nanodo: SimpleNamespace, given: Settings) -> Any:
    """Its step as XLA gets it, made without any array."""
    import jax

    made: list[Any] = []

    def state() -> Any:
        made.append(trainer(nanodo, given))
        return made[0].state

    abstract = jax.eval_shape(state)
    shape = given["batch_size"], given["model"]["L"]
    return made[0].step_fn.lower(abstract, jax.ShapeDtypeStruct(shape, np.int32))


def theirs(params: "transformer.Params") -> Settings:
    """Our parameters as NanoDO names and lays them out."""
    import jax

    found: Settings = {
        "embed": params["token_embed"],
        "pos_embed": params["pos_embed"],
        "out_ln": params["ln_out"],
    }
    for i in range(len(params["blocks"]["ln_attn"]["scale"])):
        block = jax.tree.map(lambda leaf: leaf[i], params["blocks"])  # noqa: B023
        attn, mlp = block["attn"], block["mlp"]
        found[f"blocks_{i}"] = {
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
    return found


def use(trainer: Any, params: "transformer.Params") -> None:
    """Gives its Trainer our parameters."""
    meta = importlib.import_module("flax.core.meta")
    boxed = meta.replace_boxed(trainer.state.params, theirs(params))
    trainer.state = trainer.state.replace(params=boxed)


def sample_losses(nanodo: SimpleNamespace, given: Settings) -> Any:
    """Compiled: (params, x_BxL) -> loss_B, nats a token, by its model and by its evaluator's inputs and loss.

    Not by its Evaluator, for what `_stand_ins` says of it. Parameters are of `theirs`, and are not donated, as there,
    so that they can score the next batch. B is free; padding is 0.
    """
    c = config_of(nanodo, given)
    return _sample_losses(
        nanodo, nanodo.model_factory.get_model_and_loss(c, given["vocab_size"])[0]
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
    """Rows of its own packing (NOAM): samples one after another, cut wherever a row is full; int32, R x L."""
    grain = importlib.import_module("grain.python")
    records = (
        grain.Record(grain.RecordMetadata(index=i, record_key=i), ids.tolist())
        for i, ids in enumerate(samples)
    )
    pack = nanodo.data._NoamPack(context_size=length_tokens)
    return np.stack([record.data for record in pack(records)])


def train_reference(
    nanodo: SimpleNamespace, given: Settings, folder: Path, out: Path, as_it_comes: bool
) -> None:
    """Trains by its real loop on given batches, scores the population; the losses go to a file.

    The folder has batches.npy (T x B x L), population.npy (N2 x L) and tokenizer.model. In NanoDO's favour: batches
    come from memory, where it would tokenise on the fly; nothing is saved or evaluated on the way. It makes one step
    more than it is told, which ends here as the batches have run out.

    As it comes, it writes metrics after every step (the default of its configs), and traces steps 10 to 15 (which no
    setting turns off); else it writes them every T / 20 steps, and traces nothing.
    """
    c = config_of(nanodo, given)
    c.vocab_path, c.workdir = str(folder / "tokenizer.model"), str(out.with_suffix(""))
    c.train_epochs, c.checkpoint = 1, False
    steps = given["opt"]["num_train_steps"]
    c.eval_every_steps = c.checkpoint_every_steps = c.write_perf_metrics_every_steps = steps + 1
    if not as_it_comes:
        c.write_train_metrics_every_steps = max(steps // 20, 1)
        nanodo.train.periodic_actions.Profile = lambda **_: lambda step: None
    _stand_ins(nanodo, folder, out)
    nanodo.train.train_and_evaluate(c)


def _stand_ins(nanodo: SimpleNamespace, folder: Path, out: Path) -> None:
    """Replaces, in this process, what its loop calls and cannot be told otherwise.

    - Input: the loop always concatenates samples; a trainer of references needs one sample a row.
    - Evaluator: it fails (a float mask where clu wants booleans), keeps no loss of single samples and is also run at
      step 0; here the same forward pass and loss score the whole population once, at the end.
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
    """One reference from start to end, in a process of its own; prints the seconds of its imports."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    for name in ("nanodo", "folder", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--as-it-comes", action="store_true")
    c = parser.parse_args()
    began = time.perf_counter()
    nanodo = load(c.nanodo)
    print(time.perf_counter() - began)
    given = json.loads((c.folder / "settings.json").read_text())
    train_reference(nanodo, given, c.folder, c.out, c.as_it_comes)


if __name__ == "__main__":
    main()
