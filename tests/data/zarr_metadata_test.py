import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs.pickles
import numpy as np
import pytest
import zarr
import zarr.registry
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

import lm_mia
from lm_mia import cli
from lm_mia.data.arrays import open_arrays
from lm_mia.data.losses import read_losses
from lm_mia.data.zarr_metadata import check_zarr
from lm_mia.errors import UserError
from lm_mia.store.store import Store

# What zarr and xarray say of stores that they read nevertheless.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Consolidated metadata", "ignore:Failed to open Zarr", "ignore:Numcodecs codecs"
)
M, N = 4, 20
PICKLE = {"id": "pickle"}


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


class InstalledCodec(BytesBytesCodec):
    """A codec of another package, which may do anything."""

    is_fixed_size = True
    created: Path

    @classmethod
    def from_dict(cls, data: Any) -> "InstalledCodec":
        return cls()

    def to_dict(self) -> Any:
        return {"name": "installed", "configuration": {}}

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        self.created.mkdir(exist_ok=True)
        return chunk_data

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        return input_byte_length


@pytest.fixture
def created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file that the codecs create, which numcodecs alone would not prevent."""
    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)
    monkeypatch.setattr(InstalledCodec, "created", tmp_path / "created", raising=False)
    zarr.registry.register_codec("installed", InstalledCodec)
    return tmp_path / "created"


def format_2(folder: Path, created: Path, **text: Any) -> Path:
    """Writes losses in format 2, whose `text` is a pickle and has these fields of metadata."""
    values = {
        "loss": (["model", "sample"], np.ones((M, N), "f4").tobytes(), "<f4"),
        "member": (["model", "sample"], (np.arange(M * N) % 2).astype("?").tobytes(), "|b1"),
        "text": (["sample"], pickle.dumps(Payload(created)), "|O"),
    }
    folder.mkdir()
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    for name, (dims, chunk, dtype) in values.items():
        shape = [M, N][-len(dims) :]
        described = {
            "zarr_format": 2,
            "shape": shape,
            "chunks": shape,
            "dtype": dtype,
            "order": "C",
        }
        described |= {
            "compressor": None,
            "filters": None,
            "fill_value": None if name == "text" else 0,
        }
        described |= text if name == "text" else {}
        (folder / name).mkdir()
        (folder / name / ".zarray").write_text(json.dumps(described))
        (folder / name / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": dims}))
        (folder / name / ".".join("0" * len(dims))).write_bytes(chunk)
    return folder


def format_3(folder: Path, **text: Any) -> Path:
    """Writes losses in format 3, whose `tokens` has these settings of `zarr.create_array`."""
    group = zarr.open_group(folder, mode="w")
    for name, value in (("loss", np.ones((M, N), "f4")), ("member", np.arange(M * N) % 2 == 0)):
        array = group.create_array(
            name, shape=(M, N), dtype=value.dtype, dimension_names=["model", "sample"]
        )
        array[:] = value.reshape(M, N)
    settings = {"dtype": "int64", "chunks": (N,)} | text
    array = group.create_array("tokens", shape=(N,), dimension_names=["sample"], **settings)
    array[:] = np.arange(N) + 1
    return folder


def edit(file: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def import_store(folder: Path) -> int:
    return cli.main(["import", str(folder), f"--workdir={folder.with_name('workdir')}"])


@pytest.mark.parametrize(
    "text",
    [
        {"filters": [PICKLE]},
        {"compressor": PICKLE, "filters": [{"id": "vlen-utf8"}]},
        {"filters": [{"id": "vlen-utf8"}, PICKLE]},
        {"dtype": "<i8", "compressor": PICKLE, "fill_value": 0},
    ],
)
@pytest.mark.parametrize("consolidated", [False, True])
def test_pickles_of_format_2_are_refused(
    tmp_path: Path,
    created: Path,
    capsys: pytest.CaptureFixture[str],
    text: dict[str, Any],
    consolidated: bool,
):
    folder = format_2(tmp_path / "store", created, **text)
    if consolidated:
        files = [file for file in folder.rglob(".z*") if file.is_file()]
        metadata = {str(file.relative_to(folder)): json.loads(file.read_text()) for file in files}
        content = {"zarr_consolidated_format": 1, "metadata": metadata}
        (folder / ".zmetadata").write_text(json.dumps(content))
        edit(folder / "text" / ".zarray", lambda own: own.update(compressor=None, filters=None))
    assert import_store(folder) == 2
    assert not created.exists()
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith(f"{folder}/text: ")] == lines
    assert "'pickle'" in lines[0]


def add_codec(node: dict[str, Any]) -> None:
    node["codecs"].append({"name": "installed", "configuration": {}})


def add_name_only(node: dict[str, Any]) -> None:
    node["codecs"].append("installed")


def add_inside_a_shard(node: dict[str, Any]) -> None:
    add_codec(node["codecs"][0]["configuration"])


def add_to_the_index_of_a_shard(node: dict[str, Any]) -> None:
    node["codecs"][0]["configuration"]["index_codecs"].append("installed")


@pytest.mark.parametrize(
    "add", [add_codec, add_name_only, add_inside_a_shard, add_to_the_index_of_a_shard]
)
@pytest.mark.parametrize("consolidated", [False, True])
def test_codecs_of_other_packages_are_refused(
    tmp_path: Path, created: Path, add: Callable[[Any], None], consolidated: bool
):
    folder = format_3(tmp_path / "store", chunks=(N // 2,), shards=(N,))
    if consolidated:
        zarr.consolidate_metadata(folder)
        edit(
            folder / "zarr.json",
            lambda root: add(root["consolidated_metadata"]["metadata"]["tokens"]),
        )
    else:
        edit(folder / "tokens" / "zarr.json", add)
    assert import_store(folder) == 2
    assert not created.exists()
    with pytest.raises(UserError, match="'installed'"):
        check_zarr(folder)


def test_nested_groups_and_links_are_checked(tmp_path: Path, created: Path):
    outside = format_2(tmp_path / "outside", created, filters=[PICKLE])
    nested = format_3(tmp_path / "nested")
    zarr.open_group(nested, mode="a").create_group("inner")
    (nested / "inner" / "more").symlink_to(outside)
    (nested / "inner" / "loop").symlink_to(nested)
    with pytest.raises(UserError, match=r"nested/inner/more/text: .*'pickle'"):
        check_zarr(nested)


@pytest.mark.parametrize("name", ["../outside/tokens", "/outside", "a\0b", "\ud800"])
def test_names_outside_the_store_are_refused(tmp_path: Path, name: str):
    folder = format_3(tmp_path / "store")
    zarr.consolidate_metadata(folder)

    def rename(root: dict[str, Any]) -> None:
        nodes = root["consolidated_metadata"]["metadata"]
        nodes[name] = nodes.pop("tokens")

    edit(folder / "zarr.json", rename)
    with pytest.raises(UserError, match="outside the store"):
        check_zarr(folder)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "null"])
@pytest.mark.parametrize("file", ["zarr.json", "tokens/zarr.json"])
def test_invalid_metadata_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, file: str
):
    folder = format_3(tmp_path / "store")
    (folder / file).write_text(text)
    assert import_store(folder) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_hostile_score_store_in_a_workdir_is_not_read(
    tmp_path: Path, created: Path, capsys: pytest.CaptureFixture[str]
):
    workdir, member_MxN = tmp_path / "workdir", np.arange(8 * N).reshape(8, N) % 2 == 0
    results = lm_mia.open_arrays(workdir, np.ones((8, N)), member_MxN)
    recipe = results.recipes["imported"]
    store = recipe.path / "scores.zarr"
    intact = (store / "zarr.json").read_text()

    def replace_codecs(root: dict[str, Any]) -> None:
        for node in root["consolidated_metadata"]["metadata"].values():
            add_codec(node)

    edit(store / "zarr.json", replace_codecs)
    with pytest.raises(UserError, match="'installed'"):
        recipe.scores()
    for command in ("status", "attack"):
        assert cli.main([command, f"--workdir={workdir}"]) == 2
        assert "'installed'" in capsys.readouterr().err
    (store / "zarr.json").write_text(intact)
    edit(
        store / "model" / "zarr.json", add_codec
    )  # `status --verify` reads each array's own metadata
    assert cli.main(["status", "--verify", f"--workdir={workdir}"]) == 2
    assert not created.exists()


def test_a_store_of_format_2_is_no_score_store(tmp_path: Path, created: Path):
    store = Store(format_2(tmp_path / "scores.zarr", created, filters=[PICKLE]))
    for ask in (store.models, store.is_present):
        with pytest.raises(UserError, match="format 2"):
            ask()
    assert not (store.path / "zarr.json").exists()
    assert not created.exists()


def wrapped(name: str, **settings: Any) -> dict[str, Any]:
    """Returns the codec of numcodecs as arrays of format 3 name it."""
    return {"name": f"numcodecs.{name}", "configuration": settings}


FORMAT_2 = [
    {"compressor": numcodecs.Blosc(), "filters": [numcodecs.Delta("<i8")]},
    {"compressor": numcodecs.Zstd(), "filters": [numcodecs.Shuffle(8)]},
    {"compressor": numcodecs.GZip()},
    {"compressor": numcodecs.Zlib()},
    {"compressor": numcodecs.LZ4()},
    {"compressor": numcodecs.LZMA()},
    {"compressor": numcodecs.BZ2(), "filters": [numcodecs.FixedScaleOffset(0, 1, "<i8")]},
    {"compressor": None, "filters": [numcodecs.AsType("<i4", "<i8"), numcodecs.CRC32()]},
]
FORMAT_3 = [
    {"compressors": [BloscCodec()], "filters": [TransposeCodec(order=(0,))]},
    {"compressors": [ZstdCodec(), Crc32cCodec()], "serializer": BytesCodec()},
    {"compressors": [GzipCodec()], "chunks": (N // 2,), "shards": (N,)},
    {"compressors": [wrapped("lz4")], "filters": [wrapped("delta", dtype="<i8")]},
    {"compressors": [wrapped("shuffle", elementsize=8), wrapped("zlib", level=1)]},
]


@pytest.mark.parametrize("settings", [*FORMAT_2, *FORMAT_3], ids=lambda s: str(s)[:40])
def test_stores_with_the_usual_codecs_are_imported(tmp_path: Path, settings: dict[str, Any]):
    version, folder = 2 if "compressor" in settings else 3, tmp_path / "store"
    group = zarr.open_group(folder, mode="w", zarr_format=version)
    dims = {"loss": ["model", "sample"], "member": ["model", "sample"]}
    values = {"loss": np.ones((M, N), "f4"), "member": np.arange(M * N).reshape(M, N) % 3 == 0}
    values |= {
        "tokens": np.arange(N) + 1,
        "text": np.array([f"text {i}" for i in range(N)], object),
    }
    for name, value in values.items():
        own = settings if name == "tokens" else {}
        if version == 2 and name == "tokens":
            compressor = own.get("compressor")
            own = {"compressors": compressor, "filters": own.get("filters")}
        own = {"chunks": value.shape} | own
        named = dims.get(name, ["sample"])
        extra = {"dimension_names": named} if version == 3 else {}
        dtype = str if name == "text" else value.dtype
        array = group.create_array(name, shape=value.shape, dtype=dtype, **extra, **own)
        array[:] = value
        if version == 2:
            array.attrs["_ARRAY_DIMENSIONS"] = named
    for _ in range(2):
        file = read_losses(open_arrays(folder))
        np.testing.assert_array_equal(file.columns["tokens"], values["tokens"])
        assert file.text_N is not None
        assert file.text_N.tolist() == values["text"].tolist()
        zarr.consolidate_metadata(folder)
