"""DTG, the caption generator of TAG-CLIP: images in, TAG-PEDES's annotation file out."""

from agreid_plugin.captioning.answers import Rules, clean, contradictions, judge
from agreid_plugin.captioning.backends import AttributeBackend, ModelBackend, compose
from agreid_plugin.captioning.endpoint import Endpoint, EndpointError
from agreid_plugin.captioning.images import Subject, large_enough, load_subjects, spread, unreadable, with_attributes
from agreid_plugin.captioning.prompts import STRATEGIES, asks
from agreid_plugin.captioning.report import Report
from agreid_plugin.captioning.run import refuse_existing, write_captions, write_prompts
from agreid_plugin.captioning.worker_pool import Interrupted

__all__ = [
    "STRATEGIES",
    "AttributeBackend",
    "Endpoint",
    "EndpointError",
    "Interrupted",
    "ModelBackend",
    "Report",
    "Rules",
    "Subject",
    "asks",
    "clean",
    "compose",
    "contradictions",
    "judge",
    "large_enough",
    "load_subjects",
    "refuse_existing",
    "spread",
    "unreadable",
    "with_attributes",
    "write_captions",
    "write_prompts",
]
