"""Figure 8: the statistic that LiRA observes, the loss or the logit."""

from analysis import attacks, plotting
from analysis.attacks import read_jackknife
from analysis.claims.compare import claim_greater
from analysis.experiment import Drawing, Experiment
from analysis.io import SweepResults
from lm_mia.attacks.spec import Need, Variant

# Figure 8: LiRA on the loss and on the logit of every sample.
FIG08_STATEMENTS = ("LiRA on the loss beats LiRA on the logit.",)


def draw_fig08(recipes: SweepResults) -> Drawing:
    """Draws the ROC curves of LiRA on the loss and on the logit, with the same models."""
    main = recipes["main"]
    count = attacks.common_references([main])
    on_loss = read_jackknife(main, Variant(references=count))
    on_logit = read_jackknife(main, Variant(references=count, observed="target_logit"))
    loss, logit = on_loss.result, on_logit.result
    curves = [
        plotting.RocCurve("Loss", loss, plotting.BLUE),
        plotting.RocCurve("Logit", logit, plotting.VERMILLION, "--"),
    ]
    gain = (on_loss.auc - on_logit.auc).estimate()
    return Drawing(
        data=plotting.panels_frame([("", curves)]),
        figure=plotting.roc_figure(curves),
        claims=(
            claim_greater(FIG08_STATEMENTS[0], "AUC on the loss minus AUC on the logit", gain),
        ),
        ours={"loss": plotting.auc_mean_std(loss), "logit": plotting.auc_mean_std(logit)},
        notes=(f"Attacks use {count} references.", plotting.curves_note(curves)),
    )


EXPERIMENTS = {
    "strongmia_fig08_statistic": Experiment(
        statements=FIG08_STATEMENTS,
        draw=draw_fig08,
        reads=(Need(("main",), observed=("loss", "target_logit"), jackknife=True),),
    ),
}
