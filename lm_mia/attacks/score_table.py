"""The table of membership scores, membership_scores.parquet: every sample under every target and attack.

Attacks are computed one after another, but a Parquet file is written a group of rows at a time. So the columns are
collected in a temporary file first, and the memory does not grow with the number of samples or columns.

T: targets, C: samples of a block, K: columns of an attack, N2: samples of the population (2N).
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia.atomic import replacing
from lm_mia.attacks.inputs import sample_slices
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.data.subsets import ModelSeeds

TABLE = "membership_scores.parquet"
"""Name of the table."""
MAX_SCORES = 2**28
"""Maximum number of scores in the table, which take 1 GiB. If all attacks have more scores under all targets, the table
has the mean over targets and the scores under the first target only."""
_GROUP_SCORES = 2**24  # number of scores per row group


class MembershipScoreTable(MembershipScoreFile):
    """The scores of attacks on the same targets, a file with the columns of the table in place of targets."""

    def __init__(
        self,
        folder: Path,
        attacks: Sequence[str],
        targets: Sequence[ModelSeeds],
        num_samples: int,
        first_id: int = 0,
    ) -> None:
        """Creates the temporary file.

        Args:
          folder: folder of the temporary file.
          attacks: names of all attacks that will be added.
          targets: the attacked models.
          num_samples: number of attacked samples.
          first_id: id of the first of them.
        """
        self._first_id = first_id
        self._all_targets = len(attacks) * len(targets) * num_samples <= MAX_SCORES
        names = [*map(str, targets)] if self._all_targets else ["mean", str(targets[0])]
        self._columns = {attack: [f"{attack}/{name}" for name in names] for attack in attacks}
        self._first_column = {attack: i * len(names) for i, attack in enumerate(attacks)}
        self.targets = [*map(str, targets)] if self._all_targets else [str(targets[0])]
        super().__init__(folder, len(attacks) * len(names), num_samples, np.dtype(np.float32))

    def add(self, attack: str, file: MembershipScoreFile, pool: ThreadPoolExecutor) -> None:
        """Adds the scores of an attack on all targets."""

        def copy(at: slice) -> None:
            score_KxC = file.read_samples(at)
            if not self._all_targets:
                score_KxC = np.stack([score_KxC.mean(axis=0), score_KxC[0]])
            with np.errstate(over="ignore"):  # infinite where a score exceeds the range of float32
                self.write(self._first_column[attack], at, score_KxC)

        for _ in map_in_order(pool, copy, sample_slices(file.num_samples)):
            pass

    def write_table(self, path: Path, members: Mapping[str, np.ndarray]) -> None:
        """Writes the table: id, columns of membership, and a column ATTACK/TARGET for each attack and target.

        Args:
          path: path of the table.
          members: name of a column -> member_N2, membership of the samples in a training subset.
        """
        names = [name for columns in self._columns.values() for name in columns]
        columns = [("id", pa.int64()), *((name, pa.bool_()) for name in members)]
        columns += [(name, pa.float32()) for name in names]
        schema = pa.schema(columns)
        rows = max(1024, _GROUP_SCORES // len(names))
        with (
            replacing(path) as temporary,
            # Scores are hardly ever repeated, so dictionaries of them would only cost time.
            pq.ParquetWriter(temporary, schema, use_dictionary=False) as writer,
        ):
            for low in range(0, self.num_samples, rows):
                at = slice(low, min(low + rows, self.num_samples))
                columns = [
                    self._first_id + np.arange(at.start, at.stop),
                    *(member_N2[at] for member_N2 in members.values()),
                    *self.read_samples(at),
                ]
                writer.write_table(pa.table([pa.array(c) for c in columns], schema=schema))
