"""Files of the package `tokenizers` that are trained here: a byte-level BPE vocabulary and a Unigram one."""

import functools
import os

import tokenizers
from docstring_population import documents
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

EOT = "<|endoftext|>"
# The training below would start threads, and other tests of the same process fork.
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@functools.cache
def byte_level(vocab_size: int = 500) -> bytes:
    """As GPT-2: the first token is both the beginning and the end of a text, and no character is unknown."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for text, *_ in documents()], trainer)
    return tokenizer.to_str().encode()


@functools.cache
def unigram(vocab_size: int = 400) -> bytes:
    """As T5 and Llama 2: <unk>, <s> and </s> have the ids 0 to 2, and the file adds <s> only."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=["<unk>", "<s>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for text, *_ in documents()[:100]], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer.to_str().encode()
