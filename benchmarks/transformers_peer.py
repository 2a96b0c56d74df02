"""Scores samples with GPT-2 of Hugging Face transformers on PyTorch, one by one and in padded batches.

Neither package is a dependency: `pip install torch transformers`. They run in a separate process, since triton,
which torch loads, and TensorFlow, which NanoDO loads, crash in the same process. The model is GPT2LMHeadModel with our
parameters, zero biases and the epsilon of our layer norms, so that losses agree up to float rounding.

"As it comes" uses the defaults of `GPT2Config()` and torch, and scores single samples. The other loops are tuned in
its favor: gelu in one kernel (the same function, which GPT-2's own setting computes in eight), no cache of keys and
values, and one thread or one per core, whichever is faster for a loop and batch size. It uses a GPU if torch finds one.
Weights and activations have the model's dtype.

B: samples of a batch, L: tokens of the longest of them, D: width, V: vocabulary.
"""

import importlib
import importlib.util
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from lm_mia.machine import available_cores

if TYPE_CHECKING:
    from lm_mia.model import transformer

IGNORED = -100  # label of a token that is not predicted
_TRIED = 32  # samples on which numbers of threads are compared


def check() -> None:
    """Raises SystemExit if torch or transformers is not installed."""
    names = ("torch", "transformers")
    if missing := [name for name in names if not importlib.util.find_spec(name)]:
        sys.exit(
            f"--transformers: {' and '.join(missing)} not installed; run `pip install torch transformers`"
        )


def scorer(
    model: "transformer.ModelConfig", params: "transformer.Params", samples: Sequence[np.ndarray]
) -> Callable[[str, int, int], np.ndarray]:
    """Starts a process and returns the function (loop, N, batch size) -> loss_N, in nats per token, of the first N
    samples.

    Loops are "as_it_comes", "one_by_one" and "padded". The process ends when the function is garbage-collected.
    """
    spawn = multiprocessing.get_context("spawn")
    connection, worker_connection = spawn.Pipe()
    arguments = worker_connection, model, to_gpt2_params(params), samples
    spawn.Process(target=_serve, args=arguments, daemon=True).start()
    worker_connection.close()

    def losses(loop: str, count: int, batch_size: int) -> np.ndarray:
        connection.send((loop, count, batch_size))
        reply = connection.recv()
        if isinstance(reply, RuntimeError):
            raise reply
        return reply

    return losses


def _serve(
    pipe: Connection,
    shape: "transformer.ModelConfig",
    weights: Mapping[str, np.ndarray],
    samples: Sequence[np.ndarray],
) -> None:
    peer = _load()
    plain, gpt = (gpt2(peer, shape, weights, tuned) for tuned in (False, True))
    default = peer.torch.get_num_threads()
    threads: dict[tuple[str, int], int] = {}
    while True:
        try:
            loop, count, batch_size = pipe.recv()
        except EOFError:
            return
        score = {
            "as_it_comes": lambda N: one_by_one(peer, plain, samples[:N]),
            "one_by_one": lambda N: one_by_one(peer, gpt, samples[:N]),
            "padded": lambda N, B=batch_size: padded(peer, gpt, samples[:N], B),
        }[loop]
        try:
            kind = loop, batch_size
            if loop == "as_it_comes":
                threads[kind] = default
            elif kind not in threads:
                threads[kind] = _threads(peer, score, max(_TRIED, batch_size))
            peer.torch.set_num_threads(threads[kind])
            pipe.send(score(count))
        except RuntimeError as error:
            # Out of memory. Unpickling the original error would import torch.
            pipe.send(RuntimeError(str(error)))


def _threads(peer: SimpleNamespace, score: Callable[[int], Any], samples: int) -> int:
    """Returns the faster of one thread and one per core; torch's threads busily wait for each other after each
    product."""
    seconds = {}
    for threads in (1, available_cores()):
        peer.torch.set_num_threads(threads)
        score(samples)
        began = time.perf_counter()
        score(samples)
        seconds[threads] = time.perf_counter() - began
    return min(seconds, key=lambda threads: seconds[threads])


def _load() -> SimpleNamespace:
    modules: dict[str, Any] = {n: importlib.import_module(n) for n in ("torch", "transformers")}
    modules["transformers"].logging.set_verbosity_error()  # it warns about one of its own defaults
    return SimpleNamespace(**modules)


def gpt2(
    peer: SimpleNamespace,
    model: "transformer.ModelConfig",
    weights: Mapping[str, np.ndarray] | None,
    tuned: bool = True,
) -> Any:
    """Returns GPT-2, ready to score, with weights of `to_gpt2_params`.

    If weights is None, the model is on the meta device, without values.
    """
    torch, transformers = peer.torch, peer.transformers
    config = transformers.GPT2Config(
        vocab_size=model.vocab_size,
        n_positions=model.length_tokens,
        n_embd=model.width,
        n_layer=model.layers,
        n_head=model.heads,
        activation_function="gelu_pytorch_tanh" if tuned else "gelu_new",
        layer_norm_epsilon=1e-6,
        use_cache=not tuned,
        bos_token_id=None,
        eos_token_id=None,
        # The FLOPs counter does not see inside a fused kernel.
        attn_implementation="eager" if weights is None else "sdpa",
    )
    with torch.device("meta" if weights is None else "cpu"):
        gpt = transformers.GPT2LMHeadModel(config).eval()
    if weights is None:
        return gpt
    values = {name: torch.from_numpy(np.array(leaf)) for name, leaf in weights.items()}
    biases = {name: torch.zeros_like(leaf) for name, leaf in gpt.state_dict().items()}
    gpt.load_state_dict(biases | values)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return gpt.to(device, getattr(torch, model.dtype))


def to_gpt2_params(params: "transformer.Params") -> dict[str, np.ndarray]:
    """Converts our parameters to GPT-2's names and shapes, without its biases."""
    width = params["token_embed"]["embedding"].shape[1]
    converted = {
        "transformer.wte.weight": params["token_embed"]["embedding"],
        "lm_head.weight": params["token_embed"]["embedding"],
        "transformer.wpe.weight": params["pos_embed"]["embedding"],
        "transformer.ln_f.weight": params["ln_out"]["scale"],
    }
    blocks = params["blocks"]
    for i in range(len(blocks["ln_attn"]["scale"])):
        attn, mlp = (
            {name: np.asarray(dense["kernel"][i]) for name, dense in blocks[layer].items()}
            for layer in ("attn", "mlp")
        )
        inputs = [attn[name].reshape(width, -1) for name in ("query", "key", "value")]
        converted |= {
            f"transformer.h.{i}.{name}.weight": leaf
            for name, leaf in {
                "ln_1": blocks["ln_attn"]["scale"][i],
                "attn.c_attn": np.concatenate(inputs, axis=1),
                "attn.c_proj": attn["out"].reshape(-1, width),
                "ln_2": blocks["ln_mlp"]["scale"][i],
                "mlp.c_fc": mlp["up"],
                "mlp.c_proj": mlp["down"],
            }.items()
        }
    return {name: np.asarray(leaf) for name, leaf in converted.items()}


def one_by_one(peer: SimpleNamespace, gpt: Any, samples: Sequence[np.ndarray]) -> np.ndarray:
    """Returns loss_N, float32, in nats per token, scoring one sample at a time without padding, by the model's own
    loss."""
    losses = []
    with peer.torch.inference_mode():
        for ids in samples:
            x_1xL = peer.torch.tensor(ids[None].astype(np.int64), device=gpt.device)
            losses.append(gpt(input_ids=x_1xL, labels=x_1xL).loss.item())
    return np.array(losses, np.float32)


def padded(
    peer: SimpleNamespace, gpt: Any, samples: Sequence[np.ndarray], batch_size: int
) -> np.ndarray:
    """Returns loss_N, float32, in nats per token, scoring batches padded to their longest sample."""
    losses = []
    with peer.torch.inference_mode():
        for low in range(0, len(samples), batch_size):
            batch = samples[low : low + batch_size]
            x_BxL, real_BxL = np.zeros((2, len(batch), max(len(ids) for ids in batch)), np.int64)
            for i, ids in enumerate(batch):
                x_BxL[i, : len(ids)], real_BxL[i, : len(ids)] = ids, 1
            x, real = (peer.torch.from_numpy(a).to(gpt.device) for a in (x_BxL, real_BxL))
            losses.append(_losses(peer, gpt, x, real).float().cpu().numpy())
    return np.concatenate(losses)


def _losses(peer: SimpleNamespace, gpt: Any, x_BxL: Any, real_BxL: Any) -> Any:
    labels_BxL = x_BxL.masked_fill(real_BxL == 0, IGNORED)
    logits_BxLxV = gpt(input_ids=x_BxL, attention_mask=real_BxL).logits
    target_BxL1 = labels_BxL[:, 1:]
    losses_BL1 = peer.torch.nn.functional.cross_entropy(
        logits_BxLxV[:, :-1].flatten(0, 1).float(),
        target_BxL1.flatten(),
        ignore_index=IGNORED,
        reduction="none",
    )
    return losses_BL1.view(target_BxL1.shape).sum(1) / (target_BxL1 != IGNORED).sum(1)


def sample_flops(model: "transformer.ModelConfig", length_N: np.ndarray) -> np.ndarray:
    """Returns flops_N, the FLOPs of matrix products in the forward pass over sequences of length_N tokens.

    They are a n + b n^2 for n tokens. torch counts them for two lengths, without allocating arrays, and the others
    follow.
    """
    L = model.length_tokens
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        counted = pool.submit(_counted, model, (L // 2, L)).result()
    a, b = np.linalg.solve([[L // 2, (L // 2) ** 2], [L, L**2]], counted)
    return a * length_N + b * length_N.astype(np.float64) ** 2


def _counted(shape: "transformer.ModelConfig", lengths: Sequence[int]) -> list[int]:
    peer = _load()
    gpt, counts = gpt2(peer, shape, None), []
    for n in lengths:
        x_1xL = peer.torch.zeros((1, n), dtype=peer.torch.int64, device="meta")
        # With four axes, since transformers inspects the values of any other mask, and meta tensors have none.
        mask_1x1xLxL = peer.torch.zeros((1, 1, n, n), device="meta")
        counter = importlib.import_module("torch.utils.flop_counter").FlopCounterMode(display=False)
        with counter, peer.torch.inference_mode():
            gpt(input_ids=x_1xL, attention_mask=mask_1x1xLxL)
        counts.append(counter.get_total_flops())
    return counts
