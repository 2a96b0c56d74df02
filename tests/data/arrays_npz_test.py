import io
import struct
import zipfile

import numpy as np
import pytest

from lm_mia.data import arrays as array_reader
from lm_mia.data.arrays import check_membership, check_real, open_arrays
from lm_mia.errors import UserError


def npy(array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return file.getvalue()


def archive(path, members, **options):
    """Writes a zip file of (name, content) pairs, in which names may be repeated."""
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, content in members:
            if name in file.namelist():
                with pytest.warns(UserWarning, match="Duplicate"):
                    file.writestr(name, content)
            else:
                file.writestr(name, content)
    return path


def declared(shape, descr="<f4", fortran=False):
    """Returns the header of an array without its values."""
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_values_types_and_shapes(tmp_path, save, order):
    loss = np.asarray(np.arange(12.0).reshape(3, 4), ">f4", order)
    arrays = {"loss_MxN": loss, "member_MxN": loss > 5, "scalar": np.float64(3), "s": ["a", "bc"]}
    save(tmp_path / "a.npz", **arrays)
    opened = open_arrays(tmp_path / "a.npz")
    assert [*opened] == [*arrays]
    assert len(opened) == 4
    for name, expected in arrays.items():
        np.testing.assert_array_equal(opened[name].array(), expected)
        assert opened[name].array().dtype == np.asarray(expected).dtype
    assert opened["loss_MxN"].shape == (3, 4)
    with pytest.raises(KeyError):
        opened["other"]


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_uncompressed_arrays_are_mapped_into_memory(tmp_path, monkeypatch, order):
    monkeypatch.setattr(array_reader, "_MAPPED_BYTES", 32)
    loss = np.asarray(np.random.default_rng(0).normal(size=(7, 5)), order=order)
    np.savez(tmp_path / "a.npz", small=np.arange(3), loss=loss)
    opened = open_arrays(tmp_path / "a.npz")
    assert isinstance(opened["loss"].array(), np.memmap)
    assert not isinstance(opened["small"].array(), np.memmap)
    np.testing.assert_array_equal(opened["loss"].array(), loss)
    assert opened["loss"].array().flags.f_contiguous == (order == "F")
    assert not opened["loss"].array().flags.writeable


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("mapped_bytes", [1, 2**24])
def test_changed_values_are_noticed(tmp_path, monkeypatch, save, mapped_bytes):
    monkeypatch.setattr(array_reader, "_MAPPED_BYTES", mapped_bytes)
    path = tmp_path / "a.npz"
    save(path, loss=np.random.default_rng(0).normal(size=1000))
    content = bytearray(path.read_bytes())
    content[4000] ^= 1
    path.write_bytes(content)
    opened = open_arrays(path)
    with pytest.raises(UserError, match=r"a.npz: array 'loss': .*damaged"):
        opened["loss"].array()


NPY = npy(np.arange(3.0))
STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


@pytest.mark.parametrize(
    ("members", "compression", "problem"),
    [
        ([], STORED, "holds no arrays"),
        ([("a.txt", b"text")], STORED, "'a.txt'.* not an array"),
        ([("folder/", b"")], STORED, "'folder/'.* not an array"),
        ([("a.npy", NPY), ("a.npy", NPY)], STORED, "2 arrays named 'a'; "),
        ([("a.npy", npy(np.array([{}, None]), allow_pickle=True))], STORED, "pickled Python"),
        ([("a.npy", npy(np.zeros(2, "f4,i4")))], STORED, "several fields"),
        ([("a.npy", npy(np.zeros((2, 0))))], STORED, r"empty.* \(2, 0\)"),
        (
            [("a.npy", NPY[:-8])],
            STORED,
            r"\(3,\) of float64 .*24 bytes\b.*\b16;",
        ),
        ([("a.npy", NPY + b"12345678")], STORED, r"24 bytes\b.*\b32;"),
        ([("a.npy", declared((2**40, 2**7)))], DEFLATED, "takes 562,949,953,421,312 bytes, but"),
        ([("a.npy", declared((-1,)))], STORED, r"header .*damaged \(.*\(-1,\)\)"),
        ([("a.npy", declared((2**60, 2**60)))], STORED, "header is damaged"),
        ([("a.npy", declared((1,), "<q9"))], STORED, "header is damaged"),
        ([("a.npy", b"\x93NUMPY\x03\x00" + NPY[8:])], STORED, r"version 3\.0 "),
        ([("a.npy", b"no array")], STORED, "header is damaged"),
        ([("a.npy", b"")], STORED, "header is damaged"),
        ([("a.npy", NPY)], zipfile.ZIP_BZIP2, "by deflate"),
        ([("a.npy", NPY)], zipfile.ZIP_LZMA, "by deflate"),
    ],
)
def test_invalid_arrays(tmp_path, members, compression, problem):
    path = archive(tmp_path / "a.npz", members, compression=compression)
    with pytest.raises(UserError, match=problem) as error:
        open_arrays(path)
    assert len(str(error.value).splitlines()) == 1
    assert str(error.value).startswith(f"{path}: ")


def test_all_problems_at_once(tmp_path):
    members = [("empty.npy", npy(np.zeros(0))), ("fine.npy", NPY), ("short.npy", NPY[:-1])]
    with pytest.raises(UserError) as error:
        open_arrays(archive(tmp_path / "a.npz", members))
    assert len(str(error.value).splitlines()) == 2


def test_pickles_are_never_loaded(tmp_path):
    """A pickle that would create a file when it is loaded."""
    created = tmp_path / "created"
    content = declared((1,), "|O") + f"cbuiltins\nopen\n(V{created}\nVw\ntR.".encode()
    with pytest.raises(UserError, match="pickled"):
        open_arrays(archive(tmp_path / "a.npz", [("a.npy", content)]))
    assert not created.exists()


def test_what_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, constant=np.zeros(2**20))
    assert open_arrays(path)["constant"].array().shape == (2**20,)
    monkeypatch.setattr(array_reader, "memory_bytes", lambda: 2**22)
    with pytest.raises(UserError, match="machine's memory; "):
        open_arrays(path)
    np.savez(path, constant=np.zeros(2**20))
    assert open_arrays(path)["constant"].shape == (2**20,)  # mapped: no limit


def directory_entry(content):
    return content.index(b"PK\x01\x02")


def test_encrypted_arrays_are_refused(tmp_path):
    path = archive(tmp_path / "a.npz", [("a.npy", NPY), ("b.npy", NPY)])
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, directory_entry(content) + 8, 1)
    path.write_bytes(content)
    with pytest.raises(UserError, match="'a': is encrypted"):
        open_arrays(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "file is empty"),
        (b"score,member\n1,0\n", "not an npz"),
        (NPY, r"single array .*\(.npy\)"),
        (b"PK\x03\x04" + bytes(100), "truncated or damaged"),
    ],
)
def test_other_files(tmp_path, content, problem):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"a.npz: .*{problem}"):
        open_arrays(path)


def test_truncated_file_folder_and_unreadable_file(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(100))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="truncated or damaged"):
        open_arrays(path)
    with pytest.raises(UserError, match="is a folder"):
        open_arrays(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        open_arrays(tmp_path / "b.npz")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(UserError, match=r"\(Permission denied\)"):
        open_arrays(path)


@pytest.mark.parametrize("order", ["C", "F"])
def test_real_numbers(monkeypatch, order):
    monkeypatch.setattr(array_reader, "_BLOCK", 5)
    loss = np.asarray(np.arange(24, dtype=np.float32).reshape(4, 6), order=order)
    loss[1, 3] = np.nan  # missing
    assert check_real(loss, "f: loss") is loss
    loss[2, 4], loss[3, 5] = np.inf, -np.inf
    match = (
        r"f: loss: 2 invalid values, such as inf at \[2, 4\]: the values must be finite; a missi"
    )
    with pytest.raises(UserError, match=match):
        check_real(loss, "f: loss")
    with pytest.raises(UserError, match=r"\b10 at .*: .*\bbelow 10 "):
        check_real(np.arange(24).reshape(4, 6, order=order), "f: loss", limit=10)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (["1", "2"], "holds strings; "),
        ([True, False], "holds booleans; "),
        ([1j], "holds complex numbers"),
        (np.array(["2020-01-01"], "M8[D]"), "holds dates"),
    ],
)
def test_values_that_are_no_numbers(values, problem):
    with pytest.raises(UserError, match=problem):
        check_real(np.array(values), "f: loss")


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.float32])
def test_membership(dtype):
    member = check_membership(np.array([[0, 1], [1, 0]], dtype), "f: member")
    assert member.dtype == np.bool_
    np.testing.assert_array_equal(member, [[False, True], [True, False]])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([0, 1, -1], r"1 invalid value, -1 at row 3\b"),
        ([0.0, np.nan, 0.5], r"2 invalid values\b.* nan at row 2\b"),
        (np.array([0, 1, 2], np.uint8).view(bool), "1 invalid value, 2 at row 3"),
        (["yes", "no"], "holds strings; .*membership"),
    ],
)
def test_invalid_membership(values, problem):
    with pytest.raises(UserError, match=problem):
        check_membership(np.array(values), "f: member")
