"""Where mmengine looks for the registries of scope `agreid_plugin`; the name of this file is mmengine's."""

from agreid_plugin.hosts.mmengine.registry import MODELS, TRANSFORMS

__all__ = ["MODELS", "TRANSFORMS"]
