from lm_mia import config


def get_config() -> config.Config:
    return config.Config(
        tokenizer=config.Tokenizer(vocab_size=1024),
        population=config.Population(samples=2048, length_tokens=64),
        model=config.Model(layers=2, width=64, heads=2),
        optimizer=config.Optimizer(
            peak_learning_rate=8e-3, final_learning_rate=8e-4, warmup_steps=20
        ),
        train=config.Train(subset="balanced", batch_size=16, epochs=3),
        attack=config.Attack(references=32, replicas=16, variance="pooled"),
    )
