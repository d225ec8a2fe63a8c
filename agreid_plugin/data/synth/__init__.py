"""AG-Synth: synthetic people seen by drones and from the street, written in the layout of real datasets.

Rendering needs numpy, scipy and Pillow only. From what is drawn to what is written: `people` -> `body`, `clothes`,
`belongings` -> `solids` -> `raycast` -> `light`, `patterns`, `surroundings` -> `render` -> `sensor` -> `plan`,
`captions`, `writers` -> `make`.
"""

from agreid_plugin.data.synth.make import LAYOUTS, is_agsynth, make_agsynth
from agreid_plugin.data.synth.preview import contact_sheet

__all__ = ["LAYOUTS", "contact_sheet", "is_agsynth", "make_agsynth"]
