# pyright: reportMissingImports=false

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pandas as pd
import pytest
import tiny_hf

from lm_mia import cli
from lm_mia.data import texts
from lm_mia.data.arrays import open_arrays
from lm_mia.data.losses import read_losses
from lm_mia.errors import UserError
from lm_mia.hf import models, train

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

TEXTS = tiny_hf.sample_texts(24)
SETTINGS = train.Settings(
    models=2,
    replicas=0,
    subset="exact",
    lora_rank=0,
    epochs=2,
    batch_size=8,
    learning_rate=3e-3,
    length_tokens=None,
    seed=0,
    dtype="float32",
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads for such small matrices would only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_hf.save_model(tmp_path_factory.mktemp("base") / "llama", "llama")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    pd.DataFrame({"id": [f"t{n}" for n in range(len(TEXTS))], "text": TEXTS}).to_csv(path)
    return path


@dataclasses.dataclass
class Trained:
    folder: Path
    lines: list[str]
    progress: list[tuple[str, float, float]]

    def weights(self, name: str, file: str = "model.safetensors") -> bytes:
        return (self.folder / name / file).read_bytes()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("re*"))


def run(base: Path, file: Path, folder: Path, **changed: Any) -> Trained:
    result = Trained(folder, [], [])
    train.train(
        models.open_model(str(base)),
        texts.read_table(file),
        folder,
        dataclasses.replace(SETTINGS, **changed),
        "cpu",
        lambda *args: result.progress.append(args),
        result.lines.append,
    )
    return result


@pytest.fixture(scope="module")
def trained(base: Path, file: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    torch.set_num_threads(1)
    return run(base, file, tmp_path_factory.mktemp("trained"))


def losses(folder: Path) -> np.ndarray:
    """Returns the mean loss of each text under a model, by a plain loop."""
    model = models.open_model(str(folder))
    network = models.load_weights(model, "float32", "cpu")
    found = []
    for text in TEXTS:
        x = torch.tensor([model.encode([text])[0].ids[:64]])
        with torch.inference_mode():
            log_prob = network(x).logits[0, :-1].double().log_softmax(-1)
        found.append(-float(log_prob.gather(-1, x[0, 1:, None]).mean()))
    return np.array(found)


def test_models_learn_their_members_and_keep_the_tokenizer(trained: Trained, base: Path):
    table = texts.read_members(trained.folder / "members.parquet")
    assert [*table] == trained.names() == ["reference-00", "reference-01"]
    before = losses(base)
    for name, member in table.items():
        assert [*member] == [f"t{n}" for n in range(24)]
        member_N = np.array([*member.values()])
        assert member_N.sum() == 12
        gain_N = before - losses(trained.folder / name)
        assert gain_N[member_N].mean() > gain_N[~member_N].mean() + 0.1
        assert trained.weights(name, "tokenizer.json") == (base / "tokenizer.json").read_bytes()
    assert table["reference-00"] != table["reference-01"]
    assert trained.progress[-1] == ("fine-tune", 8, 8)
    assert [done for _, done, _ in trained.progress] == sorted(d for _, d, _ in trained.progress)


def test_a_stopped_command_goes_on_with_the_same_members_and_bits(
    trained: Trained, base: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fit = train._fit  # pyright: ignore[reportPrivateUsage]

    def stop_at_second(base: Any, tokens: Any, member_N: Any, plan: train.Plan, *args: Any) -> Any:
        if plan.name == "reference-01":
            raise KeyboardInterrupt
        return fit(base, tokens, member_N, plan, *args)

    monkeypatch.setattr(train, "_fit", stop_at_second)
    with pytest.raises(KeyboardInterrupt):
        run(base, file, tmp_path)
    assert [path.name for path in tmp_path.glob("re*")] == ["reference-00"]
    members = (tmp_path / "members.parquet").read_bytes()
    finished = (tmp_path / "reference-00" / "model.safetensors").stat().st_mtime_ns
    (tmp_path / ".reference-01").mkdir()  # as if it had been stopped while the model was saved
    (tmp_path / ".reference-01" / "model.safetensors").write_bytes(b"torn")
    monkeypatch.setattr(train, "_fit", fit)
    again = run(base, file, tmp_path)
    assert re.match(r"models: 2\D+1\D+1\D", again.lines[0])
    assert again.progress[-1] == ("fine-tune", 4, 4)
    assert (tmp_path / "members.parquet").read_bytes() == members
    assert (tmp_path / "reference-00" / "model.safetensors").stat().st_mtime_ns == finished
    assert again.names() == trained.names()
    for name in trained.names():
        assert again.weights(name) == trained.weights(name)
    assert not (tmp_path / ".reference-01").exists()


def test_replicas_share_the_first_subset_and_differ_in_batch_order(
    trained: Trained, base: Path, file: Path, tmp_path: Path
):
    run(base, file, tmp_path, models=1)
    result = run(base, file, tmp_path, models=2, replicas=2)
    names = ["reference-01", "replica-00", "replica-01", "replica-02"]
    assert result.names() == names
    assert result.weights("replica-00") == trained.weights("reference-00")
    assert result.weights("reference-01") == trained.weights("reference-01")
    assert len({result.weights(name) for name in names}) == 4
    table = texts.read_members(tmp_path / "members.parquet")
    assert sorted(table) == names
    assert table["replica-00"] == table["replica-01"] == table["replica-02"]
    assert table["replica-00"] != table["reference-01"]
    fewer = run(base, file, tmp_path, models=1)  # no model is forgotten
    assert fewer.lines == [fewer.lines[0]]
    assert texts.read_members(tmp_path / "members.parquet") == table
    orders = [
        np.concatenate(train.batches(plan, np.ones(24, bool), epoch, 5)).tolist()
        for plan in train.plans(1, 2, 0)
        for epoch in range(2)
    ]
    assert len({tuple(order) for order in orders}) == 6
    assert all(sorted(order) == [*range(24)] for order in orders)


def test_plans_are_functions_of_the_seed_and_the_number():
    plans = {plan.name: plan for plan in train.plans(40, 9, 0)}
    for plan in [*train.plans(3, 2, 0), *train.plans(2, 0, 0)[1:]]:
        assert plans[plan.name] == plan
    seeds = [plan.subset_seed for seed in range(3) for plan in train.plans(40, 0, seed)]
    assert len({*seeds}) == 120
    orders = [plan.order_seed for seed in range(3) for plan in train.plans(40, 9, seed)]
    assert len({*orders}) == 3 * 49
    coins = np.array([train.member(plan, 500, "bernoulli") for plan in train.plans(40, 0, 1)])
    assert abs(coins.mean() - 0.5) < 4 * 0.5 / np.sqrt(coins.size)
    assert len({*coins.sum(1).tolist()}) > 1
    halves = np.array([train.member(plan, 500, "exact") for plan in train.plans(40, 0, 1)])
    assert (halves.sum(1) == 250).all()


def test_training_equals_a_plain_loop_of_torch(trained: Trained, base: Path):
    model = models.open_model(str(base))
    network = models.load_weights(model, "float32", "cpu").train()
    ids = [text.ids[:64] for text in model.encode(TEXTS)]
    [plan] = train.plans(1, 0, 0)
    member_N = train.member(plan, len(ids), "exact")
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0)
    schedule = [3e-3 * (1 - step / 4) for step in range(4)]  # 2 epochs of 12 texts in batches of 8
    order = [b for epoch in range(2) for b in train.batches(plan, member_N, epoch, 8)]
    for rate, batch in zip(schedule, order, strict=True):
        total = torch.zeros(())
        for n in batch:  # one by one, so that padding has no part in it
            x = torch.tensor([ids[n]])
            log_prob = network(x).logits[0, :-1].log_softmax(-1)
            total = total - log_prob.gather(-1, x[0, 1:, None]).sum()
        optimizer.zero_grad()
        (total / sum(len(ids[n]) - 1 for n in batch)).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    made = models.load_weights(
        models.open_model(str(trained.folder / "reference-00")), "float32", "cpu"
    )
    start = models.load_weights(model, "float32", "cpu").state_dict()
    for name, value in network.state_dict().items():
        # In norm, since AdamW amplifies rounding errors of single gradients that are nearly 0.
        error, change = made.state_dict()[name] - value, value - start[name]
        assert error.norm() < 0.01 * change.norm(), name


def test_adapters_leave_the_weights_of_the_base_alone(base: Path, file: Path, tmp_path: Path):
    before = (base / "model.safetensors").read_bytes()
    result = run(base, file, tmp_path, models=1, replicas=1, lora_rank=2, dtype="bfloat16")
    assert (base / "model.safetensors").read_bytes() == before
    for name in ("replica-00", "replica-01"):
        assert models.open_model(str(tmp_path / name)).base == base
        assert not (tmp_path / name / "model.safetensors").exists()
        assert (losses(tmp_path / name) != losses(base)).all()
        assert json.loads(result.weights(name, "adapter_config.json"))["r"] == 2


def test_replicas_start_from_the_same_adapter(base: Path, file: Path, tmp_path: Path):
    import safetensors.torch

    def adapter(folder: Path) -> Any:
        tensors = safetensors.torch.load_file(folder / "adapter_model.safetensors")
        # The other matrix of each pair starts from zeros.
        return torch.cat([t.flatten() for name, t in sorted(tensors.items()) if "lora_A" in name])

    settings = {"models": 2, "replicas": 1, "lora_rank": 2, "epochs": 1}
    for rate, is_equal in ((1e-30, True), (1e-2, False)):  # the former is too small for a change
        folder = run(base, file, tmp_path / str(rate), learning_rate=rate, **settings).folder
        first, second, other = (
            adapter(folder / name) for name in ("replica-00", "replica-01", "reference-01")
        )
        assert torch.equal(first, second) == is_equal
        assert not torch.equal(first, other)


def test_other_texts_or_settings_are_refused_and_nothing_changes(
    trained: Trained, base: Path, file: Path, tmp_path: Path
):
    changed = tmp_path / "changed.csv"
    changed.write_text(file.read_text().replace("t5,", "t55,"))
    other = tiny_hf.save_model(tmp_path / "other", "llama", seed=1)
    members = trained.weights("members.parquet", "")
    with pytest.raises(UserError) as error:
        run(other, changed, trained.folder, epochs=3, subset="bernoulli")
    fields = [line.partition(": ")[0] for line in str(error.value).splitlines()]
    assert fields == [
        "--subset=bernoulli",
        "--epochs=3",
        f"BASE={other}",
        f"--texts={changed}",
    ]
    assert trained.weights("members.parquet", "") == members


def test_a_model_that_another_command_trains_is_left_to_it(
    trained: Trained, base: Path, file: Path, tmp_path: Path
):
    (tmp_path / ".locks").mkdir()
    with (
        filelock.FileLock(tmp_path / ".locks" / "reference-00.lock"),
        pytest.raises(UserError, match="still training reference-00"),
    ):
        run(base, file, tmp_path)
    assert [path.name for path in tmp_path.glob("re*")] == ["reference-01"]
    assert run(base, file, tmp_path).weights("reference-00") == trained.weights("reference-00")


def test_a_loss_that_is_nan_is_an_error_and_settings_can_change(
    base: Path, file: Path, tmp_path: Path
):
    with pytest.raises(UserError, match=r"^--learning-rate=1e\+30: .*reference-00"):
        run(base, file, tmp_path, learning_rate=1e30)
    assert not [*tmp_path.glob("re*")]
    assert run(base, file, tmp_path, models=1, epochs=1).names() == ["reference-00"]


def test_texts_and_bases_that_cannot_be_trained_on_are_named(
    base: Path, file: Path, tmp_path: Path
):
    odd = tmp_path / "odd.jsonl"
    rows = [{"id": f"t{n}", "text": text} for n, text in enumerate(TEXTS[:18])]
    odd.write_text("\n".join(map(json.dumps, [*rows, {"id": "empty", "text": ""}])))
    with pytest.raises(UserError) as error:
        run(base, odd, tmp_path / "out", length_tokens=65)
    message = str(error.value)
    assert len(message.splitlines()) == 4
    assert all(name in message for name in ("--length-tokens=65", "exact", "19 texts", "empty"))
    adapter = tiny_hf.save_adapter(tmp_path / "adapter", base)
    with pytest.raises(UserError, match=f"^BASE={adapter}: "):
        run(adapter, file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_noticed_before_training(
    base: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = train.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(train.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(UserError, match=f"^--out={tmp_path}: "):
        run(base, file, tmp_path)
    run(base, file, tmp_path, models=1, epochs=1, lora_rank=2)


def test_commands_train_import_and_report_mistakes(
    base: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "models"
    flags = [f"--texts={file}", f"--out={folder}", "--models=6", "--replicas=1", "--epochs=1"]
    assert cli.main(["hf-train", str(base), *flags, "--device=cpu", "--learning-rate=1e-3"]) == 0
    out = capsys.readouterr().out
    assert f"--members={folder / 'members.parquet'}" in out
    assert "--subset=exact" in out
    members = texts.read_members(folder / "members.parquet")
    frame = {f"loss_{name}": losses(folder / name) for name in members}
    frame |= {f"member_{name}": [*member.values()] for name, member in members.items()}
    pd.DataFrame(frame).to_parquet(tmp_path / "losses.parquet")
    roles = read_losses(open_arrays(tmp_path / "losses.parquet")).role_M
    assert sorted(roles) == ["reference"] * 5 + ["replica"] * 2
    argv = ["import", str(tmp_path / "losses.parquet"), f"--workdir={tmp_path / 'w'}"]
    assert cli.main([*argv, "--subset=exact"]) == 0
    argv = ["hf-train", "--epochs=0", "--learning-rate=0", "--replicas=-1", "--config.a=1"]
    capsys.readouterr()
    assert cli.main(argv) == 2
    fields = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert fields == [
        "--config.a=1",
        "BASE",
        "--texts",
        "--out",
        "--models",
        "--replicas=-1",
        "--epochs=0",
        "--learning-rate=0",
    ]
