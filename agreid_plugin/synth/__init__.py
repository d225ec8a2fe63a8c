"""AG-Synth: synthetic people seen by drones and from the street, written in the layout of real datasets.

Rendering needs numpy, scipy and Pillow only. From what is drawn to what is written: `people` -> `body`, `clothes`,
`accessories` -> `solids` -> `raycast` -> `light`, `patterns`, `background` -> `render` -> `sensor` -> `plan`,
`captions`, `writers` -> `make`.
"""

from agreid_plugin.synth.make import LAYOUTS, contact_sheet, make_agsynth

__all__ = ["LAYOUTS", "contact_sheet", "make_agsynth"]
