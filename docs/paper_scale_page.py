"""Writes docs/how-to/paper-scale.md: how to reproduce StrongMIA at its own scale, with the costs of its results.

    python docs/paper_scale_page.py [--check]

Costs are those of `lm-mia plan` for one H100, so that other model sizes or a new measurement change the page by one
command. With --check nothing is written, and the exit code is 1 if the page is not what this script would write.
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import generated_page

from lm_mia import cli

PAGE = Path(__file__).resolve().parent / "how-to" / "paper-scale.md"
GROUPS = {
    "Tables 1 to 6": "tab01,tab02,tab03,tab04,tab05,tab06",
    "Figure 5": "fig05",
    "Figures 1, 7 and 9": "fig01,fig07,fig09",
    "Figure 4": "fig04",
    "Figure 2": "fig02",
    "all figures and tables": "",
}
"""What to reproduce, in a good order -> the figures in the argument of the config."""

_TEXT = """---
external: true
---

<!-- Written by docs/paper_scale_page.py. -->

# Reproduce StrongMIA at paper scale

This page lists the steps from nothing to the tables and figures of StrongMIA with the paper's numbers of models and
samples. The steps are those that the tests run at a small scale; **no one has run them at this scale with this
version**. The layers and widths of four of the ten sizes
[are inferred](../departures/strongmia.md). Start with Tables 1 to 6: they
are the paper's third finding, and the cheapest of its results. This command estimates their cost without a GPU, in a
second:

```bash title="Try it here"
lm-mia plan --config=strongmia:tab01,tab02,tab03,tab04,tab05,tab06,paper --device=h100
```

| result | `FIGURES` below | models | hours of one H100 | longest model, hours | checkpoints | scores | population |
|---|---|---|---|---|---|---|---|
{rows}

Hours are those of `lm-mia plan --config=strongmia:FIGURES,paper --device=h100`, at an MFU between those that were
[measured on an H100](../results/accelerators.md) for the nearest sizes, with 400 tokens per sample. Results of one
workdir share models: Figure 5 uses the models of Tables 2, 4 and 6.

## 1. Download C4

The English part of C4 has 365 million documents in 1,024 compressed files, about 327 GB; converted, it takes about
830 GB more, which can be deleted once the populations are made.

```bash
huggingface-cli download allenai/c4 --repo-type dataset --include 'en/c4-train.*' --local-dir HF
```

## 2. Choose the vocabulary

The paper does not name its tokenizer. NanoDO, whose models it uses, has a vocabulary of 32,101 pieces in its
repository:

```bash
git clone https://github.com/google-deepmind/nanodo
export FLAGS="--config.corpus.path=/shared/c4 \\
  --config.tokenizer.path=nanodo/tests/testdata/sentencepiece_cc_all.32000.100extra-sentencepiece.model \\
  --config.tokenizer.vocab_size=32101"
```

Without these two `tokenizer` flags, a vocabulary of 32,000 pieces is trained on 200,000 documents of C4. (A million
documents would need about 41 GB of memory, and touch SentencePiece's limit of 2^31 characters.)

## 3. Make the population

```bash
lm-mia corpus --config=strongmia:fig05,paper --workdir=/shared/strongmia $FLAGS \\
  --from-hf-shards='HF/en/c4-train.*.json.gz'
lm-mia corpus --config=strongmia:FIGURES,paper --workdir=/shared/strongmia $FLAGS
```

The first command converts C4 and takes hours; `--from-hf-shards` needs figures of a single recipe, such as Figure 5.
The second one reads the converted copy, and so do later ones for other figures. One process per core tokenizes.

## 4. Train and score on the cluster

```bash
lm-mia launch slurm --config=strongmia:FIGURES,paper --workdir=/shared/strongmia $FLAGS \\
  --time=24:00:00 --gpus-per-node=8 --submit
lm-mia status --workdir=/shared/strongmia --watch
```

Jobs [ask for CPUs and memory](slurm.md), since each of the eight processes of a node packs batches on a core of its
own, and saves 12 bytes per parameter when it is stopped. Models that a time limit interrupts continue in the next
start of their job, as often as it takes. The column checkpoints is the disk space of the final states; with
`--config.train.keep_moments=False`, two thirds of it, the state of the optimizer, are deleted as soon as a model is
scored. Nothing needs `recipes/*/checkpoints` once all models are scored and the samples of Figure 7 are extracted.
[SLURM](slurm.md) has the other flags, and [Kubernetes](kubernetes.md) the same for TPU slices.

## 5. Attack, and look

```bash
lm-mia run --workdir=/shared/strongmia
```

This runs the attacks on the scores and writes `report.html` and `figures/strongmia.html`, which has the printed
numbers beside yours, the verdicts on the claims of the paper, and
[every departure from its protocol](../departures/strongmia.md).
For the next result, repeat the steps from 3 with its figures and the same workdir.
"""


def planned(figures: str) -> dict[str, Any]:
    """Returns what `lm-mia plan --json` prints for figures at the setting paper."""
    argument = f"{figures},paper" if figures else "paper"
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = cli.main(["plan", f"--config=strongmia:{argument}", "--device=h100", "--json"])
    if code:
        raise SystemExit(code)
    return json.loads(output.getvalue())


def row(title: str, figures: str) -> str:
    """Returns a row of the table."""
    plan = planned(figures)
    total = plan["total"]
    longest = max(r["chip_hours"] / r["models"] for r in plan["recipes"] if r["models"])
    cells = (
        title,
        f"`{figures}`" if figures else "leave out `FIGURES,`",
        f"{total['models']:,}",
        f"{total['chip_hours']:,.0f}",
        f"{longest:,.2g}" if longest < 10 else f"{longest:,.0f}",
        f"{total['checkpoint_bytes'] / 1e12:.1f} TB",
        f"{total['store_bytes'] / 1e9:,.0f} GB",
        f"{total['population_bytes'] / 1e9:,.0f} GB",
    )
    return f"| {' | '.join(cells)} |"


def page_text() -> str:
    """Returns the page."""
    rows = "\n".join(row(title, figures) for title, figures in GROUPS.items())
    return _TEXT.replace("{rows}", rows)


if __name__ == "__main__":
    sys.exit(generated_page.main({PAGE: page_text}, __doc__ or ""))
