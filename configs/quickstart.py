"""The whole pipeline on a laptop: 48 small models of real English text, no download.

    lm-mia run --config=configs/quickstart.py --workdir=runs/quickstart

The text is docstrings of the installed packages. 32 references and 16 replicas of one target, each a 2-layer
transformer of 0.17M parameters, see half of 2,048 samples three times.

Cost: about 3.5 minutes on 2 cores, 2 GB of memory, 100 MB of disk.

Expect (the text, and so every number, moves a little with the versions of the packages): LiRA with all references
reaches an AUC of about 0.87, up from 0.79 with 4, RMIA and the calibrated loss 0.88, the loss attack 0.62. At an FPR
of 5 % LiRA finds half of the members; almost half of the members, and fewer than 1 of 10 non-members, get a decision
that an exact test cannot tell from a coin flip, and so does almost half of the members that it finds. With shuffled
labels every attack's AUC is 0.5. Members that the first replica saw last, at the lowest learning rates, it finds less
often (3 of 10 of the last tenth, more than 5 of 10 of the first). None of the 1,000 samples with the highest scores, 4
of 5 of them members, can be extracted: the likeliest suffix of 32 tokens has a probability of about 1e-49, and higher
scores do not go with likelier suffixes.
"""

from lm_mia.config import Attack, Config, Extract, Model, Optimizer, Population, Tokenizer, Train


def get_config() -> Config:
    return Config(
        tokenizer=Tokenizer(vocab_size=1024),
        population=Population(samples=2048, length_tokens=64),
        model=Model(layers=2, width=64, heads=2),
        # The paper's recipe is for hundreds of thousands of steps; here a model has 192.
        optimizer=Optimizer(peak_learning_rate=8e-3, final_learning_rate=8e-4, warmup_steps=20),
        train=Train(subset="balanced", batch_size=16, epochs=3),
        attack=Attack(
            references=32,
            replicas=16,
            # 16 IN and 16 OUT losses per sample are too few for a variance per sample.
            variance="pooled",
            # With 1,024 non-members the lowest rate above 0 is about 0.001.
            fprs=(0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
            focus_fpr=0.05,
            band=(0.001, 0.1),
            # 8 disjoint sets: with fewer than 6 the coin-flip test has no power.
            resample_references=4,
        ),
        extract=Extract(samples=1000, prefix_tokens=32, suffix_tokens=32),
    )
