"""What record_golden.py writes with: inputs that depend on nothing but a name, and safetensors files.

A file holds tensors named "CASE|KEY". Keys of a case:
  NAME          an input: float32 if floating point (so that it is exact in float32 and float64), else int64 or bool
  out           the result, computed from the inputs in float64 (or int64, bool)
  grad.NAME     the gradient of sum(out * weights) with respect to an input; see weights()
  after.NAME    what an input that the operation changes in place holds afterwards
"""

import json
import struct
import zlib

import numpy as np
import torch

DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64", "bool": "BOOL"}


def uniform(name, shape, low=-1.0, high=1.0):
    """float32 values that depend on name and shape alone (a 64-bit linear congruential generator)."""
    state = zlib.crc32(f"{name}{tuple(shape)}".encode()) | 1 << 40
    values = np.empty(int(np.prod(shape, dtype=np.int64)), np.float64)
    for i in range(values.size):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        values[i] = (state >> 11) * 2.0**-53
    return (low + (high - low) * values).reshape(shape).astype(np.float32)


def weights(shape):
    """Fixed weights of the sum whose gradient is recorded: ((37 i) mod 101 - 50) / 64, exact in every dtype."""
    count = int(np.prod(shape, dtype=np.int64))
    return torch.tensor([((37 * i) % 101 - 50) / 64 for i in range(count)], dtype=torch.float64).reshape(shape)


def write_safetensors(path, tensors, metadata):
    """Writes tensors given by name as (safetensors dtype, shape, bytes)."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    header["__metadata__"] = metadata
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)
    print(f"{path}: {len(tensors)} tensors, {offset + len(text) + 8} bytes")


class Fixed:
    """An input that takes no gradient; `changed` if the operation writes to it."""

    def __init__(self, values, changed=False):
        self.values = np.asarray(values)
        self.changed = changed


class Input:
    """A differentiable input of a shape, uniform in [low, high)."""

    def __init__(self, *shape, low=-1.0, high=1.0):
        self.shape, self.low, self.high = shape, low, high


class Golden:
    """The cases of one file."""

    def __init__(self):
        self.tensors = {}

    def put(self, case, key, values):
        values = np.array(values.detach().numpy() if torch.is_tensor(values) else values, order="C")
        name = f"{case}|{key}"
        assert name not in self.tensors, f"{name} is recorded twice"
        assert values.dtype.name in DTYPES, f"{name} is {values.dtype.name}"
        self.tensors[name] = values

    def case(self, name, function, **inputs):
        """Runs function(inputs...) in float64 and records inputs, result and gradients."""
        arguments = {}
        for key, value in inputs.items():
            if isinstance(value, Input):
                value = uniform(f"{name}|{key}", value.shape, value.low, value.high)
            fixed = isinstance(value, Fixed)
            values = value.values if fixed else np.asarray(value, np.float32)
            if values.dtype.kind == "f":
                values = values.astype(np.float32)
            self.put(name, key, values)
            tensor = torch.from_numpy(values.astype(np.float64) if values.dtype.kind == "f" else values.copy())
            arguments[key] = tensor if fixed else tensor.requires_grad_()
        out = function(*arguments.values())
        shown = out.double() if out.is_floating_point() else out
        if out.requires_grad:
            (shown * weights(out.shape)).sum().backward()
        self.put(name, "out", shown)
        for key, value in inputs.items():
            if isinstance(value, Fixed):
                if value.changed:
                    self.put(name, f"after.{key}", arguments[key])
            elif out.requires_grad:
                self.put(name, f"grad.{key}", arguments[key].grad)

    def write(self, path):
        tensors = {name: (DTYPES[v.dtype.name], v.shape, v.tobytes()) for name, v in self.tensors.items()}
        write_safetensors(path, tensors, {"recorded_with": f"torch {torch.__version__}"})
