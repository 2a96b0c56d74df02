"""Arithmetic on paper: what a model costs to train and to score, how many parameters it has, what a device can do.

Numbers in, numbers out. Counted is useful work only: matrix products over the tokens that there are, attention to
earlier tokens alone. Padding and what rematerialisation computes twice are not useful, and so lower the MFU.
"""

import re

# Dense bfloat16 FLOP/s of a chip with float32 sums, in units of 1e12, and JAX devices a chip, by words of JAX's
# device_kind. From the makers' data sheets (half of a rate "with sparsity"); TPUs from cloud.google.com/tpu/docs.
# Volta and Turing have no bfloat16 and are left out: a rate of theirs would be of other arithmetic.
_TERA = {
    **{"a100": (312, 1), "a800": (312, 1), "a30": (165, 1), "a10": (125, 1), "a10g": (70, 1)},
    **{"a40": (149.7, 1), "a6000": (154.8, 1), "l4": (121, 1), "l40": (181, 1), "l40s": (362, 1)},
    **{"6000 ada": (364.2, 1), "rtx 3090": (71, 1), "rtx 4090": (165.2, 1), "rtx 5090": (209.5, 1)},
    **{"h100": (989, 1), "h100 pcie": (756, 1), "h100 nvl": (835, 1), "h800": (989, 1)},
    **{"h200": (989, 1), "h200 nvl": (835, 1), "gh200": (989, 1), "h20": (148, 1)},
    **{"b200": (2250, 1), "gb200": (2500, 1), "b300": (2250, 1), "gb300": (2500, 1)},
    **{"tpu v2": (46, 2), "tpu v3": (123, 2), "tpu v4": (275, 1), "tpu v4 lite": (138, 1)},
    **{"tpu v5 lite": (197, 1), "tpu v5e": (197, 1), "tpu v5": (459, 1), "tpu v5p": (459, 1)},
    **{"tpu v6 lite": (918, 1), "tpu v6e": (918, 1), "tpu7x": (2307, 2), "tpu v7x": (2307, 2)},
}
# Words of a name that make it another, slower or smaller device than the one without them.
_OTHERWISE = {"laptop", "mobile", "max", "mig", "ti", "super", "d", "cpu"}

DEVICES = tuple(_TERA)
"""Names that ``peak`` and ``chip_peak`` know, beside whatever JAX calls these devices."""


def training(
    layers: int, width: int, vocab_size: int, tokens: float, square_tokens: float
) -> float:
    """Useful FLOPs of the forward and backward pass over samples, each seen once.

    Two for every multiplication of a weight and a token (embedding look-ups are none, the tied output head is), twice
    that again backward; attention to earlier tokens is half of all pairs of a sample's tokens.

    Args:
      layers, width, vocab_size: of the model.
      tokens: of all samples, the sum of n.
      square_tokens: the sum of n^2.
    """
    weights = 12 * layers * width**2 + width * vocab_size
    return 6.0 * weights * tokens + 6.0 * layers * width * square_tokens


def scoring(layers: int, width: int, vocab_size: int, tokens: float, square_tokens: float) -> float:
    """Useful FLOPs of the forward pass alone, a third of ``training``; arguments as there."""
    return training(layers, width, vocab_size, tokens, square_tokens) / 3


def parameters(layers: int, width: int, vocab_size: int, length_tokens: int) -> int:
    """Parameters of a model, with the embeddings of pieces and positions: as many as `transformer.init` makes."""
    return without_embeddings(layers, width) + (vocab_size + length_tokens) * width


def without_embeddings(layers: int, width: int) -> int:
    """Parameters in blocks and layernorms: 12 layers width^2 and a few, by which sizes are named."""
    return 12 * layers * width**2 + (2 * layers + 1) * width


def peak(device_kind: str) -> float | None:
    """Dense bfloat16 FLOP/s of one JAX device by its ``device_kind``, or a name of DEVICES.

    None where it is not known: a CPU, a device without bfloat16 (V100, T4), a slice of one, a new name. A device is a
    chip, but half a chip on TPU v2, v3 and v7x.
    """
    found = _find(device_kind)
    return None if found is None else found[0] / found[1]


def chip_peak(device_kind: str) -> float | None:
    """Dense bfloat16 FLOP/s of a whole chip; else as ``peak``."""
    found = _find(device_kind)
    return None if found is None else found[0]


def _find(device_kind: str) -> tuple[float, int] | None:
    """(FLOP/s of the chip, devices a chip) of the entry whose words are all said, and the most of them."""
    words = set(re.findall(r"[a-z0-9]+", device_kind.casefold()))
    said = [name for name in _TERA if words.issuperset(name.split())]
    if not said or words & _OTHERWISE:
        return None
    tera, devices = _TERA[max(said, key=lambda name: len(name.split()))]
    return tera * 1e12, devices
