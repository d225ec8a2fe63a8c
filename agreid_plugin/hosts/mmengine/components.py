"""Everything of ours in mmengine's registries; importing this module puts it there."""

from agreid_plugin.hosts.mmengine.config import dataset_checks  # noqa: F401 - importing them puts them there
from agreid_plugin.hosts.mmengine.data import (  # noqa: F401 - importing them puts them there
    batches,
    datasets,
    samplers,
    transforms,
)
from agreid_plugin.hosts.mmengine.engine import (  # noqa: F401 - importing them puts them there
    checkpoints,
    features,
    hooks,
    loop,
    metrics,
    optimizers,
    runner,
)
from agreid_plugin.hosts.mmengine.models import (  # noqa: F401 - importing them puts them there
    backbones,
    heads,
    losses,
    svpr,
    tag_clip,
    vdt,
    vif,
    visa,
)
