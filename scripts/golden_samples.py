"""PyTorch's own samples of the operations that exist here: what torch.testing makes to test them, with its results.

Each operation of OPERATIONS gets a file of its own. Its metadata hold "samples", a JSON list of calls:
  args, kwargs   the arguments; tensors are {"tensor": NAME}, with "strides" unless contiguous and "grad": NAME, the
                 gradient of the sum of all floating-point results times weights(), where one is required
  out            the results: tensors as above, else numbers; or
  error          true: PyTorch refuses the call
  kind           "sample", "extreme" (NaN, infinities, signed zeros and the ends of the range as values) or
                 "error"
Equal tensors are stored once. Beside what JSON has, arguments may be {"dtype": NAME}, {"float": "nan"}, {"slice": [..]}
and {"ellipsis": true}.
"""

import itertools
import json
import math

import torch
from golden_recorder import weights, write_safetensors
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
OPERATIONS = """
    abs exp log sqrt rsqrt reciprocal square neg tanh sigmoid isnan isinf isfinite clamp clamp_min clamp_max pow
    nn.functional.relu nn.functional.leaky_relu nn.functional.silu nn.functional.gelu sin cos
    add sub rsub mul div.no_rounding_mode div.trunc_rounding div.floor_rounding maximum minimum eq ne lt le gt
    ge where floor_divide __radd__ __rsub__ __rmul__ __rdiv__ __rpow__
    sum mean var var.unbiased max.reduction_no_dim min.reduction_no_dim amax amin argmax argmin all any logsumexp
    norm norm.fro norm.inf linalg.vector_norm softmax softmax.with_dtype log_softmax log_softmax.with_dtype
    matmul mm __rmatmul__ nn.functional.linear nn.functional.conv2d nn.functional.batch_norm nn.functional.layer_norm
    nn.functional.rms_norm nn.functional.group_norm nn.functional.scaled_dot_product_attention
    nn.functional.max_pool2d nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d
    nn.functional.cross_entropy nn.functional.nll_loss nn.functional.binary_cross_entropy_with_logits
    nn.functional.mse_loss nn.functional.embedding nn.functional.dropout nn.functional.dropout2d
    view view_as reshape reshape_as flatten ravel transpose t permute expand expand_as broadcast_to squeeze
    squeeze.multiple unsqueeze slice narrow select __getitem__ split split.list_args split_with_sizes chunk cat stack
    clone contiguous to float double half bfloat16 long int byte bool index_select gather
    masked_fill masked_select index_put nonzero topk tril triu multinomial item fill zero_
    zeros_like ones_like full_like zeros ones full arange scalar_tensor
""".split()
# Of these fewer samples are recorded.
BRIEF = """
    sign floor ceil round trunc erf log1p expm1 log2 log10 tan sinh cosh atan asin acos
    nn.functional.elu nn.functional.selu nn.functional.celu nn.functional.softplus nn.functional.logsigmoid
    nn.functional.softsign nn.functional.hardswish nn.functional.hardsigmoid nn.functional.hardtanh nn.functional.relu6
    nn.functional.mish remainder logical_not logical_and logical_or logical_xor
    std prod cumsum cumprod einsum bmm mv addmm baddbmm outer
    nn.functional.l1_loss nn.functional.smooth_l1_loss nn.functional.huber_loss nn.functional.binary_cross_entropy
    nn.functional.kl_div nn.functional.margin_ranking_loss nn.functional.hinge_embedding_loss
    nn.functional.soft_margin_loss nn.functional.cosine_embedding_loss nn.functional.triplet_margin_loss
    nn.functional.gaussian_nll_loss nn.functional.poisson_nll_loss nn.functional.cosine_similarity
    nn.functional.pairwise_distance nn.functional.normalize
    nn.functional.conv1d nn.functional.conv_transpose1d nn.functional.conv_transpose2d nn.functional.max_pool1d
    nn.functional.avg_pool1d nn.functional.adaptive_avg_pool1d nn.functional.interpolate.nearest
    nn.functional.interpolate.bilinear nn.functional.grid_sample nn.functional.pixel_shuffle nn.functional.pixel_unshuffle
    nn.functional.pad.constant nn.functional.pad.reflect nn.functional.pad.replicate nn.functional.pad.circular
    nn.functional.one_hot repeat tile flip roll unbind unflatten movedim diagonal sort argsort scatter scatter_add
    index_add eye linspace
    asinh acosh atanh lgamma digamma erfinv exp2 frac logit nan_to_num isclose atan2 hypot fmod xlogy lerp
    nn.functional.threshold nn.functional.tanhshrink nn.functional.softshrink nn.functional.hardshrink
    nn.functional.glu nn.functional.prelu
    addcmul addcdiv logaddexp nansum nanmean
    scatter_reduce.sum scatter_reduce.prod scatter_reduce.mean scatter_reduce.amax scatter_reduce.amin
    index_reduce.prod index_reduce.mean index_reduce.amax index_reduce.amin index_copy index_fill masked_scatter
    take_along_dim take cummax cummin logcumsumexp kthvalue quantile searchsorted bucketize histc isin
    unique unique_consecutive bincount median
    repeat_interleave meshgrid.variadic_tensors rot90 fliplr flipud tril_indices triu_indices unfold_copy
    diag diag_embed block_diag trace cartesian_prod tensor_split hstack vstack dstack column_stack
    addmv addr addbmm inner tensordot kron cross dot nn.functional.bilinear
    nn.functional.conv3d nn.functional.conv_transpose3d nn.functional.max_pool3d nn.functional.avg_pool3d
    nn.functional.adaptive_avg_pool3d nn.functional.adaptive_max_pool1d nn.functional.adaptive_max_pool2d
    nn.functional.embedding_bag
    erfc copysign heaviside bitwise_not bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift
""".split()
FLOATING = (torch.float32, torch.float64)
OTHERS = (torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
FINITE_SUMS = [math.nan, 1.0, math.inf, -2.0, -math.inf, 0.0, -0.0, 0.5, 3.0]  # sums of these do not depend on order


class NotRecorded(Exception):
    """The sample has an argument or a result that no tensor here can hold: a complex number, nine dimensions."""


def is_random(name, arguments):
    """What draws numbers: multinomial, and dropout that is neither off nor certain."""
    if name == "multinomial":
        return True
    if "attention" in name:
        return arguments["kwargs"].get("dropout_p", 0.0) != 0.0
    if "dropout" not in name:
        return False
    p = arguments["kwargs"].get("p", arguments["args"][1] if len(arguments["args"]) > 1 else 0.5)
    return arguments["kwargs"].get("training", True) and p not in (0.0, 1.0)


def has_ties(name, arguments):
    """topk where the order of equal elements, which PyTorch leaves open, would show in indices and gradients."""
    x = arguments[0]
    return name in ("topk", "sort", "argsort") and x.numel() > 1 and (x.isnan().sum() > 1 or x.double().unique().numel() < x.numel())


class SampleFile:
    """The samples of one operation."""

    def __init__(self, op, largest):
        self.op, self.largest = op, largest
        self.samples, self.tensors, self.names = [], {}, {}

    def put(self, tensor):
        if tensor.dtype not in DTYPES or tensor.numel() > self.largest or tensor.dim() > 8:
            raise NotRecorded
        values = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        data = values.view(torch.uint8).numpy().tobytes() if values.numel() else b""
        key = (DTYPES[tensor.dtype], tuple(tensor.shape), data)
        if key not in self.names:
            self.names[key] = str(len(self.names))
            self.tensors[self.names[key]] = key
        return self.names[key]

    def encode(self, value):
        if torch.is_tensor(value):
            if value.layout != torch.strided or value.is_conj() or value.is_neg():
                raise NotRecorded
            entry = {"tensor": self.put(value)}
            if not value.is_contiguous():
                entry["strides"] = list(value.stride())
            if value.requires_grad:
                entry["grad"] = self.put(torch.zeros_like(value) if value.grad is None else value.grad)
            return entry
        if isinstance(value, (bool, int, str)) or value is None:
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, slice):
            return {"slice": [value.start, value.stop, value.step]}
        if value is Ellipsis:
            return {"ellipsis": True}
        if isinstance(value, (list, tuple)):
            return [self.encode(v) for v in value]
        raise NotRecorded

    def add(self, kind, sample):
        """Runs the sample and records it; False if it cannot be."""
        leaves = []

        def fresh(value):
            if torch.is_tensor(value):
                copy = value.detach()
                if value.numel():  # its memory and its strides, with nothing around
                    count = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride()))
                    memory = copy.as_strided((count,), (1,), value.storage_offset()).clone()
                    copy = memory.as_strided(value.shape, value.stride())
                if value.requires_grad:
                    leaves.append(copy.requires_grad_())
                return copy
            if isinstance(value, (list, tuple)):
                return type(value)(fresh(v) for v in value)
            return value

        if self.op.name == "__getitem__":  # a list of positions is a tensor of them, a tuple is not
            sample = type(sample)(sample.input, args=tuple(positions(v) for v in sample.args))
        args = [fresh(v) for v in (sample.input, *sample.args)]
        kwargs = {k: fresh(v) for k, v in sample.kwargs.items() if k not in ("device", "layout", "requires_grad")}
        entry = {"kind": kind}
        try:
            if kind != "error" and is_random(self.op.name, {"args": args, "kwargs": kwargs}):
                raise NotRecorded
            if kind == "error":
                entry["error"] = True
            else:
                if has_ties(self.op.name, args):
                    raise NotRecorded
                before = [v.detach().clone() if torch.is_tensor(v) else v for v in args]  # batch_norm changes its own
                with sdpa_kernel(SDPBackend.MATH):  # PyTorch's plain attention: the fused one hides NaN
                    out = self.op(*args, **kwargs)
                out = list(out) if isinstance(out, (list, tuple)) else [out]
                loss = [(v.double() * weights(v.shape)).sum() for v in out if torch.is_tensor(v) and v.requires_grad]
                if loss:
                    sum(loss).backward()
                entry["out"] = [self.encode(v.detach() if torch.is_tensor(v) else v) for v in out]
                for i, (value, old) in enumerate(zip(args, before)):
                    if torch.is_tensor(value) and not value.requires_grad:
                        args[i] = old
            entry["args"] = [self.encode(v) for v in args]
            entry["kwargs"] = {k: self.encode(v) for k, v in kwargs.items()}
        except NotRecorded:
            return False
        self.samples.append(entry)
        return True

    def write(self, folder):
        used = json.dumps(self.samples)
        tensors = {name: key for name, key in self.tensors.items() if f'"{name}"' in used}
        write_safetensors(folder / f"{file_name(self.op)}.safetensors", tensors, {
            "recorded_with": f"torch {torch.__version__}",
            "samples": json.dumps(self.samples, separators=(",", ":"))
        })
        return len(self.samples)


def positions(value):
    if isinstance(value, tuple):
        return tuple(positions(v) for v in value)
    return torch.tensor(value) if isinstance(value, list) else value


def has_tensor(sample):
    return any(torch.is_tensor(v) for v in (sample.input, *sample.args, *sample.kwargs.values()))


def file_name(op):
    return op.name + ("." + op.variant_test_name if op.variant_test_name else "")


def pattern(value):
    """What distinguishes a sample from the others of its operation: sizes count as 0, 1 or more."""
    if torch.is_tensor(value):
        layout = "" if value.is_contiguous() else "*"
        return (str(value.dtype), tuple(min(n, 2) for n in value.shape), layout, value.requires_grad)
    if isinstance(value, (list, tuple)):
        return tuple(pattern(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, pattern(v)) for k, v in sorted(value.items()))
    if isinstance(value, float):
        return ("float", math.isnan(value), math.isinf(value), (value > 0) - (value < 0))
    return repr(value) if not isinstance(value, int) or isinstance(value, bool) else max(-2, min(value, 3))


def of_sample(sample):
    return pattern([sample.input, *sample.args]), pattern(sample.kwargs)


def extremes(sample, elementwise):
    """The sample with other values in its floating-point input, or None if it has none; elementwise functions get them in
    all operands."""
    found = False

    def replaced(value, turn=[0]):
        nonlocal found
        if isinstance(value, (list, tuple)):
            return type(value)(replaced(v) for v in value)
        if not torch.is_tensor(value) or not value.is_floating_point() or not value.numel():
            return value
        found = True
        info = torch.finfo(value.dtype)
        values = FINITE_SUMS + ([info.max, info.min, info.tiny, -info.tiny, 60.0, -60.0, 1e-3] if elementwise else [])
        turn[0] += 5  # so that two operands do not meet with equal values alone
        cycle = list(itertools.islice(itertools.cycle(values[turn[0] % len(values):] + values[:turn[0] % len(values)]), value.numel()))
        new = torch.tensor(cycle, dtype=torch.float64).to(value.dtype).reshape(value.shape)
        return new.requires_grad_(value.requires_grad)

    others = replaced if elementwise else lambda value: value
    changed = type(sample)(replaced(sample.input), args=tuple(others(v) for v in sample.args),
                           kwargs={k: others(v) for k, v in sample.kwargs.items()})
    return changed if found else None


def samples_of(op, dtype):
    grad = dtype.is_floating_point and op.supports_autograd
    torch.manual_seed(1)
    makers = [op.sample_inputs] + ([op.reference_inputs] if dtype in FLOATING else [])
    for make in makers:
        try:
            yield from make("cpu", dtype, requires_grad=grad)
        except (TypeError, ValueError, NotImplementedError, RuntimeError):  # an operation without samples of this kind
            continue


def record(op, folder, everything):
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
    elementwise = isinstance(op, (BinaryUfuncInfo, UnaryUfuncInfo))
    file = SampleFile(op, 100_000 if everything else 300)
    brief = file_name(op) in BRIEF
    for dtype in FLOATING + OTHERS:
        if not op.supports_dtype(dtype, "cpu"):
            continue
        seen, budget = set(), 10**9 if everything else (10 if brief else 40) if dtype in FLOATING else 3 if brief else 12
        several = []
        for sample in samples_of(op, dtype):
            if elementwise and not has_tensor(sample):
                continue
            key = of_sample(sample)
            if (key in seen and not everything) or len(seen) >= budget:
                continue
            try:
                if file.add("sample", sample):
                    seen.add(key)
                    several.append(sample)
            except RuntimeError as error:
                print(f"{file_name(op)}: {str(error).splitlines()[0]}")
        if dtype.is_floating_point and op.name != "nn.functional.binary_cross_entropy":  # refuses other than probabilities
            for sample in several[:: max(1, len(several) // (100 if everything else 3 if brief else 8))]:
                changed = extremes(sample, elementwise)
                if changed is not None:
                    file.add("extreme", changed)
    if op.error_inputs_func is not None:
        for error in op.error_inputs("cpu"):
            file.add("error", error.sample_input)
    return file.write(folder)


def record_samples(folder, everything):
    """Writes a file for each operation to `folder`: all samples, or one of each pattern and moderate size."""
    from torch.testing._internal.common_methods_invocations import op_db
    folder.mkdir(parents=True, exist_ok=True)
    by_name = {file_name(op): op for op in op_db}
    operations = OPERATIONS + BRIEF
    total = sum(record(by_name[name], folder, everything) for name in operations)
    print(f"{total} samples of {len(operations)} operations")
