# pyright: reportMissingImports=false

import json
from pathlib import Path

import pytest
import tiny_hf

from lm_mia.errors import UserError
from lm_mia.hf import models

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns folders of a GPT-2, a Llama, a Mamba and a LoRA adapter of the Llama."""
    top = tmp_path_factory.mktemp("models")
    found = {kind: tiny_hf.save_model(top / kind, kind) for kind in ("gpt2", "llama", "mamba")}
    return found | {"lora": tiny_hf.save_adapter(top / "lora", found["llama"])}


def copy(source: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def edit_json(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_length_limits_are_found_where_the_model_has_one(folders: dict[str, Path], tmp_path: Path):
    limits = {name: models.open_model(str(folder)).length_limit for name, folder in folders.items()}
    assert limits == {"gpt2": 48, "llama": 64, "mamba": None, "lora": 64}
    folder = copy(folders["mamba"], tmp_path / "limited")
    edit_json(folder / "tokenizer_config.json", model_max_length=17)
    assert models.open_model(str(folder)).length_limit == 17


@pytest.mark.parametrize("name", ["gpt2", "llama", "lora"])
def test_tokens_are_those_of_the_tokenizer(folders: dict[str, Path], name: str):
    import transformers

    texts = tiny_hf.sample_texts()
    folder = folders["llama" if name == "lora" else name]
    expected = transformers.PreTrainedTokenizerFast.from_pretrained(folder)(texts)["input_ids"]
    encoded = models.open_model(str(folders[name])).encode(texts)
    assert [e.ids for e in encoded] == expected
    assert max(len(e.ids) for e in encoded) > 4  # although the file of the Llama says to cut there
    assert [e.ends[-1] for e in encoded] == [len(text) for text in texts]
    assert (encoded[0].ids[0] == 0) == (name != "gpt2")


def test_an_adapter_has_the_parameters_and_tokens_of_its_base(folders: dict[str, Path]):
    base, adapter = (models.open_model(str(folders[name])) for name in ("llama", "lora"))
    assert adapter.base == folders["llama"]
    assert adapter.parameters == base.parameters
    network = models.load_weights(base, "float32", "cpu")
    assert base.parameters == sum(p.numel() for p in network.parameters())


def test_an_adapter_may_name_its_base_relative_to_itself(folders: dict[str, Path], tmp_path: Path):
    copy(folders["llama"], tmp_path / "base")
    folder = copy(folders["lora"], tmp_path / "lora")
    edit_json(folder / "adapter_config.json", base_model_name_or_path="../base")
    model = models.open_model(str(folder))
    assert model.base is not None
    assert model.base.resolve() == tmp_path / "base"


def test_weights_have_the_requested_type_whatever_the_file_has(
    folders: dict[str, Path], tmp_path: Path
):
    import torch
    import transformers

    network = transformers.AutoModelForCausalLM.from_pretrained(
        folders["llama"], dtype=torch.bfloat16
    )
    network.save_pretrained(tmp_path)
    for path in folders["llama"].glob("tokenizer*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    loaded = models.load_weights(models.open_model(str(tmp_path)), "float32", "cpu")
    assert loaded.dtype == torch.float32
    assert not loaded.training


@pytest.mark.parametrize("name", ["gpt2", "lora"])
def test_the_fingerprint_is_of_the_content(folders: dict[str, Path], tmp_path: Path, name: str):
    folder = copy(folders[name], tmp_path / "copy")
    expected = models.fingerprint(models.open_model(str(folders[name])))
    assert models.fingerprint(models.open_model(str(folder))) == expected
    file = next(folder.glob("*model.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert models.fingerprint(models.open_model(str(folder))) != expected


def test_an_adapter_has_another_fingerprint_if_its_base_changes(
    folders: dict[str, Path], tmp_path: Path
):
    base, adapter = (copy(folders[name], tmp_path / name) for name in ("llama", "lora"))
    edit_json(adapter / "adapter_config.json", base_model_name_or_path=str(base))
    before = models.fingerprint(models.open_model(str(adapter)))
    tiny_hf.save_model(base, "llama", seed=5)
    assert models.fingerprint(models.open_model(str(adapter))) != before


def test_names_are_as_short_as_they_can_be(folders: dict[str, Path], tmp_path: Path):
    for run in "ab":
        (tmp_path / run).mkdir()
        copy(folders["gpt2"], tmp_path / run / "last")
    opened = [models.open_model(str(tmp_path / run / "last")) for run in "ab"]
    assert models.model_names(opened[:1]) == ["last"]
    assert models.model_names(opened) == ["a-last", "b-last"]
    with pytest.raises(UserError, match="more than once"):
        models.model_names([opened[0], opened[0]])


def damage(folder: Path, kind: str) -> None:
    """Damages a folder in one way."""
    import safetensors.torch

    file = folder / "model.safetensors"
    match kind:
        case "no config":
            (folder / "config.json").unlink()
        case "pickled weights":
            file.rename(folder / "pytorch_model.bin")
        case "cut":
            file.write_bytes(file.read_bytes()[:-10])
        case "code of the folder":
            edit_json(
                folder / "config.json",
                model_type="unheard-of",
                auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
            )
            (folder / "code.py").write_text("raise SystemExit('this code ran')")
        case "an encoder":
            edit_json(folder / "config.json", model_type="t5")
        case "integers":
            tensors = safetensors.torch.load_file(file)
            name = next(name for name in tensors if name.endswith("mlp.c_fc.weight"))
            tensors[name] = tensors[name].char()
            safetensors.torch.save_file(tensors, file, {"format": "pt"})
        case "a lost shard":
            index = {"weight_map": {"a": "model-00001.safetensors"}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
            file.unlink()
        case "no tokenizer":
            for path in folder.glob("tokenizer*"):
                path.unlink()
        case "a damaged tokenizer":
            (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    "kind",
    [
        "no config",
        "pickled weights",
        "cut",
        "of the folder",
        "an encoder",
        "integers",
        "a lost shard",
        "no tokenizer",
        "a damaged tokenizer",
    ],
)
def test_damaged_folders_are_refused_before_loading(
    folders: dict[str, Path], tmp_path: Path, kind: str
):
    folder = copy(folders["gpt2"], tmp_path / "damaged")
    damage(folder, kind)
    with pytest.raises(UserError) as error:
        models.open_model(str(folder))
    assert str(error.value).startswith(f"MODEL={folder}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", ["missing", "unused", "another shape"])
def test_weights_that_do_not_fit_the_config_are_refused(
    folders: dict[str, Path], tmp_path: Path, change: str
):
    import safetensors.torch

    folder = copy(folders["llama"], tmp_path / "wrong")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    match change:
        case "missing":
            del tensors[name]
        case "unused":
            name = "model.layers.1.mlp.up_proj.bias"
            tensors[name] = tensors["model.norm.weight"].clone()
        case "another shape":
            tensors[name] = tensors[name][:-1].clone()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        models.load_weights(models.open_model(str(folder)), "float32", "cpu")


def test_only_lora_adapters_with_a_base_are_accepted(folders: dict[str, Path], tmp_path: Path):
    folder = copy(folders["lora"], tmp_path / "lora")
    edit_json(folder / "adapter_config.json", base_model_name_or_path="nobody/has-this")
    with pytest.raises(UserError, match="base_model_name_or_path"):
        models.open_model(str(folder))
    edit_json(folder / "adapter_config.json", peft_type="PREFIX_TUNING")
    with pytest.raises(UserError, match="PREFIX_TUNING"):
        models.open_model(str(folder))


def test_an_adapter_that_lacks_tensors_is_refused(folders: dict[str, Path], tmp_path: Path):
    import safetensors.torch

    folder = copy(folders["lora"], tmp_path / "lora")
    file = folder / "adapter_model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors.pop(min(tensors))
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match="adapter"):
        models.load_weights(models.open_model(str(folder)), "float32", "cpu")


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "peft" else name)
    models.require()
    with pytest.raises(UserError, match=r'^peft.*`pip install "lm-mia\[hf\]"`$'):
        models.require("peft")
