"""Everything of ours in fast-reid's registries and configuration; importing this module puts it there."""

from importlib.metadata import entry_points

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid import config
from agreid_plugin.hosts.fastreid import datasets as _  # noqa: F401 - registers them

PLUGIN_GROUP = "fastreid.plugins"
"""Entry points of this group are loaded with the host: modules of other packages that register their own parts."""

config.declare(config.KEYS)

for plugin in entry_points(group=PLUGIN_GROUP):
    try:
        plugin.load()
    except Exception as error:
        raise InputError(f"the plugin {plugin.name} ({plugin.value}) does not load: {error}") from error
