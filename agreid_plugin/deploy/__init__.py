"""Exported models where they are used: numpy, PIL and a runtime, without torch and without a host."""

from agreid_plugin.deploy.metadata import About
from agreid_plugin.deploy.model import ExportedModel
from agreid_plugin.deploy.tracker import TrackerReID

__all__ = ["About", "ExportedModel", "TrackerReID"]
