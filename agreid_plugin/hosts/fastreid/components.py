"""Everything of ours in fast-reid's registries and configuration; importing this module puts it there."""

from importlib.metadata import entry_points

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config import loading  # noqa: F401 - importing them puts them there
from agreid_plugin.hosts.fastreid.data import (  # noqa: F401 - importing them puts them there
    attributes,
    datasets,
    text,
)
from agreid_plugin.hosts.fastreid.engine import solver  # noqa: F401 - importing them puts them there
from agreid_plugin.hosts.fastreid.models import (  # noqa: F401 - importing them puts them there
    backbones,
    base,
    clip_reid,
    external,
    losses,
    svpr,
    tag_clip,
    vdt,
    vif,
    visa,
)

PLUGIN_GROUP = "fastreid.plugins"
"""Entry points of this group are loaded with the host: modules of other packages that register their own parts."""

for plugin in entry_points(group=PLUGIN_GROUP):
    try:
        plugin.load()
    except Exception as error:
        raise InputError(f"the plugin {plugin.name} ({plugin.value}) does not load: {error}") from error
