"""The pieces of a recipe: what determines each evaluation of an attack, and where it is stored."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from lm_mia import config
from lm_mia.attacks import registry, score_matrix, user_code
from lm_mia.attacks.headline import effective_attack
from lm_mia.attacks.results import RESULTS_FORMAT, Key, Results, to_frame
from lm_mia.attacks.settings import read_settings
from lm_mia.attacks.spec import AttackSpec, Request
from lm_mia.config.recipe import recipe_hash
from lm_mia.data import subsets
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError
from lm_mia.store.store import Store, open_store

FOLDER = "pieces"
"""Name of the folder of a recipe in which its pieces are."""
_SMALL_BYTES = 2**21


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of a recipe, and what their keys name."""

    recipe_hash: str
    digests: Mapping[str, str]
    """Name of a model in the store -> digest of its scores; "" if it is not scored at all of its score points."""
    always: tuple[str, ...]
    """Names of the models on which all attacks depend: the base and, if the subsets were given, all models, since
    attacks leave out models with related subsets."""
    c: config.Attack
    """Settings of the recipe."""
    design: str
    """How the training subsets were drawn, which some evaluations read as a setting."""
    token_samples: tuple[int, ...]
    """The ids of the samples whose tokens are stored, another such setting."""
    results: Results
    compute: Callable[[Request], None] | None = None
    """Computes and stores a piece that is missing when it is read; None: reading it raises an error."""
    _small: dict[Request, pa.Table] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _intact: set[Request] = dataclasses.field(
        default_factory=set, init=False, repr=False, compare=False
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that attacks and evaluations may read, by name."""
        others = {"design": self.design, "token_samples": self.token_samples}
        return {**vars(self.c), **others}

    def key(self, request: Request) -> Key:
        """Returns what determines the evaluation of an attack."""
        names = [
            *self.always,
            *(str(m) for s in (request.spec, *request.parts) for m in models_of(s)),
        ]
        code = user_code.code_of(request.evaluation)
        return ({"code": code} if code else {}) | {
            "what": request.evaluation.__name__,
            "format": RESULTS_FORMAT,
            "recipe": self.recipe_hash,
            "models": {name: self.digests.get(name, "") for name in sorted({*names})},
            "spec": _spec_key(request.spec, self.c),
            "parts": [[*part.references] for part in request.parts],
            "settings": read_settings(request.evaluation, self.settings),
        }

    def read(self, request: Request, columns: Sequence[str] | None = None) -> pd.DataFrame | None:
        """Returns a piece, or some of its columns; None if it is missing or damaged and cannot be computed."""
        self._ensure(request)
        return self.results.read(self.key(request), columns)

    def table(self, request: Request) -> pd.DataFrame:
        """Returns a piece, which is kept in memory if it is small, since several exports read it.

        Raises:
          UserError: the piece is missing or damaged.
        """
        self._ensure(request)
        kept = self._small.get(request)
        return to_frame(pa.concat_tables(self.parts(request)) if kept is None else kept)

    def has(self, request: Request) -> bool:
        """Returns whether a piece is there and intact, which takes reading it (about 1 GB/s)."""
        parts = self.results.parts(self.key(request))
        try:
            table = next(parts)
            if table.nbytes <= _SMALL_BYTES:
                self._small[request] = pa.concat_tables([table, *parts])
            elif not all(True for _ in parts):
                return False
        except UserError:
            return False
        self._intact.add(request)
        return True

    def parts(self, request: Request) -> Iterator[pa.Table]:
        """Yields the row groups of a piece; raises UserError if it is missing or damaged and cannot be computed."""
        self._ensure(request)
        return self.results.parts(self.key(request))

    def _ensure(self, request: Request) -> None:
        """Computes a piece if it is missing or damaged; each is checked once."""
        if request in self._intact or self.has(request) or self.compute is None:
            return
        self.compute(request)


def open_pieces(c: config.Config, recipe_dir: Path) -> Pieces:
    """Returns the pieces of a recipe; raises UserError if its score store is damaged."""
    return pieces_of(
        open_store(c, recipe_dir),
        recipe_hash(c),
        effective_attack(c),
        recipe_dir / FOLDER,
        c.score.token_samples,
    )


def pieces_of(
    store: Store, recipe: str, c: config.Attack, folder: Path, token_samples: Sequence[int] = ()
) -> Pieces:
    """Returns the pieces in a folder.

    Args:
      store: the score store of the recipe.
      recipe: the hash of the recipe.
      c: settings of the recipe.
      folder: where the pieces are.
      token_samples: ids of the samples whose tokens are stored.
    """
    digests = {str(model): digest for model, digest in store.known_digests().items()}
    always = [model for model in store.models() if model.role == "base"]
    if store.design == "given":
        always = store.models()
    names = tuple(map(str, always))
    results = Results(folder)
    return Pieces(recipe, digests, names, c, store.design, tuple(token_samples), results)


def models_of(spec: AttackSpec) -> list[ModelSeeds]:
    """Returns the models that take part in an attack."""
    references = *spec.references, *spec.in_and_out_among
    return [*target_models(spec), *map(subsets.reference, dict.fromkeys(references))]


def target_models(spec: AttackSpec) -> list[ModelSeeds]:
    """Returns the attacked models."""
    return [*map(subsets.replica if spec.targets_are_replicas else subsets.reference, spec.targets)]


def _spec_key(spec: AttackSpec, c: config.Attack) -> dict[str, Any]:
    """Returns what a piece depends on of an attack, with the values of the settings that the attack reads."""
    settings = score_matrix.settings_of(spec, c)
    own = {name: settings[name] for name in registry.find(spec.attack).settings}
    left_out = "rmia_samples", "rmia_gamma", "rmia_a"  # among the settings
    names = (field.name for field in dataclasses.fields(spec))
    fields = {name: getattr(spec, name) for name in names if name not in left_out}
    if code := registry.find(spec.attack).code:  # a path has no place in a key
        fields |= {"attack": spec.name, "code": code}
    return fields | {"settings": own}
