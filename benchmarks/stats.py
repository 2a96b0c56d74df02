"""Measures time and memory of the statistics at the scale of the paper, and prints Markdown tables.

    python -m benchmarks stats [SECTION ...] [--privacyguard PATH] [--privacy-meter PATH]

The sections are tables, growth, rmia, leave_one_out, scores, attacks, bootstrap and peers; all run by default, but
peers only if a path is given. Each number is measured in a separate process. Peak memory is the resident memory
including Python, libraries and inputs. Files are read shortly after they are written, so they are in the page cache.
--scratch needs about 6 GB; --help lists the sizes. All sections take minutes, and about ten more minutes with peers.
Runs of lm_mia and of a peer alternate, but other load on the machine still affects them.

Goals: tables within 20 s and 4 GB on 2 cores; time that grows linearly and memory that does not grow with the number of
samples; RMIA that hardly slows down as Z grows; at least 50 times the speed of the peers for RMIA with thousands of z.
The peers hold N x Z ratios in memory, so they may exceed --peer-memory at the largest Z, which the table then reports.

Peers are PrivacyGuard (github.com/facebookresearch/PrivacyGuard) and ml_privacy_meter
(github.com/privacytrustlab/ml_privacy_meter), from local checkouts; `peers` describes how they are called. In addition
to the dependencies of lm-mia they need torch, pandas below 3, scikit-learn, tqdm and matplotlib.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import fresh
import ours
import paper
import synthetic
import turns

from lm_mia.machine import available_cores

Table = tuple[Sequence[str], Iterable[Sequence[str]]]

_STEPS = ("scores", "rates", "decisions")
_PAPER = ("samples", "references", "targets", "FPRs", "seconds", *_STEPS, "peak GB", "store GB")


def tables(scratch: Path, args: argparse.Namespace) -> Table:
    """Tables 1-6 of StrongMIA from a store of float32 losses on disk."""
    return _PAPER, [_paper(scratch, args.samples, args.references, args.replicas)]


def growth(scratch: Path, args: argparse.Namespace) -> Table:
    """Tables 1-6 of StrongMIA as the population grows, with fewer models."""

    def rows() -> Iterator[Sequence[str]]:
        for samples in args.growth_samples:
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                yield _paper(Path(folder), samples, args.growth_models, args.growth_models)

    return _PAPER, rows()


def rmia(scratch: Path, args: argparse.Namespace) -> Table:
    """RMIA of all targets as the number of population samples grows."""

    def rows() -> Iterator[Sequence[str]]:
        for population in args.populations:
            synthetic.write(scratch, args.samples, args.references, args.targets, population)
            run = fresh.measure(ours.rmia_online, scratch)
            yield f"{population:,}", *_cost(run), f"{args.samples * population * 4 / 2**30:,.0f}"

    return ("Z", "seconds", "peak GB", "GB of N x Z float32 ratios"), rows()


def leave_one_out(scratch: Path, args: argparse.Namespace) -> Table:
    """LiRA on every reference with the others: in arrays, and streamed from a store, without and with Figure 21."""

    def rows() -> Iterator[Sequence[str]]:
        synthetic.write(scratch, args.samples, args.references, 1)
        run = fresh.measure(ours.leave_one_out, scratch)
        yield "arrays", f"{args.samples:,}", str(args.references), *_cost(run)
        for samples in (args.samples // 4, args.samples, 4 * args.samples):
            with tempfile.TemporaryDirectory(dir=scratch) as name:
                folder, size = Path(name), {"samples": samples, "references": args.references}
                fresh.measure(paper.write_store, folder, **size, targets=1)
                for name, probabilities in (("streamed", False), ("with probabilities", True)):
                    run = fresh.measure(
                        paper.reference_targets,
                        folder,
                        references=args.references,
                        probabilities=probabilities,
                    )
                    yield name, f"{samples:,}", str(args.references), *_cost(run)

    return ("source", "samples", "models", "seconds", "peak GB"), rows()


def scores(scratch: Path, args: argparse.Namespace) -> Table:
    """The table of membership scores of one attack, with every replica or, above 2^28 scores, their mean."""

    def rows() -> Iterator[Sequence[str]]:
        for samples in (args.samples // 4, args.samples, 4 * args.samples):
            with tempfile.TemporaryDirectory(dir=scratch) as name:
                folder, models = Path(name), {"references": 16, "targets": args.replicas}
                fresh.measure(paper.write_store, folder, samples=samples, **models)
                run = fresh.measure(paper.score_table, folder, **models)
                assert run.results is not None
                size = f"{float(run.results['bytes']) / 2**30:.2f}"
                yield f"{samples:,}", str(args.replicas), *_cost(run), size

    return ("samples", "targets", "seconds", "peak GB", "table GB"), rows()


def attacks(scratch: Path, args: argparse.Namespace) -> Table:
    """Membership scores of one attack at a time, streamed from a store."""

    def rows() -> Iterator[Sequence[str]]:
        models = {"references": args.references, "targets": args.targets}
        fresh.measure(paper.write_store, scratch, samples=args.samples, **models)
        for attack in ("lira_online", "rmia", "shrunk", "stacked", "lira_online"):
            run = fresh.measure(paper.attack_scores, scratch, attack=attack, **models)
            size = f"{args.samples:,}", str(args.references), str(args.targets)
            yield attack, *size, *_cost(run)

    return ("attack", "samples", "references", "targets", "seconds", "peak GB"), rows()


def bootstrap(scratch: Path, args: argparse.Namespace) -> Table:
    """Bootstrap intervals of AUC and TPR at 11 false positive rates, for one target."""
    synthetic.write(scratch, args.peer_samples, args.references, 1)
    fresh.measure(ours.save_scores, scratch)
    run = fresh.measure(ours.intervals, scratch, replicates=args.replicates, targets=1)
    header = ("samples", "replicates", "FPRs", "seconds", "peak GB")
    cells = (f"{args.peer_samples:,}", f"{args.replicates:,}", str(len(ours.FPRS)), *_cost(run))
    return header, [cells]


def peers(scratch: Path, args: argparse.Namespace) -> Table:
    """PrivacyGuard, ml_privacy_meter and lm_mia, run alternately."""
    size = turns.Size(
        samples=args.peer_samples,
        references=args.references,
        targets=args.targets,
        populations=args.peer_populations,
        replicates=args.replicates,
        repeats=args.repeats,
        limit_bytes=int(args.peer_memory * 2**30),
    )
    return turns.HEADER, turns.table(scratch, size, args.privacyguard, args.privacy_meter)


SECTIONS: dict[str, Callable[[Path, argparse.Namespace], Table]] = {
    "tables": tables,
    "growth": growth,
    "rmia": rmia,
    "leave_one_out": leave_one_out,
    "scores": scores,
    "attacks": attacks,
    "bootstrap": bootstrap,
    "peers": peers,
}


def main() -> None:
    """Prints one table per section."""
    args = _arguments()
    for name in args.sections or SECTIONS:
        if name == "peers" and not (args.privacyguard or args.privacy_meter):
            continue
        with tempfile.TemporaryDirectory(dir=args.scratch, prefix="lm_mia_stats_") as scratch:
            header, rows = SECTIONS[name](Path(scratch), args)
            print(f"\n### {(SECTIONS[name].__doc__ or name).rstrip('.')}\n\n{_size(name, args)}\n")
            print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
            for cells in rows:
                print(f"| {' | '.join(cells)} |", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    add = parser.add_argument
    add("--samples", type=_integer, default=2**20)
    add("--references", type=_integer, default=128)
    add("--targets", type=_integer, default=8, help="targets of RMIA and of the peers")
    add("--replicas", type=_integer, default=127, help="targets of the section tables")
    sizes = tuple(2**k for k in range(16, 23, 2))
    add(
        "--growth-samples",
        type=_integers,
        default=sizes,
        help="population sizes of the section growth",
    )
    add(
        "--growth-models",
        type=_integer,
        default=16,
        help="number of references, and of targets, of the section growth",
    )
    add(
        "--populations",
        type=_integers,
        default=(1_000, 10_000, 300_000),
        help="numbers of population samples, Z, of RMIA",
    )
    add("--replicates", type=_integer, default=1_000, help="bootstrap replicates")
    add(
        "--peer-samples",
        type=_integer,
        default=2**18,
        help="samples of the peers and of the bootstrap",
    )
    add(
        "--peer-populations",
        type=_integers,
        default=(1_000, 4_000, 10_000),
        help="numbers of population samples, Z, of the peers",
    )
    add("--peer-memory", type=float, default=8, help="memory limit of a process of a peer, in GB")
    add(
        "--repeats",
        type=_integer,
        default=3,
        help="runs of each peer, alternating with lm_mia; medians are printed",
    )
    add("--privacyguard", type=Path, help="a checkout of facebookresearch/PrivacyGuard")
    add("--privacy-meter", type=Path, help="a checkout of privacytrustlab/ml_privacy_meter")
    add("--scratch", type=Path, help="folder of the arrays, which are deleted after each section")
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"unknown section: {', '.join(sorted(unknown))}")
    if "peers" in args.sections and not (args.privacyguard or args.privacy_meter):
        parser.error("peers needs --privacyguard, --privacy-meter or both")
    return args


def _integer(text: str) -> int:
    """Parses a number such as 1000 or 2**18."""
    base, _, exponent = text.partition("**")
    return int(base) ** int(exponent or 1)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(_integer(part) for part in text.split(","))


def _size(name: str, args: argparse.Namespace) -> str:
    """Describes the sizes of a section that its table does not show."""
    match name:
        case "rmia" | "peers":
            samples = args.samples if name == "rmia" else args.peer_samples
            return f"{samples:,} samples, {args.references} references, targets: {args.targets}"
        case _:
            return f"{available_cores()} CPU cores"


def _paper(folder: Path, samples: int, references: int, targets: int) -> Sequence[str]:
    models = {"references": references, "targets": targets}
    fresh.measure(paper.write_store, folder, samples=samples, **models)
    run = fresh.measure(paper.tables, folder, **models)
    assert run.results is not None
    seconds, peak = _cost(run)
    steps = [f"{float(run.results[name]):.3g}" for name in _STEPS]
    gigabytes = samples * (references + targets) * 5 / 2**30
    cells = (f"{samples:,}", *map(str, (references, targets, len(ours.FPRS))))
    return (*cells, seconds, *steps, peak, f"{gigabytes:.2f}")


def _cost(run: fresh.Measured) -> tuple[str, str]:
    return f"{run.seconds:.3g}", f"{run.peak_bytes / 2**30:.2f}"


if __name__ == "__main__":
    main()
