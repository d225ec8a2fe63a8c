"""fast-reid: what makes it run on today's torch, and our components in its terms."""

from agreid_plugin.host import require

require("fastreid")

import fastreid  # noqa: E402, F401 - patched and furnished by this import, before any module of ours needs it so
