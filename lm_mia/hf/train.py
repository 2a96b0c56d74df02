"""Fine-tunes a causal language model of Hugging Face several times, each time on a random half of the texts.

The models are references of an attack and, optionally, replicas: more models on the subset of the first one. Members,
the order of batches and the dropout are functions of the seed and the number of the model, so a command that was
stopped goes on with the same members, and `--models` can be increased later. A model is saved when it is finished; one
that was not is trained again from the start.

N: texts, B: texts of a batch, L: tokens of the longest of them, V: vocabulary, E: epochs.
"""

# pyright: reportMissingImports=false
# These packages are an extra, which an environment may lack.

import argparse
import contextlib
import dataclasses
import hashlib
import json
import math
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import filelock
import numpy as np

from lm_mia import seeds
from lm_mia.atomic import write_atomically
from lm_mia.data import subsets, texts
from lm_mia.data.arrays import listed
from lm_mia.errors import UserError
from lm_mia.hf import losses, models
from lm_mia.hf.models import Dtype
from lm_mia.printing import format_duration

Subset = Literal["exact", "bernoulli"]
SUBSETS: tuple[Subset, ...] = get_args(Subset)
MEMBERS = "members.parquet"
"""Name of the file that says which models were trained on which texts."""
_SETTINGS = "hf-train.json"
_FEWEST_TEXTS = 20
_FULL_RATE, _LORA_RATE = 5e-5, 2e-4
_LARGEST_GRADIENT = 1.0
_SEEDS = 2**32  # seeds of models between those of two values of --seed
_FIRST_REPLICA = 2**31  # order seeds of replicas are above it, those of references below
_FIRST, _FIRST_AS_REPLICA = "reference-00", "replica-00"  # names of the first model


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is trained, and how."""

    models: int
    """Number of models with a training subset of their own."""
    replicas: int
    """Number of further models with the training subset of the first one, in other batch orders."""
    subset: Subset
    """How the members of a model are drawn: exactly half of the texts, or each by a fair coin of its own."""
    lora_rank: int
    """Rank of the LoRA adapters; 0: all weights are trained."""
    epochs: int
    batch_size: int
    """Number of texts in a batch."""
    learning_rate: float
    """That of the first step; it falls linearly to 0."""
    length_tokens: int | None
    """Longer texts are cut there; None: at `losses.LENGTH_TOKENS`, or less if the model allows less."""
    seed: int
    dtype: Dtype
    """Type of the computation. Weights that are trained are always in float32."""

    def problems(self) -> Iterator[str]:
        """Yields one line per setting that is impossible."""
        for flag, lowest in (
            ("models", 1),
            ("replicas", 0),
            ("lora_rank", 0),
            ("epochs", 1),
            ("batch_size", 1),
            ("length_tokens", 2),
            ("seed", 0),
        ):
            value = getattr(self, flag)
            if value is not None and value < lowest:
                flag = flag.replace("_", "-")
                yield f"--{flag}={value}: must be {lowest} or more; try --{flag}={lowest}"
        if not 0 < self.learning_rate < math.inf:
            yield f"--learning-rate={self.learning_rate:g}: must be above 0; try --learning-rate=5e-5"


class Plan(NamedTuple):
    """A model to be trained: its name, and the seeds of its subset, of its LoRA weights and of its batch order."""

    name: str
    subset_seed: int
    init_seed: int
    order_seed: int


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `read_settings`."""

    def add(flag: str, kind: Any, default: Any, metavar: str, text: str) -> None:
        parser.add_argument(f"--{flag}", type=kind, default=default, metavar=metavar, help=text)

    add("models", int, None, "N", "number of models, each trained on a random half of the texts")
    add(
        "replicas",
        int,
        0,
        "B",
        "more models on the texts of the first one, in other batch orders (default: 0)",
    )
    parser.add_argument(
        "--subset",
        choices=SUBSETS,
        default="exact",
        help="how members are drawn: exact (half of the texts; default) or bernoulli (a fair coin for each text)",
    )
    add("lora-rank", int, 0, "R", "train LoRA adapters of this rank instead of all weights")
    add("epochs", int, 3, "E", "number of epochs (default: 3)")
    add("batch-size", int, 8, "B", "number of texts in a batch (default: 8)")
    add(
        "learning-rate",
        float,
        None,
        "RATE",
        f"learning rate of AdamW at the first step, which falls linearly to 0 (default: {_FULL_RATE:g}, with "
        f"--lora-rank {_LORA_RATE:g})",
    )
    add(
        "length-tokens",
        int,
        None,
        "L",
        f"longer texts are cut there (default: {losses.LENGTH_TOKENS:,}, or what the model allows)",
    )
    add("seed", int, 0, "SEED", "seed of members, batch orders and dropout (default: 0)")
    parser.add_argument(
        "--dtype",
        choices=models.DTYPES,
        default="float32",
        help="type of the computation (default: float32); trained weights are always in float32",
    )
    models.add_device_flag(parser)


def read_settings(options: argparse.Namespace, problems: list[str]) -> Settings:
    """Returns the settings that flags give; appends a line to `problems` for each that is impossible."""
    if options.models is None:
        problems.append("--models: missing; add the number of models, such as --models=16")
        options.models = 1
    if options.learning_rate is None:
        options.learning_rate = _LORA_RATE if options.lora_rank else _FULL_RATE
    names = [field.name for field in dataclasses.fields(Settings)]
    settings = Settings(**{name: getattr(options, name) for name in names})
    problems += settings.problems()
    return settings


def plans(models: int, replicas: int, seed: int) -> list[Plan]:
    """Returns the models in the order in which they are trained; larger numbers change no other model.

    With replicas, the first model is one of them, and is named like them: `lm-mia import` reads the roles of models
    from their names, and replicas may not have the subset of a reference.
    """
    first = seed * _SEEDS
    references = [
        Plan(f"reference-{m:02d}", first + m, first + m, first + m) for m in range(models)
    ]
    if not replicas:
        return references
    more = [
        Plan(f"replica-{b:02d}", first, first, first + _FIRST_REPLICA + b)
        for b in range(1, replicas + 1)
    ]
    return [references[0]._replace(name=_FIRST_AS_REPLICA), *references[1:], *more]


def member(plan: Plan, num_texts: int, subset: Subset) -> np.ndarray:
    """Returns member_N: whether a model is trained on each text, by its position in the table."""
    return subsets.member(plan.subset_seed, num_texts, subset)


def batches(plan: Plan, member_N: np.ndarray, epoch: int, batch_size: int) -> list[np.ndarray]:
    """Returns the positions of the texts in each batch of an epoch, which is counted from 0."""
    index_N = np.flatnonzero(member_N)
    order = index_N[seeds.permutation(plan.order_seed, f"hf-train epoch {epoch}", len(index_N))]
    return [order[low : low + batch_size] for low in range(0, len(order), batch_size)]


def train(
    base: models.Model,
    table: texts.TextTable,
    folder: Path,
    settings: Settings,
    device: str,
    progress: Callable[[str, float, float], None],
    say: Callable[[str], None],
) -> None:
    """Trains the models that the folder does not have, each in a folder with its name, and writes the file of members.

    Several processes may work on one folder: each of them trains models that no other one is training.

    Args:
      base: the model from which each one starts.
      table: the texts.
      folder: where the models are saved.
      settings: what is trained, and how.
      device: such as cpu or cuda:0; "" for a GPU if there is one.
      progress: called as ``progress("fine-tune", steps done, steps)``.
      say: called with each line that is printed.

    Raises:
      UserError: with one line per problem: the base is an adapter, a text has nothing to predict, the folder has models
        of other texts or settings, or they do not fit on the disk; or if a loss becomes NaN.
    """
    device = models.find_device(device)
    token_NxL, cut = _tokenize(base, table, settings)
    folder.mkdir(parents=True, exist_ok=True)
    num_texts = len(table.text_N)
    planned = _plan_with_present(folder, settings)
    renamed = planned[0].name == _FIRST_AS_REPLICA and (folder / _FIRST).is_dir()
    missing = [plan for plan in planned[renamed:] if not (folder / plan.name).is_dir()]
    _check_settings(folder, base, table, settings, has_models=len(missing) < len(planned))
    _check_disk(folder, base, len(missing), settings)
    if renamed:
        (folder / _FIRST).rename(folder / _FIRST_AS_REPLICA)
    members = {plan.name: member(plan, num_texts, settings.subset) for plan in planned}
    texts.write_members(folder / MEMBERS, table.id_N, members)
    steps = [_num_steps(members[plan.name], settings) for plan in missing]
    mean_tokens = sum(map(len, token_NxL)) / num_texts
    say(
        f"models: {len(planned)} requested, {len(planned) - len(missing)} present, {len(missing)} to train; "
        f"{num_texts:,} texts of {mean_tokens:.0f} tokens on average, of which {cut:,} are cut; "
        f"{sum(steps):,} steps on {device}"
    )
    if repeated := num_texts - len({*table.text_N}):
        say(
            f"{table.source}: {repeated:,} texts occur before; a model that is trained on one of two equal texts knows "
            "the other, too, so remove repeated texts"
        )
    done, waiting = 0, []
    for plan, num_steps in zip(missing, steps, strict=True):
        (folder / ".locks").mkdir(exist_ok=True)
        try:
            with filelock.FileLock(folder / ".locks" / f"{plan.name}.lock", timeout=0):
                if not (folder / plan.name).is_dir():  # no other process has finished it since

                    def advance(step: int, done: int = done) -> None:
                        progress("fine-tune", done + step, sum(steps))

                    say(_make(base, token_NxL, members, plan, folder, settings, device, advance))
        except filelock.Timeout:
            waiting.append(plan.name)
        done += num_steps
    progress("fine-tune", sum(steps), sum(steps))
    if waiting:
        raise UserError(
            f"{folder}: another command is still training {', '.join(waiting)}, so not all models are there; wait "
            "until it ends, and run this command again"
        )


def _tokenize(
    base: models.Model, table: texts.TextTable, settings: Settings
) -> tuple[list[list[int]], int]:
    """Returns the tokens of each text, which are those that `lm-mia hf-losses` predicts, and how many texts are cut."""
    if base.base:
        raise UserError(
            f"BASE={base.given}: is an adapter; merge it into its base with merge_and_unload, and save the result"
        )
    limit = settings.length_tokens or min(
        losses.LENGTH_TOKENS, base.length_limit or losses.LENGTH_TOKENS
    )
    encoded = [text.ids for text in base.encode(table.text_N)]
    problems = []
    if base.length_limit and limit > base.length_limit:
        problems.append(
            f"--length-tokens={limit}: {base.given} takes at most {base.length_limit} tokens; choose "
            f"{base.length_limit} or fewer"
        )
    if settings.subset == "exact" and len(encoded) % 2:
        problems.append(
            f"--subset=exact: {len(encoded):,} texts have no half; leave out one of them, or use --subset=bernoulli"
        )
    if len(encoded) < _FEWEST_TEXTS:
        problems.append(
            f"{table.source}: has {len(encoded)} texts; give at least {_FEWEST_TEXTS}, better some hundreds"
        )
    short = [name for name, ids in zip(table.id_N, encoded, strict=True) if len(ids) < 2]
    if short:
        problems.append(
            f"{table.source}: {len(short):,} texts have fewer than 2 tokens, so that nothing is predicted: "
            f"{listed(short)}; remove them"
        )
    largest = max((max(ids, default=0) for ids in encoded), default=0)
    if largest >= base.vocab_size:
        problems.append(
            f"BASE={base.given}: the tokenizer gives token {largest}, but the model has only {base.vocab_size:,}; save "
            "the model with its own tokenizer"
        )
    if problems:
        raise UserError("\n".join(problems))
    return [ids[:limit] for ids in encoded], sum(len(ids) > limit for ids in encoded)


def _check_settings(
    folder: Path, base: models.Model, table: texts.TextTable, settings: Settings, has_models: bool
) -> None:
    """Writes what determines the models of a folder; raises UserError if it has models of other settings."""
    described = dataclasses.asdict(settings)
    del described["models"], described["replicas"]
    content = json.dumps([table.id_N, table.text_N]).encode()
    described |= {"base": models.fingerprint(base), "texts": hashlib.sha256(content).hexdigest()}
    path = folder / _SETTINGS
    if not has_models:
        write_atomically(path, json.dumps(described, indent=1) + "\n")
        return
    try:
        present = json.loads(path.read_bytes())
        changed = [name for name in described if present[name] != described[name]]
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"--out={folder}: {path} is damaged; choose another folder") from error
    problems = []
    for name in changed:
        flag = f"--{name.replace('_', '-')}"
        if name == "base":
            problems.append(f"BASE={base.given}: the models of {folder} start from other weights")
        elif name == "texts":
            problems.append(f"--texts={table.source}: the models of {folder} have other texts")
        else:
            problems.append(
                f"{flag}={described[name]}: the models of {folder} have {flag}={present[name]}"
            )
    if problems:
        remedy = "; choose another folder, or continue with what it has"
        raise UserError("\n".join(problem + remedy for problem in problems))


def _plan_with_present(folder: Path, settings: Settings) -> list[Plan]:
    """Returns the requested models and those that earlier commands have requested and finished."""
    present: dict[str, list[int]] = {"reference": [], "replica": []}
    for path in folder.iterdir():
        if match := re.fullmatch(r"(reference|replica)-(\d+)", path.name):
            present[match[1]].append(int(match[2]))
    num_models = max([settings.models, *(m + 1 for m in present["reference"])])
    replicas = max([settings.replicas, *present["replica"]])
    return plans(num_models, replicas, settings.seed)


def _check_disk(folder: Path, base: models.Model, missing: int, settings: Settings) -> None:
    """Raises UserError if the disk has no room for the weights of the models that are to be trained."""
    needed, free = 4 * base.parameters * missing, shutil.disk_usage(folder).free
    if not settings.lora_rank and needed > free:
        raise UserError(
            f"--out={folder}: {missing} models take {needed / 1e9:.1f} GB, but {free / 1e9:.1f} GB are free; choose "
            "another disk, or train small adapters with --lora-rank=8"
        )


def _num_steps(member_N: np.ndarray, settings: Settings) -> int:
    return settings.epochs * -(-int(member_N.sum()) // settings.batch_size)


def _make(
    base: models.Model,
    token_NxL: Sequence[Sequence[int]],
    members: dict[str, np.ndarray],
    plan: Plan,
    folder: Path,
    settings: Settings,
    device: str,
    advance: Callable[[int], None],
) -> str:
    """Trains and saves a model; returns a line about it."""
    start = time.perf_counter()
    with _deterministic(), models.without_reports():
        network, loss_E = _fit(base, token_NxL, members[plan.name], plan, settings, device, advance)
    unfinished = folder / f".{plan.name}"
    if unfinished.exists():  # of a command that was stopped while it saved the model
        shutil.rmtree(unfinished)
    unfinished.mkdir()
    models.copy_tokenizer(base, unfinished)
    with models.without_reports():
        network.save_pretrained(unfinished)
    unfinished.rename(folder / plan.name)
    seconds = format_duration(time.perf_counter() - start)
    first, last = loss_E[0], loss_E[-1]
    return f"{plan.name}: trained in {seconds}; mean loss {first:.3f} in the first epoch, {last:.3f} in the last"


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Chooses algorithms that give the same bits each time, where torch has them."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _fit(
    base: models.Model,
    token_NxL: Sequence[Sequence[int]],
    member_N: np.ndarray,
    plan: Plan,
    settings: Settings,
    device: str,
    advance: Callable[[int], None],
) -> tuple[Any, list[float]]:
    """Returns a trained network, and the mean training loss of each epoch.

    The optimizer is that of the Trainer of transformers with its default settings: AdamW without weight decay, and
    gradients whose norm is at most 1.
    """
    import torch

    half = settings.dtype == "bfloat16"
    # The frozen weights under an adapter may be rounded; steps of weights that are trained would get lost.
    network: Any = models.load_weights(
        base, settings.dtype if settings.lora_rank else "float32", device
    )
    torch.manual_seed(_torch_seed(plan.init_seed, "hf-train LoRA"))
    if settings.lora_rank:
        network = _with_adapter(network, base, settings.lora_rank)
    torch.manual_seed(_torch_seed(plan.order_seed, "hf-train dropout"))
    network.train()
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=0.0)
    total, step, loss_E = _num_steps(member_N, settings), 0, list[float]()
    for epoch in range(settings.epochs):
        sum_nats, num_tokens = 0.0, 0
        for index_B in batches(plan, member_N, epoch, settings.batch_size):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * (1 - step / total)
            x_BxL, mask_BxL = _pad([token_NxL[n] for n in index_B], device)
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=half):
                logits_BxLxV = network(
                    input_ids=x_BxL, attention_mask=mask_BxL, use_cache=False
                ).logits[:, :-1]
            is_predicted_BxL = mask_BxL[:, 1:] == 1
            loss = torch.nn.functional.cross_entropy(
                logits_BxLxV[is_predicted_BxL].float(), x_BxL[:, 1:][is_predicted_BxL]
            )
            value = float(loss.detach())
            if not math.isfinite(value):
                raise UserError(
                    f"--learning-rate={settings.learning_rate:g}: the loss of {plan.name} is {value} at step "
                    f"{step + 1} of {total}; lower it"
                )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, _LARGEST_GRADIENT)
            optimizer.step()
            optimizer.zero_grad()
            count = sum(len(token_NxL[n]) - 1 for n in index_B)
            sum_nats, num_tokens = sum_nats + value * count, num_tokens + count
            step += 1
            advance(step)
        loss_E.append(sum_nats / num_tokens)
    return network, loss_E


def _with_adapter(network: Any, base: models.Model, rank: int) -> Any:
    """Returns a network whose weights are frozen, with a LoRA adapter on all linear layers but the output layer."""
    import peft

    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules="all-linear"
    )
    with warnings.catch_warnings():
        # peft calls names that transformers deprecates, and says that it sets fan_in_fan_out for GPT-2, as it should.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to", UserWarning)
        adapted = peft.get_peft_model(network, settings)
    # The folder of the adapter may be opened from anywhere.
    adapted.peft_config["default"].base_model_name_or_path = str(base.folder.resolve())
    return adapted


def _torch_seed(seed: int, purpose: str) -> int:
    return int(seeds.rng(seed, purpose).bit_generator.random_raw()) >> 1


def _pad(rows: Sequence[Sequence[int]], device: str) -> tuple[Any, Any]:
    """Returns x_BxL and mask_BxL; padding is on the right, where it has no effect on the tokens before it."""
    import torch

    x_BxL = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
    mask_BxL = torch.zeros_like(x_BxL)
    for b, row in enumerate(rows):
        x_BxL[b, : len(row)] = torch.tensor(row)
        mask_BxL[b, : len(row)] = 1
    return x_BxL.to(device), mask_BxL.to(device)
