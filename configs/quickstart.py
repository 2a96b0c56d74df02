"""The whole pipeline on a laptop: 48 small models of real English text, without any download.

    lm-mia run --config=configs/quickstart.py --workdir=runs/quickstart

The text is the docstrings of installed packages. 32 references and 16 replicas of one target, each a 2-layer
transformer with 0.17M parameters, are trained for three epochs on half of 2,048 samples.

Cost: about 3 minutes on 2 cores, 2 GB of memory, 100 MB of disk.

Expect these results; they change slightly with the versions of the installed packages, and thus with the text.

- LiRA with all references reaches an AUC of about 0.87, compared with 0.78 with 4 references. RMIA, the calibrated
  loss, and shrunk and stacked LiRA reach 0.88, the loss attack 0.63. With shuffled labels, every attack has an AUC of
  0.5.
- At an FPR of 5 %, LiRA finds almost half of the members. For 4 in 10 members, and for fewer than 1 in 10
  non-members, an exact test cannot distinguish the decisions from coin flips; this also holds for 4 in 10 of the
  members that LiRA finds.
- LiRA finds fewer of the members that the first replica saw last, at the lowest learning rates: 44 % of the last third,
  compared with 53 % of the first third.
- None of the 400 samples with the highest scores, nearly all of which are members, can be extracted: the most likely
  suffix of 32 tokens has a probability of about 1e-51, and samples with higher scores do not have likelier suffixes.
"""

from lm_mia.config import Attack, Config, Extract, Model, Optimizer, Population, Tokenizer, Train


def get_config() -> Config:
    return Config(
        # Training the vocabulary on all documents would take four times as long.
        tokenizer=Tokenizer(vocab_size=1024, documents=2048),
        population=Population(samples=2048, length_tokens=64),
        model=Model(layers=2, width=64, heads=2),
        # The learning rates of the paper are for far more steps than the 192 of these models.
        optimizer=Optimizer(peak_learning_rate=8e-3, final_learning_rate=8e-4, warmup_steps=20),
        train=Train(subset="balanced", batch_size=16, epochs=3),
        attack=Attack(
            references=32,
            replicas=16,
            # 16 IN and 16 OUT losses per sample are too few to estimate a variance for each sample.
            variance="pooled",
            # With 1,024 non-members, the lowest FPR above 0 is about 0.001.
            fprs=(0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
            band=(0.001, 0.1),
            # 8 disjoint sets; with fewer than 6, the coin-flip test rejects nothing.
            resample_references=4,
            leave_one_out=True,
        ),
        extract=Extract(samples=400, prefix_tokens=32, suffix_tokens=32),
    )
