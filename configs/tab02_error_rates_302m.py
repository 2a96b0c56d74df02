"""Table 2: accuracy and error rates of LiRA on 302M replicas at fixed false positive rates (StrongMIA E.2.5).

    lm-mia run --config=configs/tab02_error_rates_302m.py:cpu --workdir=runs/paper

Cost:
"""

import recipes
from recipes import Setting


def names(setting: Setting) -> list[str]:
    return ["flip-302M"]


get_config, sweep = recipes.of(__file__, names)
