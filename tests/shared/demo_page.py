"""A report page with every kind of part, of invented numbers."""

import numpy as np
from markupsafe import Markup

from analysis.report import charts, document, numbers
from analysis.report.charts import Band, Curve, DotGroup, DotRow, Line, LinePoint, ScoreGroup, Tick
from analysis.report.document import (
    Column,
    Detail,
    Fact,
    Figure,
    FigurePair,
    FigureWithNotes,
    Note,
    Page,
    Row,
    Sample,
    SampleColumn,
    SampleFilter,
    SamplesTable,
    Section,
    Table,
)
from analysis.report.numbers import FRACTION, Estimate

TRAININGS, K_LOW = 16, 4
FOUND, MISSED = Estimate(0.25, 0.18, 0.32), Estimate(0.46, 0.41, 0.51)
LIRA, RMIA, LOSS = (
    Estimate(0.2, 0.15, 0.26),
    Estimate(0.252, 0.19, 0.32),
    Estimate(0.03, 0.02, 0.05),
)
AUC = Estimate(0.88, 0.86, 0.9)
SAMPLES = 120
HOSTILE = "</script><script>document.title = 'injected'</script> <!-- <b>bold</b> & \"quotes\" \u2028 \x00 \u202e 漢"
"""The text of the sample with the highest score."""
LONG = "\U0001f600 word " * 60
"""The text of the last sample of the first rows, of which a cell shows the beginning."""


def curve(name: str, role: charts.Role, found: Estimate, power: float) -> Curve:
    """Returns a curve through its number at 1 %."""
    fpr_P = np.geomspace(0.001, 1, 200)
    tpr_P = np.minimum(found.value * (fpr_P / 0.01) ** power, 1 - (1 - fpr_P) ** 3)
    tpr_P = np.where(fpr_P <= 0.01, found.value * (fpr_P / 0.01) ** power, np.maximum(tpr_P, fpr_P))
    return Curve(name, role, fpr_P, np.maximum.accumulate(np.minimum(tpr_P, 1)), found)


def roc() -> charts.Drawing:
    headline = curve("Stacked LiRA", "headline", FOUND, 0.45)
    others = [
        curve("RMIA", "family", RMIA, 0.45),
        curve("LiRA", "lira", LIRA, 0.5),
        curve("Loss alone", "loss", LOSS, 0.8),
    ]
    band = Band(headline.fpr_P, 0.75 * headline.tpr_P, np.minimum(1.25 * headline.tpr_P, 1))
    return charts.roc(
        [headline, *others], fpr=0.01, num_nonmembers=1024, band=band, key="chart-roc"
    )


def votes() -> charts.Drawing:
    members_K = np.array(
        [322, 88, 60, 51, 47, 41, 38, 36, 34, 33, 32, 34, 35, 38, 42, 61, 32], dtype=int
    )
    nonmembers_K = np.array([958, 30, 13, 6, 5, 4, 2, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0], dtype=int)
    return charts.votes(members_K, nonmembers_K, k_low=K_LOW, key="chart-votes")


def found_again() -> charts.Drawing:
    shares = [0.36, 0.4, 0.43, 0.47, 0.52, 0.59, 0.68, 0.8]
    groups = [
        ScoreGroup(0.1 + 0.25 * i, Estimate(share, share - 0.06, share + 0.06), 500)
        for i, share in enumerate(shares)
    ]
    return charts.found_again(groups, unit="log odds", key="chart-again")


def dot_rows() -> charts.Drawing:
    models = tuple(np.linspace(0.18, 0.34, TRAININGS))
    groups = [
        DotGroup(
            "The attacker",
            (
                DotRow("sees only the loss, no references", LOSS, short="sees only the loss"),
                DotRow("uses LiRA", LIRA, "lira"),
                DotRow("has 8 references", Estimate(0.23)),
                DotRow("accepts 5 false alarms per 100", Estimate(0.52, 0.46, 0.58)),
                DotRow(
                    "has 4 or more fine-tuned references",
                    Estimate(float("nan")),
                    short="has 4 or more references",
                ),
            ),
        ),
        DotGroup(
            "The model",
            (
                DotRow(
                    "trained in another batch order: each of the 16",
                    Estimate(FOUND.value),
                    short="trained in another batch order",
                    models=models,
                ),
            ),
        ),
    ]
    headline = DotRow("This report: Stacked LiRA, 32 references", FOUND, "headline", "This report")
    return charts.dot_rows(headline, groups, key="chart-change")


def references() -> charts.Drawing:
    counts = (8, 16, 32, 64, 128)

    def line(name: str, role: charts.Role, last: float) -> Line:
        estimates = [Estimate(last - 0.02 / (1 + i)) for i in range(3)]
        estimates += [Estimate(last, last - 0.06, last + 0.06)] * 2
        points = [LinePoint(n, e, n > 32) for n, e in zip(counts, estimates, strict=True)]
        return Line(name, role, tuple(points))

    return charts.lines(
        [
            line("Stacked LiRA", "headline", 0.25),
            line("RMIA", "family", 0.252),
            line("LiRA", "lira", 0.2),
        ],
        ticks=[Tick(count, f"{count}") for count in counts],
        x_title="Reference models",
        y_title="Members found per 100 at 1 false alarm per 100",
        title="Members found by number of references",
        key="chart-references",
    )


def recipes(unit: numbers.Unit, y_title: str, key: str) -> charts.Drawing:
    points = [
        tuple(
            LinePoint(i, Estimate(value, value - 0.04, value + 0.04))
            for i, value in enumerate(values)
        )
        for values in ((0.62, 0.75, 0.93), (0.61, 0.7, 0.82))
    ]
    return charts.lines(
        [Line("Stacked LiRA", "headline", points[0]), Line("LiRA", "lira", points[1])],
        ticks=[Tick(0, "w32: 25k"), Tick(1, "w64: 98k"), Tick(2, "w128: 393k")],
        x_title="Parameters without embeddings",
        y_title=y_title,
        title=f"{y_title}, by recipe",
        unit=unit,
        scale="linear",
        is_half=True,
        key=key,
    )


def sample(i: int) -> Sample:
    generator = np.random.default_rng(i)
    is_member = i % 3 != 2
    votes = TRAININGS - i // 8
    text = f'text number {i} with <b>tags</b> &amp; "quotes" and more words than two lines of the table have room for …'
    filters = ("exposed",) if is_member else ("alarms",)
    if is_member and K_LOW <= votes <= TRAININGS - K_LOW:
        filters = (*filters, "coin")
    return Sample(
        id=str(1000 + i),
        is_member=is_member,
        score=5 - i / 10,
        above=1 - i / 400,
        filters=filters,
        text={0: HOSTILE, 1: "", 10: LONG}.get(i, text),
        source="" if i == 3 else f"package_{i}/folder/module_with_a_long_name.py:{i}",
        votes=votes,
        in_losses=tuple(generator.normal(4.8, 0.1, 16)),
        out_losses=tuple(generator.normal(5.0, 0.1, 16)),
        model_losses=tuple(generator.normal(4.7, 0.1, TRAININGS)),
        called=tuple(b < votes for b in range(TRAININGS)),
    )


def samples_table() -> SamplesTable:
    samples = tuple(sample(i) for i in range(SAMPLES))
    return SamplesTable(
        caption="Score: log odds of membership by Stacked LiRA, mean of 16 trainings.",
        columns=(
            SampleColumn("text", "Text"),
            SampleColumn("score", "Score", "log odds", "score"),
            SampleColumn(
                "above", "Higher than", "% of non-members", "higher than (% of non-members)"
            ),
            SampleColumn("votes", "Found in", f"of {TRAININGS} trainings", "found in"),
        ),
        filters=(
            SampleFilter("exposed", "Most exposed members", 1024),
            SampleFilter("coin", "Members decided by a coin flip", 315),
            SampleFilter("alarms", "False alarms", sum(not s.is_member for s in samples)),
        ),
        samples=samples,
        trainings=TRAININGS,
        k_low=K_LOW,
        loss_note="Loss of this text under the references that were trained on it, under those that were not, and "
        "under the 16 trainings of the model under attack (filled: “member”).",
    )


def one_training_table() -> SamplesTable:
    samples = tuple(
        Sample(
            id=f"text-{i}",
            is_member=i % 2 == 0,
            score=-i / 100,
            above=1 - i / 40,
            filters=("all",),
            text=f"text {i}",
            label=("0.1", "1", "")[i % 3],
            out_losses=(5.0,),
            model_losses=(4.0 + i / 10,),
        )
        for i in range(5)
    )
    columns = (
        SampleColumn("member", "In the training data?"),
        SampleColumn("score", "Score", "nats per token", "score", 2),
        SampleColumn("above", "Higher than", "% of non-members", "higher than (% of non-members)"),
        SampleColumn("label", "Called a member at", "false alarms per 100", "called a member at"),
    )
    return SamplesTable(
        caption="Samples of one training.",
        columns=columns,
        filters=(SampleFilter("all", "All samples", 5),),
        samples=samples,
        out_title="Base model",
        loss_note="Loss of this text under the base model, and under the model under attack.",
    )


def attacks_table() -> Table:
    rows = [
        ("Stacked LiRA", "32", FOUND, Estimate(0.52, 0.46, 0.58), AUC),
        ("RMIA", "32", RMIA, Estimate(0.53, 0.47, 0.59), AUC),
        ("LiRA", "32", LIRA, Estimate(0.48, 0.4, 0.56), Estimate(0.87, 0.85, 0.9)),
        ("Loss alone", "0", LOSS, Estimate(0.1, 0.06, 0.15), Estimate(0.63, 0.6, 0.66)),
    ]
    return Table(
        Markup(
            'The four attacks, strongest by rule first. <a href="#d-attacks">All ten attacks</a>'
        ),
        (
            Column("Attack"),
            Column(Markup("Reference<br>models"), "references"),
            Column(
                Markup("Members found per 100<br>at 1 false alarm per 100"),
                "found at 1 false alarm",
            ),
            Column(Markup("Members found per 100<br>at 5 false alarms per 100"), "found at 5"),
            Column(Markup("AUC<br><small>0.5: guessing</small>"), "AUC"),
        ),
        tuple(
            Row(
                (
                    name,
                    references,
                    numbers.markup(found),
                    numbers.markup(found_at_5),
                    numbers.markup(auc, FRACTION),
                ),
                is_headline=i == 0,
            )
            for i, (name, references, found, found_at_5, auc) in enumerate(rows)
        ),
    )


def page() -> Page:
    """Returns the page."""
    icons = charts.icons(FOUND, MISSED, fpr=0.01, key="chart-icons")
    found, missed = numbers.plain(FOUND), numbers.percent(MISSED)
    few = charts.found_again([ScoreGroup(1, Estimate(0.5), 5)], unit="log odds", key="chart-few")
    return Page(
        title="demo <&>: membership inference report",
        name="demo <&>",
        kind="membership inference report",
        written="26 November 2026",
        question="Can an attacker tell which texts were in the training data?",
        lead=(
            Markup(
                "<b>Of 100 members, an attacker finds 25</b> <small>(18 to 32)</small> at one false alarm per 100 "
                "non-members. Guessing finds 1."
            ),
            Markup(
                "Of these 25, <b>46 %</b> <small>(41 to 51)</small> would be missed if the model were trained again "
                "on the same data in another batch order, and as many others found instead."
            ),
        ),
        icons=icons,
        facts=(
            Fact(
                "Attack",
                Markup("<b>Stacked LiRA</b> with 32 reference models. AUC 0.88 (0.86 to 0.90)."),
            ),
            Fact("Tried on", "1,024 members and 1,024 non-members, in 16 trainings."),
            Fact(
                "In brackets",
                Markup('95 % intervals; not over other data (<a href="#change">section 4</a>).'),
            ),
        ),
        banners=(
            Markup(
                "<b>Members and non-members were given, not drawn at random.</b> Use <code>--subset=exact</code>."
            ),
        ),
        sections=(
            Section(
                "attacks",
                "Attacks",
                "1. How strong is each attack?",
                (
                    FigureWithNotes(
                        Figure(
                            roc(),
                            "Higher is better for the attacker. Band: 95 % interval of Stacked LiRA.",
                        ),
                        (
                            Markup(
                                "<b>References make the attack.</b> Without them it finds 3 of 100."
                            ),
                            Markup("<b>Members</b> are texts in the training data."),
                        ),
                    ),
                    attacks_table(),
                ),
            ),
            Section(
                "samples",
                "Samples",
                "2. Which texts are most exposed?",
                (
                    "79 of 1,024 members (8 %) are steady hits. Choose a sample to read its text.",
                    samples_table(),
                    Note(Markup('All samples: <a href="samples.html">search and filter</a>.')),
                ),
            ),
            Section(
                "trust",
                "Trust",
                "3. Would a decision survive retraining?",
                (
                    "Of a single text, rarely.",
                    FigurePair(
                        Figure(
                            votes(),
                            "A fair coin gives 4 to 12 of 16 in 97.9 % of the cases.",
                            "31 % of the members are decided by a coin flip",
                        ),
                        Figure(
                            found_again(),
                            "All hits of one training in eight groups by score. Bars: 95 % intervals.",
                            "A hit is worth more the higher its score",
                        ),
                    ),
                ),
            ),
            Section(
                "change",
                "What would change it",
                "4. What would change the answer?",
                (
                    f"Most: an attacker who accepts 5 false alarms per 100. Now {found}; {missed} of them are missed.",
                    Figure(dot_rows(), "Lines: 95 % intervals. Ticks: single models."),
                ),
            ),
        ),
        details=(
            Detail(
                "All ten attacks",
                "They lie within 2 of 100 of each other.",
                (attacks_table(),),
                "d-attacks",
            ),
            Detail(
                "More references",
                "With 64 references it would find 25 (19 to 31).",
                (Figure(references(), "Filled: observed. Open: predicted."),),
            ),
            Detail(
                "Recipes",
                "The larger, the more.",
                (
                    FigurePair(
                        Figure(recipes(numbers.PER_100, "Members found per 100", "chart-found")),
                        Figure(recipes(FRACTION, "AUC (0.5: guessing)", "chart-auc")),
                    ),
                ),
            ),
            Detail("One training", "A table without votes.", (one_training_table(),)),
            Detail("Few hits", "No chart is drawn from 5 hits.", (Figure(few, "A caption."),)),
            Detail("Extraction", "None of the 400 texts can be extracted."),
        ),
        made=(
            Fact("Texts", "2,048 docstrings of installed Python packages"),
            Fact(
                "Again",
                Markup("<code>lm-mia run --config=quickstart --workdir=runs/quickstart</code>"),
            ),
        ),
        footer="Invented numbers.",
    )


def html() -> str:
    """Returns the file."""
    return document.render(page())
