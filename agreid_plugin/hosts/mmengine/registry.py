"""Our registries, children of mmengine's own: a configuration writes `agreid_plugin.VIAL`, from any toolbox."""

from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import TRANSFORMS as ROOT_TRANSFORMS
from mmengine.registry import Registry

SCOPE = "agreid_plugin"
COMPONENTS = ["agreid_plugin.hosts.mmengine.components"]

MODELS = Registry("model", parent=ROOT_MODELS, scope=SCOPE, locations=COMPONENTS)
TRANSFORMS = Registry("transform", parent=ROOT_TRANSFORMS, scope=SCOPE, locations=COMPONENTS)
