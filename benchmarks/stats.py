"""Speed and memory of the statistics at paper scale, in Markdown tables.

    python benchmarks/stats.py [SECTION ...] [--privacyguard PATH] [--privacy-meter PATH]

Sections, all by default: tables, growth, rmia, leave_one_out, bootstrap, peers (the last if a path
is given). Every number is measured in a process of its own; peaks are resident memory with Python,
libraries and inputs. Files are read soon after they are written, so from the page cache. --scratch
needs about 4 GB; see --help for sizes. Minutes without peers, some ten more with them; the order of
ours and theirs alternates, but other load on the machine still shows.

Aims: tables in 20 s and 4 GB on 2 cores; growth linear in seconds and flat in memory; RMIA that
hardly slows as Z grows; 50 times the peers' speed and more for RMIA at thousands of z. They hold N x
Z ratios at once, so at the largest Z they may run out of --peer-memory, which the table then says.

Peers are PrivacyGuard (github.com/facebookresearch/PrivacyGuard) and ml_privacy_meter
(github.com/privacytrustlab/ml_privacy_meter), from checkouts; see `peers` for how they are called.
They need torch, pandas below 3, scikit-learn, tqdm and matplotlib beside what lm-mia needs.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import fresh
import ours
import paper
import synthetic
import turns

Table = tuple[Sequence[str], Iterable[Sequence[str]]]

_STEPS = ("scores", "rates", "decisions")
_PAPER = ("samples", "references", "targets", "FPRs", "seconds", *_STEPS, "peak GB", "store GB")


def tables(scratch: Path, c: argparse.Namespace) -> Table:
    """Tables 1-6 from a store of float32 losses on disk."""
    return _PAPER, [_paper(scratch, c.samples, c.references, c.replicas)]


def growth(scratch: Path, c: argparse.Namespace) -> Table:
    """Tables 1-6 as the population grows, with fewer rows."""

    def rows() -> Iterator[Sequence[str]]:
        for samples in c.growth_samples:
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                yield _paper(Path(folder), samples, c.growth_rows, c.growth_rows)

    return _PAPER, rows()


def rmia(scratch: Path, c: argparse.Namespace) -> Table:
    """RMIA of all targets against a growing population."""

    def rows() -> Iterator[Sequence[str]]:
        for population in c.populations:
            synthetic.write(scratch, c.samples, c.references, c.targets, population)
            found = fresh.measure(ours.rmia_online, scratch)
            yield f"{population:,}", *_cost(found), f"{c.samples * population * 4 / 2**30:,.0f}"

    return ("Z", "seconds", "peak GB", "GB that N x Z float32 ratios take"), rows()


def leave_one_out(scratch: Path, c: argparse.Namespace) -> Table:
    """Leave-one-out LiRA of all references: of arrays, and streamed from a store to Figure 21's table."""

    def rows() -> Iterator[Sequence[str]]:
        synthetic.write(scratch, c.samples, c.references, 1)
        found = fresh.measure(ours.leave_one_out, scratch)
        yield "arrays", f"{c.samples:,}", str(c.references), *_cost(found)
        for samples in (c.samples // 4, c.samples, 4 * c.samples):
            with tempfile.TemporaryDirectory(dir=scratch) as name:
                folder, size = Path(name), {"samples": samples, "references": c.references}
                fresh.measure(paper.write_store, folder, **size, targets=1)
                found = fresh.measure(paper.probabilities, folder, references=c.references)
                yield "streamed", f"{samples:,}", str(c.references), *_cost(found)

    return ("from", "samples", "rows", "seconds", "peak GB"), rows()


def bootstrap(scratch: Path, c: argparse.Namespace) -> Table:
    """Bootstrap of AUC and TPR at 11 FPRs, one target."""
    synthetic.write(scratch, c.peer_samples, c.references, 1)
    fresh.measure(ours.save_scores, scratch)
    found = fresh.measure(ours.intervals, scratch, replicates=c.replicates, targets=1)
    header = ("samples", "replicates", "FPRs", "seconds", "peak GB")
    cells = (f"{c.peer_samples:,}", f"{c.replicates:,}", str(len(ours.FPRS)), *_cost(found))
    return header, [cells]


def peers(scratch: Path, c: argparse.Namespace) -> Table:
    """PrivacyGuard, ml_privacy_meter and ours in turn."""
    size = turns.Size(
        samples=c.peer_samples,
        references=c.references,
        targets=c.targets,
        populations=c.peer_populations,
        replicates=c.replicates,
        repeats=c.repeats,
        limit_bytes=int(c.peer_memory * 2**30),
    )
    return turns.HEADER, turns.table(scratch, size, c.privacyguard, c.privacy_meter)


SECTIONS: dict[str, Callable[[Path, argparse.Namespace], Table]] = {
    "tables": tables,
    "growth": growth,
    "rmia": rmia,
    "leave_one_out": leave_one_out,
    "bootstrap": bootstrap,
    "peers": peers,
}


def main() -> None:
    """Prints one table a section."""
    c = _arguments()
    for name in c.sections or SECTIONS:
        if name == "peers" and not (c.privacyguard or c.privacy_meter):
            continue
        with tempfile.TemporaryDirectory(dir=c.scratch, prefix="lm_mia_stats_") as scratch:
            header, rows = SECTIONS[name](Path(scratch), c)
            print(f"\n### {(SECTIONS[name].__doc__ or name).rstrip('.')}\n\n{_size(name, c)}\n")
            print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
            for cells in rows:
                print(f"| {' | '.join(cells)} |", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    add = parser.add_argument
    add("--samples", type=_whole, default=2**20)
    add("--references", type=_whole, default=128)
    add("--targets", type=_whole, default=8, help="of RMIA and of the peers")
    add("--replicas", type=_whole, default=127, help="targets of the tables")
    sizes = tuple(2**k for k in range(16, 23, 2))
    add("--growth-samples", type=_wholes, default=sizes, help="of the growth")
    add("--growth-rows", type=_whole, default=16, help="references, and targets, of the growth")
    add("--populations", type=_wholes, default=(1_000, 10_000, 300_000), help="|Z|, of RMIA")
    add("--replicates", type=_whole, default=1_000, help="of the bootstraps")
    add("--peer-samples", type=_whole, default=2**18, help="of the peers and of the bootstraps")
    add(
        "--peer-populations", type=_wholes, default=(1_000, 4_000, 10_000), help="|Z|, of the peers"
    )
    add("--peer-memory", type=float, default=8, help="GB that a process of theirs may use")
    add("--repeats", type=_whole, default=3, help="runs of each peer, in turn with ours; medians")
    add("--privacyguard", type=Path, help="a checkout of facebookresearch/PrivacyGuard")
    add("--privacy-meter", type=Path, help="a checkout of privacytrustlab/ml_privacy_meter")
    add("--scratch", type=Path, help="folder for the arrays, which are deleted after each section")
    c = parser.parse_args()
    if unknown := set(c.sections) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    if "peers" in c.sections and not (c.privacyguard or c.privacy_meter):
        parser.error("peers: give --privacyguard, --privacy-meter or both")
    return c


def _whole(text: str) -> int:
    """A number such as 1000 or 2**18."""
    base, _, exponent = text.partition("**")
    return int(base) ** int(exponent or 1)


def _wholes(text: str) -> tuple[int, ...]:
    return tuple(_whole(part) for part in text.split(","))


def _size(name: str, c: argparse.Namespace) -> str:
    """What a section is measured at, where its table does not say."""
    match name:
        case "rmia" | "peers":
            samples = c.samples if name == "rmia" else c.peer_samples
            return f"{samples:,} samples, {c.references} references, targets: {c.targets}"
        case _:
            return f"{len(os.sched_getaffinity(0))} CPU cores"


def _paper(folder: Path, samples: int, references: int, targets: int) -> Sequence[str]:
    rows = {"references": references, "targets": targets}
    fresh.measure(paper.write_store, folder, samples=samples, **rows)
    found = fresh.measure(paper.tables, folder, **rows)
    assert found.results is not None
    seconds, peak = _cost(found)
    steps = [f"{float(found.results[name]):.3g}" for name in _STEPS]
    gigabytes = samples * (references + targets) * 5 / 2**30
    cells = (f"{samples:,}", *map(str, (references, targets, len(ours.FPRS))))
    return (*cells, seconds, *steps, peak, f"{gigabytes:.2f}")


def _cost(found: fresh.Measured) -> tuple[str, str]:
    return f"{found.seconds:.3g}", f"{found.peak_bytes / 2**30:.2f}"


if __name__ == "__main__":
    main()
