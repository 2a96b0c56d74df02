# pyright: reportMissingImports=false

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_hf

from lm_mia import cli
from lm_mia.data import losses as loss_reader
from lm_mia.data.arrays import open_arrays
from lm_mia.hf import losses, models, scorer

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

TEXTS = tiny_hf.sample_texts()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns a folder for each kind of model, and of a LoRA adapter of the Llama."""
    top = tmp_path_factory.mktemp("models")
    kinds = (*tiny_hf.KINDS, "gemma2")
    found = {kind: tiny_hf.save_model(top / kind, kind, seed=n) for n, kind in enumerate(kinds)}
    return found | {"lora": tiny_hf.save_adapter(top / "lora", found["llama"])}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    rows = [
        {"id": f"t{n}", "text": text, "member": n % 2, "user": f"u{n // 2}", "year": n, "note": "x"}
        for n, text in enumerate(TEXTS)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def run(*words: object, code: int = 0) -> None:
    assert cli.main(["hf-losses", *map(str, words)]) == code


def float64_loop(folder: Path, base: Path, limit: int) -> tuple[list[list[int]], list[float]]:
    """Returns the tokens and the mean loss of each text, one text at a time, in float64."""
    import peft
    import torch
    import transformers

    kind = transformers.AutoModelForCausalLM if folder == base else peft.AutoPeftModelForCausalLM
    network = kind.from_pretrained(folder, dtype=torch.float64).eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(base)
    tokens, found = [], []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"][:limit]
        with torch.no_grad():
            log_p = network(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        tokens.append(ids)
        found.append(-np.mean([float(log_p[n, ids[n + 1]]) for n in range(len(ids) - 1)]))
    return tokens, found


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("name", [*tiny_hf.KINDS, "gemma2", "lora"])
def test_losses_and_tokens_are_those_of_a_plain_loop(
    folders: dict[str, Path],
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
):
    monkeypatch.setattr(scorer, "MAX_LOGITS", 4000)  # about 13 positions at a time
    out, tokens_out = tmp_path / "losses.parquet", tmp_path / "tokens.parquet"
    folder = folders[name]
    limit = models.open_model(str(folder)).length_limit or losses.LENGTH_TOKENS
    run(
        folder,
        f"--texts={texts}",
        f"--out={out}",
        f"--token-log-probs={tokens_out}",
        "--batch-tokens=200",
    )
    tokens, expected = float64_loop(folder, folders["llama"] if name == "lora" else folder, limit)
    table, by_token = pq.read_table(out), pq.read_table(tokens_out)
    np.testing.assert_allclose(table[f"loss_{name}"], expected, rtol=0, atol=1e-5)
    assert by_token[f"tokens_{name}"].to_pylist() == tokens
    assert table["tokens"].to_pylist() == [len(ids) - 1 for ids in tokens]
    means = [-np.mean(values) for values in by_token[f"log_prob_{name}"].to_pylist()]
    np.testing.assert_allclose(means, expected, rtol=0, atol=1e-5)
    assert not [*tmp_path.glob("*.partial")]


def test_the_file_of_a_pair_can_be_imported(folders: dict[str, Path], texts: Path, tmp_path: Path):
    out, members = tmp_path / "losses.parquet", tmp_path / "members.csv"
    rows = [f"{name},t{n},{int(n < 9)}" for name in ("lora", "llama") for n in range(len(TEXTS))]
    members.write_text("\n".join(["model,id,member", *rows]))
    run(
        folders["lora"],
        folders["llama"],
        f"--texts={texts}",
        f"--out={out}",
        f"--members={members}",
    )
    file = loss_reader.read_losses(open_arrays(out))
    assert file.names_M == ("lora", "llama")
    assert loss_reader.read_member(file, 0).tolist() == [n < 9 for n in range(len(TEXTS))]
    assert np.abs(file.read("loss", 0) - file.read("loss", 1)).max() > 0.01
    assert file.text_N is not None
    assert file.text_N[0] == TEXTS[0]
    assert file.columns["user"].tolist() == [f"u{n // 2}" for n in range(len(TEXTS))]
    assert file.columns["year"].tolist() == [*range(len(TEXTS))]
    assert pq.read_table(out)["id"].to_pylist() == [f"t{n}" for n in range(len(TEXTS))]


def test_membership_in_the_texts_is_that_of_the_first_model(
    folders: dict[str, Path], texts: Path, tmp_path: Path
):
    out = tmp_path / "losses.parquet"
    run(folders["lora"], folders["llama"], f"--texts={texts}", f"--out={out}")
    table = pq.read_table(out)
    assert table["member_lora"].to_pylist() == [bool(n % 2) for n in range(len(TEXTS))]
    assert "member_llama" not in table.column_names


def test_texts_are_cut_at_one_limit_for_all_models(
    folders: dict[str, Path], texts: Path, tmp_path: Path
):
    out = tmp_path / "losses.parquet"
    run(folders["gpt2"], folders["qwen2"], f"--texts={texts}", f"--out={out}")
    table = pq.read_table(out)
    assert max(table["tokens"].to_pylist()) == 47  # GPT-2 takes 48 tokens, Qwen more
    kept = table["text"].to_pylist()
    assert all(text.startswith(part) for text, part in zip(TEXTS, kept, strict=True))
    assert 0 < sum(part != text for text, part in zip(TEXTS, kept, strict=True)) < len(TEXTS)
    run(folders["gpt2"], f"--texts={texts}", f"--out={out}", "--length-tokens=49", code=2)


class StoppedError(Exception):
    pass


def stop_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes the computation of a batch fail after some; returns the list of the sizes of batches so far."""
    sizes: list[int] = []
    log_probs = scorer.Scorer.log_probs

    def stops(self: scorer.Scorer, ids_B: Any) -> Any:
        if len(sizes) == batches:
            raise StoppedError
        sizes.append(len(ids_B))
        return log_probs(self, ids_B)

    monkeypatch.setattr(scorer.Scorer, "log_probs", stops)
    return sizes


@pytest.fixture
def stopped(
    folders: dict[str, Path], texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], list[str]]:
    """Returns a function that stops a command after 4 batches, in the middle of writing the last of them."""

    def stop(folder: Path) -> list[str]:
        command = [str(folder), f"--texts={texts}", "--batch-tokens=100"]
        with monkeypatch.context() as patch:
            stop_after(4, patch)
            with pytest.raises(StoppedError):
                run(*command, f"--out={tmp_path / 'losses.parquet'}")
        partial = tmp_path / "losses.parquet.partial"
        partial.write_bytes(partial.read_bytes()[:-9])
        return command

    return stop


def test_a_stopped_command_goes_on_to_the_same_file(
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped: Callable[[Path], list[str]],
):
    command = stopped(folders["llama"])
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(StoppedError):
            run(*command, f"--out={tmp_path / 'losses.parquet'}")
    sizes = stop_after(-1, monkeypatch)
    run(*command, f"--out={tmp_path / 'whole.parquet'}")
    of_whole = len(sizes)
    run(*command, f"--out={tmp_path / 'losses.parquet'}")
    assert len(sizes) - of_whole == of_whole - 3 - 2
    assert (tmp_path / "losses.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"losses.parquet", "whole.parquet"}


def test_nothing_is_kept_of_a_model_that_was_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: Callable[[Path], list[str]]
):
    folder = tiny_hf.save_model(tmp_path / "model", "llama", seed=1)
    command = stopped(folder)
    tiny_hf.save_model(folder, "llama", seed=2)
    sizes = stop_after(-1, monkeypatch)
    run(*command, f"--out={tmp_path / 'losses.parquet'}")
    assert sum(sizes) == len(TEXTS)


def test_finished_models_are_not_computed_again(
    folders: dict[str, Path], texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "losses.parquet"
    run(folders["llama"], f"--texts={texts}", f"--out={out}")
    first, sizes = out.read_bytes(), stop_after(-1, monkeypatch)
    run(folders["llama"], f"--texts={texts}", f"--out={out}")
    assert not sizes
    assert out.read_bytes() == first
    run(folders["gpt2"], folders["llama"], f"--texts={texts}", f"--out={out}", "--length-tokens=48")
    assert sum(sizes) == 2 * len(TEXTS)  # other tokens of the Llama, since GPT-2 takes fewer
    before = out.read_bytes()
    run(folders["gpt2"], f"--texts={texts}", f"--out={out}", code=2)  # would lose the other losses
    assert out.read_bytes() == before


def test_a_file_of_the_user_is_not_replaced(folders: dict[str, Path], texts: Path, tmp_path: Path):
    out = tmp_path / "mine.parquet"
    pq.write_table(pa.table({"a": [1]}), out)
    before = out.read_bytes()
    run(folders["llama"], f"--texts={texts}", f"--out={out}", code=2)
    assert out.read_bytes() == before


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if weights are loaded."""

    def fail(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(models, "load_weights", fail)


@pytest.mark.usefixtures("no_weights")
def test_texts_without_tokens_are_named_before_weights_are_loaded(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    texts = tmp_path / "texts.jsonl"
    rows = [
        {"id": "good", "text": "the model"},
        {"id": "empty", "text": ""},
        {"id": "short", "text": "a"},
    ]
    texts.write_text("\n".join(map(json.dumps, rows)))
    run(folders["gpt2"], f"--texts={texts}", f"--out={tmp_path / 'a.parquet'}", code=2)
    [line] = capsys.readouterr().err.splitlines()
    assert "empty, short" in line
    run(folders["llama"], f"--texts={texts}", f"--out={tmp_path / 'a.parquet'}", code=2)
    assert "empty;" in capsys.readouterr().err  # with a token in front, one more is predicted


@pytest.mark.usefixtures("no_weights")
def test_all_wrong_flags_are_reported_at_once(
    folders: dict[str, Path], texts: Path, capsys: pytest.CaptureFixture[str]
):
    run("--out=losses.csv", "--batch-tokens=1", "--device=cpu", "--device-map=auto", code=2)
    starts = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert starts == ["MODEL", "--texts", "--out=losses.csv", "--batch-tokens=1", "--device=cpu"]
    run(folders["gpt2"], f"--texts={texts}", f"--out={texts.parent}/none/a.parquet", code=2)
    assert "--out=" in capsys.readouterr().err
    run(
        folders["gpt2"],
        f"--texts={texts}",
        f"--out={texts.parent}/a.parquet",
        "--device=tpu9",
        code=2,
    )
    assert "--device=tpu9: " in capsys.readouterr().err


@pytest.mark.usefixtures("no_weights")
def test_wrong_models_texts_and_members_are_reported_at_once(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "members.csv").write_text("model,id\n")
    (tmp_path / "texts.csv").write_text("id\na\n")
    files = [f"--texts={tmp_path}/texts.csv", f"--members={tmp_path}/members.csv"]
    run(tmp_path / "a", tmp_path, *files, f"--out={tmp_path}/a.parquet", code=2)
    starts = [line.partition(": ")[0] for line in capsys.readouterr().err.splitlines()]
    expected = [
        tmp_path / "texts.csv",
        tmp_path / "members.csv",
        f"MODEL={tmp_path / 'a'}",
        f"MODEL={tmp_path}",
    ]
    assert starts == [*map(str, expected)]


@pytest.mark.usefixtures("no_weights")
def test_members_of_other_models_or_texts_are_refused(
    folders: dict[str, Path], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    members = tmp_path / "members.csv"
    for rows, word in (("other,t0,1\n", "other"), ("gpt2,t0,1\n", "t1")):
        members.write_text("model,id,member\n" + rows)
        out = f"--out={tmp_path / 'a.parquet'}"
        run(folders["gpt2"], f"--texts={texts}", f"--members={members}", out, code=2)
        [line] = capsys.readouterr().err.splitlines()
        assert word in line


@pytest.mark.usefixtures("no_weights")
def test_tokens_that_the_model_does_not_have_are_refused(
    folders: dict[str, Path], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tiny_hf.save_model(tmp_path / "small", "llama", vocab_size=200)
    capsys.readouterr()
    run(folder, f"--texts={texts}", f"--out={tmp_path / 'a.parquet'}", code=2)
    assert capsys.readouterr().err.startswith(f"MODEL={folder}: ")


def test_losses_that_are_not_finite_are_refused(
    folders: dict[str, Path], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    import safetensors.torch

    folder = tiny_hf.save_model(tmp_path / "model", "llama")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    run(folder, f"--texts={texts}", f"--out={tmp_path / 'a.parquet'}", code=2)
    assert f"MODEL={folder}: " in capsys.readouterr().err


def test_bfloat16_is_close_and_another_computation(
    folders: dict[str, Path], texts: Path, tmp_path: Path
):
    found = []
    for dtype in ("float32", "bfloat16"):
        out = tmp_path / f"{dtype}.parquet"
        run(folders["llama"], f"--texts={texts}", f"--out={out}", f"--dtype={dtype}")
        found.append(pq.read_table(out)["loss_llama"].to_numpy())
    difference = np.abs(found[0] - found[1]).max()
    assert 1e-5 < difference < 0.2


def test_work_is_announced_before_and_its_time_after_some_batches(
    folders: dict[str, Path], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "losses.parquet"
    run(folders["qwen2"], f"--texts={texts}", f"--out={out}", "--batch-tokens=100")
    shown = capsys.readouterr()
    tokens = sum(pq.read_table(out)["tokens"].to_pylist()) + len(TEXTS)
    assert f"{tokens:,} tokens" in shown.err
    assert "GB of memory" in shown.err
    assert "left for 1 model" in shown.err
    assert str(out) in shown.out


@pytest.mark.usefixtures("no_weights")
def test_tokens_that_differ_from_those_of_other_tokenizers_are_noted(
    folders: dict[str, Path], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tiny_hf.save_model(tmp_path / "model", "qwen2")
    file = folder / "tokenizer.json"
    # For this type, AutoTokenizer splits texts in a way of its own.
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"pre_tokenizer": {"type": "Whitespace"}})
    )
    with pytest.raises(AssertionError, match="weights were loaded"):
        run(folders["gpt2"], folder, f"--texts={texts}", f"--out={tmp_path / 'a.parquet'}")
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert sum("AutoTokenizer" in note for note in notes) == 1
    assert sum("than gpt2" in note for note in notes) == 1
