"""mmengine as a host: registries with our losses, transforms and networks."""

from agreid_plugin.host import require

require("mmengine")
