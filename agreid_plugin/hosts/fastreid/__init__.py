"""fast-reid as a host. Importing this package loads nothing of it: `compat.install` does."""

from agreid_plugin.host import require

require("fastreid")
