"""Training and evaluation with fast-reid's own trainer."""

from agreid_plugin.hosts.fastreid import compat

compat.install()  # first of all, or the import of the host would begin within a module that our components need
