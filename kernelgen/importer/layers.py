"""Layers of torch.nn as calls of torch.nn.functional: one table of what each says of its layer.

An argument that has the functional's own default is left out, as a person would.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Tensors = Callable[[str], str]
"""The name of a parameter or buffer of the layer by its attribute; `None` where the layer has none."""

Noted = Callable[[str, Any], None]
"""Told every attribute of a layer that a call was written by, with its value: the call holds for that value alone."""

_NEEDED = object()

_REDUCTION = ("reduction", "mean")

_PLAIN: dict[str, tuple[Any, ...]] = {
    # class: function, then what follows the inputs: (keyword, default), keyword = attribute; a bare name is positional
    **{name: (f"F.{name.lower()}",) for name in ("ReLU", "ReLU6", "SiLU", "Mish", "SELU", "Softsign", "Tanhshrink")},
    **{name: (f"F.{name.lower()}",) for name in ("Hardswish", "Hardsigmoid", "LogSigmoid")},
    "Sigmoid": ("torch.sigmoid",),
    "Tanh": ("torch.tanh",),
    "GELU": ("F.gelu", ("approximate", "none")),
    "LeakyReLU": ("F.leaky_relu", ("negative_slope", 0.01)),
    "ELU": ("F.elu", ("alpha", 1.0)),
    "CELU": ("F.celu", ("alpha", 1.0)),
    "Softplus": ("F.softplus", ("beta", 1.0), ("threshold", 20.0)),
    "Hardtanh": ("F.hardtanh", ("min_val", -1.0), ("max_val", 1.0)),
    "Hardshrink": ("F.hardshrink", ("lambd", 0.5)),
    "Softshrink": ("F.softshrink", ("lambd", 0.5)),
    "Threshold": ("F.threshold", "threshold", "value"),
    "Softmax": ("F.softmax", ("dim", _NEEDED)),
    "LogSoftmax": ("F.log_softmax", ("dim", _NEEDED)),
    "Softmin": ("F.softmin", ("dim", _NEEDED)),
    "GLU": ("F.glu", ("dim", -1)),
    "Flatten": ("torch.flatten", ("start_dim", 0), ("end_dim", -1)),
    "PixelShuffle": ("F.pixel_shuffle", "upscale_factor"),
    "PixelUnshuffle": ("F.pixel_unshuffle", "downscale_factor"),
    "CosineSimilarity": ("F.cosine_similarity", ("dim", 1), ("eps", 1e-8)),
    "PairwiseDistance": ("F.pairwise_distance", ("p", 2.0), ("eps", 1e-6), ("keepdim", False)),
    "LocalResponseNorm": ("F.local_response_norm", "size", ("alpha", 1e-4), ("beta", 0.75), ("k", 1.0)),
    "Upsample": ("F.interpolate", ("size", None), ("scale_factor", None), ("mode", "nearest"), ("align_corners", None)),
    "MSELoss": ("F.mse_loss", _REDUCTION),
    "L1Loss": ("F.l1_loss", _REDUCTION),
    "SmoothL1Loss": ("F.smooth_l1_loss", _REDUCTION, ("beta", 1.0)),
    "HuberLoss": ("F.huber_loss", _REDUCTION, ("delta", 1.0)),
    "KLDivLoss": ("F.kl_div", _REDUCTION, ("log_target", False)),
    "SoftMarginLoss": ("F.soft_margin_loss", _REDUCTION),
    "HingeEmbeddingLoss": ("F.hinge_embedding_loss", ("margin", 1.0), _REDUCTION),
    "MarginRankingLoss": ("F.margin_ranking_loss", ("margin", 0.0), _REDUCTION),
    "CosineEmbeddingLoss": ("F.cosine_embedding_loss", ("margin", 0.0), _REDUCTION),
    "PoissonNLLLoss": ("F.poisson_nll_loss", ("log_input", True), ("full", False), ("eps", 1e-8), _REDUCTION),
    "TripletMarginLoss": (
        *("F.triplet_margin_loss", ("margin", 1.0), ("p", 2.0), ("eps", 1e-6), ("swap", False), _REDUCTION),
    ),
}

_POOLS: dict[str, tuple[tuple[str, Any], ...]] = {
    "Max": (("padding", 0), ("dilation", 1), ("ceil_mode", False), ("return_indices", False)),
    "Avg": (("padding", 0), ("ceil_mode", False), ("count_include_pad", True), ("divisor_override", None)),
}


class _Reading:
    """A layer of which every attribute that is read is noted."""

    def __init__(self, layer: Any, noted: Noted) -> None:
        self._layer, self._noted = layer, noted

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._layer, name)
        self._noted(name, value)
        return value

    def unnoted(self, name: str) -> Any:
        """An attribute that the call is right for whatever it is."""
        return getattr(self._layer, name)


def functional(module: Any, arguments: list[str], tensors: Tensors, noted: Noted) -> str | None:
    """The call that does what the layer does to the arguments; None for a layer that this table does not know."""
    kind = type(module)
    if not kind.__module__.startswith("torch.nn.modules.") or module._forward_hooks or module._forward_pre_hooks:
        return None
    name, layer = kind.__name__, _Reading(module, noted)
    if name in _PLAIN:
        function, *options = _PLAIN[name]
        required = [shown(getattr(layer, option)) for option in options if isinstance(option, str)]
        keywords = [option for option in options if isinstance(option, tuple)]
        return call(function, [*arguments, *required], _given(layer, keywords))
    stem, dims = (name[:-2], name[-2]) if name[-1:] == "d" else (name, "")
    maker = _MAKERS.get(stem)
    return maker(layer, arguments, tensors, dims) if maker else None


def call(function: str, positional: list[str], keywords: dict[str, str]) -> str:
    return f"{function}({', '.join([*positional, *(f'{key}={value}' for key, value in keywords.items())])})"


def shown(value: Any) -> str:
    """A constant as a person writes it: `1e-5`, and one number for a tuple of equal ones."""
    if isinstance(value, tuple | list) and value and all(v == value[0] and type(v) is int for v in value):
        value = value[0]
    return literal(value)


def literal(value: Any) -> str:
    """A constant as Python: `1e-5`, not `1e-05`."""
    if isinstance(value, tuple | list):
        inner = ", ".join(literal(v) for v in value)
        return f"({inner},)" if len(value) == 1 and isinstance(value, tuple) else f"({inner})"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "math.inf" if value > 0 else "-math.inf"
    text = repr(value)
    return text.replace("e-0", "e-") if isinstance(value, float) else text


def _given(layer: Any, options: Any) -> dict[str, str]:
    """The options whose value is not the functional's default."""
    values = {key: (getattr(layer, key, default), default) for key, default in options}
    return {k: shown(v) for k, (v, default) in values.items() if default is _NEEDED or v not in (default, (default,))}


def _pool(kind: str) -> Callable[..., str]:
    def make(layer: Any, arguments: list[str], tensors: Tensors, dims: str) -> str:
        stride = {} if layer.stride == layer.kernel_size else {"stride": shown(layer.stride)}
        options = {key: text for key, text in _given(layer, _POOLS[kind]).items() if not _all_equal(layer, key, kind)}
        return call(f"F.{kind.lower()}_pool{dims}d", [*arguments, shown(layer.kernel_size)], {**stride, **options})

    return make


def _all_equal(layer: Any, key: str, kind: str) -> bool:
    """A tuple such as (0, 0) that says what the default does."""
    value, default = getattr(layer, key), dict(_POOLS[kind])[key]
    return isinstance(value, tuple) and all(v == default for v in value)


def _adaptive(kind: str) -> Callable[..., str]:
    def make(layer: Any, arguments: list[str], tensors: Tensors, dims: str) -> str:
        return call(f"F.adaptive_{kind}_pool{dims}d", [*arguments, shown(layer.output_size)], {})

    return make


def _batch_norm(layer: Any, arguments: list[str], tensors: Tensors, dims: str) -> str:
    # what a training step leaves in the running statistics is no output: they are not read either
    training = layer.training or layer.running_mean is None
    statistics = ["None", "None"] if training else [tensors("running_mean"), tensors("running_var")]
    keywords = {"weight": tensors("weight"), "bias": tensors("bias")} if layer.affine else {}
    keywords |= {"training": "True"} if training else {}
    return call("F.batch_norm", [*arguments, *statistics], keywords | _given(layer, [("eps", 1e-5)]))


def _instance_norm(layer: Any, arguments: list[str], tensors: Tensors, dims: str) -> str:
    keywords = {"weight": tensors("weight"), "bias": tensors("bias")} if layer.affine else {}
    if layer.track_running_stats and not layer.training:
        keywords |= {key: tensors(key) for key in ("running_mean", "running_var")} | {"use_input_stats": "False"}
    return call("F.instance_norm", arguments, keywords | _given(layer, [("eps", 1e-5)]))


def _group_norm(layer: Any, arguments: list[str], tensors: Tensors, dims: str) -> str:
    weights = [tensors("weight"), tensors("bias")] if layer.affine else []
    return call("F.group_norm", [*arguments, str(layer.num_groups), *weights], _given(layer, [("eps", 1e-5)]))


def _layer_norm(function: str, layer: Any, arguments: list[str], tensors: Tensors, dims: str) -> str:
    """Over `weight.shape`, so that the sizes stay free; without a weight over the last dimensions of the input."""
    keys = ("weight",) if function == "F.rms_norm" else ("weight", "bias")
    weights = [name for name in map(tensors, keys) if name != "None"]
    if weights:
        shape = f"{weights[0]}.shape"
    elif arguments[0].isidentifier() and len(layer.unnoted("normalized_shape")) == 1:
        shape = f"({arguments[0]}.shape[-1],)"
    else:
        shape = shown_shape(layer.normalized_shape)
    eps = _given(layer, [("eps", None if function == "F.rms_norm" else 1e-5)])
    return call(function, [*arguments, shape, *weights], eps)


def shown_shape(shape: Any) -> str:
    return literal(tuple(shape))


def _conv(function: str) -> Callable[..., str | None]:
    options = [("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1)]
    if function == "conv_transpose":
        options.insert(2, ("output_padding", 0))

    def make(layer: Any, arguments: list[str], tensors: Tensors, dims: str) -> str | None:
        if layer.padding_mode != "zeros" or len(arguments) != 1:
            return None
        values = {key: (getattr(layer, key), default) for key, default in options}
        alike = {k for k, (v, default) in values.items() if v == default or set(_as_tuple(v)) == {default}}
        given = {key: shown(value) for key, (value, _) in values.items() if key not in alike}
        bias = [tensors("bias")] if layer.bias is not None else []
        return call(f"F.{function}{dims}d", [*arguments, tensors("weight"), *bias], given)

    return make


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _weighted_loss(function: str, *options: tuple[str, Any]) -> Callable[..., str]:
    def make(layer: Any, arguments: list[str], tensors: Tensors, dims: str) -> str:
        weights = {k: tensors(k) for k in ("weight", "pos_weight") if getattr(layer, k, None) is not None}
        return call(function, arguments, weights | _given(layer, [*options, _REDUCTION]))

    return make


_MAKERS: dict[str, Callable[..., str | None]] = {
    "MaxPool": _pool("Max"),
    "AvgPool": _pool("Avg"),
    "AdaptiveAvgPool": _adaptive("avg"),
    "AdaptiveMaxPool": _adaptive("max"),
    "BatchNorm": _batch_norm,
    "InstanceNorm": _instance_norm,
    "GroupNorm": _group_norm,
    "LayerNorm": partial(_layer_norm, "F.layer_norm"),
    "RMSNorm": partial(_layer_norm, "F.rms_norm"),
    "Conv": _conv("conv"),
    "ConvTranspose": _conv("conv_transpose"),
    "CrossEntropyLoss": _weighted_loss("F.cross_entropy", ("ignore_index", -100), ("label_smoothing", 0.0)),
    "NLLLoss": _weighted_loss("F.nll_loss", ("ignore_index", -100)),
    "BCELoss": _weighted_loss("F.binary_cross_entropy"),
    "BCEWithLogitsLoss": _weighted_loss("F.binary_cross_entropy_with_logits"),
    "Linear": lambda m, a, t, _: call("F.linear", [*a, t("weight"), *([t("bias")] if m.bias is not None else [])], {}),
    "Embedding": lambda m, a, t, _: call("F.embedding", [*a, t("weight")], {}) if m.max_norm is None else None,
    "PReLU": lambda m, a, t, _: call("F.prelu", [*a, t("weight")], {}),
    "ZeroPad": lambda m, a, t, _: call("F.pad", [*a, shown_shape(m.padding)], {}),
    "ConstantPad": lambda m, a, t, _: call("F.pad", [*a, shown_shape(m.padding)], {"value": literal(m.value)}),
    "Identity": lambda m, a, t, _: a[0],
    "Dropout": lambda m, a, t, d: call(f"F.dropout{d and d + 'd'}", [*a, literal(m.p)], {}) if m.training else a[0],
}
