"""Methods of the papers, each a file or a folder in the paper's order, without a toolbox or another method.

- VDT (CVPR 2024): `vdt`
- ViSA (CVPR 2026): `visa`
- SVPR-ReID (AAAI 2026): `svpr`
- VIF-AGReID (ICCV 2025), and with a weight of 0 the ViT baseline: `vif`
- TAG-CLIP (AAAI 2026), and TBPS-CLIP as a part of it: `tag_clip`
- CLIP-ReID (AAAI 2023), and the CLIP baseline: `clip_reid`
"""
