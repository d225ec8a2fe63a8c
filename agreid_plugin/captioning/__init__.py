"""Caption generation with DTG of TAG-CLIP: from images to an annotation file like TAG-PEDES's."""

from agreid_plugin.captioning.answers import Rules, check_answer, clean, find_contradictions
from agreid_plugin.captioning.backends import AttributeBackend, ModelBackend, compose
from agreid_plugin.captioning.endpoint import Endpoint, EndpointError
from agreid_plugin.captioning.images import (
    Subject,
    add_attributes,
    choose_evenly,
    drop_small,
    find_unreadable,
    load_subjects,
)
from agreid_plugin.captioning.prompts import STRATEGIES, build_questions
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
    "add_attributes",
    "build_questions",
    "check_answer",
    "choose_evenly",
    "clean",
    "compose",
    "drop_small",
    "find_contradictions",
    "find_unreadable",
    "load_subjects",
    "refuse_existing",
    "write_captions",
    "write_prompts",
]
