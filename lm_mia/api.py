"""Reads the results of a workdir into xarray and pandas, and audits scores, for notebooks and scripts.

Example:
  >>> import lm_mia
  >>> results = lm_mia.open("runs/quickstart")
  >>> results
  Results('runs/quickstart', recipes=['quickstart'])
  >>> recipe = results.recipes["quickstart"]
  >>> recipe.scores()["loss"].dims
  ('model', 'sample')
  >>> recipe.table("attacks")["attack"].iloc[0]
  'lira_online'

Only `open_arrays` and `RecipeView.table` write to a workdir, the latter only results that are missing; nothing in this
module loads JAX.
"""

import dataclasses
import functools
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from lm_mia import top_level
from lm_mia.config import Config
from lm_mia.config.recipe import from_dict
from lm_mia.data.population import Population, open_population, token_columns
from lm_mia.data.zarr_metadata import check_zarr
from lm_mia.errors import Unavailable, UserError, raise_failed_read
from lm_mia.run.workdir import Workdir

if TYPE_CHECKING:  # imported where they are used, since they take about a second to load
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import xarray as xr
    from numpy.typing import ArrayLike

    from analysis.io import SweepResults
    from lm_mia.attacks import experiment
    from lm_mia.audits.audit import Audit


def open(workdir: str | os.PathLike[str]) -> "Results":
    """Opens the results of a workdir.

    Scores, tables and texts are read only when they are requested.

    Args:
      workdir: the folder that ``lm-mia run --workdir=DIR`` wrote.

    Returns:
      The recipes of the workdir.

    Raises:
      UserError: if the folder does not exist, is not a workdir, or has a damaged config.json.

    Example:
      >>> results = lm_mia.open("runs/quickstart")
      >>> list(results.recipes)
      ['quickstart']
    """
    opened = Workdir(Path(workdir))
    if opened.path.is_dir() or opened.path.is_symlink():
        opened.check()
        problem = "has no config.json"
    else:
        problem = "is a file" if opened.path.exists() else "no such folder"
    if not opened.config_file.is_file():
        raise UserError(
            f"workdir={str(opened.path)!r}: {problem}; pass the --workdir of an `lm-mia run` command"
        )
    views = functools.cache(functools.partial(_open_views, opened.path))
    recipes = {
        name: RecipeView(opened, name, stored, views)
        for name in opened.read_config()["recipes"]
        if (stored := opened.read_recipe_config(name))
    }
    return Results(opened.path, Recipes(recipes))


def _open_views(workdir: Path) -> "SweepResults":
    top_level.import_packages()
    from analysis import io, opening, page

    figures, _ = page.leave_out_missing(io.read_workdir(workdir)["figures"])
    return opening.with_needs(opening.read_recipes(workdir), page.figure_needs(figures))


def open_arrays(
    workdir: str | os.PathLike[str],
    loss_MxN: "ArrayLike",
    member_MxN: "ArrayLike",
    *,
    role_M: Sequence[str] | None = None,
    text_N: Sequence[str] | None = None,
    columns: "Mapping[str, np.ndarray] | None" = None,
    statistics: "Mapping[str, ArrayLike] | None" = None,
    subset: Literal["given", "exact", "bernoulli", "balanced"] = "given",
    name: str = "imported",
    losses_are_nats: bool = False,
) -> "Results":
    """Writes losses of models that were trained elsewhere to a workdir, and opens it, as ``lm-mia import`` does.

    ``lm-mia attack --workdir=DIR`` and ``lm-mia report --workdir=DIR`` then work on it as on our own models.

    Args:
      workdir: the folder, which need not exist.
      loss_MxN: loss of each of N samples under each of M models, in nats per token.
      member_MxN: whether each model was trained on each sample.
      role_M: "reference", "target" (attacked with the references), "replica" (targets that share one training subset)
        or "base" (the one model that the others were fine-tuned from, trained on none of the samples) for each model;
        None: all are references, and the first ones are attacked.
      text_N: texts of the samples, as far as the losses are of them.
      columns: name -> column_N of other properties of the samples, such as ``tokens``, their lengths; samples with the
        same value of ``document`` are pieces of one document; ``name``, ``source`` and ``user`` may be strings.
      statistics: name -> value_MxN of other statistics, such as ``min_k`` (the names of ``score.statistics``).
      subset: how the members of each model were drawn. given: in an unknown way; exact: half of the samples; bernoulli:
        each sample with probability 1/2; balanced: halves, complementary for models 2i and 2i + 1.
      name: name of the recipe in the workdir.
      losses_are_nats: whether losses are accepted even if they look like sums, perplexities, bits or accuracies.

    Returns:
      The results of the workdir; they have scores; tables are computed when they are asked for.

    Raises:
      UserError: with one line per problem of the arrays, or if the workdir has other losses of this name.

    Example:
      >>> import numpy as np
      >>> rng = np.random.default_rng(0)
      >>> member_MxN = rng.random((16, 500)) < 0.5
      >>> loss_MxN = 3 - 0.3 * member_MxN + rng.normal(0, 0.2, member_MxN.shape)
      >>> results = lm_mia.open_arrays("runs/mine", loss_MxN, member_MxN, subset="bernoulli")
      >>> results.recipes["imported"].scores()["loss"].shape
      (16, 500)
    """
    # Imported here because opening a workdir needs none of them.
    from lm_mia.audits import importing
    from lm_mia.data import losses
    from lm_mia.data.arrays import open_arrays as open_given
    from lm_mia.run import progress

    problems: list[str] = []
    importing.read_flags("", name, subset, problems)
    if problems:
        raise UserError("\n".join(problems))
    given = losses.name_arrays(loss_MxN, member_MxN, role_M, text_N, columns, statistics)
    file = losses.read_losses(open_given(given), are_nats=losses_are_nats, prefix="")
    with progress.display(overall=False) as display:
        importing.import_losses(file, os.fspath(workdir), name, subset, (), display)
    return open(workdir)


@dataclasses.dataclass(frozen=True, repr=False)
class Results:
    """The results of a workdir, as returned by `lm_mia.open`."""

    workdir: Path
    recipes: "Recipes"
    """The recipes by name, in order of creation."""

    def __repr__(self) -> str:
        return f"Results({str(self.workdir)!r}, recipes={list(self.recipes)})"


class UnknownRecipeError(UserError, KeyError):
    """The workdir has no recipe of this name."""

    __str__ = UserError.__str__  # that of KeyError adds quotes


class Recipes(Mapping[str, "RecipeView"]):
    """The recipes of a workdir: name -> `RecipeView`, in order of creation.

    The name is that of the recipe's folder. A recipe can also be looked up by its other names, such as ``fixed-140M``
    for a recipe ``main`` that a config requests under both names.

    Raises:
      UnknownRecipeError: on lookup of an unknown name. It is a UserError and a KeyError.
    """

    def __init__(self, recipes: Mapping[str, "RecipeView"]) -> None:
        self._recipes = dict(recipes)
        aliases = {alias: recipe for recipe in recipes.values() for alias in recipe.names}
        self._by_name = aliases | self._recipes

    def __getitem__(self, name: str) -> "RecipeView":
        if name not in self._by_name:
            raise UnknownRecipeError(
                f"recipe={name!r}: no such recipe in this workdir; choose from {', '.join(self)}"
            )
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._recipes)

    def __len__(self) -> int:
        return len(self._recipes)

    def __repr__(self) -> str:
        return f"Recipes({list(self)})"


@dataclasses.dataclass(frozen=True, repr=False)
class RecipeView:
    """One recipe of a workdir: its config, scores, tables and samples.

    Example:
      >>> recipe = lm_mia.open("runs/quickstart").recipes["quickstart"]
      >>> scores = recipe.scores()
      >>> member_loss = scores["loss"].where(scores["member"]).mean()
      >>> nonmember_loss = scores["loss"].where(~scores["member"]).mean()
      >>> bool(member_loss < nonmember_loss)
      True
    """

    workdir: Workdir
    name: str
    """The name of the recipe's folder."""
    _stored: dict[str, Any] = dataclasses.field(compare=False)
    """The recipe's config.json."""
    _views: "Callable[[], SweepResults]" = dataclasses.field(compare=False)
    """Returns the results of all recipes of the workdir."""

    def __repr__(self) -> str:
        return f"RecipeView({self.name!r})"

    @property
    def names(self) -> tuple[str, ...]:
        """All names that configs give the recipe."""
        return tuple(self._stored["names"])

    @property
    def path(self) -> Path:
        """The folder of the recipe, ``WORKDIR/recipes/NAME``."""
        return self.workdir.recipe_dir(self.name)

    @property
    def config(self) -> Config:
        """The config of the last command on the recipe, as it was when the workdir was opened.

        Raises:
          UserError: if another version of lm_mia, which has other fields, wrote the config.

        Example:
          >>> lm_mia.open("runs/quickstart").recipes["quickstart"].config.train.subset
          'balanced'
        """
        try:
            return from_dict(self._stored["config"])
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{self.path / 'config.json'}: was written by another version of lm_mia ({error}); read it as JSON"
            ) from error

    def scores(self, *, verify: bool = True) -> "xr.Dataset":
        """Opens the score store: the loss of each sample under each model, and whether the model was trained on it.

        Args:
          verify: whether to read all values first, about a second for each GB, and to compare them with the digests
            that were written with them. Without this, a file that was deleted or exchanged is not noticed.

        Returns:
          A dataset with the variables ``loss`` (nats per token), ``member``, and those of ``score.statistics``. The
          dimensions are (model, sample), or (model, checkpoint, sample) if models are also scored before the end of
          training. Values are read from disk when they are used. Losses of models that are not scored yet are NaN.

        Raises:
          UserError: if no model is scored yet, the store could run code when it is read, or a file of it is damaged,
            was deleted, or was replaced by that of another model.

        Example:
          >>> scores = lm_mia.open("runs/quickstart").recipes["quickstart"].scores()
          >>> references = scores.sel(model=scores["role"] == "reference")
          >>> loss_MxN = references["loss"].to_numpy()
          >>> loss_MxN.shape == references["member"].shape
          True
        """
        import xarray as xr

        path = self.path / "scores.zarr"
        check_zarr(path, formats=(3,))
        if not (path / "zarr.json").is_file():
            raise UserError(f"{path}: no scores yet; run `lm-mia run` first")
        if verify:
            import numpy as np

            from lm_mia.store.check import check_scores  # loads tensorstore
            from lm_mia.store.schema import TOKENS, token_samples

            population = self._population
            columns = {"sample": np.arange(len(population)), **population.sample_columns()}
            if (path / TOKENS / "zarr.json").exists():
                columns |= token_columns(population, token_samples(path))
            check_scores(path, columns)
        try:
            return xr.open_zarr(path)
        except (ValueError, LookupError, OSError) as error:
            raise_failed_read(error, path)
            raise UserError(
                f"{path}: damaged ({type(error).__name__}); check it with `lm-mia status --verify`"
            ) from error

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables whose results are stored, in alphabetical order; see `table`."""
        return tuple(sorted(Path(file).stem for file in self._view.stored_tables()))

    def table(self, name: str) -> "pd.DataFrame":
        """Returns a table of results.

        What is missing is computed, and stored in the workdir if it can be written: for example after training, before
        the first ``lm-mia attack``. Attacks and figures in files of the user, which the config names, are run for this.
        The data dictionary in the documentation describes all tables and their columns.

        Args:
          name: such as ``attacks``, which ``lm-mia attack`` also writes to ``tables/attacks.csv``, or
            ``membership_scores`` for the scores of every sample; `tables` lists those that are stored.

        Returns:
          The table. Missing values are NaN, or ``pandas.NA`` in a column of integers.

        Raises:
          UserError: if there is no such table, or the models or the settings of the recipe do not allow it; the message
            says why.

        Example:
          >>> attacks = lm_mia.open("runs/quickstart").recipes["quickstart"].table("attacks")
          >>> attacks.columns[:3].tolist()
          ['attack', 'references', 'targets']
        """
        files = {Path(file).stem: file for file in self._view.tables if not file.endswith(".json")}
        if name not in files:
            raise UserError(
                f"table={name!r}: there is no such table; choose from {', '.join(sorted(files))}"
            )
        return self._view.table(files[name])

    def samples(self) -> "pd.DataFrame":
        """Reads the sample table of the population.

        Returns:
          A data frame with one row per sample, whose index is the sample id, and columns such as ``tokens`` (length)
          and ``name`` (of the record in the corpus).

        Raises:
          UserError: if the population is missing or damaged.

        Example:
          >>> samples = lm_mia.open("runs/quickstart").recipes["quickstart"].samples()
          >>> longest = samples["tokens"].idxmax()
        """
        import pandas as pd

        return pd.read_parquet(self._population.folder / "samples.parquet")

    def text(self, i: SupportsIndex) -> str:
        """Returns the text of a sample as the models saw it: truncated, with normalized spaces.

        Args:
          i: the id of the sample.

        Raises:
          UserError: if there is no such sample, if losses were imported without texts, or if the population is
            missing or damaged.

        Example:
          >>> text = lm_mia.open("runs/quickstart").recipes["quickstart"].text(0)
        """
        population, i = self._population, operator.index(i)
        if not 0 <= i < len(population):
            raise UserError(f"sample={i}: must be an id from 0 to {len(population) - 1}")
        if not population.has_texts:
            raise UserError(
                f"{self.name}: its losses were imported without texts; import them to another --workdir with the array "
                "text_N, or the column text, which has the text of each sample"
            )
        return population.text(i)

    @functools.cached_property
    def _view(self) -> "experiment.RecipeView":
        opened = self._views()
        for recipe in opened.recipes:
            if recipe.name == self.name:
                return recipe.view
        raise Unavailable(f"{self.name}: its population is not built; run `lm-mia run` first")

    @functools.cached_property
    def _population(self) -> Population:
        shared = str(self._stored["config"]["population"].get("folder", ""))
        folder = self.workdir.population_dir(str(self._stored["population"]), shared)
        return open_population(folder)


def audit(
    source: "str | os.PathLike[str] | pd.DataFrame | pa.Table | Mapping[Any, Any]", **settings: Any
) -> "Audit":
    """Audits membership scores or losses of any models: AUC, TPR at FPR, and epsilon, estimates and lower bounds.

    It computes what the command ``lm-mia audit FILE`` prints and writes.

    Args:
      source: a path, a data frame, a table of pyarrow, or a mapping of names and arrays. It has membership scores (the
        columns ``score`` and ``member``, or ``score_MxN`` and ``member_MxN``), or losses, to which all attacks on
        losses are applied (as ``lm-mia import`` reads them: ``loss_MxN`` and ``member_MxN``, and the roles of the
        models).
      **settings: fields of `lm_mia.audits.statistics.Settings`, which are the flags of the command, too. Names of
        columns of a data frame may be integers, and ``covariates`` and ``target`` may be a single name.

    Returns:
      The results as data frames.

    Raises:
      UserError: with one line per problem of the arguments and the source.

    Example:
      >>> import numpy as np
      >>> import pandas as pd
      >>> rng = np.random.default_rng(0)
      >>> member_N = rng.random(2000) < 0.5
      >>> scores = pd.DataFrame({"score": rng.normal(size=2000) + member_N, "member": member_N})
      >>> result = lm_mia.audit(scores, membership="coins")
      >>> bool(0.7 < result.summary["auc"].iloc[0] < 0.8)
      True
      >>> bounds = result.epsilon[result.epsilon["is_bound"]]
      >>> bounds[["method", "adjacency"]].to_numpy().tolist()
      [['one_run', 'add_remove']]
    """
    from lm_mia.audits import audit as audits

    opened = Path(source) if isinstance(source, str | os.PathLike) else source
    return audits.audit(opened, audits.Settings.of(settings))
