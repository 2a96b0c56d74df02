"""An audit of fine-tuning: how much a checkpoint of yours reveals of the texts on which it is fine-tuned.

    lm-mia run --config=finetune:FOLDER,TEXTS --workdir=runs/finetune
    lm-mia run --config=finetune:checkpoints/gpt2,data.jsonl,column=body --workdir=runs/finetune

FOLDER is what Hugging Face's save_pretrained wrote: config.json, model.safetensors and tokenizer.json of a GPT-2,
Llama, Mistral, Qwen 2, Qwen 3 or SmolLM. TEXTS, with or without column=NAME, is what own.py takes.

All parameters are fine-tuned on halves of the texts: 32 references and 16 replicas of one target. The checkpoint
itself, which was trained on none of these halves, is scored, too: it is the base. The attack base_calibrated subtracts
its losses, and shrunk and stacked LiRA know them beside those of the references. LoRA and other architectures:
`lm-mia hf-train`.

The learning rate, 2e-4 at its peak, suits models of 100M parameters; for one of a million, try
--config.optimizer.peak_learning_rate=2e-3, and look at the loss curves of the report.

Cost: that of own.py, times the size of the model: `lm-mia plan --config=finetune:FOLDER,TEXTS` prints it.

Expect a report page like that of own.py, with base_calibrated among the attacks. If the base was trained on the texts
before, all of them look like members to every model, and what fine-tuning adds is smaller.
"""

import dataclasses
import os

import own

from lm_mia.config import Config, Model, Optimizer, Tokenizer, hf_checkpoint
from lm_mia.errors import UserError


def get_config(arg: str = "") -> Config:
    folder, _, texts = arg.partition(",")
    if not folder or not texts:
        raise UserError(
            "--config=finetune: takes the folder of a checkpoint and the path of texts; write "
            "--config=finetune:FOLDER,TEXTS"
        )
    corpus, setting = own.parse(texts)
    if setting:
        raise UserError(
            f"--config=finetune:{arg}: {setting} is not understood; write --config=finetune:FOLDER,TEXTS[,column=NAME]"
        )
    init = f"hf:{os.path.abspath(os.path.expanduser(folder))}"
    try:
        longest = hf_checkpoint.model_fields(init)["longest"]
    except hf_checkpoint.CheckpointError as error:
        raise UserError(f"--config=finetune:{arg}: {error}") from None
    config = own.sized(corpus, trains_vocabulary=False)
    population = config.population
    attack = config.attack
    return dataclasses.replace(
        config,
        name="finetune",
        tokenizer=Tokenizer(),
        population=dataclasses.replace(
            population, length_tokens=min(population.length_tokens, longest)
        ),
        model=Model(init=init),
        optimizer=Optimizer(
            peak_learning_rate=2e-4, final_learning_rate=2e-5, warmup_steps=10, weight_decay=0.01
        ),
        attack=dataclasses.replace(attack, attacks=(*attack.attacks, "base_calibrated")),
    )
