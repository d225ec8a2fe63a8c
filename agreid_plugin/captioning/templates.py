"""Sentences with gaps, which show a model how a description may be worded."""

from __future__ import annotations

from hashlib import sha256
from random import Random

TEMPLATES: tuple[str, ...] = (
    # The person first, then clothing.
    "The [person/woman/man] is wearing [clothing description] and [footwear description], with [hair description], "
    "and is carrying [belongings description]",
    "A [person/woman/man] with [hair description] wears [clothing description], [footwear description] and "
    "[accessory description]",
    "The [person/woman/man] is dressed in [clothing description], sporting [accessory description], and has "
    "[hair description]",
    "A [person/woman/man] attired in [clothing description] and [footwear description] holds [belongings description]",
    "This [person/woman/man] has on [clothing description], paired with [footwear description], and carries "
    "[belongings description]",
    "The [person/woman/man] sports [clothing description] together with [accessory description] and walks in "
    "[footwear description]",
    "A [person/woman/man] clad in [clothing description] has [hair description] and wears [footwear description]",
    "The [person/woman/man] is in [clothing description], completed by [footwear description] and "
    "[accessory description], and bears [belongings description]",
    # The person first, then hair.
    "The [person/woman/man] has [hair description] and is wearing [clothing description] with [footwear description]",
    "A [person/woman/man], whose hair is [hair description], is attired in [clothing description] and carries "
    "[belongings description]",
    "With [hair description] and [accessory description], the [person/woman/man] is dressed in [clothing description]",
    "Having [hair description], the [person/woman/man] wears [footwear description] below [clothing description]",
    "The [person/woman/man] has [hair description], wears [accessory description] and [clothing description], and "
    "stands in [footwear description]",
    "A [person/woman/man] of [hair description] is sporting [clothing description] while carrying "
    "[belongings description]",
    # The person first, then belongings.
    "Carrying [belongings description], the [person/woman/man] is wearing [clothing description] and "
    "[footwear description]",
    "The [person/woman/man] carries [belongings description] and is dressed in [clothing description], with "
    "[hair description]",
    "With [belongings description] in hand, a [person/woman/man] is attired in [clothing description] and "
    "[accessory description]",
    "A [person/woman/man] holding [belongings description] has [hair description], [clothing description] and "
    "[footwear description]",
    "Equipped with [belongings description] and [accessory description], the [person/woman/man] wears "
    "[clothing description]",
    "The [person/woman/man] is seen with [belongings description], in [footwear description] and "
    "[clothing description]",
    # The person first, then footwear.
    "In [footwear description] and [clothing description], the [person/woman/man] carries [belongings description]",
    "The [person/woman/man] walks in [footwear description], dressed in [clothing description], with "
    "[hair description] and [accessory description]",
    "Wearing [footwear description], a [person/woman/man] with [hair description] is clad in [clothing description]",
    "A [person/woman/man] in [footwear description] is sporting [accessory description] and [clothing description]",
    "From [hair description] down to [footwear description], the [person/woman/man] is dressed in "
    "[clothing description]",
    # Clothing in front.
    "Dressed in [clothing description], the [person/woman/man] has [hair description] and carries "
    "[belongings description]",
    "Wearing [clothing description] and [footwear description], the [person/woman/man] has [hair description]",
    "Attired in [clothing description], with [accessory description], a [person/woman/man] carries "
    "[belongings description]",
    "Clad in [clothing description], a [person/woman/man] with [hair description] wears [footwear description] and "
    "[accessory description]",
    "Sporting [clothing description], the [person/woman/man] is walking in [footwear description] with "
    "[belongings description]",
    "In [clothing description] and with [hair description], the [person/woman/man] wears [accessory description]",
    "Outfitted in [clothing description] and [footwear description], a [person/woman/man] has [accessory description] "
    "and [belongings description]",
    # Accessories in front.
    "Wearing [accessory description], the [person/woman/man] is dressed in [clothing description] and "
    "[footwear description]",
    "The [person/woman/man] wears [accessory description] over [hair description], along with [clothing description]",
    "Sporting [accessory description] and [footwear description], a [person/woman/man] is attired in "
    "[clothing description]",
    "With [accessory description], [hair description] and [belongings description], the [person/woman/man] has on "
    "[clothing description]",
    # The outfit as the subject.
    "The outfit of the [person/woman/man] consists of [clothing description], [footwear description] and "
    "[accessory description]",
    "[clothing description] and [footwear description] make up the outfit of the [person/woman/man], who has "
    "[hair description] and carries [belongings description]",
    "The clothes of the [person/woman/man] are [clothing description], the shoes are [footwear description], and the "
    "hair is [hair description]",
    "The appearance of the [person/woman/man] is marked by [hair description], [clothing description], "
    "[footwear description] and [belongings description]",
)
"""Our own, in the manner of Tan et al. 2024, whom TAG-CLIP follows; they end without a full stop."""


def stream(*key: object) -> Random:
    """Return the random numbers that belong to a key, for example a seed and an image's name, on any machine."""
    return Random(sha256(repr(key).encode()).digest())


def pick_template(seed: int, name: str, slot: int = 0) -> str:
    """Return the template of an image's caption number `slot`, always the same one."""
    return stream("template", seed, name, slot).choice(TEMPLATES)
