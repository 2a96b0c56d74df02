import io
import itertools
import re
import zipfile
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import subset_designs as draw
from report_html import section_ids

import lm_mia
from lm_mia import cli, stats
from lm_mia.attacks import privacy_bounds
from lm_mia.audits import audit as audits
from lm_mia.audits.statistics import Settings
from lm_mia.errors import UserError

RNG = np.random.default_rng(0)
MEMBER_N = RNG.random(400) < 0.5
SCORE_N = RNG.normal(size=400) + MEMBER_N


def frame(**columns):
    return pd.DataFrame({"score": SCORE_N, "member": MEMBER_N.astype(int)} | columns)


def text(content, suffix=".csv"):
    """Returns a function that writes a file."""

    def write(folder):
        path = folder / f"scores{suffix}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rows(*lines):
    return text("\n".join(lines) + "\n")


def parquet(**columns):
    def write(folder):
        pq.write_table(pa.table(columns), folder / "scores.parquet")
        return folder / "scores.parquet"

    return write


def npz(save=np.savez, **arrays):
    def write(folder):
        save(folder / "scores.npz", **arrays)
        return folder / "scores.npz"

    return write


def npz_of(members, **options):
    def write(folder):
        with zipfile.ZipFile(folder / "scores.npz", "w", **options) as file:
            for name, content in members:
                file.writestr(name, content)
        return folder / "scores.npz"

    return write


def cut(write, count):
    """Returns a function that writes a file without its last bytes."""

    def write_part(folder):
        path = write(folder)
        path.write_bytes(path.read_bytes()[:-count])
        return path

    return write_part


def npy(array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return file.getvalue()


LOSSES = {
    "loss_MxN": np.concatenate([np.full((1, 40), 3.0) + np.arange(40), np.full((2, 40), 4.0)]),
    "member_MxN": np.array([np.arange(40) % 2, np.arange(40) % 3 == 0, np.arange(40) % 3 == 1]),
    "role_M": np.array(["target", "reference", "reference"]),
}


def last(loss_N):
    """Returns the losses of `LOSSES` with others of the last model."""
    return {"loss_MxN": np.concatenate([LOSSES["loss_MxN"][:2], loss_N[None]])}


SAME = {"loss_MxN": LOSSES["loss_MxN"][[0, 1, 0]]}
SUBSETS = np.random.default_rng(0).random((8, 4000)) < 0.5
SUBSETS[2, :2000] = SUBSETS[0, :2000]
OVERLAP = {
    "loss_MxN": np.random.default_rng(1).gamma(9, 0.3, (8, 4000)),
    "member_MxN": SUBSETS,
    "role_M": np.array(["target", *["reference"] * 7]),
}
PK = npy(np.array([{}], dtype=object), allow_pickle=True)


def losses_of(loss_MxN, member_MxN, targets=1, **more):
    """Returns the arrays of a file in which the first models are targets, and the others references."""
    role_M = ["target"] * targets + ["reference"] * (len(loss_MxN) - targets)
    return {"loss_MxN": loss_MxN, "member_MxN": member_MxN, "role_M": np.array(role_M)} | more


def loss_arrays(targets, references, samples=600):
    """Returns losses of targets and references that were trained on random halves of the samples."""
    rng = np.random.default_rng(4)
    member_MxN = rng.random((targets + references, samples)) < 0.5
    loss_MxN = 3 - 0.3 * member_MxN + rng.normal(0, 0.2, member_MxN.shape)
    return losses_of(loss_MxN, member_MxN, targets)


BAD_FILES = {
    "missing": (lambda folder: folder / "scores.csv", "no such file"),
    "folder": (lambda folder: folder, "is a folder"),
    "empty file": (text(""), "the file is empty"),
    "other suffix": (text("score,member\n1,0\n", ".txt"), r"must end in .npz, .csv, .tsv, "),
    "no suffix": (text("score,member\n1,0\n", ""), r"must end in .npz, .csv, .tsv, "),
    "header only": (rows("score,member"), "has no rows"),
    "no score": (rows("scores,member", "1,0"), "no column 'score' among 'scores', 'member'; name"),
    "no member": (rows("score", "1"), "no column 'member' among 'score'"),
    "decimal commas": (rows("score;member", "1,5;0"), "values are not numbers, such as '1,5'"),
    "two columns of one name": (rows("score,member,score", "1,0,1"), "there are 2 columns of this name"),
    "long row": (rows("score,member", "1,0", "2,1,5"), r"Expected 2 columns, got 3"),
    "short row": (rows("score,member", "1,0", "2"), "Row #3: Expected 2 columns, got 1"),
    "text as score": (rows("score,member", "1,0", "high,1"), "'high' in row 2; leave the cell empty"),
    "infinite score": (rows("score,member", "inf,0", "1,1"), "'score': 1 invalid value, inf at row 1"),
    "no scores": (rows("score,member", ",0", ",1"), "column 'score': is empty"),
    "missing membership": (rows("score,member", "1,0", "2,", "3,1"), "is missing for 1 samples"),
    "membership of -1": (rows("score,member", "1,-1", "2,1"), "-1 at row 1: membership must be 0 or 1"),
    "membership in words": (rows("score,member", "1,a", "2,b"), "holds strings, such as '[ab]'; save"),
    "members only": (rows("score,member", "1,1", "2,1"), "no non-member with a score among 2 samples"),
    "non-members only": (rows("score,member", "1,0", "2,0"), "no member with a score among 2"),
    "a class without scores": (rows("score,member", "1,0", ",1"), "no member with a score"),
    "one model of one class": (
        rows("score,member,model", "1,0,a", "2,1,a", "3,1,b"),
        "model b: there is no non-member",
    ),
    "repeated ids": (rows("score,member,id", "1,0,7", "2,1,7"), "'id': 7 appears again in row 2"),
    "missing model": (rows("score,member,model", "1,0,a", "2,1,"), "'model': is missing in 1 rows"),
    "not UTF-8": (text(b"score,member,model\n1,0,\xff\n2,1,a\n"), "is not a valid csv file"),
    "npz named csv": (text(b"PK\x03\x04" + bytes(50)), "is a zip file, not a csv file"),
    "UTF-16": (text("score,member\n1,0\n".encode("utf-16")), "is UTF-16 text, not a csv file"),
    "NUL bytes": (text(b"score,member\n1,0\n\x00\n"), r"got 1: \?\)"),
    "huge score": (rows("score,member", "1e308,0", "2,1"), r"must be below 1e\+100 in magnitude"),
    "csv named parquet": (text("score,member\n1,0\n", ".parquet"), "is not a parquet file"),
    "truncated parquet": (cut(parquet(score=[1.0, 2.0], member=[0, 1]), 30), "not a valid parquet"),
    "nested parquet": (parquet(score=[[1.0], [2.0]], member=[0, 1]), "holds nested values"),
    "dates": (parquet(score=pa.array([1, 2], pa.date32()), member=[0, 1]), "values of type date32"),
    "decimals as membership": (
        parquet(score=[1.0, 2.0], member=pa.array([0, 2], pa.decimal128(3))),
        "'member': 1 invalid value, 2 at row 2: membership must be 0 or 1",
    ),
    "csv named npz": (text("score,member\n1,0\n", ".npz"), "is not an npz file; save it"),
    "truncated npz": (cut(npz(score_MxN=[[1.0, 2]], member_MxN=[[0, 1]]), 60), "truncated or dam"),
    "pickle in an npz": (npz_of([("score_MxN.npy", PK)]), "pickled Python objects, which are never"),
    "text file in an npz": (npz_of([("a.txt", b"")]), "holds 'a.txt', which is not an array"),
    "no arrays of scores": (npz(scores=[[1.0]]), "no array 'score_MxN' and 'member_MxN' among 'sco"),
    "no membership of losses": (npz(loss_MxN=[[1.0]]), "has no array member_MxN"),
    "three dimensions": (npz(score_MxN=np.ones((1, 2, 2)), member_MxN=[[0, 1]]), r"shape \(1, 2, 2\)"),
    "other shapes": (npz(score_MxN=[[1.0, 2]], member_MxN=[[0, 1, 1]]), "must be equal, with"),
    "transposed members": (npz(score_MxN=[[1.0, 2]], member_MxN=[[0], [1]]), r"member_MxN=array.T"),
    "transposed": (npz(score_MxN=np.ones((40, 1)), member_MxN=np.ones((40, 1))), r"score_MxN=array.T"),
    "transposed losses": (npz(loss_MxN=np.ones((40, 2)), member_MxN=np.ones((40, 2))), r"loss_MxN=array"),
    "strings in an npz": (npz(score_MxN=[["a", "b"]], member_MxN=[[0, 1]]), "holds strings; save it"),
    "complex scores": (npz(score_MxN=[[1j, 2]], member_MxN=[[0, 1]]), "holds complex numbers"),
    "infinite array": (npz(score_MxN=[[np.inf, 2]], member_MxN=[[0, 1]]), r"inf at \[0, 0\]"),
    "membership of 2": (npz(score_MxN=[[1, 2.0]], member_MxN=[[0, 2]]), r"2 at \[0, 1\]: membership"),
    "tiny losses": (npz(**LOSSES | last(1e-160 * np.arange(40))), "at least 1e-29"),
    "log-probabilities": (npz(**LOSSES | last(-np.arange(40))), "negate log-prob"),
    "huge losses": (npz(**LOSSES | last(np.full(40, 1e30))), "below 1e"),
    "other samples": (npz(**LOSSES | {"member_MxN": LOSSES["member_MxN"][:, 1:]}), "must be equal"),
    "target among references": (npz(**LOSSES | SAME), "has the losses of model 2: a target"),
    "overlapping subsets": (npz(**OVERLAP), r"overlap more or less than"),
    "sample column": (npz(**LOSSES, tokens_N=np.zeros(40)), "has values below 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_each_bad_file_is_one_line_and_exit_code_2(name, tmp_path, capsys):
    write, problem = BAD_FILES[name]
    path = write(tmp_path)
    assert cli.main(["audit", str(path)]) == 2
    out, message = capsys.readouterr()
    lines = [line for line in message.splitlines() if line.strip()]
    assert len(lines) == 1, message
    assert lines[0].startswith(f"{path}"), message
    assert out == ""
    with pytest.raises(UserError, match=problem):
        audits.audit(path, Settings())


def test_large_files_are_refused(tmp_path, monkeypatch):
    from lm_mia.data import arrays

    monkeypatch.setattr(arrays, "memory_bytes", lambda: 20)
    for write in (rows("score,member", "1,0", "2,1"), parquet(score=[1.0, 2.0], member=[0, 1])):
        with pytest.raises(UserError, match="machine's memory"):
            audits.audit(write(tmp_path), Settings())


def test_unreadable_files(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    path = rows("score,member", "1,0")(tmp_path)
    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(UserError, match=r"scores\.csv\b.*Permission denied"):
        audits.audit(path, Settings())


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--delta=1"], "--delta=1: .*; try --delta=1e-5"),
        (["--confidence=0"], "confidence=0: .*; try"),
        (["--fprs=0,0.1"], "fprs=0,0.1: "),
        (["--fprs=a"], "'a'.* 0.01,0.1"),
        (
            ["--membership=coin"],
            "--membership=coin: .* independent; did you mean coins",
        ),
        (["--aggregate=sum"], "aggregate=sum: .* mean, max,"),
        (["--aggregate=max"], "aggregate=max: .*users"),
        (["--replicates=1"], "replicates=1: .*0.*2"),
        (["--user=name"], "'score', 'member'; .*--score=, --member=,"),
        (["--model=name"], "column 'name'"),
        (["--score=member"], "a column has two roles"),
        (["--config.model.layers=2"], "no config; leave it out"),
        (["--member-ship=coins"], "did you mean --membership"),
        (["--membership=independent", "--user=score"], "trials have no users"),
        (["--out="], "--out=: "),
        (["--out=FOLDER/scores.csv"], "FOLDER/scores.csv: .*; choose a folder"),
        (["--out=FOLDER/scores.csv/a/b"], "FOLDER/scores.csv .*; choose a folder"),
    ],
)
def test_bad_flags(flags, problem, tmp_path, capsys):
    path = rows("score,member", "1,0", "2,1")(tmp_path)
    flags = [flag.replace("FOLDER", str(tmp_path)) for flag in flags]
    assert cli.main(["audit", str(path), *flags]) == 2
    problem = problem.replace("FOLDER", re.escape(str(tmp_path)))
    assert re.search(problem, capsys.readouterr().err)


def test_other_sources_are_refused():
    with pytest.raises(UserError, match=r"^source: .* list"):
        lm_mia.audit([1.0, 2.0])  # pyright: ignore[reportArgumentType]


def test_all_problems_at_once(tmp_path, capsys):
    path = rows("score,member,model", "inf,2,a", "x,1,")(tmp_path)
    assert cli.main(["audit", str(path), "--delta=2", "--fprs=7"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 5
    assert cli.main(["audit", "--delta=2"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines[1:]] == ["FILE: missing"]


@pytest.fixture(scope="module")
def coins():
    return lm_mia.audit(frame(), membership="coins", fprs=[0.05, 0.2], replicates=50)


def test_numbers_are_those_of_the_statistics(coins):
    summary = coins.summary.iloc[0]
    expected = stats.bootstrap_intervals(SCORE_N, MEMBER_N, [0.05, 0.2], replicates=50)
    for end in ("", "_low", "_high"):
        assert summary[f"auc{end}"] == getattr(expected, f"auc{end}_T")[0]
        name = end.removeprefix("_") or "tpr"
        np.testing.assert_array_equal(coins.tpr_at_fpr[name], getattr(expected, f"tpr{end}_TxF")[0])
    estimates = stats.epsilon_intervals(SCORE_N, MEMBER_N, delta=1e-5, replicates=50)
    assert summary["balanced_accuracy"] == estimates.balanced_accuracy_T[0]
    epsilon = coins.epsilon.set_index("method")
    assert epsilon.loc["estimate_tpr", "high"] == estimates.at_tpr_high_T[0]
    assert epsilon.loc["estimate_max", "epsilon"] == estimates.largest_T[0]
    bound = stats.one_run_bound(SCORE_N, MEMBER_N, delta=1e-5)
    assert epsilon.loc["one_run", "epsilon"] == bound.epsilon > 0
    assert epsilon.loc["one_run_gaussian", "mu"] == bound.mu
    assert epsilon["is_bound"].tolist() == [False, False, True, False]
    assert coins.curve["epsilon"].max() == bound.epsilon


def test_histogram_and_roc_curve_cover_all_scores(coins):
    assert coins.histogram["members"].sum() == MEMBER_N.sum()
    assert coins.histogram["nonmembers"].sum() == (~MEMBER_N).sum()
    curve = stats.roc_curve(SCORE_N, MEMBER_N)
    vertices = {*zip(curve.fpr_K, curve.tpr_K, strict=True)}
    assert {*zip(coins.roc["fpr"], coins.roc["tpr"], strict=True)} <= vertices
    ends = coins.roc.iloc[[0, -1]][["fpr", "tpr"]].to_numpy()
    assert ends[0, 0] == 0
    np.testing.assert_array_equal(ends[1], [1, 1])


@pytest.mark.parametrize("scale", [(1e21, 131072.0), (0.0, 1e99), (5.0, 0.0)])
def test_histogram_of_scores_beyond_the_precision_of_bins(scale):
    center, width = scale
    member_N = np.arange(40) % 2 == 1
    table = pd.DataFrame({"score": center + width * (2 * member_N - 1.0), "member": member_N})
    result = lm_mia.audit(table, replicates=5)
    assert result.histogram["members"].sum() == result.histogram["nonmembers"].sum() == 20
    assert np.isfinite(result.histogram.select_dtypes("number")).all(axis=None)


@pytest.mark.parametrize("membership", ["given", "half", "independent"])
def test_membership_decides_which_bound_there_is(membership):
    result = lm_mia.audit(frame(), membership=membership, replicates=5)
    bounds = result.epsilon.query("is_bound")
    if membership == "given":
        assert bounds.empty
        assert len(result.notes) == 1
        assert result.notes[0].endswith("membership=coins, half or independent")
    elif membership == "half":
        bound = stats.one_run_bound(SCORE_N, MEMBER_N, membership="half", delta=1e-5)
        assert bounds["epsilon"].item() == bound.epsilon
        assert bounds["adjacency"].item() == "replace_one"
    else:
        bound = stats.independent_trials_bound(SCORE_N, MEMBER_N, delta=1e-5)
        assert bounds["epsilon"].item() == bound.epsilon
        assert bounds["method"].item() == "independent_trials"


def test_csv_parquet_npz_frames_and_arrays_give_the_same(tmp_path, coins):
    scores = frame(other="text")
    scores.to_csv(tmp_path / "a.csv", index=False)
    scores.to_parquet(tmp_path / "a.parquet")
    arrays = {"score_MxN": SCORE_N, "member_MxN": MEMBER_N}
    np.savez(tmp_path / "a.npz", **arrays)
    for source in (*(tmp_path / f"a{s}" for s in (".csv", ".parquet", ".npz")), arrays):
        result = lm_mia.audit(source, membership="coins", fprs=[0.05, 0.2], replicates=50)
        for name, table in result.tables().items():
            pd.testing.assert_frame_equal(table, coins.tables()[name])


def test_degenerate_intervals_are_named():
    scores = frame()
    assert not lm_mia.audit(scores, replicates=5).notes[:-1]
    few = scores.groupby("member").head(9)
    assert "9 members and 9 " in lm_mia.audit(few, replicates=5).notes[0]
    scores["score"] += 100 * scores["member"]
    assert "no score of a member" in lm_mia.audit(scores, replicates=5).notes[0]


def test_models_are_audited_one_by_one():
    model = np.where(np.arange(400) < 150, "b", "a")
    result = lm_mia.audit(frame(model=model), membership="coins", replicates=5)
    assert result.summary["model"].tolist() == ["b", "a"]
    alone = lm_mia.audit(frame()[:150], membership="coins", replicates=5)
    first = result.epsilon.query("model == 'b'").drop(columns="model")
    pd.testing.assert_frame_equal(first, alone.epsilon.drop(columns="model"))
    assert any("of the 2 bounds" in note for note in result.notes)
    arrays = {"score_MxN": [SCORE_N, -SCORE_N], "member_MxN": MEMBER_N}
    result = lm_mia.audit(arrays, replicates=5)
    assert result.summary["auc"].sum() == pytest.approx(1)
    assert result.notes[0].startswith("model 1: the AUC ")
    assert "reversed" in result.notes[0]


def test_users_are_audited_instead_of_samples(tmp_path):
    user = np.array([f"u{i}" for i in np.arange(400) // 4])
    member = np.repeat(RNG.random(100) < 0.5, 4)
    scores = pd.DataFrame({"score": SCORE_N + member, "member": member, "user": user})
    result = lm_mia.audit(scores, user="user", aggregate="max", membership="coins", replicates=5)
    by_user = scores.groupby("user", sort=False).agg({"score": "max", "member": "first"})
    expected = stats.auc(by_user["score"].to_numpy(), by_user["member"].to_numpy()).auc_T[0]
    assert result.summary["auc"].item() == expected
    assert result.groups["user"].tolist() == by_user.index.tolist()
    np.testing.assert_array_equal(result.groups["score"], by_user["score"])
    assert result.epsilon["canaries"].iloc[-1] == 100
    mixed = scores.assign(member=np.arange(400) % 4 == 0)
    with pytest.raises(UserError, match=r"\b100 users\b.*\bu0\b"):
        lm_mia.audit(mixed, user="user")
    with pytest.raises(UserError, match=r"aggregate=gmean: .* users of data frame .*\b0\b"):
        lm_mia.audit(scores, user="user", aggregate="gmean")
    missing = scores.assign(user=scores["user"].where(scores.index != 3))
    with pytest.raises(UserError, match=r"'user'.*\b1\b.*\brow 4\b"):
        lm_mia.audit(missing, user="user")
    arrays = {"score_MxN": SCORE_N + member, "member_MxN": member, "user_N": np.arange(400) // 4}
    same = lm_mia.audit(arrays, user="user_N", aggregate="max", replicates=5)
    assert same.summary["auc"].item() == expected


def test_missing_scores_are_counted():
    scores = frame()
    scores.loc[[3, 5], "score"] = np.nan
    result = lm_mia.audit(scores, membership="coins", replicates=5)
    assert result.summary["left_out"].item() == 2
    assert result.epsilon["left_out"].tolist() == [2] * 4
    assert result.epsilon["canaries"].tolist() == [400] * 4
    [note] = result.notes
    assert note.startswith("scores are missing for 2 ")


def test_implausible_coins_are_refused():
    half = frame(member=np.arange(400) < 200)
    assert "exactly half" in lm_mia.audit(half, membership="coins", replicates=5).notes[-1]
    few = frame(member=np.arange(400) < 100)
    with pytest.raises(UserError, match="100 of 400 samples of data frame"):
        lm_mia.audit(few, membership="coins")
    assert lm_mia.audit(few, membership="half", replicates=5).epsilon["canaries"].iloc[-1] == 100


def test_documents_that_were_drawn_as_a_whole_are_refused(tmp_path):
    document = np.repeat(np.arange(100), 4)
    whole = np.repeat(RNG.permutation(100) < 50, 4)
    table = frame(member=whole * 1, document=[f"text {d}" for d in document])
    arrays = {"score_MxN": SCORE_N, "member_MxN": whole, "document_N": document}
    for source in (table, arrays):
        for membership in ("coins", "half"):
            with pytest.raises(UserError, match=f"membership={membership}: so many documents"):
                lm_mia.audit(source, membership=membership)
        assert lm_mia.audit(source, replicates=5).summary["members"].item() == 200
        # The documents are the units that were drawn.
        user = "document" if source is table else "document_N"
        by_user = lm_mia.audit(source, user=user, membership="half", replicates=5)
        assert by_user.epsilon["canaries"].iloc[-1] == 50
    table.to_csv(tmp_path / "scores.csv", index=False)
    argv = ["audit", str(tmp_path / "scores.csv"), "--membership=half"]
    assert cli.main(argv) == 2


def test_intervals_are_over_documents_and_bounds_over_their_pieces():
    document = np.arange(400) // 2
    expected = stats.bootstrap_intervals(
        SCORE_N, MEMBER_N, [0.05, 0.2], replicates=50, cluster_N=document
    )
    result, alone = (
        lm_mia.audit(source, membership="coins", fprs=[0.05, 0.2], replicates=50)
        for source in (frame(document=document), frame(document=np.arange(400)))
    )
    assert result.summary["auc_low"].item() == expected.auc_low_T[0]
    assert alone.summary["auc_low"].item() != expected.auc_low_T[0]
    bounds = [r.epsilon.query("is_bound")["epsilon"].item() for r in (result, alone)]
    assert bounds[0] == bounds[1]


@pytest.mark.parametrize("membership", ["coins", "half", "independent"])
def test_bound_of_tied_scores_does_not_depend_on_the_order_of_rows(membership):
    scores = frame(score=SCORE_N.round(), id=[f"s{i}" for i in RNG.permutation(400)])
    users = frame(score=SCORE_N.round(), user=np.arange(400))
    order = RNG.permutation(400)
    for table, user in ((scores, ""), (users, "user")):
        if membership == "independent" and user:  # each run has a name instead
            table, user = users.rename(columns={"user": "model"}), ""
        first, second = (
            lm_mia.audit(rows, membership=membership, replicates=5, user=user).epsilon
            for rows in (table, table.iloc[order])
        )
        pd.testing.assert_frame_equal(first.query("is_bound"), second.query("is_bound"))
        assert first.query("is_bound")["epsilon"].item() > 0


def test_independent_trials_need_a_training_run_each():
    trials = frame(model=np.arange(400))
    result = lm_mia.audit(trials, membership="independent", replicates=5)
    alone = lm_mia.audit(frame(), membership="independent", replicates=5)
    pd.testing.assert_frame_equal(result.epsilon, alone.epsilon)
    with pytest.raises(UserError, match=r"200 scores of model 0\b.*\bindependent"):
        lm_mia.audit(frame(model=np.arange(400) % 2), membership="independent")


def test_attacks_on_losses(tmp_path):
    member_MxN = RNG.random((9, 300)) < 0.5
    difficulty_N = 2 + np.log(np.arange(1, 301))
    loss_MxN = difficulty_N - 0.4 * member_MxN + 0.3 * RNG.normal(size=(9, 300))
    loss_MxN = loss_MxN.astype(np.float32)
    arrays = losses_of(loss_MxN, member_MxN)
    result = lm_mia.audit(arrays, replicates=5)
    auc = result.summary.set_index("attack")["auc"]
    references = loss_MxN[1:], member_MxN[1:]
    scores = {
        "lira_online": stats.lira(loss_MxN[:1], *references, variance="pooled"),
        "shrunk": stats.shrunk_lira(loss_MxN[:1], *references),
        "stacked": stats.stacked_lira(loss_MxN[:1], *references),
        "rmia": stats.rmia(-loss_MxN[:1], -loss_MxN[1:], -loss_MxN[:1], -loss_MxN[1:]),
        "rmia_simple": stats.rmia_simple(-loss_MxN[:1], -loss_MxN[1:]),
        "loss": -loss_MxN[:1],
    }
    assert {*scores} < {*auc.index}
    assert len(auc) == 9
    has_both_N = member_MxN[1:].any(axis=0) & ~member_MxN[1:].all(axis=0)
    assert not has_both_N.all()
    for name, score_TxN in scores.items():
        score_TxN = score_TxN if name == "loss" else np.where(has_both_N, score_TxN, np.nan)
        expected = stats.auc(score_TxN, member_MxN[:1]).auc_T[0]
        assert auc[name] == pytest.approx(expected, abs=1e-12), name
    outside = arrays | {"member_MxN": np.concatenate([member_MxN[:1], np.zeros((8, 300), bool)])}
    result = lm_mia.audit(outside, replicates=5)
    assert "lira_online" not in result.summary["attack"].tolist()
    assert any("no scores" in note and "lira_online" in note for note in result.notes)
    columns = {"tokens_N": np.arange(1, 301) % 40 + 2, "zlib_bytes_N": np.arange(1, 301)}
    with_columns = lm_mia.audit(arrays | columns, replicates=5).summary.set_index("attack")["auc"]
    assert with_columns["lira_online"] == auc["lira_online"]
    assert with_columns["shrunk"] != auc["shrunk"]


def test_losses_in_another_unit_are_refused_unless_declared():
    member_MxN = RNG.random((4, 100)) < 0.5
    loss_MxN = 300 - 30 * member_MxN + RNG.normal(size=(4, 100))
    arrays = losses_of(loss_MxN, member_MxN)
    with pytest.raises(UserError, match=r"^arrays: .*\b4 models .*losses_are_nats"):
        lm_mia.audit(arrays, replicates=5)
    notes = lm_mia.audit(arrays, replicates=5, losses_are_nats=True).notes
    assert any("nats per token" in note for note in notes)


def test_membership_that_depends_on_a_column_is_noted():
    """By the losses and by the column; members that are said to be random cannot differ in it."""
    rng = np.random.default_rng(3)
    tokens_N = rng.integers(10, 1000, 3000)
    x_N = np.log(tokens_N) - np.log(tokens_N).mean()
    member_MxN = rng.random((10, 3000)) < 0.5
    member_MxN[0] = rng.random(3000) < 1 / (1 + np.exp(-3 * x_N))
    loss_MxN = 3 + 0.3 * x_N - 0.3 * member_MxN + rng.normal(0, 0.3, (10, 3000))
    arrays = losses_of(
        loss_MxN,
        member_MxN,
        2,
        tokens_N=tokens_N,
        zlib_bytes_N=rng.integers(10, 1000, 3000),
        tfidf_N=rng.random(3000),
    )
    with pytest.raises(UserError, match=r"1 of 2 targets \(0\) differ in length in tokens"):
        lm_mia.audit(arrays, membership="half", replicates=5)
    notes = lm_mia.audit(arrays, membership="given", replicates=5).notes
    about_length = [note for note in notes if "length in tokens" in note]
    assert all("1 of 2 targets (0)" in note for note in about_length)
    kinds = ["as those of no reference", "differ in"]
    assert [kind for kind in kinds if any(kind in note for note in about_length)] == kinds
    assert len(about_length) == len(kinds)


@pytest.mark.parametrize("kind", ["complement", "same subset", "columns"])
def test_references_that_reveal_members_are_left_out(kind):
    """The scores of noise are at chance, and a note says what is left out."""
    rng = np.random.default_rng(0)
    member_MxN = rng.random((9, 4000)) < 0.5
    if kind == "columns":
        member_MxN = draw.columns(rng, 8, 4000)
    else:
        member_MxN[5] = member_MxN[0] ^ (kind == "complement")
    loss_MxN = (3 + rng.normal(0, 0.3, member_MxN.shape)).astype(np.float32)
    arrays = losses_of(loss_MxN, member_MxN)
    result = lm_mia.audit(arrays, replicates=5)
    auc = result.summary.set_index("attack")["auc"]
    assert auc.between(0.47, 0.53).all()
    note = "random reference" if kind == "columns" else "1 of 8 references were trained"
    assert sum(note in line for line in result.notes) == 1
    if kind != "columns":
        used = [1, 2, 3, 4, 6, 7, 8]
        references = loss_MxN[used], member_MxN[used]
        expected = stats.lira(loss_MxN[:1], *references, variance="pooled")
        assert auc["lira_online"] == stats.auc(expected, member_MxN[:1]).auc_T[0]


def test_references_in_columns_may_attack_an_independent_target():
    rng = np.random.default_rng(5)
    member_RxN = draw.columns(rng, 16, 4000)
    audit = audits.audit(
        losses_of(
            rng.normal(3, 0.2, (17, 4000)),
            np.concatenate([draw.exact(rng, 1, 4000), member_RxN]),
        ),
        Settings(),
    )
    assert audit.summary["auc"].between(0.46, 0.54).all()


def test_command_prints_and_writes(tmp_path, capsys):
    path = tmp_path / "scores.csv"
    frame(user=np.arange(400), model=["a", "b"] * 200).to_csv(path, index=False)
    out = tmp_path / "out"
    argv = ["audit", str(path), "--membership=coins", "--replicates=5", "--user=user"]
    assert cli.main([*argv, f"--out={out}"]) == 0
    printed = capsys.readouterr().out
    assert "lower bound" in printed
    assert f"page: {out / 'audit.html'}" in printed
    names = {"summary", "tpr_at_fpr", "audit", "audit_curve", "roc", "histogram", "groups"}
    assert {file.stem for file in out.glob("*.csv")} == names
    assert len(pd.read_csv(out / "groups.csv")) == 400
    page = (out / "audit.html").read_text()
    assert "data:image" not in page
    assert "users" in section_ids(page)
    assert cli.main(["audit", str(path), "--model=member", "--replicates=5"]) == 2
    # A later audit leaves no table of the earlier one, and replaces no other file.
    assert cli.main(["audit", str(path), "--replicates=5", f"--out={out}"]) == 0
    assert not (out / "groups.csv").exists()
    capsys.readouterr()
    path.rename(tmp_path / "summary.csv")
    for folder, file in ((tmp_path, "summary.csv"), (out, "out/roc.csv")):
        argv = ["audit", str(tmp_path / file), "--score=fpr", "--member=tpr", f"--out={folder}"]
        before = (tmp_path / file).read_bytes()
        assert cli.main(argv) == 2
        assert f"replace {tmp_path / file}" in capsys.readouterr().err
        assert (tmp_path / file).read_bytes() == before


@pytest.mark.parametrize("differ", [False, True])
@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "losses"])
def test_what_texts_tell_of_given_members_is_said_first(kind, differ, tmp_path, capsys):
    rng = np.random.default_rng(0)
    member_N = rng.random(200) < 0.5
    text_N = np.array([" ".join(word_W) for word_W in rng.geometric(0.05, (200, 30)).astype(str)])
    if differ:
        text_N = np.where(member_N, np.char.add(text_N, " members"), text_N)
    score_N, path = rng.normal(size=200), tmp_path / f"a.{'npz' if kind == 'losses' else kind}"
    if kind == "npz":
        np.savez(path, score_MxN=score_N, member_MxN=member_N, text_N=text_N)
    elif kind == "losses":
        member_MxN = rng.random((6, 200)) < 0.5
        loss_MxN = np.concatenate([5 - score_N[None], rng.normal(5, 1, (6, 200)).clip(0)])
        members_MxN = np.concatenate([member_N[None], member_MxN])
        np.savez(path, **losses_of(loss_MxN, members_MxN, text_N=text_N))
    else:
        table = pd.DataFrame({"score": score_N, "member": member_N.astype(int), "text": text_N})
        table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
    assert cli.main(["audit", str(path), "--replicates=5", f"--out={tmp_path / 'out'}"]) == 0
    said = "every AUC below includes this difference" if differ else "no difference in their words"
    assert said in " ".join(capsys.readouterr().out.splitlines()[1:4])
    assert said in (tmp_path / "out/audit.html").read_text()
    if kind == "losses" and differ:  # their texts are longer, so they were not drawn at random
        return
    assert cli.main(["audit", str(path), "--replicates=5", "--membership=half"]) == 0
    assert "texts:" not in capsys.readouterr().out


def test_a_column_named_text_without_texts_is_no_problem():
    scores = pd.DataFrame({"score": RNG.normal(size=100), "member": np.arange(100) % 2})
    assert not lm_mia.audit(scores.assign(text=np.arange(100)), replicates=5).warnings
    assert not lm_mia.audit(scores.assign(text=pd.Series([None, *"a" * 99])), replicates=5).warnings


def test_heading_has_all_samples_of_the_model(tmp_path, capsys):
    arrays = loss_arrays(targets=1, references=2)
    member_N = arrays["member_MxN"][0]
    np.savez(tmp_path / "one.npz", **arrays)
    assert cli.main(["audit", str(tmp_path / "one.npz"), "--replicates=2"]) == 0
    counts = f"samples: {member_N.sum()} members, {(~member_N).sum()} non-members"
    assert capsys.readouterr().out.splitlines()[0].endswith(f"one.npz: {counts}")
    result = lm_mia.audit(arrays, replicates=2)
    assert (result.summary["members"].min()) < member_N.sum()  # an attack has no score for some
    assert result.counts.to_dict("records") == [
        {"model": "", "unit": "sample", "members": member_N.sum(), "nonmembers": (~member_N).sum()}
    ]
    np.savez(tmp_path / "two.npz", **loss_arrays(targets=2, references=2))
    assert cli.main(["audit", str(tmp_path / "two.npz"), "--replicates=2"]) == 0
    assert "samples of the first model: " in capsys.readouterr().out


def test_users_are_counted_in_the_heading(tmp_path, capsys):
    path = tmp_path / "scores.csv"
    users = frame(score=np.where(np.arange(400) < 9, np.nan, SCORE_N), user=np.arange(400) // 2)
    users.assign(member=np.arange(400) % 4 // 2).to_csv(path, index=False)
    assert cli.main(["audit", str(path), "--user=user", "--replicates=2"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].endswith("users: 100 members, 100 non-members")


@pytest.mark.parametrize("first", [0, 7])
def test_columns_may_have_integers_as_names(first):
    named = frame(
        model=["a", "b"] * 200,
        length=np.arange(400) % 7,
        source=np.where(np.arange(400) % 3 == 0, "news", "web"),
        text=[f"text {i % 11} of {i}" for i in range(400)],
        user=np.arange(400) // 4,
    ).assign(member=np.arange(400) % 8 // 4)
    position = {name: first + i for i, name in enumerate(["text", *named.columns])} | {
        "text": first
    }
    numbered = named.rename(columns=position)
    optional: list[dict[str, Any]] = [
        {},
        {"model": "model"},
        {"user": "user"},
        {"covariates": ["length", "source"]},
        {"covariates": "length"},
        {"text": "text"},
    ]
    for more in optional:
        roles: dict[str, Any] = {"score": "score", "member": "member"} | more
        numbers: dict[str, Any] = {
            role: [position[n] for n in name] if isinstance(name, list) else position[name]
            for role, name in roles.items()
        }
        expected = lm_mia.audit(
            named.drop(columns="model" if "model" not in roles else []), **roles, replicates=2
        )
        for given in (
            numbers,
            {k: v if isinstance(v, list) else np.int64(v) for k, v in numbers.items()},
        ):
            result = lm_mia.audit(numbered, **given, replicates=2)
            pd.testing.assert_frame_equal(result.summary, expected.summary)
            assert len(result.causal) == len(expected.causal)


@pytest.mark.parametrize("position", range(3))
def test_the_first_integer_name_is_a_name(position):
    """0 is false, but it is given."""
    roles = ["score", "member", "user"]
    roles = [*roles[-position:], *roles[:-position]] if position else roles
    named = frame(user=np.arange(400) // 2).assign(member=np.arange(400) % 4 // 2)
    numbered = named[roles].set_axis(range(3), axis=1)
    numbers: dict[str, Any] = {role: i for i, role in enumerate(roles)}
    result = lm_mia.audit(numbered, **numbers, replicates=2)
    assert len(result.groups) == 200
    arrays = {i: named[role].to_numpy() for i, role in enumerate(roles)}
    from_arrays = lm_mia.audit(arrays, **numbers, replicates=2)
    pd.testing.assert_frame_equal(from_arrays.summary, result.summary)


def test_ambiguous_names_of_columns_are_refused():
    levels = pd.MultiIndex.from_tuples([("a", "score"), ("a", "member")])
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (["score", "member", "member"], {}, "'member': there are 2 columns of this name"),
        ([0, "0", 1], {"score": 0, "member": 1}, "'0': there are 2 columns of this name"),
        ([0, 1, 2], {"score": 0, "member": 3}, "no column '3' among '0', '1', '2'"),
        (levels, {}, "MultiIndex"),
        (levels, {"score": ("a", "score"), "member": ("a", "member")}, "MultiIndex"),
    ]
    for columns, given, problem in cases:
        scores = pd.DataFrame(np.zeros((2, len(columns)))).set_axis(columns, axis=1)
        with pytest.raises(UserError, match=problem) as error:
            lm_mia.audit(scores, **given)
        assert str(error.value).count("\n") == 0
    repeated = frame(other=0).set_axis(["score", "member", "other"], axis=1)
    unused = pd.concat([repeated, repeated["other"]], axis=1)
    assert len(lm_mia.audit(unused, replicates=2).summary) == 1


def test_single_scores_are_printed_in_full(tmp_path, capsys):
    path = tmp_path / "scores.csv"
    frame().to_csv(path, index=False)
    for membership, line in itertools.product(
        ("given", "half", "independent"), ("AUC", "TPR at 1% FPR", "epsilon at 1% TPR (estimate)")
    ):
        argv = ["audit", str(path), f"--membership={membership}", "--replicates=5"]
        assert cli.main(argv) == 0
        printed = capsys.readouterr().out
        assert line in printed
        assert ("lower bound on" in printed) == (membership != "given")
        assert "add --out=DIR" in printed


@pytest.mark.parametrize("sign", [1, -1])
def test_estimates_at_their_cap_are_named(sign, tmp_path, capsys):
    path, out = tmp_path / "scores.csv", tmp_path / "out"
    scores = frame(score=sign * (SCORE_N + 9 * MEMBER_N))
    scores.to_csv(path, index=False)
    argv = ["audit", str(path), "--replicates=5", "--membership=coins"]
    assert cli.main([*argv, f"--out={out}"]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if "(estimate)" in line]
    rows = pd.read_csv(out / "audit.csv").to_dict("records")
    members = int(MEMBER_N.sum())
    estimates = [row for row in rows if row["method"].startswith("estimate")]
    is_capped = [privacy_bounds.is_capped(row) for row in estimates]
    assert is_capped == [np.isclose(row["epsilon"], np.log(members)) for row in estimates]
    assert [" capped: " in line and f"{members}" in line for line in printed] == is_capped
    assert is_capped == [sign > 0] * 2
    assert (out / "audit.html").read_text().count("(capped)") == sum(is_capped)
    # With several models, the cells are marked.
    pd.concat([scores.assign(model="a"), frame(model="b")]).to_csv(path, index=False)
    assert cli.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    [first] = [line for line in lines if line.split()[:2] == ["score", "a"]]
    assert first.count("†") == sum(is_capped)


def test_rates_that_need_more_nonmembers_are_missing(tmp_path, capsys):
    path, out = tmp_path / "scores.csv", tmp_path / "out"
    frame().to_csv(path, index=False)
    nonmembers = int((~MEMBER_N).sum())
    low, high = 0.9 / nonmembers, 1 / nonmembers
    needed = f"needs {stats.nonmembers_needed(low):,} non-members"
    argv = ["audit", str(path), f"--fprs={low},{high}", "--replicates=5", f"--out={out}"]
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    assert needed in printed
    assert "nan" not in printed.lower()
    table = pd.read_csv(out / "tpr_at_fpr.csv")
    assert table["tpr"].isna().tolist() == [True, False]
    assert table["true_positives"].isna().tolist() == [True, False]
    page = (out / "audit.html").read_text()
    assert needed in page
    assert ">nan" not in page
    # With several models, the middle one of the rates is printed.
    frame(model=np.arange(len(MEMBER_N)) % 2).to_csv(path, index=False)
    assert cli.main(["audit", str(path), f"--fprs={low}", "--replicates=5"]) == 0
    assert needed in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "effect", "flags", "remedy"),
    [
        ("score", -2, [], "use --lower-is-member.* loss;.* inverted"),
        ("score", 2, ["--lower-is-member"], "leave --lower-is-member out"),
        ("loss", 2, [], "inverted"),
    ],
)
def test_an_auc_below_a_half_names_the_remedy(column, effect, flags, remedy, tmp_path, capsys):
    rng = np.random.default_rng(0)
    member_N = rng.random(400) < 0.5
    value_N = 5 + 0.1 * (rng.normal(size=400) + effect * member_N)
    file = tmp_path / "reversed.csv"
    pd.DataFrame({column: value_N, "member": member_N.astype(int)}).to_csv(file, index=False)
    assert cli.main(["audit", str(file), "--replicates=20", *flags]) == 0
    [note] = [line for line in capsys.readouterr().out.splitlines() if "below 0.5" in line]
    assert re.search(remedy, note)
    assert ("lower-is-member" in note) == (column == "score")


@pytest.mark.parametrize("membership", ["coins", "half"])
def test_guesses_about_pairs_are_called_so(membership, tmp_path, capsys):
    member_N = np.random.default_rng(0).random(400) < 0.5
    score_N = np.random.default_rng(1).normal(size=400) + member_N
    file = tmp_path / "scores.csv"
    pd.DataFrame({"score": score_N, "member": member_N.astype(int)}).to_csv(file, index=False)
    flags = [f"--membership={membership}", "--replicates=20"]
    assert cli.main(["audit", str(file), *flags]) == 0
    out = capsys.readouterr().out
    pairs = min(member_N.sum(), (~member_N).sum())
    assert (f"guesses about {pairs} pairs correct" in out) == (membership == "half")


def test_one_model_needs_a_loss_and_its_membership_only():
    rng = np.random.default_rng(0)
    member_N = rng.random(200) < 0.5
    table = pd.DataFrame({"loss": rng.normal(5, 0.3, 200), "member": member_N})
    assert {*lm_mia.audit(table, replicates=5).summary["attack"]} == {"loss"}
    with pytest.raises(UserError, match="columns loss and member, and with several models"):
        lm_mia.audit(table[["loss"]], replicates=5)
