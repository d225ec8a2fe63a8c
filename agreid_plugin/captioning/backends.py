"""Who answers the questions: a model behind an endpoint, or the composer, which needs none."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from agreid_plugin.captioning.composer import compose
from agreid_plugin.captioning.endpoint import Answer, Endpoint, data_url
from agreid_plugin.captioning.images import Subject
from agreid_plugin.captioning.prompts import Ask
from agreid_plugin.captioning.templates import stream
from agreid_plugin.errors import InputError, first_line

WORDINGS = 40  # tried before a second caption may say the same as the first


class Backend(Protocol):
    """Answers questions about images, from several threads at once.

    Attributes:
        settings: what its answers depend on, as plain data.
    """

    settings: dict[str, Any]

    def answer(self, subject: Subject, ask: Ask, said: Collection[str], hint: str = "") -> Answer:
        """Answer a question.

        Args:
            subject: the image.
            ask: the question.
            said: the image's other captions.
            hint: what was wrong with the answer before this one; empty the first time.
        """


class ModelBackend:
    """Asks a multimodal model.

    Args:
        endpoint: where it is.
        fields: of the requests besides, as the endpoint was given them.
    """

    def __init__(self, endpoint: Endpoint, fields: dict[str, Any] | None = None):
        self.endpoint = endpoint
        # The address is not among them: a model may move to another port.
        self.settings = {"backend": "endpoint", "model": endpoint.model, "request": fields or {}}

    def answer(self, subject: Subject, ask: Ask, said: Collection[str], hint: str = "") -> Answer:  # noqa: ARG002
        """Send the image with the question."""
        try:
            image = data_url(subject.path)
        except OSError as error:
            raise InputError(f"{subject.path}: unreadable image ({first_line(error)})") from error
        return self.endpoint.ask(f"{ask.text} {hint}".strip(), image)


class AttributeBackend:
    """Puts the attributes into a sentence, whatever is asked.

    Args:
        seed: of the wording.
    """

    def __init__(self, seed: int = 0):
        self.seed = seed
        self.settings = {"backend": "attributes"}

    def answer(self, subject: Subject, ask: Ask, said: Collection[str], hint: str = "") -> Answer:  # noqa: ARG002
        """Word the attributes, otherwise than the image's other captions where there is another way."""
        known = {text.lower() for text in said}
        for wording in range(WORDINGS):
            text = compose(subject.attributes, stream("wording", self.seed, subject.file_path, ask.slot, wording))
            if text.lower() not in known:
                break
        return Answer(text)
