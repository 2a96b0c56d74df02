"""lm_mia: membership inference on language models, one way, stages meeting in files.

corpus      documents (docstrings, text files, jsonl, parquet, C4) and a sentencepiece vocabulary
population  2N token sequences drawn by seed, stored once, ids 0..2N-1 for ever
subsets     (subset_seed, 2N, design) -> which samples a row trains on
batches     (order_seed, epoch, step) -> which members a step sees
train       a block of rows, one after another, with one compiled step
score       rows -> mean token loss of all 2N samples -> the score store
attack      score store -> scores, decisions, flip rates -> tables
analysis    tables -> figures and one report page (a package of its own)
"""
