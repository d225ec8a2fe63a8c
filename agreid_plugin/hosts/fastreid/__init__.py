"""fast-reid: what makes it run on today's torch, and our components in its terms."""

import fastreid  # noqa: F401 - patched and furnished by this import, before any module of ours needs it so
