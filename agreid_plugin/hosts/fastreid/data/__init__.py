"""Datasets, loaders and transforms in fast-reid's terms."""

from agreid_plugin.hosts.fastreid import compat

compat.install()  # first of all, or the import of the host would begin within a module that our components need
