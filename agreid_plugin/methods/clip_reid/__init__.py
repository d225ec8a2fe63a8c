"""CLIP's image tower as a baseline, and CLIP-ReID (AAAI 2023)."""

from agreid_plugin.methods.clip_reid.method import CLIPBaseline, CLIPOutputs, CLIPReID
from agreid_plugin.methods.clip_reid.prompts import PromptSchedule, learn_prompts

__all__ = ["CLIPBaseline", "CLIPOutputs", "CLIPReID", "PromptSchedule", "learn_prompts"]
