"""Our registries, children of mmengine's own: a configuration writes `agreid_plugin.VIAL`, from any toolbox.

There is one for each of mmengine's, also where nothing of ours is in it: a run whose default scope is ours would be
warned of every registry that is missing.
"""

from mmengine.registry import Registry, root

SCOPE = "agreid_plugin"
COMPONENTS = ["agreid_plugin.hosts.mmengine.components"]


def _child(parent: Registry) -> Registry:
    return Registry(parent.name, parent=parent, scope=SCOPE, locations=COMPONENTS)


DATASETS = _child(root.DATASETS)
DATA_SAMPLERS = _child(root.DATA_SAMPLERS)
EVALUATOR = _child(root.EVALUATOR)
FUNCTIONS = _child(root.FUNCTIONS)
HOOKS = _child(root.HOOKS)
INFERENCERS = _child(root.INFERENCERS)
LOG_PROCESSORS = _child(root.LOG_PROCESSORS)
LOOPS = _child(root.LOOPS)
METRICS = _child(root.METRICS)
MODELS = _child(root.MODELS)
MODEL_WRAPPERS = _child(root.MODEL_WRAPPERS)
OPTIMIZERS = _child(root.OPTIMIZERS)
OPTIM_WRAPPERS = _child(root.OPTIM_WRAPPERS)
OPTIM_WRAPPER_CONSTRUCTORS = _child(root.OPTIM_WRAPPER_CONSTRUCTORS)
PARAM_SCHEDULERS = _child(root.PARAM_SCHEDULERS)
RUNNERS = _child(root.RUNNERS)
RUNNER_CONSTRUCTORS = _child(root.RUNNER_CONSTRUCTORS)
STRATEGIES = _child(root.STRATEGIES)
TASK_UTILS = _child(root.TASK_UTILS)
TRANSFORMS = _child(root.TRANSFORMS)
VISBACKENDS = _child(root.VISBACKENDS)
VISUALIZERS = _child(root.VISUALIZERS)
WEIGHT_INITIALIZERS = _child(root.WEIGHT_INITIALIZERS)
