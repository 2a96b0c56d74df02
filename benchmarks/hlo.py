"""Counts collectives, FLOPs and bytes of memory traffic in the text of a program that XLA has optimized and scheduled.

`parse` reads the text, and `count` adds up what one execution costs: the costs of a loop's body are multiplied by its
number of iterations, which XLA's own cost analysis does not do.

- Collectives: bytes are those of the whole arrays, that is, of the result of an all-gather, and of the operand of a
  reduce-scatter or all-reduce. A fusion that contains an all-reduce and a slice of it is how TPUs compute a
  reduce-scatter, and is counted as such.
- FLOPs: matrix products, also those of cuBLAS; the attention kernels of cuDNN and Pallas; and our Pallas kernel for the
  gradients of embeddings. The text has the shapes of kernels, but not their instructions, so that their FLOPs are
  computed from formulas.
- Bytes: what each instruction reads from and writes to the memory of the device. An array that an instruction only
  slices counts with the bytes of the slice, and the workspace of a product of cuBLAS, which few products use, does not
  count. On TPUs, the text says which arrays are in the chip's vector memory; they do not count, but the copies between
  the two memories do.
- Seconds: each instruction takes as long as its FLOPs or its bytes at the peak rates, whichever is longer; instructions
  follow one another. A loop takes at least as long as all its bytes, including copies that run beside instructions.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "collective-permute", "all-to-all")

_ITEM_BITS = {
    "pred": 8,
    "token": 0,
    "opaque": 0,
}  # of dtypes whose names do not end in their number of bits
# Opcodes of instructions that take no time.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
}
_FREE |= {
    "opt-barrier",
    "optimization-barrier",
    "iota",
    "add-dependency",
    "domain",
    "custom-call-done",
}
_CUBLAS, _TRITON = "__cublas$lt$matmul", "__gpu$xla.gpu.triton"  # targets of custom calls
# Matrix products of the size of all pairs of queries and keys: of the forward pass, and, with the recomputation of the
# attention weights, of the backward pass, which Pallas divides between two kernels.
_KERNEL_PRODUCTS = {
    "attention_forward": 2,
    "attention_backward_keys": 4,
    "attention_backward_queries": 3,
    "__cudnn$fmhaScaleBiasSoftmax": 2,
    "__cudnn$fmhaScaleBiasSoftmaxBackward": 5,
    "splash_mha_fwd": 2,
    "splash_mha_dkv": 4,
    "splash_mha_dq": 3,
}
_EMBEDDING_KERNEL = "embedding_gradient"
_EMBEDDING_ROWS = 64  # of the embedding, by which the kernel multiplies each gradient


class Array(NamedTuple):
    """The type of an array in the text."""

    dtype: str
    shape: tuple[int, ...]
    is_in_memory: bool
    """Whether it is in the device's main memory, rather than in memory on the chip."""

    @property
    def bytes(self) -> int:
        """Size, without padding."""
        if (bits := _ITEM_BITS.get(self.dtype)) is None:
            digits = re.search(r"\d+", self.dtype)
            bits = int(digits[0]) if digits else 0
        return math.prod(self.shape) * bits // 8

    @property
    def memory_bytes(self) -> int:
        """Size if the array is in main memory, else 0."""
        return self.bytes if self.is_in_memory else 0


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of a computation."""

    name: str
    opcode: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    """Names of instructions of the same computation; for a parameter, its number; for a constant, its value."""
    attributes: str
    is_root: bool

    def called(self, *keys: str) -> list[str]:
        """Returns the names of the computations that attributes such as "calls" or "body" name."""
        return re.findall(rf"\b(?:{'|'.join(keys)})=%?([\w.-]+)", self.attributes)

    @property
    def op_name(self) -> str:
        """The operation of the traced program from which the instruction comes, or ""."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""

    @property
    def custom_call_target(self) -> str:
        """The function that a custom call calls, or ""."""
        match = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return match[1] if match else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions in the order of their execution."""

    instructions: dict[str, Instruction]

    def operand_arrays(self, instruction: Instruction) -> list[Array]:
        """Returns the types of the operands; tuples are flattened."""
        named = (
            self.instructions[name] for name in instruction.operands if name in self.instructions
        )
        return [array for operand in named for array in operand.results]

    @property
    def root(self) -> Instruction:
        """The instruction whose value the computation returns."""
        return next(i for i in self.instructions.values() if i.is_root)


@dataclasses.dataclass(frozen=True)
class Program:
    """All computations of a program."""

    computations: dict[str, Computation]
    entry: str


class Collective(NamedTuple):
    """A collective operation of a program."""

    kind: str
    """One of `COLLECTIVES`."""
    bytes: int
    """Bytes of the whole arrays; see the module docstring."""
    groups: str
    """The groups of devices that communicate, as the text writes them."""
    loops: int
    """Number of loops that contain it."""
    executions: float
    overlapped_seconds: float
    """Time that other instructions take between its start and its end; 0 if it is not asynchronous."""


@dataclasses.dataclass
class Cost:
    """What one execution of a program costs on one device."""

    flops: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    """Lower bound of the time, without collectives."""
    compute_seconds: float = 0.0
    """Time of the FLOPs alone."""
    memory_seconds: float = 0.0
    """Time of the bytes alone."""
    collectives: list[Collective] = dataclasses.field(default_factory=list)


class Rates(NamedTuple):
    """Peak rates of a device."""

    flops_per_second: float
    bytes_per_second: float


def parse(text: str) -> Program:
    """Returns the computations of a program, from ``compiled.as_text()``."""
    computations: dict[str, Computation] = {}
    entry, instructions = "", {}
    for line in text.splitlines():
        if opened := re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{$", line):
            instructions = {}
            computations[opened[2]] = Computation(instructions)
            entry = opened[2] if opened[1] else entry
        elif stated := re.match(r"\s+(ROOT )?%?([\w.-]+) = (.*)$", line):
            instructions[stated[2]] = _instruction(stated[2], stated[3], bool(stated[1]))
    if not entry:
        raise ValueError("the text has no ENTRY computation")
    return Program(computations, entry)


def count(
    program: Program,
    micro_batches: float,
    rates: Rates,
    attention_share: float,
) -> Cost:
    """Returns what one execution costs.

    Args:
      program: result of `parse`.
      micro_batches: iterations of loops whose number of iterations the text does not state: in a training step, this
        is the loop over micro-batches.
      rates: peak rates of the device.
      attention_share: the share of all pairs of queries and keys that the attention kernel computes.
    """
    cost = Cost()
    _Counter(program, micro_batches, rates, attention_share).add(program.entry, cost, 1.0, 0)
    return cost


def collectives(text: str) -> list[Collective]:
    """Returns the collectives of a program, with one execution of each loop of unknown length."""
    return count(parse(text), 1.0, Rates(1.0, 1.0), 1.0).collectives


@dataclasses.dataclass(frozen=True)
class _Counter:
    program: Program
    micro_batches: float
    rates: Rates
    attention_share: float

    def add(self, name: str, cost: Cost, executions: float, loops: int) -> float:
        """Adds a computation to the cost, and returns the seconds of one execution."""
        computation = self.program.computations[name]
        seconds, asynchronous_bytes, synchronous_bytes = 0.0, 0.0, 0.0
        started: dict[
            str, tuple[float, int]
        ] = {}  # by asynchronous collective: time and index in cost.collectives
        for instruction in computation.instructions.values():
            if instruction.opcode in _FREE:
                continue
            if instruction.opcode == "while":
                trips = _trip_count(instruction, self.program) or self.micro_batches
                (body,) = instruction.called("body")
                seconds += trips * self.add(body, cost, executions * trips, loops + 1)
                continue
            if instruction.opcode in ("call", "conditional"):
                keys = ("to_apply", "true_computation", "false_computation", "calls")
                branches = instruction.called(*keys) + _branches(instruction)
                for branch in branches:  # of a conditional, all
                    seconds += self.add(branch, cost, executions, loops)
                continue
            if collective := self._collective(instruction, computation):
                kind, num_bytes, groups = collective
                if instruction.opcode.endswith("-start"):
                    started[instruction.name] = seconds, len(cost.collectives)
                cost.collectives.append(
                    Collective(kind, num_bytes, groups, loops, executions, overlapped_seconds=0.0)
                )
                continue
            if instruction.opcode.endswith("-done"):
                if instruction.operands[0] in started:
                    start, index = started[instruction.operands[0]]
                    cost.collectives[index] = cost.collectives[index]._replace(
                        overlapped_seconds=seconds - start
                    )
                continue
            flops, num_bytes = (
                self._flops(instruction, computation),
                self._bytes(instruction, computation),
            )
            cost.flops += executions * flops
            cost.bytes += executions * num_bytes
            compute_seconds = flops / self.rates.flops_per_second
            memory_seconds = num_bytes / self.rates.bytes_per_second
            cost.compute_seconds += executions * compute_seconds
            cost.memory_seconds += executions * memory_seconds
            if instruction.opcode.endswith("-start"):
                asynchronous_bytes += num_bytes
            else:
                seconds += max(compute_seconds, memory_seconds)
                synchronous_bytes += num_bytes
        all_bytes = synchronous_bytes + asynchronous_bytes
        seconds = max(seconds, all_bytes / self.rates.bytes_per_second)
        if name == self.program.entry:
            cost.seconds = seconds
        return seconds

    def _collective(
        self, instruction: Instruction, computation: Computation
    ) -> tuple[str, int, str] | None:
        """Returns kind, bytes and device groups, if the instruction is a collective."""
        kind = instruction.opcode.removesuffix("-start")
        is_scattered = False
        if kind in ("fusion", "async"):
            for name in instruction.called("calls"):
                inner = self.program.computations[name]
                for candidate in inner.instructions.values():
                    if collective := self._collective(candidate, inner):
                        kind, num_bytes, groups = collective
                        is_scattered = kind == "all-reduce" and any(
                            i.opcode in ("dynamic-slice", "slice")
                            for i in inner.instructions.values()
                        )
                        return ("reduce-scatter" if is_scattered else kind), num_bytes, groups
            return None
        if kind not in COLLECTIVES:
            return None
        operands = sum(array.bytes for array in computation.operand_arrays(instruction))
        results = sum(array.bytes for array in instruction.results)
        # The result of an asynchronous start holds the operands, too.
        results -= operands if instruction.opcode == "all-gather-start" else 0
        groups = re.search(
            r"replica_groups=(\{\{.*?\}\}|\{\}|\S+?)(?:,|$| \{)", instruction.attributes
        )
        return kind, results if kind == "all-gather" else operands, groups[1] if groups else ""

    def _flops(self, instruction: Instruction, computation: Computation) -> float:
        """Returns the FLOPs of the matrix products and attention kernels of an instruction."""
        if instruction.opcode == "dot":
            return _dot_flops(instruction, computation)
        if instruction.opcode == "convolution":
            return _convolution_flops(instruction, computation)
        if instruction.opcode == "custom-call":
            return self._kernel_flops(instruction, computation)
        if instruction.opcode in ("fusion", "async-start"):
            inner = (self.program.computations[name] for name in instruction.called("calls"))
            return sum(self._flops(i, c) for c in inner for i in c.instructions.values())
        return 0.0

    def _kernel_flops(self, instruction: Instruction, computation: Computation) -> float:
        target = instruction.custom_call_target
        if target == _CUBLAS:
            return _cublas_flops(instruction, computation)
        # The name of a Pallas kernel is a part of the operation's on GPUs, and of the instruction's on TPUs.
        words = f"{target} {instruction.op_name if target == _TRITON else instruction.name}"
        if re.search(rf"\b{_EMBEDDING_KERNEL}\b", words):
            gradient = next(a for a in computation.operand_arrays(instruction) if "f" in a.dtype)
            return 2.0 * math.prod(gradient.shape) * _EMBEDDING_ROWS
        products = [
            n
            for name, n in _KERNEL_PRODUCTS.items()
            if re.search(rf"{re.escape(name)}\b|{re.escape(name)}_", words)
        ]
        if not products:
            return 0.0
        # The first floating-point operand is the queries: RxLxHxK (GPUs), RxHxLxK or HxLxK (TPUs), where L > H.
        arrays = computation.operand_arrays(instruction)
        query = next(a for a in arrays if len(a.shape) >= 3 and "f" in a.dtype)
        length = max(query.shape[-3:-1])
        return 2.0 * products[-1] * math.prod(query.shape) * length * self.attention_share

    def _bytes(self, instruction: Instruction, computation: Computation) -> float:
        """Returns the bytes that an instruction reads from and writes to main memory."""
        operands = [
            computation.instructions[name]
            for name in instruction.operands
            if name in computation.instructions
        ]
        results = instruction.results
        if instruction.custom_call_target == _CUBLAS:
            # The last result of several is the workspace.
            results = results[:-1] if len(results) > 1 else results
        written = sum(array.memory_bytes for array in results)
        if instruction.opcode in ("copy-start", "slice-start", "dynamic-slice-start"):
            # The result holds source and target; a slice reads as many bytes as it writes.
            target = instruction.results[0 if instruction.opcode == "copy-start" else -1]
            source = instruction.results[1] if len(instruction.results) > 1 else target
            return target.memory_bytes + (target.bytes if source.is_in_memory else 0)
        if instruction.opcode in ("fusion", "async-start"):
            (name,) = instruction.called("calls")[:1]
            return _fusion_bytes(self.program.computations[name], operands, instruction)
        if instruction.opcode in ("dynamic-slice", "slice", "gather"):
            result = instruction.results[0]
            is_read = bool(operands) and operands[0].results[0].is_in_memory
            return written + (result.bytes if is_read else 0)
        if instruction.opcode in ("dynamic-update-slice", "scatter"):
            update = operands[1 if instruction.opcode == "dynamic-update-slice" else 2].results[0]
            return 2 * update.bytes if instruction.results[0].is_in_memory else update.memory_bytes
        return written + sum(a.memory_bytes for operand in operands for a in operand.results)


def _fusion_bytes(fused: Computation, operands: list[Instruction], fusion: Instruction) -> float:
    """Returns the bytes that a fusion reads and writes; of arrays that it only slices, the slices are counted."""
    users: dict[str, list[Instruction]] = {}
    for instruction in fused.instructions.values():
        for name in instruction.operands:
            users.setdefault(name, []).append(instruction)
    total = 0.0
    ordered = [i for i in fused.instructions.values() if i.opcode == "parameter"]
    ordered.sort(key=lambda i: int(i.operands[0]))
    for parameter, operand in zip(ordered, operands, strict=False):
        array = operand.results[0]
        if not array.is_in_memory:
            continue
        total += min(_bytes_read(parameter, users), array.bytes)
    roots = [fused.root]
    if fused.root.opcode == "tuple":
        roots = [fused.instructions[name] for name in fused.root.operands]
    for root, result in zip(roots, fusion.results, strict=False):
        if not result.is_in_memory:
            continue
        while (
            root.opcode in ("bitcast", "copy", "convert") and root.operands[0] in fused.instructions
        ):
            if fused.instructions[root.operands[0]].opcode != "dynamic-update-slice":
                break
            root = fused.instructions[root.operands[0]]
        if root.opcode == "dynamic-update-slice":  # in place
            total += fused.instructions[root.operands[1]].results[0].bytes
        else:
            total += result.bytes
    return total


def _bytes_read(value: Instruction, users: dict[str, list[Instruction]]) -> float:
    """Returns the bytes of a value that the instructions that use it read; if they slice it, those of the slices."""
    total = 0.0
    for user in users.get(value.name, []):
        if user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] == value.name:
            total += user.results[0].bytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == value.name:
            continue  # in place
        elif user.opcode in ("bitcast", "reshape"):
            total += _bytes_read(user, users)
        else:
            return float(value.results[0].bytes)
    return total


def _dot_flops(instruction: Instruction, computation: Computation) -> float:
    left = computation.instructions[instruction.operands[0]].results[0]
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
    axes = [int(axis) for axis in contracted[1].split(",")] if contracted and contracted[1] else []
    return 2.0 * math.prod(instruction.results[0].shape) * math.prod(left.shape[a] for a in axes)


def _cublas_flops(instruction: Instruction, computation: Computation) -> float:
    """Returns the FLOPs of a matrix product of cuBLAS, whose first two operands are the matrices."""
    left, right = (computation.instructions[name].results[0] for name in instruction.operands[:2])

    def axes(name: str) -> set[int]:
        stated = re.search(rf'"{name}":\[([^\]]*)\]', instruction.attributes)
        return {int(axis) for axis in re.findall(r"\d+", stated[1])} if stated else set()

    shared = axes("rhs_contracting_dimensions") | axes("rhs_batch_dimensions")
    columns = (size for axis, size in enumerate(right.shape) if axis not in shared)
    return 2.0 * math.prod(left.shape) * math.prod(columns)


def _convolution_flops(instruction: Instruction, computation: Computation) -> float:
    """Returns the FLOPs of a convolution; on TPUs, matrix products are convolutions, some of whose axes are spatial."""
    left, kernel = (computation.instructions[name].results[0] for name in instruction.operands[:2])
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if labels is None:
        raise ValueError(f"{instruction.name}: a convolution without dim_labels")
    left_axes, kernel_axes, result_axes = labels.groups()
    positions = 1
    for axis in sorted(set(left_axes) - {"b", "f"}, key=int):
        positions *= _valid_positions(
            left.shape[left_axes.index(axis)],
            instruction.results[0].shape[result_axes.index(axis)],
            _window(instruction.attributes, int(axis)),
        )
    groups = re.search(r"batch_group_count=(\d+)", instruction.attributes)
    batch = left.shape[left_axes.index("b")] // (int(groups[1]) if groups else 1)
    # The input features of the kernel are those of one group.
    features = kernel.shape[kernel_axes.index("i")] * kernel.shape[kernel_axes.index("o")]
    return 2.0 * batch * features * positions


def _window(attributes: str, axis: int) -> dict[str, tuple[int, ...]]:
    """Returns size, stride, pad, lhs_dilate and rhs_dilate of one spatial axis."""
    text = re.search(r"window=\{([^}]*)\}", attributes)
    fields = dict(field.split("=") for field in text[1].split()) if text else {}
    window = {"size": (1,), "stride": (1,), "pad": (0, 0), "lhs_dilate": (1,), "rhs_dilate": (1,)}
    for key in window.keys() & fields.keys():
        window[key] = tuple(int(number) for number in fields[key].split("x")[axis].split("_"))
    return window


def _valid_positions(size: int, result_size: int, window: dict[str, tuple[int, ...]]) -> int:
    """Returns how many pairs of a result and a kernel position read an input rather than padding."""
    (length,), (stride,), (low, _) = window["size"], window["stride"], window["pad"]
    (left_dilate,), (kernel_dilate,) = window["lhs_dilate"], window["rhs_dilate"]
    total = 0
    for k in range(length):
        for position in range(result_size):
            index = position * stride + k * kernel_dilate - low
            total += 0 <= index <= (size - 1) * left_dilate and index % left_dilate == 0
    return total


def _trip_count(loop: Instruction, program: Program) -> float | None:
    """Returns the number of iterations, or None if it is not constant.

    The text for TPUs does not state it, but the condition compares it with a counter, which `jax.lax.scan` starts at 0.
    """
    if stated := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
        return float(stated[1])
    (condition,) = loop.called("condition")
    computation = program.computations[condition]
    limits = [
        computation.instructions[name].operands[0]
        for name in computation.root.operands
        if computation.instructions[name].opcode == "constant"
    ]
    is_counter = (
        computation.root.opcode == "compare" and "direction=LT" in computation.root.attributes
    )
    return float(limits[0]) if is_counter and limits else None


def _branches(instruction: Instruction) -> list[str]:
    stated = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
    return re.findall(r"%([\w.-]+)", stated[1]) if stated else []


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    """Returns an instruction from what follows "=": the types of its results, its opcode, operands and attributes."""
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    results = tuple(_arrays(text[:end]))
    rest = text[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    inside = rest[opening + 1 : closing]
    opcode = rest[:opening]
    operands = (
        (inside,)
        if opcode in ("parameter", "constant")
        else tuple(re.findall(r"%([\w.-]+)", inside))
    )
    return Instruction(name, opcode, results, operands, rest[closing + 1 :], is_root)


def _arrays(text: str) -> Iterator[Array]:
    for dtype, shape, layout in re.findall(r"\b([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?", text):
        sizes = tuple(int(size.removeprefix("<=")) for size in shape.split(",") if size)
        space = re.search(r"S\((\d+)\)", layout)
        yield Array(dtype, sizes, space is None or space[1] == "0")


def _closing(text: str, opening: int) -> int:
    """Returns the position of the parenthesis that closes the one at a position."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, opening):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise ValueError(f"no closing parenthesis: {text[:80]}")
