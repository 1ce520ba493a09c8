"""The recorded operations, one line a case. Names and arguments match tests/ops/golden_*_test.cpp."""

import torch
import torch.nn.functional as F
from golden_recorder import Fixed, Golden, Input, uniform

SPECIAL = [-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.5]  # kinks and bounds


def ints(*values):
    return Fixed(torch.tensor(values).numpy())


def elementwise():
    g = Golden()
    x = Input(3, 7, low=-3, high=3)
    positive = Input(3, 7, low=0.1, high=4)
    g.case("neg", lambda x: -x, x=x)
    g.case("exp", torch.exp, x=x)
    g.case("log", torch.log, x=positive)
    g.case("sqrt", torch.sqrt, x=positive)
    g.case("rsqrt", torch.rsqrt, x=positive)
    g.case("abs", torch.abs, x=x)
    g.case("abs_special", torch.abs, x=SPECIAL)
    g.case("tanh", torch.tanh, x=x)
    g.case("sigmoid", torch.sigmoid, x=x)
    g.case("sigmoid_large", torch.sigmoid, x=Input(9, low=-40, high=40))
    g.case("relu", torch.relu, x=x)
    g.case("relu_special", torch.relu, x=SPECIAL)
    g.case("leaky_relu", F.leaky_relu, x=x)
    g.case("leaky_relu_slope", lambda x: F.leaky_relu(x, 0.2), x=SPECIAL)
    g.case("gelu", F.gelu, x=x)
    g.case("gelu_large", F.gelu, x=Input(9, low=-8, high=8))
    g.case("silu", F.silu, x=x)
    g.case("pow_2", lambda x: x.pow(2.0), x=x)
    g.case("pow_3", lambda x: x.pow(3.0), x=x)
    g.case("pow_half", lambda x: x.pow(0.5), x=positive)
    g.case("pow_minus_1_5", lambda x: x.pow(-1.5), x=positive)
    g.case("pow_0", lambda x: x.pow(0.0), x=x)
    g.case("clamp", lambda x: x.clamp(-1.0, 1.0), x=x)
    g.case("clamp_min", lambda x: x.clamp(min=0.25), x=x)
    g.case("clamp_max", lambda x: x.clamp(max=0.25), x=x)

    a, b = Input(3, 5), Input(3, 5, low=0.5, high=2)
    row, column, outer = Input(5), Input(3, 1), Input(2, 1, 5, low=0.5, high=2)
    for name, op in {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
    }.items():
        g.case(f"{name}", op, a=a, b=b)
        g.case(f"{name}_outer", op, a=Input(3, 1), b=outer)
        g.case(f"{name}_scalar_tensor", op, a=a, b=Input(low=0.5, high=2))
    g.case("add_row", lambda a, b: a + b, a=a, b=row)
    g.case("mul_column", lambda a, b: a * b, a=column, b=a)
    g.case("add_number", lambda a: a + 0.75, a=a)
    g.case("sub_number", lambda a: a - 0.75, a=a)
    g.case("number_sub", lambda a: 0.75 - a, a=a)
    g.case("mul_number", lambda a: a * -1.5, a=a)
    g.case("div_number", lambda a: a / 3.0, a=a)
    g.case("number_div", lambda b: 3.0 / b, b=b)
    g.case("mul_self", lambda a: a * a, a=a)
    g.case("add_alpha", lambda a, b: torch.add(a, b, alpha=-2.5), a=a, b=row)
    g.case("sub_alpha", lambda a, b: torch.sub(a, b, alpha=0.25), a=a, b=row)
    g.case("add_in_place", lambda a, b: a.clone().add_(b, alpha=0.5), a=a, b=row)
    g.case("mul_in_place", lambda a, b: a.clone().mul_(b), a=a, b=b)
    g.case("maximum", torch.maximum, a=a, b=row)
    g.case("minimum", torch.minimum, a=a, b=row)
    g.case("maximum_ties", torch.maximum, a=SPECIAL, b=[-3.0, 0.0, -1.0, 0.0, 1.0, 1.0, 2.0])
    g.case("minimum_ties", torch.minimum, a=SPECIAL, b=[-3.0, 0.0, -1.0, 0.0, 1.0, 1.0, 2.0])
    g.case("pow_tensor", torch.pow, a=b, b=Input(3, 5, low=-2, high=3))
    g.case("number_pow", lambda b: torch.pow(1.75, b), b=Input(3, 5, low=-2, high=3))
    left, right = [1.0, 2.0, 3.0, -0.0, 5.0], [[1.0, 3.0, 2.0, 0.0, 5.0], [0.5, 2.0, 3.5, -1.0, 6.0]]
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        g.case(name, getattr(torch, name), a=Fixed(left), b=Fixed(right))
    g.case("lt_number", lambda a: a < 2.0, a=Fixed(right))
    mask = Fixed([[True, False, True], [False, False, True]])
    g.case("where", torch.where, c=mask, a=Input(2, 3), b=Input(2, 3))
    g.case("where_broadcast", torch.where, c=mask, a=Input(4, 1, 3), b=Input(2, 1))
    g.case("where_number", lambda c, a: torch.where(c, a, -1.5), c=mask, a=Input(2, 3))

    g.case("to_float16", lambda x: x.to(torch.float16), x=x)
    g.case("to_bfloat16", lambda x: x.to(torch.bfloat16), x=x)
    g.case("to_int64", lambda x: x.to(torch.int64), x=x)
    g.case("to_bool", lambda x: x.to(torch.bool), x=SPECIAL)
    g.case("contiguous", lambda x: x.t().contiguous(), x=x)
    g.case("clone", lambda x: x.clone(), x=x)
    g.case("copy_", lambda x: torch.zeros(3, 7, dtype=torch.float64).copy_(x), x=x)
    g.case("copy_broadcast", lambda x: torch.zeros(3, 7, dtype=torch.float64).copy_(x), x=Input(3, 1))
    return g


def reduce():
    g = Golden()
    x = Input(3, 4, 5, low=-2, high=2)
    for dims, keep in (((), False), ((0,), False), ((-1,), True), ((0, 2), False), ((0, 2), True), ((0, 1, 2), True)):
        name = "_all" if not dims else "_dims" + "".join(str(d % 3) for d in dims)
        name += "_keep" if keep else ""
        every = dims or (0, 1, 2)
        g.case(f"sum{name}", lambda x: x.sum(every, keepdim=keep), x=x)
        g.case(f"mean{name}", lambda x: x.mean(every, keepdim=keep), x=x)
        g.case(f"var{name}", lambda x: x.var(every, unbiased=True, keepdim=keep), x=x)
        g.case(f"var_biased{name}", lambda x: x.var(every, unbiased=False, keepdim=keep), x=x)
        g.case(f"max{name}", lambda x: x.amax(every, keepdim=keep), x=x)
        g.case(f"min{name}", lambda x: x.amin(every, keepdim=keep), x=x)
        g.case(f"logsumexp{name}", lambda x: x.logsumexp(every, keepdim=keep), x=x)
    ties = [[1.0, 3.0, 3.0, -2.0], [0.0, 0.0, 0.0, 0.0]]
    g.case("max_ties", lambda x: x.amax((1,)), x=ties)
    g.case("min_ties", lambda x: x.amin((0, 1)), x=ties)
    for dim in (0, 1, -1):
        g.case(f"argmax_dim{dim % 3}", lambda x: x.argmax(dim), x=Fixed(uniform("argmax", (3, 4, 5))))
    g.case("argmax_keep", lambda x: x.argmax(1, keepdim=True), x=Fixed(uniform("argmax", (3, 4, 5))))
    g.case("logsumexp_large", lambda x: x.logsumexp((1,)), x=Input(2, 7, low=-900, high=900))
    g.case("sum_long", lambda x: x.sum(), x=Input(1531))
    g.case("mean_long_rows", lambda x: x.mean((1,)), x=Input(2, 701))
    return g


def product():
    g = Golden()
    matmuls = {
        "dot": ((7,), (7,)),
        "matrix_vector": ((3, 5), (5,)),
        "vector_matrix": ((5,), (5, 3)),
        "matrix": ((3, 5), (5, 4)),
        "matrix_odd": ((17, 9), (9, 13)),
        "batched": ((2, 3, 5), (2, 5, 4)),
        "batched_matrix": ((2, 3, 5), (5, 4)),
        "matrix_batched": ((3, 5), (2, 5, 4)),
        "batched_vector": ((2, 3, 5), (5,)),
        "vector_batched": ((5,), (2, 5, 4)),
        "broadcast": ((2, 1, 3, 5), (4, 5, 2)),
    }
    for name, (a, b) in matmuls.items():
        g.case(f"matmul_{name}", torch.matmul, a=Input(*a), b=Input(*b))

    x, w, b = Input(5, 7), Input(3, 7), Input(3)
    g.case("linear", F.linear, input=x, weight=w, bias=b)
    g.case("linear_no_bias", F.linear, input=x, weight=w)
    g.case("linear_vector", F.linear, input=Input(7), weight=w, bias=b)
    g.case("linear_3d", F.linear, input=Input(2, 3, 7), weight=w, bias=b)
    g.case("linear_relu", lambda x, w, b: F.relu(F.linear(x, w, b)), x=x, w=w, b=b)

    convs = {
        "3x3": ((2, 3, 7, 5), (4, 3, 3, 3), {}),
        "1x1": ((2, 3, 5, 5), (4, 3, 1, 1), {}),
        "5x5": ((1, 1, 12, 12), (3, 1, 5, 5), {}),
        "padding": ((2, 3, 7, 5), (4, 3, 3, 3), {"padding": 1}),
        "stride": ((2, 3, 9, 8), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
        "dilation": ((2, 3, 9, 8), (4, 3, 3, 3), {"dilation": 2}),
        "groups": ((2, 4, 6, 5), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
        "depthwise": ((2, 4, 6, 5), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
        "uneven": ((2, 2, 9, 7), (3, 2, 2, 3), {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)}),
        "all": ((2, 4, 11, 9), (6, 2, 3, 2), {"stride": (2, 3), "padding": (2, 1), "dilation": (2, 1), "groups": 2}),
    }
    for name, (x, w, options) in convs.items():
        bias = Input(w[0])
        g.case(f"conv2d_{name}", lambda x, w, b: F.conv2d(x, w, b, **options), x=Input(*x), w=Input(*w), b=bias)
    g.case("conv2d_no_bias", F.conv2d, input=Input(2, 3, 7, 5), weight=Input(4, 3, 3, 3))
    g.case(
        "conv2d_relu",
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        x=Input(2, 3, 7, 5),
        w=Input(4, 3, 3, 3),
        b=Input(4),
    )

    image, ties = Input(2, 3, 7, 6), uniform("ties", (2, 3, 7, 6), 0, 3) // 1
    g.case("max_pool2d", lambda x: F.max_pool2d(x, 2), x=image)
    g.case("max_pool2d_ties", lambda x: F.max_pool2d(x, 2), x=ties)
    g.case("max_pool2d_stride", lambda x: F.max_pool2d(x, 3, stride=1, padding=1), x=image)
    g.case("max_pool2d_ties_overlap", lambda x: F.max_pool2d(x, 3, stride=1, padding=1), x=ties)
    g.case("max_pool2d_ceil", lambda x: F.max_pool2d(x, 2, ceil_mode=True), x=image)
    g.case("max_pool2d_uneven", lambda x: F.max_pool2d(x, (3, 2), stride=(2, 3), padding=(1, 0)), x=image)
    g.case("max_pool2d_dilation", lambda x: F.max_pool2d(x, 2, stride=1, dilation=2), x=image)
    g.case("max_pool2d_unbatched", lambda x: F.max_pool2d(x, 2), x=Input(3, 5, 5))
    g.case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), x=image)
    g.case("avg_pool2d_stride", lambda x: F.avg_pool2d(x, 3, stride=2, padding=1), x=image)
    g.case("avg_pool2d_no_pad", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), x=image)
    g.case("avg_pool2d_ceil", lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True), x=image)
    g.case("avg_pool2d_divisor", lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5), x=image)
    g.case("adaptive_avg_pool2d_1", lambda x: F.adaptive_avg_pool2d(x, 1), x=image)
    g.case("adaptive_avg_pool2d_3x4", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), x=image)
    g.case("adaptive_avg_pool2d_larger", lambda x: F.adaptive_avg_pool2d(x, (9, 5)), x=image)
    return g


def norm():
    g = Golden()
    x = Input(3, 4, 5, low=-3, high=3)
    for dim in (0, 1, -1):
        g.case(f"softmax_dim{dim % 3}", lambda x: x.softmax(dim), x=x)
        g.case(f"log_softmax_dim{dim % 3}", lambda x: x.log_softmax(dim), x=x)
    g.case("softmax_large", lambda x: x.softmax(1), x=Input(2, 9, low=-500, high=500))
    g.case("log_softmax_large", lambda x: x.log_softmax(1), x=Input(2, 9, low=-500, high=500))

    g.case("local_response_norm", lambda x: together(F.local_response_norm(x, 3, 0.5, 0.6, 0.9), F.local_response_norm(x[:, :, 0], 2), F.local_response_norm(x.unsqueeze(2), 4, 0.1)), x=Input(2, 5, 3, 2))
    logits, target = Input(5, 4, low=-3, high=3), ints(0, 3, 1, 2, 3)
    some, spatial = ints(0, -100, 1, 2, -100), Fixed(torch.arange(18).remainder(4).reshape(2, 3, 3).numpy())
    factor = Fixed([0.5, 2.0, 1.0, 0.25])
    images = Input(2, 4, 3, 3)
    for name, loss in (("cross_entropy", F.cross_entropy), ("nll_loss", F.nll_loss)):
        for reduction in ("mean", "sum", "none"):
            g.case(f"{name}_{reduction}", lambda x, t: loss(x, t, reduction=reduction), x=logits, t=target)
            g.case(f"{name}_ignore_{reduction}", lambda x, t: loss(x, t, reduction=reduction), x=logits, t=some)
            g.case(f"{name}_weight_{reduction}", lambda x, t, w: loss(x, t, w, reduction=reduction), x=logits, t=some, w=factor)
        g.case(f"{name}_spatial", lambda x, t: loss(x, t), x=images, t=spatial)
        g.case(f"{name}_unbatched", lambda x, t: loss(x, t), x=Input(4), t=Fixed(torch.tensor(2).numpy()))
        g.case(f"{name}_ignore_index", lambda x, t: loss(x, t, ignore_index=3), x=logits, t=target)
    smooth = dict(label_smoothing=0.1)
    for reduction in ("mean", "sum", "none"):
        g.case(f"cross_entropy_smooth_{reduction}", lambda x, t: F.cross_entropy(x, t, reduction=reduction, **smooth), x=logits, t=some)
        g.case(f"cross_entropy_smooth_weight_{reduction}", lambda x, t, w: F.cross_entropy(x, t, w, reduction=reduction, **smooth), x=logits, t=some, w=factor)
    g.case("cross_entropy_smooth_spatial", lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.3), x=images, t=spatial, w=factor)

    a, t = Input(3, 5, low=-4, high=4), Input(3, 5, low=0, high=1)
    bce = F.binary_cross_entropy_with_logits
    w, p = Fixed(uniform("w", (3, 5), 0, 2)), Fixed(uniform("p", (5,), 0.5, 3))
    for reduction in ("mean", "sum", "none"):
        g.case(f"mse_{reduction}", lambda a, t: F.mse_loss(a, t, reduction=reduction), a=a, t=t)
        g.case(f"bce_{reduction}", lambda a, t: bce(a, t, reduction=reduction), a=a, t=t)
        g.case(f"bce_weights_{reduction}", lambda a, t, w, p: bce(a, t, w, reduction=reduction, pos_weight=p), a=a, t=t, w=w, p=p)
    g.case("bce_large", lambda a, t: bce(a, t), a=Input(9, low=-200, high=200), t=Input(9, low=0, high=1))

    def batch_norm(training, momentum=0.1, eps=1e-5):
        return lambda x, w=None, b=None, mean=None, var=None: F.batch_norm(x, mean, var, w, b, training, momentum, eps)

    w, b = Input(3, low=0.5, high=1.5), Input(3)
    stats = dict(mean=uniform("mean", (3,)), var=uniform("var", (3,), 0.5, 2))
    fixed = {key: Fixed(value) for key, value in stats.items()}
    changed = {key: Fixed(value, changed=True) for key, value in stats.items()}
    shapes = {"2d": (7, 3), "3d": (4, 3, 5), "4d": (2, 3, 4, 5)}
    for name, shape in shapes.items():
        g.case(f"batch_norm_train_{name}", batch_norm(True), x=Input(*shape), w=w, b=b, **changed)
        g.case(f"batch_norm_eval_{name}", batch_norm(False), x=Input(*shape), w=w, b=b, **fixed)
    g.case("batch_norm_momentum", batch_norm(True, 0.3, 1e-2), x=Input(2, 3, 4, 5), w=w, b=b, **changed)
    g.case("batch_norm_no_stats", batch_norm(True), x=Input(2, 3, 4, 5), w=w, b=b)
    g.case("batch_norm_plain", batch_norm(True), x=Input(2, 3, 4, 5))
    g.case("batch_norm_eval_plain", lambda x, mean, var: F.batch_norm(x, mean, var), x=Input(2, 3, 4, 5), **fixed)

    x = Input(2, 3, 4, 5, low=-2, high=3)
    g.case("layer_norm_1", lambda x, w, b: F.layer_norm(x, (5,), w, b), x=x, w=Input(5), b=Input(5))
    g.case("layer_norm_2", lambda x, w, b: F.layer_norm(x, (4, 5), w, b), x=x, w=Input(4, 5), b=Input(4, 5))
    g.case("layer_norm_eps", lambda x, w, b: F.layer_norm(x, (5,), w, b, 0.5), x=x, w=Input(5), b=Input(5))
    g.case("layer_norm_plain", lambda x: F.layer_norm(x, (3, 4, 5)), x=x)
    g.case("layer_norm_wide", lambda x, w, b: F.layer_norm(x, (131,), w, b), x=Input(3, 131), w=Input(131), b=Input(131))
    return g


def together(*tensors):
    return torch.cat([t.flatten() for t in tensors])


def bicubic(x):
    resize = lambda **options: F.interpolate(x, mode="bicubic", **options)
    return together(resize(size=(9, 7)), resize(size=(2, 3)), resize(size=(8, 1), align_corners=True),
                    resize(scale_factor=1.7), resize(scale_factor=2, align_corners=True))


def volumes(x):
    return together(F.interpolate(x, (5, 3, 7), mode="trilinear"), F.interpolate(x, (2, 6, 5), mode="trilinear", align_corners=True),
                    F.interpolate(x, scale_factor=1.6, mode="trilinear"), F.interpolate(x, (4, 3, 9)))


def areas(x):
    return together(F.interpolate(x, (3, 4), mode="area"), F.interpolate(x[0], scale_factor=0.5, mode="area"),
                    F.interpolate(x.reshape(1, 1, 2, 4, 6), (2, 3, 2), mode="area"))


def unpooled(x):
    values, places = F.max_pool2d(x[:, :, :4, :6], 2, return_indices=True)
    wide, wide_places = F.max_pool2d(x, (3, 2), stride=2, padding=1, return_indices=True)
    return together(F.max_unpool2d(values, places, 2), F.max_unpool2d(values[0], places[0], 2, output_size=(5, 7)),
                    F.max_unpool2d(wide, wide_places, (3, 2), stride=2, padding=1, output_size=(5, 7)))


def written_through_views(a, b):
    """Assignments as programs write them; views that were taken before see what was written after."""
    y = torch.zeros(3, 4, dtype=a.dtype)
    early, column = y[0], y[:, 1]
    for t in range(3):
        y[t] = a[t] * 2
    y[1] = y[0] * 0.5 + b[1]
    y[:, 3] *= b[:, 0]
    y[2][1:3] += a[0, :2]
    y.t()[0].copy_(y.t()[1].clone())
    z = a + b
    rows = z.view(2, 6)
    z[1] = y[1]
    rows[0].mul_(b.reshape(2, 6)[1])
    z[z > 0.5] = 0.25
    z[0, 2:] = early[:2]
    left, right = z[:, :2], z[:, 2:]
    left.fill_(0.5)
    right[1:].exp_()
    return together(y, early, column, z, rows, left, right)


def shape():
    g = Golden()
    x = Input(2, 3, 4)
    g.case("view", lambda x: x.view(4, -1), x=x)
    g.case("reshape_copy", lambda x: x.transpose(0, 2).reshape(3, 8), x=x)
    g.case("flatten", lambda x: x.flatten(), x=x)
    g.case("flatten_1", lambda x: x.flatten(1), x=x)
    g.case("transpose", lambda x: x.transpose(0, -1), x=x)
    g.case("t", lambda x: x.t(), x=Input(3, 5))
    g.case("permute", lambda x: x.permute(2, 0, 1), x=x)
    g.case("expand", lambda x: x.expand(2, 3, 4), x=Input(3, 1))
    g.case("expand_keep", lambda x: x.expand(5, -1, 4), x=Input(3, 1))
    g.case("slice", lambda x: x[:, 1:3], x=x)
    g.case("slice_step", lambda x: x[:, :, 1::2], x=x)
    g.case("slice_negative", lambda x: x[:, -2:-1], x=x)
    g.case("narrow", lambda x: x.narrow(2, 1, 2), x=x)
    g.case("select", lambda x: x.select(1, -1), x=x)
    g.case("brackets", lambda x: x[1][2], x=x)
    g.case("squeeze", lambda x: x.squeeze(), x=Input(1, 3, 1, 2))
    g.case("squeeze_dim", lambda x: x.squeeze(2), x=Input(1, 3, 1, 2))
    g.case("unsqueeze", lambda x: x.unsqueeze(-2), x=x)
    g.case("index_select_0", lambda x, i: x.index_select(0, i), x=x, i=ints(1, 0, 1))
    g.case("index_select_1", lambda x, i: x.index_select(1, i), x=x, i=ints(2, 2, 0, 1, 2))
    g.case("index_select_2", lambda x, i: x.index_select(-1, i), x=x, i=ints(3))
    g.case("gather_1", lambda x, i: x.gather(1, i), x=x, i=Fixed(torch.arange(16).remainder(3).reshape(2, 2, 4).numpy()))
    g.case("gather_2", lambda x, i: x.gather(2, i), x=x, i=Fixed((torch.arange(24) * 7).remainder(4).reshape(1, 3, 8).numpy()))
    g.case("gather_0", lambda x, i: x.gather(0, i), x=Input(5), i=ints(4, 4, 0))
    g.case("cat", lambda a, b, c: torch.cat([a, b, c], 1), a=Input(2, 3), b=Input(2, 1), c=Input(2, 4))
    g.case("cat_0", lambda a, b: torch.cat([a, b, a]), a=Input(2, 3), b=Input(1, 3))
    g.case("stack", lambda a, b: torch.stack([a, b], 1), a=Input(2, 3), b=Input(2, 3))
    g.case("split", lambda x: torch.split(x, 2, 1)[1], x=Input(2, 5))
    g.case("split_with_sizes", lambda x: torch.split(x, [1, 3, 1], 1)[1], x=Input(2, 5))
    g.case("chunk", lambda x: torch.chunk(x, 3, 0)[1], x=Input(5, 2))
    index = Fixed([[1, 4, 4], [0, 1, 4]])
    g.case("embedding", lambda w, i: F.embedding(i, w), w=Input(6, 3), i=index)
    g.case("embedding_padding", lambda w, i: F.embedding(i, w, padding_idx=4), w=Input(6, 3), i=index)
    g.case("interpolate_bicubic", bicubic, x=Input(2, 2, 5, 4))
    g.case("interpolate_volumes", volumes, x=Input(1, 2, 3, 4, 5))
    g.case("interpolate_area", areas, x=Input(1, 2, 4, 6))
    g.case("max_unpool2d", unpooled, x=Input(1, 2, 5, 7))
    g.case("writes_through_views", written_through_views, a=Input(3, 4), b=Input(3, 4))
    g.case("dropout_eval", lambda x: F.dropout(x, 0.5, False), x=x)
    g.case("dropout_all", lambda x: F.dropout(x, 1.0, True), x=x)
    g.case("dropout2d_eval", lambda x: F.dropout2d(x, 0.5, False), x=Input(2, 3, 2, 2))
    g.case("dropout2d_all", lambda x: F.dropout2d(x, 1.0, True), x=Input(2, 3, 2, 2))
    return g


def attention():
    """What a transformer is made of."""
    g = Golden()
    sdpa = F.scaled_dot_product_attention
    q, k, v = Input(2, 3, 5, 4), Input(2, 3, 7, 4), Input(2, 3, 7, 6)
    g.case("sdpa", sdpa, q=q, k=k, v=v)
    g.case("sdpa_scale", lambda q, k, v: sdpa(q, k, v, scale=0.3), q=q, k=k, v=v)
    g.case("sdpa_causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), q=Input(2, 3, 6, 4), k=Input(2, 3, 6, 4), v=Input(2, 3, 6, 4))
    g.case("sdpa_causal_uneven", lambda q, k, v: sdpa(q, k, v, is_causal=True), q=q, k=k, v=v)
    g.case("sdpa_mask", lambda q, k, v, m: sdpa(q, k, v, m), q=q, k=k, v=v, m=Fixed(uniform("mask", (5, 7), -3, 3)))
    seen = uniform("seen", (2, 1, 5, 7)) > -0.5
    g.case("sdpa_bool_mask", lambda q, k, v, m: sdpa(q, k, v, m), q=q, k=k, v=v, m=Fixed(seen))
    g.case("sdpa_mask_gradient", lambda q, k, v, m: sdpa(q, k, v, m), q=q, k=k, v=v, m=Input(3, 5, 7))
    g.case("sdpa_grouped", lambda q, k, v: sdpa(q, k, v, enable_gqa=True), q=Input(2, 4, 5, 4), k=Input(2, 2, 7, 4), v=Input(2, 2, 7, 4))
    x = Input(2, 3, 4, 5, low=-2, high=3)
    g.case("rms_norm_1", lambda x, w: F.rms_norm(x, (5,), w), x=x, w=Input(5))
    g.case("rms_norm_2", lambda x, w: F.rms_norm(x, (4, 5), w, 0.1), x=x, w=Input(4, 5))
    g.case("rms_norm_plain", lambda x: F.rms_norm(x, (5,)), x=x)
    g.case("tril", torch.tril, x=Input(2, 4, 5))
    g.case("tril_diagonal", lambda x: torch.tril(x, 2), x=Input(4, 5))
    g.case("triu", torch.triu, x=Input(4, 5))
    g.case("triu_diagonal", lambda x: torch.triu(x, -1), x=Input(2, 4, 5))
    g.case("topk", lambda x: x.topk(3)[0], x=Input(4, 7))
    g.case("topk_smallest", lambda x: x.topk(2, 0, largest=False)[0], x=Input(4, 7))
    g.case("topk_indices", lambda x: x.topk(3, 1)[1], x=Fixed(uniform("topk", (4, 7))))
    g.case("sin", torch.sin, x=Input(3, 7, low=-9, high=9))
    g.case("cos", torch.cos, x=Input(3, 7, low=-9, high=9))
    g.case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), x=Input(3, 7, low=-4, high=4))
    return g


FAMILIES = {
    "elementwise": elementwise,
    "reduce": reduce,
    "product": product,
    "norm": norm,
    "shape": shape,
    "attention": attention,
}
