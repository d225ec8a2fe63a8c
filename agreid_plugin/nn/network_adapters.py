"""Adapters that make a ViT or a CNN of any library a network with patches, for parts of our methods.

The blocks of a ViT are found by running it once: a list named `blocks`, `layers` or `resblocks`, whose modules take
nothing but all tokens. Such a network can be run block by block, with tokens of a method between them. Of any other
network the cells of its last map are the patches, or what its own `patch_features(images)` returns.

Shapes: B images, T extra tokens, N patches, R other tokens of the network's own, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agreid_plugin.errors import InputError, first_line
from agreid_plugin.nn.patch_features import Hook, PatchFeatures, PatchNetwork, TokenTransformer
from agreid_plugin.nn.vit import to_pair

BLOCK_LISTS = ("blocks", "layers", "resblocks")
HEAD_WIDTH = 64  # where a network does not say how many heads it has
MISFITS = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class TokenNetwork(TokenTransformer):
    """A ViT of another library, which runs up to its blocks; these are run here.

    Parameters of the network that these features do not depend on, as those of a classifier, are frozen.

    Args:
        network: the ViT.
        image_size: (rows, columns) of the images.
        extra_tokens: number of tokens between CLS and the patches; their position embeddings are new.
    """

    def __init__(self, network: nn.Module, image_size: Sequence[int], extra_tokens: int = 0):
        super().__init__()
        self.network, self.image_size, self.extra_tokens = network, to_pair("image_size", image_size), extra_tokens
        layout = find_layout(network, self.image_size)
        if layout is None:
            raise InputError(f"{name_network(network)} has no blocks that take all tokens of an image and nothing else")
        if not layout.has_cls and extra_tokens:
            raise InputError(f"{name_network(network)} has no class token, which tokens of a method need")
        self.layout, self.width, self.grid, self.has_cls = layout, layout.width, layout.grid, layout.has_cls
        self.embed_width = layout.width
        self.num_patches, self.depth = layout.grid[0] * layout.grid[1], len(self.blocks)
        self.heads = _find_heads(self.blocks[0], self.width)
        start = nn.init.trunc_normal_(torch.empty(extra_tokens, self.width), std=0.02)
        self.positions = nn.Parameter(start) if extra_tokens else None
        with _probing(network), torch.enable_grad():
            freeze_unused(network, self.end(self.run(self.start(_draw_image(network, self.image_size)))))

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks, each of which takes all tokens."""
        return cast("nn.ModuleList", self.network.get_submodule(self.layout.blocks))

    def start(self, images: Tensor) -> Tensor:
        """Return the tokens that enter the first block: (B, 3, rows, cols) -> (B, 1+N+R, D) CLS, patches, others."""
        first, token = self.blocks[0], _STARTING.set(True)
        if _stop not in first._forward_pre_hooks.values():
            first.register_forward_pre_hook(_stop)
        try:
            self.network(images)
        except _EnteredError as entered:
            return self.layout.order(entered.tokens)
        finally:
            _STARTING.reset(token)
        raise InputError(f"{name_network(self.network)} did not run its first block")

    def run(self, tokens: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        """Run the blocks `first` to `last` - 1 (to the end without a `last`) on any number of tokens."""
        for number in range(first, self.depth if last is None else last):
            tokens = self.blocks[number](tokens)
        return tokens

    def end(self, tokens: Tensor) -> Tensor:
        """Return every token after the final norm."""
        return tokens if self.layout.norm is None else self.network.get_submodule(self.layout.norm)(tokens)

    def embed_patches(self, images: Tensor) -> Tensor:
        """Return the patches as they enter the first block: (B, 3, rows, cols) -> (B, N, D)."""
        return self.start(images)[:, int(self.has_cls) :][:, : self.num_patches]

    def forward(
        self,
        images: Tensor,
        extra: Tensor | None = None,
        before: Hook | None = None,
        after: Hook | None = None,
        first: int | None = None,
    ) -> Tensor:
        """Return the tokens after the final norm, or the `first` of them; see `VisionTransformer.forward`."""
        tokens = self.start(images)
        if extra is not None and self.positions is not None:
            placed = (extra + self.positions).to(tokens.dtype).expand(len(tokens), -1, -1)
            tokens = torch.cat([tokens[:, :1], placed, tokens[:, 1:]], dim=1)
        for number, block in enumerate(self.blocks):
            tokens = before(number, tokens) if before else tokens
            tokens = block(tokens)
            tokens = after(number, tokens) if after else tokens
        return self.end(tokens[:, :first])


class MapNetwork(PatchNetwork):
    """A network with a map, whose cells are the patches and whose mean stands for the class token.

    Args:
        network: gives a map, (B, D, rows, cols), or several of which the last is taken; or has `patch_features`.
        image_size: (rows, columns) of the images.
    """

    def __init__(self, network: nn.Module, image_size: Sequence[int]):
        super().__init__()
        self.network, self.image_size = network, to_pair("image_size", image_size)
        with record_calls(network) as calls:
            features = self.patch_features(_draw_image(network, self.image_size))
        self.width, self.grid, self.num_patches = features.vector.shape[1], features.grid, features.patches.shape[1]
        self.heads = _find_heads(None, self.width)
        stems = [call for call in calls if isinstance(call.module, nn.Conv2d) and call.module.in_channels == 3]
        self._stem = stems[0].name if stems else ""
        self.embed_width = stems[0].output.shape[1] if stems else 3

    def patch_features(self, images: Tensor) -> PatchFeatures:
        """Encode images: (B, 3, rows, cols)."""
        read = getattr(self.network, "patch_features", None)
        return read(images) if read else read_map(self.network(images), self.network)

    def embed_patches(self, images: Tensor) -> Tensor:
        """Return each cell's mean of the first convolution, of pixels without one: (B, 3, rows, cols) -> (B, N, D')."""
        embedded = self.network.get_submodule(self._stem)(images).relu() if self._stem else images
        return F.adaptive_avg_pool2d(embedded, self.grid).flatten(2).mT


def adapt_network(network: nn.Module, image_size: Sequence[int], extra_tokens: int = 0) -> PatchNetwork:
    """Return a network of any library as one with patches, a ViT as one with room for extra tokens.

    Args:
        network: a ViT, or a network that gives maps.
        image_size: (rows, columns) of the images.
        extra_tokens: tokens of a method beside the class token, as for view tokens.

    Raises:
        InputError: the network cannot take such tokens, or gives neither tokens nor a map.

    Example:
        >>> cnn = nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.ReLU())
        >>> features = adapt_network(cnn, (64, 32)).patch_features(torch.zeros(2, 3, 64, 32))
        >>> features.vector.shape, features.patches.shape, features.grid
        (torch.Size([2, 8]), torch.Size([2, 32, 8]), (8, 4))
    """
    if isinstance(network, PatchNetwork) and network.extra_tokens == extra_tokens:
        return network
    has_parts = hasattr(network, "patch_features") and not isinstance(network, TokenTransformer)
    if not has_parts and find_layout(network, to_pair("image_size", image_size)):
        return TokenNetwork(network, image_size, extra_tokens)
    if extra_tokens:
        raise InputError(f"{name_network(network)} has no blocks that take tokens, which a view token could join")
    return MapNetwork(network, image_size)


def read_map(outputs: Any, network: nn.Module) -> PatchFeatures:
    """Return the cells of a map and their mean, from the outputs of a network: (B, D, rows, cols) or several."""
    last = outputs[-1] if isinstance(outputs, Sequence) else outputs
    if getattr(network, "output_fmt", "") == "NHWC" and last.dim() == 4:  # of timm
        last = last.permute(0, 3, 1, 2)
    shape = tuple(last.shape) if isinstance(last, Tensor) else type(last).__name__
    if not isinstance(last, Tensor) or last.dim() != 4 or last.shape[2] * last.shape[3] < 2:
        raise InputError(
            f"{name_network(network)} gives features of {shape}, but patches are tokens of a ViT or cells of a map"
        )
    return PatchFeatures(last.mean(dim=(2, 3)), last.flatten(2).mT, (last.shape[2], last.shape[3]))


@dataclass(frozen=True)
class TokenLayout:
    """Names of a ViT's blocks and of the norm behind them, and what its tokens are."""

    blocks: str
    norm: str | None
    width: int
    grid: tuple[int, int]
    prefix: int  # tokens before the patches
    has_cls: bool  # whether the first of them is a class token
    embed: str  # the convolution that embeds the patches

    def order(self, tokens: Tensor) -> Tensor:
        """Put the patches behind the class token, before other tokens: (B, prefix+N, D)."""
        cls, others, patches = tokens.split([int(self.has_cls), self.prefix - int(self.has_cls), self.patches], dim=1)
        return tokens if self.prefix == int(self.has_cls) else torch.cat([cls, patches, others], dim=1)

    @property
    def patches(self) -> int:
        """N."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class Call:
    """A module's call: its name, first argument, further ones that are not None, and output."""

    name: str
    module: nn.Module
    argument: Any
    further: tuple[Any, ...]
    output: Any


def find_layout(network: nn.Module, image_size: tuple[int, int]) -> TokenLayout | None:
    """Run a network once and return where its blocks are, None if it has none that can be run one by one."""
    with record_calls(network) as calls:
        try:
            network(_draw_image(network, image_size))
        except MISFITS as error:
            size = "x".join(map(str, image_size))
            raise InputError(
                f"{name_network(network)} does not run on images of {size}: {first_line(error)}"
            ) from error
    place = {call.name: number for number, call in enumerate(calls)}
    for name, blocks in network.named_modules():
        *parents, last = name.split(".")
        of_all = last in BLOCK_LISTS and not any(map(str.isdigit, parents))  # not those of a stage or in a block
        if of_all and isinstance(blocks, nn.ModuleList | nn.Sequential) and len(blocks):
            inside = [place[each] for number in range(len(blocks)) if (each := f"{name}.{number}") in place]
            if len(inside) == len(blocks) and (layout := _read_layout(network, calls, name, inside)):
                return layout
    return None


def _read_layout(network: nn.Module, calls: list[Call], name: str, inside: list[int]) -> TokenLayout | None:
    """Return the layout if blocks of these calls take any number of tokens and nothing else."""
    entering, leaving = calls[inside[0]].argument, calls[inside[-1]].output
    if not all(isinstance(each, Tensor) and each.dim() == 3 for each in (entering, leaving)):
        return None
    if any(calls[number].further for number in inside):  # as rotary positions
        return None
    count, width = entering.shape[1:]
    earlier, later = calls[: inside[0]], calls[inside[-1] + 1 :]
    embeds = [call for call in earlier if isinstance(call.module, nn.Conv2d) and call.output.shape[1] == width]
    grid = tuple(embeds[-1].output.shape[2:]) if embeds else None
    if grid is None or grid[0] * grid[1] > count or any(isinstance(call.module, nn.Conv2d) for call in later):
        return None
    prefix = count - grid[0] * grid[1]
    has_cls = prefix > 0 and getattr(network.get_submodule(name.rpartition(".")[0]), "cls_token", name) is not None
    norms = [call.name for call in later if "Norm" in type(call.module).__name__]
    layout = TokenLayout(name, norms[0] if norms else None, width, grid, prefix, has_cls, embeds[-1].name)
    with _probing(network):
        try:
            tokens, more = layout.order(entering), torch.cat([entering, entering[:, :1]], dim=1)
            for block in network.get_submodule(name).children():
                tokens, more = block(tokens), block(more)
        except MISFITS:
            return None
    same = tokens.shape == leaving.shape and torch.allclose(tokens, layout.order(leaving), rtol=1e-3, atol=1e-4)
    return layout if same else None


@contextmanager
def record_calls(network: nn.Module) -> Iterator[list[Call]]:
    """Record the calls of modules, in the order in which they end, while the network is in evaluation."""
    calls: list[Call] = []
    names = {module: name for name, module in network.named_modules()}

    def keep(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        first, *rest = (*arguments, *named.values(), None)
        further = tuple(each for each in rest if each is not None)
        calls.append(Call(names[module], module, first, further, output))

    handles = [module.register_forward_hook(keep, with_kwargs=True) for module in names]
    try:
        with _probing(network):
            yield calls
    finally:
        for handle in handles:
            handle.remove()


def freeze_unused(network: nn.Module, outputs: Tensor) -> None:
    """Freeze the parameters that outputs do not depend on, which other processes would wait for."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if outputs.requires_grad:
        gradients = torch.autograd.grad(outputs.sum(), trained, allow_unused=True)
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.requires_grad_(gradient is not None)


@contextmanager
def _probing(network: nn.Module) -> Iterator[None]:
    """Put a network in evaluation, without gradients and random numbers of the run, and back."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


class _EnteredError(Exception):
    """Ends the run of a network at its first block."""

    def __init__(self, tokens: Tensor):
        super().__init__()
        self.tokens = tokens


_STARTING: ContextVar[bool] = ContextVar("starting", default=False)


def _stop(_block: nn.Module, arguments: tuple[Tensor, ...]) -> None:
    if _STARTING.get():
        raise _EnteredError(arguments[0])


def _find_heads(block: nn.Module | None, width: int) -> int:
    for module in () if block is None else block.modules():
        heads = getattr(module, "num_heads", getattr(module, "heads", None))
        if isinstance(heads, int):
            return heads
    return next(heads for heads in range(max(width // HEAD_WIDTH, 1), 0, -1) if width % heads == 0)


def _draw_image(network: nn.Module, image_size: tuple[int, int]) -> Tensor:
    """Return the image that a network is run on to learn how it works: noise, the same each time."""
    device = next((parameter.device for parameter in network.parameters()), None)
    return torch.randn(1, 3, *image_size, generator=torch.Generator().manual_seed(0)).to(device)


def name_network(network: nn.Module) -> str:
    """Return what messages call a network: its own `name`, or its class."""
    name = getattr(network, "name", None)
    return name if isinstance(name, str) else type(network).__name__
