"""Everything of ours in mmengine's registries; importing this module puts it there."""

from agreid_plugin.hosts.mmengine import (  # noqa: F401 - importing them puts them there
    backbones,
    clip_models,
    datasets,
    expert_usage,
    heads,
    hooks,
    identity_check,
    losses,
    metrics,
    models,
    optimizers,
    preprocessor,
    rank_lists,
    records,
    resume,
    samplers,
    schedules,
    transforms,
)
