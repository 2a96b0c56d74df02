"""Which shards of the score store are there: asked of the listing of files, never of values.

M: rows that the store knows, K: score points and the end.
"""

from collections.abc import Mapping

import numpy as np
import tensorstore as ts

from lm_mia.block_reader import shard_samples


def whole(array: ts.TensorStore | None, known: int, points: int) -> np.ndarray:
    """whole_MxK: which of the known rows have all shards of a variable at each score point; of None, no row has.

    Membership, which is the same at all score points, counts at each of them.
    """
    found_MxK = np.zeros((known, points), np.int64)
    if array is None:
        return found_MxK.astype(bool)
    assert array.kvstore is not None
    for key in array.kvstore.list().result():
        prefix, *place = key.decode().split("/")
        if prefix == "c" and len(place) == array.rank and int(place[0]) < known:
            at = int(place[1]) if array.rank == 3 else slice(None)
            found_MxK[int(place[0]), at] += 1
    return found_MxK == -(-array.shape[-1] // shard_samples(array))


def lacking(
    arrays: Mapping[str, ts.TensorStore], places: Mapping[str, tuple[int, ...]]
) -> list[tuple[int, int, list[str]]]:
    """(low, high, names) of every shard of samples that one of the arrays lacks, in order.

    Args:
      arrays: name -> array, all of as many samples a shard.
      places: name -> what stands before the shard's number in its key.
    """
    found: dict[int, list[str]] = {}
    size = samples = 0
    for name, array in arrays.items():
        size, samples = shard_samples(array), array.shape[-1]
        assert array.kvstore is not None
        folder = "/".join(("c", *map(str, places[name]), ""))
        # "0" is the character after "/"
        keys = array.kvstore.list(ts.KvStore.KeyRange(folder, folder[:-1] + "0")).result()
        there = {int(key.decode().rpartition("/")[2]) for key in keys}
        for shard in range(-(-samples // size)):
            if shard not in there:
                found.setdefault(shard, []).append(name)
    return [(n * size, min((n + 1) * size, samples), found[n]) for n in sorted(found)]
