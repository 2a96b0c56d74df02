"""Where the figures of StrongMIA depart from the paper's protocol, or fill in what the paper does not say.

`DEPARTURES` is the only list. The report page and docs/figures.md print the departures of a figure beside it,
and those that concern all figures once; Table 7 shows all of them.
"""

import dataclasses
from collections.abc import Sequence

from lm_mia.config.paper import figure_number


@dataclasses.dataclass(frozen=True)
class Departure:
    """One departure from the protocol of StrongMIA at the setting ``paper``; the other settings inherit it."""

    text: str
    """What the paper has, or does not say, and what is done here; full sentences."""
    figures: tuple[str, ...] = ()
    """Numbers of the figures and tables that it concerns, such as ``fig04``; empty: all of them."""


def _figures(*numbers: int) -> tuple[str, ...]:
    return tuple(f"fig{number:02d}" for number in numbers)


_FLIPS = (*_figures(5, *range(22, 31)), *(f"tab0{number}" for number in range(1, 7)))
_RMIA = _figures(9, 10, 11, 12, 13, 14)

DEPARTURES: tuple[Departure, ...] = (
    Departure(
        "The paper names model sizes by their number of parameters and says that they are configurations of NanoDO, "
        "but prints neither layers nor widths, and NanoDO publishes one configuration. The layers and widths are "
        "inferred from the names: 12 x layers x width² parameters without embeddings, in heads of width 64. Six of the "
        "ten names (44M, 140M, 425M, 489M, 509M and 1018M) are rows of Table A9 of Hoffmann et al. (2022), which the "
        "paper cites. The paper may have used those shapes, such as 15 layers of width 768 for 140M."
    ),
    Departure(
        "The paper does not say how it draws the 2N samples from C4. They are drawn at random from the training split"
        " of the TFDS build c4/en:3.1.0, with near duplicates and whatever their length."
    ),
    Departure(
        "Every training subset has exactly N of the 2N samples, as Appendix G says. Appendices E.1 and E.2.5 speak of"
        " a probability of 0.5 for each sample."
    ),
    Departure(
        "The paper does not name its tokenizer. A SentencePiece vocabulary of 32,000 pieces is trained on a million "
        "documents of C4. NanoDO's own vocabulary has 32,101 pieces; with a copy of its file, "
        "--config.tokenizer.path=FILE --config.tokenizer.vocab_size=32101 uses it."
    ),
    Departure(
        "The paper pads every sample to 1,024 tokens. Samples are packed into sequences here and attend only to their"
        " own tokens. A step has the same samples and the same mean loss over tokens."
    ),
    Departure(
        "The paper does not say whether the loss of a sample is the mean or the sum over its tokens. It is the mean "
        "here."
    ),
    Departure(
        "The paper's replicas differ by their batch order and by what it calls unavoidable hardware non-determinism. "
        "Replicas differ only in their batch order here: the same seeds give the same model, bit for bit."
    ),
    Departure(
        "The paper prints neither the betas and epsilon of AdamW nor the dtype. NanoDO's are used: 0.9, 0.98 and "
        "1e-9, and bfloat16 activations."
    ),
    Departure(
        "The paper attacks one target. 16 targets with training subsets of their own are attacked here, and curves "
        "are means over them.",
        _figures(1, 2, 3, 6, *range(8, 18), 31),
    ),
    Departure(
        "Numbers of references count IN and OUT references together, and each sample has about half as many of each. "
        "The paper counts IN references.",
        _figures(1, 9, 10, 20),
    ),
    Departure(
        "The paper does not say how LiRA has a variance with one IN reference. Below 8 references, IN and OUT, "
        "variances are pooled over the samples here. All curves are on the same samples: those for which two "
        "references suffice, since one of the first two is IN and the other OUT, about half of all.",
        _figures(1, 9, 10, 20),
    ),
    Departure(
        "Table 7 prints 80 warm-up steps in the first line of Figure 4(a), the one of 50K samples. They are used for "
        "all numbers of samples of Figure 4(a), 50K to 10M.",
        _figures(4),
    ),
    Departure(
        "The paper trains 16 sets of 128 references for each model size of Figures 4(b) and 19, one for each target. "
        "One set of 128 references attacks all 16 targets here, since sixteen sets would need 14 times as many models. "
        "The standard deviation over targets does not include the choice of the references. Error bars in Figure 4(b) "
        "do: they add its variance, estimated from halves of the set. Claims are about the one over targets.",
        _figures(4, 19),
    ),
    Departure(
        "Table 7 has 7M training samples for these figures. The 2^19 samples of the captions and the text are used.",
        _FLIPS,
    ),
    Departure(
        "All eight sizes of Table 7 are drawn. The paper leaves out 44M and 140M in Figures 2, 18 and 20, and 302M "
        "and 604M in Figure 15(a).",
        _figures(2, 15, 18, 20),
    ),
    Departure(
        "(b) shows the first sample that the rules of Figure 22 call ambiguous and unstable; the paper shows a "
        "member, and does not say how it was chosen.",
        _figures(5),
    ),
    Departure(
        "The paper does not print the number of equal-count bins of the middle and right columns. There are 50.",
        _figures(26, 27),
    ),
    Departure(
        "A third curve without very unstable decisions is drawn, whose effect the paper expects but does not show.",
        _figures(30),
    ),
    Departure(
        "(a) is of the models on 2^23 samples, which are trained for 65,536 steps, since the paper's axis reaches "
        "step 60,000. Table 7 has 7M samples for both panels, which make 54,688 steps; (b) is of those models.",
        _figures(6),
    ),
    Departure(
        "The paper calls what it shows the probability of being predicted as a member, with the rule that the "
        "posterior p_in / (p_in + p_out) exceeds 0.5. But its standard deviation of 0.143 at a mean of 0.543 is "
        "impossible for decisions, which are 0 or 1. The posterior is shown here. The share of models whose posterior "
        "exceeds 0.5 is the column share_above_half of true_positive_probability.parquet.",
        _figures(6, 21),
    ),
    Departure(
        "Samples are grouped by the mean of the posterior p_in / (p_in + p_out), as in Figure 6.",
        _figures(31),
    ),
    Departure(
        "Scores and thresholds are shown as posteriors p_in / (p_in + p_out), and distances from the threshold are "
        "differences of posteriors. The paper does not say on which scale they are.",
        _figures(25, 26, 27),
    ),
    Departure(
        "The scores are those of one replica, attacked with the 528 models of Figure 1 (128 references in Table 7). "
        "Samples that are too short for a prefix and a suffix are left out.",
        _figures(7),
    ),
    Departure(
        "The paper averages logits over the sequence, but does not say which logit of a token. It is the mean over "
        "the tokens of the logit of the true token.",
        _figures(8),
    ),
    Departure(
        "Both attacks go up to 512 references, the models of Figure 1 (in Table 7 LiRA up to 256, RMIA up to 64).",
        _figures(9, 10),
    ),
    Departure(
        "Equation 3 of the paper divides statistics of which larger values mean a member. With losses it would be "
        "reversed, so the likelihoods exp(-loss) are divided, where the loss is the mean over the tokens of the "
        "sample. The likelihood of a whole sample would give other scores; on the scale of the mean loss, gamma=1.1 "
        "asks for a difference of 0.095 nats per token.",
        _RMIA,
    ),
    Departure(
        "RMIA compares each sample with samples that are drawn from all 2N samples under attack, among which are "
        "members of the target. The paper draws them from the data distribution or from a held-out proxy.",
        _RMIA,
    ),
    Departure(
        "The paper does not print all values of its axes. gamma is 1, 1.02, 1.05, 1.1 and 1.2, and the numbers of "
        "samples that RMIA compares with are 10K, 30K, 100K and 300K.",
        _figures(12, 13),
    ),
    Departure(
        "The 2^19 training samples of the text are used for all four figures (500K for three of them in Table 7).",
        _figures(11, 12, 13),
    ),
    Departure(
        "RMIA has the 128 references of Figures 11 and 14 (64 in Table 7).",
        _figures(12, 13),
    ),
    Departure(
        "The paper's score of offline LiRA is one minus a density, which is not a probability. The one-sided tail "
        "probability that the paper describes is used.",
        _figures(14),
    ),
    Departure(
        "Validation losses are on 8,192 samples of C4 that are in no training subset. The paper does not say on "
        "which.",
        _figures(15),
    ),
    Departure(
        "(b) uses the 7M samples and 750 warm-up steps of the text (50K samples and 50 warm-up steps in Table 7).",
        _figures(15),
    ),
    Departure(
        "The paper removes from C4 the sequences that share a prefix of a length that it does not print. Samples that"
        " share their first 50 tokens with an earlier one are dropped here while the population is drawn.",
        _figures(16),
    ),
    Departure(
        "(b) is attacked after epochs 1, 2, 3, 5, 8, 13 and 20, which include all that the text mentions, with 750 "
        "warm-up steps.",
        _figures(17),
    ),
    Departure(
        "There are the 16 targets of Figure 18 (8 in the text).",
        _figures(20),
    ),
    Departure(
        "Each of 144 models is attacked with the 143 others (128 models in the text; up to 64 targets and 64 "
        "references in Table 7).",
        _figures(21),
    ),
    Departure(
        "The paper does not print the rules by which it calls samples clear or ambiguous, nor the flip rate up to "
        "which samples other than clear members are stable, which is 0.1 here. The rules are in the notes.",
        _figures(22, 23),
    ),
    Departure(
        "(a) is drawn twice: with the mean over all tokens of a sample, as in the paper, and with the mean over its "
        "distinct tokens.",
        _figures(31),
    ),
    Departure(
        "Document frequencies are counted over 65,536 samples and smoothed as in scikit-learn, and terms are pieces "
        "of the vocabulary; the paper says only that a random subsample is used and scores are not normalized.",
        _figures(31),
    ),
    Departure(
        "The paper prints three AUCs of the same attack on the same model of 140M: 0.678 (Figures 1 and 8), 0.675 "
        "(Figure 15(b)) and 0.683 (Figure 16). No number can be reproduced more exactly than these differ.",
        _figures(1, 8, 15, 16),
    ),
    Departure(
        "Appendix D of the paper says that only 10M sequences were removed; by its own numbers, 364,613,570 less "
        "350,475,345, they were 14.1M.",
        _figures(16),
    ),
    Departure(
        "The captions of the paper's Figures 26 and 27 speak of 50% and 70% of samples against 10%; its text has 49% "
        "and 8%, and 70% and 7%. The numbers of the text are compared with.",
        _figures(26, 27),
    ),
    Departure(
        "The caption of the paper's Table 4 has the cutoff of 140M, 0.490, for 302M. Its header has 0.487, which is "
        "the cutoff for 127 replicas.",
        ("tab04",),
    ),
    Departure(
        "The samples have the paper's ids, but are those of our draw from C4.",
        _figures(32),
    ),
)


def general() -> Sequence[str]:
    """Returns the departures that concern all figures of StrongMIA."""
    return [departure.text for departure in DEPARTURES if not departure.figures]


def departures(name: str) -> Sequence[str]:
    """Returns the departures that concern a figure in particular; none for figures of other papers.

    Args:
      name: the full name of the figure, such as ``strongmia_fig04_data_and_size``.
    """
    if not name.startswith("strongmia_"):
        return []
    return [d.text for d in DEPARTURES if figure_number(name) in d.figures]
