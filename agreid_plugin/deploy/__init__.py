"""Running exported models: numpy, PIL and a runtime, without torch and without a host."""

from agreid_plugin.deploy.metadata import ModelMetadata
from agreid_plugin.deploy.model import ExportedModel
from agreid_plugin.deploy.tracker import TrackerReID

__all__ = ["ExportedModel", "ModelMetadata", "TrackerReID"]
