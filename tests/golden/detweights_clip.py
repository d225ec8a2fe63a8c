"""Deterministic weights and inputs for the CLIP-based golden tests (SVPR-ReID, TAG-CLIP).

Own code; needs only numpy and torch, uses nothing of the official repositories.

    fill(shapes)        {state-dict key: shape} -> {key: tensor}; a tensor depends on its key NAME and shape only
    images(n, h, w)     uint8 [n, 3, h, w] RGB, integer arithmetic only
    normalize(x, how)   uint8 -> float32 network input: 'svpr' (mean = std = .5), 'imagenet' (TAG-CLIP)
    fingerprint(state)  CRC of a whole state dict, to compare with the recorded one
    selftest()          checks a few generator values, so that a changed numpy stream is noticed at once

Every tensor is drawn from numpy.random.default_rng(zlib.crc32(canonical(key).encode())) and is float32, except
BatchNorm's num_batches_tracked (int64 zero).  Distribution: first matching row of RULES, otherwise by rank:
    *.bias, *_bias          N(0, .02)
    1-D *.weight            1 + N(0, .1)                      (LayerNorm / BatchNorm)
    >= 2-D                  N(0, DEFAULT_GAIN / sqrt(fan_in)) (Linear / conv: fan_in = prod(shape[1:]))

Tied tensors: canonical() maps the three tied copies CVPRNet.blocks.{0,1,2} to index 0 and SVPR's second name of the
token embedding to the first; a leading 'module.' is ignored.  SVPR's two prompt buffers are not random: as in any real
checkpoint they are rows of the token embedding (see _derived).
"""

import math
import re
import zlib

import numpy as np
import torch

DEFAULT_GAIN = 0.8
SOT, EOT, PAD = 49406, 49407, 0
# CLIP BPE ids of "A photo of a X X X X person from X view." and of "ground aerial" (without padding)
VIEW_TEMPLATE_IDS = [SOT, 320, 1125, 539, 320, 343, 343, 343, 343, 2533, 633, 343, 1093, 269, EOT]
VIEW_WORD_IDS = [SOT, 2461, 12440, EOT]

# (pattern searched in the canonical key, kind, value)
#   std    N(0, value)               gain   N(0, value / sqrt(fan_in)), Linear/conv layout
#   gainT  same, [in, out] layout (used as x @ W)
#   shift  value[0] + N(0, value[1]) const  value        uniform  U(value[0], value[1])
RULES = [
    (r"running_mean$", "std", 0.1),
    (r"running_var$", "uniform", (0.5, 1.5)),
    (r"logit_scale$", "const", math.log(100.0)),
    (r"(^|\.)alpha$", "shift", (1.0, 0.1)),
    # embeddings and prompts
    (r"token_embedding\.weight$", "std", 0.02),
    (r"visual\.(positional_embedding|class_embedding|view_token)$", "std", 0.1),
    (r"new_positional_embedding$", "std", 0.1),
    (r"positional_embedding$", "std", 0.02),
    (r"(text_prompt|view_prompt|use_cvpr_token)$", "std", 0.2),
    (r"attributesPrompt$", "std", 0.5),
    (r"local_weight$", "std", 0.5),
    # projections stored as [in, out]
    (r"(^|\.)(visual\.proj|text_projection)$", "gainT", 1.0),
    # routers: large enough that routing differs between inputs
    (r"attributesMOE\.gate\.weight$", "gain", 1.0),
    (r"attributesRouter\.layers\.0\.weight$", "gain", 2.0),
    (r"attributesRouter\.layers\.0\.bias$", "shift", (1.0, 0.02)),
    (r"attributesRouter\.layers\.1\.weight$", "shift", (0.2, 0.1)),
    (r"(img_router|fea_router|\.router)\.weight$", "gain", 2.0),
    (r"attn_masker\.(q_|k_)\.weight$", "gain", 3.4),
    # CLIP towers (last block sharper: its attention map selects the TSE tokens of TAG-CLIP)
    (r"resblocks\.11\.attn\.in_proj_weight$", "gain", 2.0),
    (r"attn\.in_proj_weight$", "gain", 1.3),
    (r"resblocks\..*(out_proj|c_proj)\.weight$", "gain", 0.45),
    (r"conv1\.weight$", "gain", 1.0),
    (r"classifier\.weight$", "gain", 1.0),
]
RULES = [(re.compile(p), k, v) for p, k, v in RULES]


def canonical(key):
    """Key whose CRC seeds the generator: tied tensors share one."""
    key = re.sub(r"^module\.", "", key)
    key = re.sub(r"(^|\.)CVPRNet\.blocks\.\d+\.", r"\1CVPRNet.blocks.0.", key)
    return key.replace("TextNet.view_promptlearner.token_embedding.", "BACKBONE.token_embedding.")


def _normal(rng, shape, std):
    return rng.standard_normal(size=shape, dtype=np.float32) * np.float32(std)


def tensor(key, shape):
    """The deterministic tensor of one key."""
    shape, key = tuple(int(s) for s in shape), canonical(key)
    if key.endswith("num_batches_tracked"):
        return torch.zeros(shape, dtype=torch.int64)
    rng = np.random.default_rng(zlib.crc32(key.encode()))
    for pattern, kind, value in RULES:
        if not pattern.search(key):
            continue
        if kind == "std":
            a = _normal(rng, shape, value)
        elif kind == "gain":
            a = _normal(rng, shape, value / math.sqrt(max(1, int(np.prod(shape[1:])))))
        elif kind == "gainT":
            a = _normal(rng, shape, value / math.sqrt(shape[0]))
        elif kind == "shift":
            a = np.float32(value[0]) + _normal(rng, shape, value[1])
        elif kind == "const":
            a = np.full(shape, value, dtype=np.float32)
        elif kind == "uniform":
            a = np.float32(value[0]) + rng.random(size=shape, dtype=np.float32) * np.float32(value[1] - value[0])
        break
    else:
        if key.endswith("bias"):
            a = _normal(rng, shape, 0.02)
        elif len(shape) <= 1:
            a = np.float32(1.0) + _normal(rng, shape, 0.1) if key.endswith("weight") else _normal(rng, shape, 0.02)
        else:
            a = _normal(rng, shape, DEFAULT_GAIN / math.sqrt(int(np.prod(shape[1:]))))
    return torch.from_numpy(np.ascontiguousarray(np.asarray(a, dtype=np.float32)).reshape(shape))


def _derived(key, shape, out):
    """SVPR's prompt buffers: token embeddings of two fixed sentences, [1, text length, width]."""
    ids = VIEW_TEMPLATE_IDS if key.endswith("token_prefix_suffix") else VIEW_WORD_IDS
    emb = next((v for k, v in out.items() if k.endswith("BACKBONE.token_embedding.weight")), None)
    if emb is None:
        return tensor(key, shape)
    ids = torch.tensor(ids + [PAD] * (shape[1] - len(ids)))
    return emb[ids].unsqueeze(0).clone()


def fill(state_shapes):
    """{key: shape} -> {key: tensor}; tied keys share storage."""
    out, seen, late = {}, {}, []
    for key, shape in state_shapes.items():
        if re.search(r"view_promptlearner\.(token_prefix_suffix|token_view)$", key):
            late.append(key)
            out[key] = None
            continue
        c = (canonical(key), tuple(shape))
        if c not in seen:
            seen[c] = tensor(key, shape)
        out[key] = seen[c]
    for key in late:
        out[key] = _derived(key, tuple(state_shapes[key]), {k: v for k, v in out.items() if v is not None})
    return out


def images(n, h, w):
    """uint8 [n, 3, h, w]: tint of the image + 32-pixel cells + 8-pixel cells + noise; image i does not depend on n."""
    out = np.empty((n, 3, h, w), dtype=np.uint8)
    for i in range(n):
        rng = np.random.default_rng(zlib.crc32(f"image:{i}:{h}x{w}".encode()))
        tint = rng.integers(0, 256, size=(3, 1, 1), dtype=np.int64)
        coarse = rng.integers(0, 256, size=(3, -(-h // 32), -(-w // 32)), dtype=np.int64)
        mid = rng.integers(0, 256, size=(3, -(-h // 8), -(-w // 8)), dtype=np.int64)
        fine = rng.integers(0, 256, size=(3, h, w), dtype=np.int64)
        coarse = coarse.repeat(32, 1).repeat(32, 2)[:, :h, :w]
        mid = mid.repeat(8, 1).repeat(8, 2)[:, :h, :w]
        out[i] = (3 * tint + 3 * coarse + mid + fine) // 8
    return torch.from_numpy(out)


NORM = {
    "svpr": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def normalize(x, how):
    """(x / 255 - mean) / std in float32, i.e. ToTensor + Normalize."""
    mean, std = (torch.tensor(v, dtype=torch.float32).view(1, 3, 1, 1) for v in NORM[how])
    return (x.float() / 255.0 - mean) / std


def fingerprint(state):
    """CRC over all tensors in sorted key order; the value expected for each model stands in its *.losses.json."""
    crc = 0
    for key in sorted(state):
        values = np.ascontiguousarray(state[key].detach().cpu().numpy())
        crc = zlib.crc32(values.tobytes(), zlib.crc32(key.encode(), crc))
    return crc


def selftest():
    """Raise if this numpy draws other numbers than the one used for the recordings (2.4.6)."""
    a = tensor("BACKBONE.visual.ln_pre.weight", (768,))[:3].numpy()
    b = images(2, 256, 128)
    assert np.allclose(a, [1.0925652980804443, 0.9968193173408508, 0.8889575600624084], rtol=0, atol=1e-7), a
    assert b.long().sum((1, 2, 3)).tolist() == [9692190, 13173716]
    assert b[0, :, 0, 0].tolist() == [172, 69, 121]
    return True
