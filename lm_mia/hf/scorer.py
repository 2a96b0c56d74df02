"""Log-probabilities of tokens under a causal language model of Hugging Face, with few logits in memory at once.

B: texts, L: tokens per text with padding, W: predicted tokens, D: width of the model, V: vocabulary.
"""

# pyright: reportMissingImports=false
# These packages are an extra, which an environment may lack.

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lm_mia.errors import UserError
from lm_mia.hf.models import Dtype, Model

MAX_LOGITS = 2**26
"""Number of logits in memory at once: 256 MB in float32."""
_CHECKED_TOKENS = 8


class Scorer:
    """Computes log-probabilities of tokens, with few logits in memory at once.

    The hidden states of a batch are computed first. Logits are then computed for a few positions at a time, by the
    model's own forward function, in which these hidden states take the place of those of the layers: so everything that
    a model does to logits, such as a soft cap, is kept. Models for which this gives other logits compute all at once.
    """

    def __init__(self, network: Any, model: Model, dtype: Dtype):
        """Prepares a model.

        Args:
          network: as `lm_mia.hf.models.load_weights` returns it.
          model: the model.
          dtype: of the network.
        """
        self._network = network
        self._body = network.base_model
        self._model = model
        self._dtype = dtype
        self._in_chunks: bool | None = None  # unknown before the first batch

    def log_probs(self, ids_B: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the log-probability of each token but the first of each text, in nats, float32.

        Raises:
          UserError: if the logits of a token depend on later tokens, which is checked in the first batch.
        """
        import torch

        # Without TensorFloat-32, which rounds the convolutions of Mamba to 10 bits.
        with torch.inference_mode(), torch.backends.cudnn.flags(allow_tf32=False):
            return self._log_probs(ids_B)

    def _log_probs(self, ids_B: Sequence[np.ndarray]) -> list[np.ndarray]:
        import torch

        lengths = [len(ids) for ids in ids_B]
        # Padding is on the right, where later tokens have no effect.
        ids_BxL = torch.zeros((len(ids_B), max(lengths)), dtype=torch.long)
        mask_BxL = torch.zeros_like(ids_BxL)
        for row, ids in enumerate(ids_B):
            ids_BxL[row, : len(ids)] = torch.from_numpy(ids)
            mask_BxL[row, : len(ids)] = 1
        device = self._network.device
        inputs = {"input_ids": ids_BxL.to(device), "attention_mask": mask_BxL.to(device)}
        if self._in_chunks is None:
            self._in_chunks = self._check(inputs)
        is_predicted_BxL = mask_BxL[:, 1:].bool()
        target_W = ids_BxL[:, 1:][is_predicted_BxL]
        if self._in_chunks:
            output = self._body(**inputs, use_cache=False)
            values_BxLxD = output.last_hidden_state
        else:
            output, values_BxLxD = None, self._network(**inputs, use_cache=False).logits
        values_WxD = values_BxLxD[:, :-1][is_predicted_BxL.to(values_BxLxD.device)]
        chunk = max(MAX_LOGITS // self._model.vocab_size, 1)
        parts = []
        for low in range(0, len(values_WxD), chunk):
            part = values_WxD[low : low + chunk]
            logits = self._logits(output, part) if self._in_chunks else part
            loss = torch.nn.functional.cross_entropy(
                logits.float(), target_W[low : low + chunk].to(logits.device), reduction="none"
            )
            parts.append(-loss.cpu())
        values = torch.cat(parts).numpy()
        return np.split(values, np.cumsum([length - 1 for length in lengths])[:-1])

    def _logits(self, output: Any, hidden_WxD: Any) -> Any:
        """Returns the logits of hidden states; `output` is of the layers, and gives the class of their output."""
        import torch

        replaced = type(output)(last_hidden_state=hidden_WxD[None])
        with _forward(self._body, lambda *_, **__: replaced):
            ids = torch.zeros((1, len(hidden_WxD)), dtype=torch.long, device=self._network.device)
            return self._network(input_ids=ids, use_cache=False).logits[0]

    def _check(self, inputs: dict[str, Any]) -> bool:
        """Returns whether logits may be computed for a few positions at a time.

        Raises:
          UserError: if the logits of a token depend on later tokens.
        """
        few = {name: value[:1, :_CHECKED_TOKENS] for name, value in inputs.items()}
        whole = self._network(**few, use_cache=False).logits[0].float()
        tolerance = 1e-3 if self._dtype == "float32" else 0.1

        def is_equal(logits: Any, expected: Any) -> bool:
            difference = (logits.float().to(expected.device) - expected).abs().max()
            # Logits that are not finite are found later.
            return not difference > tolerance * expected.std()

        half = math.ceil(whole.shape[0] / 2)
        start = {name: value[:, :half] for name, value in few.items()}
        if not is_equal(self._network(**start, use_cache=False).logits[0], whole[:half]):
            raise UserError(
                f"MODEL={self._model.given}: its prediction of a token depends on later tokens, so that it is not a "
                "causal language model; choose another model"
            )
        if self._body is self._network:
            return False
        with contextlib.suppress(TypeError, AttributeError, ValueError, RuntimeError, IndexError):
            output = self._body(**few, use_cache=False)
            return is_equal(self._logits(output, output.last_hidden_state[0]), whole)
        return False


@contextlib.contextmanager
def _forward(module: Any, function: Any) -> Iterator[None]:
    """Replaces the forward function of a module, which accelerate may have replaced before."""
    before = module.__dict__.get("forward")
    module.forward = function
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
