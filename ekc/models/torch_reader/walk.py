"""Walks over a program of torch.export and makes the graph: one reader for each operator."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ekc.errors import InvalidInput
from ekc.models.graph import ReadArguments, describe_internal_error
from ekc.models.node_writer import NotExpressible
from ekc.models.torch_reader import contractions, elementwise, program, reductions, shapes, torch
from ekc.models.torch_reader.reading import (
    Handler,
    OperatorCall,
    Reading,
    ValueName,
    store_dtype,
)
from ekc.models.torch_reader.shapes import VIEWS

HANDLERS: Mapping[str, Handler] = {
    **contractions.HANDLERS,
    **elementwise.HANDLERS,
    **reductions.HANDLERS,
    **shapes.HANDLERS,
}
MEMORY_ARGUMENTS = frozenset(
    ("memory_format", "layout", "device", "pin_memory", "non_blocking", "copy", "implicit")
)
"""Arguments of many operators that say where elements are stored, and change none."""
KEPT_WHOLE: Mapping[str, str] = {
    **dict.fromkeys(
        ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        "interpolation between elements: no kind of node",
    ),
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), "samples at places from data"),
    **dict.fromkeys(
        ("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"),
        "padding by elements: ekc pads with a number",
    ),
    **dict.fromkeys(
        ("cumsum", "cumprod", "cummax", "logcumsumexp"),
        "a running sum, product or maximum: no kind of node",
    ),
}
"""Operators that decompose into many gathers or into more work: listed as one, with the reason."""
IGNORED: Mapping[Handler, tuple[str, ...]] = {
    # The shape and the type of the result say the same.
    shapes.read_reshape: ("size", "shape", "sizes", "dim", "start_dim", "end_dim", "other"),
    shapes.read_expand: ("size", "other"),
    shapes.read_split: ("split_size", "split_sizes", "chunks"),
    shapes.read_nearest: ("output_size",),
    shapes.read_copy: ("self",),
    elementwise.read_fill: ("self", "size", "dtype"),
    elementwise.read_cast: ("dtype", "other"),
    reductions.read_reduction: ("dtype",),
    reductions.read_softmax: ("dtype", "half_to_float"),
    reductions.read_pool: ("ceil_mode",),
    reductions.read_adaptive_pool: ("output_size",),
    # They repeat the shape, matter in training alone (running statistics are refused where they are used), or
    # say which library PyTorch calls.
    reductions.read_group_norm: ("N", "C", "HxW", "cudnn_enabled", "running_mean", "running_var", "momentum"),
    elementwise.read_dropout: ("p",),
    reductions.read_batch_norm: ("momentum", "cudnn_enabled"),
    reductions.read_layer_norm: ("cudnn_enable",),
    shapes.read_embedding: ("padding_idx", "scale_grad_by_freq", "sparse"),
}
"""Reader of operators -> arguments that it need not read."""


class Walk:
    """One pass over a functional program."""

    def __init__(self, exported: Any, facts: Mapping[Any, Any], reading: Reading) -> None:
        self.exported = exported
        self.facts = facts
        self.reading = reading
        self.results: dict[Any, Any] = {}
        self.node_names = name_nodes(exported.graph_module.graph.nodes)
        specs = exported.graph_signature.input_specs
        self.tokens = {spec.arg.name for spec in specs if spec.kind.name == "TOKEN"}
        """Inputs that torch.export adds to keep the order of operators with side effects."""
        self.undecided: dict[Any, None] = {}
        """Operators without a reader, in order, which a decomposition may help."""

    def run(self) -> list[str]:
        """Read every node; returns the names of the outputs."""
        outputs: list[str] = []
        for node in self.exported.graph_module.graph.nodes:
            if node.op == "placeholder":
                self.read_placeholder(node)
            elif node.op == "get_attr":
                self.read_attribute(node)
            elif node.op == "call_function":
                self.results[node] = self.read_call(node)
            elif node.op == "output":
                kinds = [spec.kind.name for spec in self.exported.graph_signature.output_specs]
                found = zip(self.translate(node.args[0]), kinds, strict=True)
                outputs = [v for v, kind in found if isinstance(v, ValueName) and kind != "TOKEN"]
        return outputs

    def read_placeholder(self, node: Any) -> None:
        """A weight, buffer, constant or input."""
        value = self.facts[node]
        if node.name in self.tokens or not isinstance(value, torch.Tensor):
            self.results[node] = value
            return
        builder, signature = self.reading.builder, self.exported.graph_signature
        sources = signature.inputs_to_parameters | signature.inputs_to_buffers
        sources |= signature.inputs_to_lifted_tensor_constants
        source = sources.get(node.name)
        if value.dtype == torch.float64 and source not in signature.lifted_tensor_constants:
            self.reading.has_float64 = True
            if self.reading.dtype is None:
                raise InvalidInput(
                    f"{source or node.name}: tensors of type float64 are not supported; give dtype='float32'"
                    " (--dtype float32)"
                )
        if source is None:
            dtype = self.reading.find_dtype(node.name, value)
            self.results[node] = ValueName(builder.add_value(node.name, value.shape, dtype))
            builder.inputs.append(node.name)
            return
        stored = self.exported.state_dict.get(source, self.exported.constants.get(source))
        self.results[node] = self.add_tensor(source, stored if stored is not None else value)

    def read_attribute(self, node: Any) -> None:
        """A tensor or a graph of its own that the program holds."""
        found = self.exported.graph_module
        for part in node.target.split("."):
            found = getattr(found, part)
        tensor = isinstance(found, torch.Tensor)
        self.results[node] = self.add_tensor(node.target, found) if tensor else found

    def add_tensor(self, name: str, tensor: Any) -> ValueName:
        """A constant; its elements are taken at the end, if it is used."""
        builder = self.reading.builder
        while name in builder.values:
            name += "'"
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not plain:
            tensor = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")
        dtype = store_dtype(self.reading, name, tensor)
        builder.add_value(name, tensor.shape, dtype, is_constant=True)
        self.reading.tensors[name] = tensor.detach()
        return ValueName(name)

    def translate(self, argument: Any) -> Any:
        """An argument with names of values in place of tensors."""
        if isinstance(argument, torch.fx.Node):
            return self.results[argument]
        if isinstance(argument, list | tuple):
            return type(argument)(self.translate(item) for item in argument)
        if isinstance(argument, dict):
            return {key: self.translate(item) for key, item in argument.items()}
        return argument

    def read_call(self, node: Any) -> Any:
        """One call: dropped, evaluated as a constant, read, or left opaque."""
        fact = self.facts[node]
        if node.target is operator.getitem:
            return self.results[node.args[0]][node.args[1]]
        if isinstance(fact, int | float | bool):
            return fact
        if isinstance(fact, torch.SymInt | torch.SymFloat | torch.SymBool) and node.users:
            raise InvalidInput(
                f"{self.node_names[node]} ({node.target}): a number that depends on data; keep it a tensor"
            )
        packet = packet_of(node.target)
        if fact is None and (packet.startswith("_assert") or "sym_constrain" in packet or not node.users):
            return None
        args, kwargs = self.translate(node.args), self.translate(node.kwargs)
        self.check_result(node, fact)
        known = self.evaluate(node, args, kwargs)
        if known is not None and packet not in shapes.KEEP_ELEMENTS:
            return self.add_known(node, known)
        made = self.complete(node, self.read_operator(node, args, kwargs))
        if known is not None and isinstance(made, ValueName):
            self.reading.tensors.setdefault(made, known)
        return made

    def check_result(self, node: Any, fact: Any) -> None:
        """Refuse results whose shape is not known before the model runs, and lists among results."""
        for part in fact if isinstance(fact, tuple | list) else [fact]:
            if isinstance(part, tuple | list):
                raise InvalidInput(
                    f"{self.node_names[node]} ({node.target}): a list of tensors among its results; ekc reads"
                    " operators whose results are tensors"
                )
            shape = getattr(part, "shape", ())
            if any(not isinstance(e, int) for e in shape):
                raise InvalidInput(
                    f"{self.node_names[node]} ({node.target}): its shape"
                    f" {tuple(map(str, shape))} depends on data; ekc reads models of fixed shapes"
                )

    def bind(self, node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Arguments by the names of the schema, defaults filled in; None for what has no schema."""
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return None
        bound = {}
        for i, argument in enumerate(schema.arguments):
            if i < len(args) and not argument.kwarg_only:
                bound[argument.name] = args[i]
            elif argument.name in kwargs:
                bound[argument.name] = kwargs[argument.name]
            else:
                bound[argument.name] = argument.default_value if argument.has_default_value() else None
        return bound

    def read_operator(self, node: Any, args: Any, kwargs: Any) -> Any:
        """Nodes of a kind, or an opaque one with the reason."""
        packet, fact = packet_of(node.target), self.facts[node]
        bound = self.bind(node, args, kwargs)
        handler = HANDLERS.get(packet) if str(node.target).startswith(("aten.", "prims.ne.")) else None
        if bound is None or handler is None:
            self.undecided[node.target] = None
            return self.add_opaque(node, explain(node.target))
        arguments = ReadArguments(bound)
        arguments.drop(
            *MEMORY_ARGUMENTS, *IGNORED.get(handler, ()), *list_defaults(node.target._schema, bound)
        )
        call = OperatorCall(
            self.reading,
            str(node.target),
            packet,
            self.node_names[node],
            node.name,
            arguments,
            fact,
            {self.results[n]: self.facts[n].dtype for n in node.all_input_nodes if is_tensor(self.facts[n])},
        )
        before = len(self.reading.builder.nodes)
        try:
            made = handler(call)
            reason = arguments.describe_unread("argument")
        except NotExpressible as problem:
            reason = str(problem)
        except InvalidInput:
            raise
        except Exception as problem:
            reason = describe_internal_error(problem)
        if reason is None:
            return made
        self.forget(before)
        return self.add_opaque(node, reason)

    def forget(self, count: int) -> None:
        """Take back the nodes after the first `count`."""
        builder = self.reading.builder
        for made in builder.nodes[count:]:
            del builder.values[made.output], self.reading.producers[made.output]
        del builder.nodes[count:]

    def complete(self, node: Any, made: Any) -> Any:
        """The results of a node, with an opaque node for each that is used and that no node computes."""
        if not isinstance(self.facts[node], tuple | list):
            return made
        made = made if isinstance(made, tuple) else (made,)
        used, count = self.list_used_results(node), len(self.facts[node])
        return tuple(
            self.add_opaque_result(node, i, f"result {i + 1} of {count}: no kind of node")
            if value is None and i in used
            else value
            for i, value in enumerate((*made, *[None] * (count - len(made))))
        )

    def list_used_results(self, node: Any) -> set[int]:
        """The results that something reads, of a node with several, by their places."""
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        return {i for i, part in enumerate(self.facts[node]) if i in used and is_tensor(part)}

    def add_opaque(self, node: Any, reason: str) -> Any:
        """An opaque node for each result that is used."""
        if is_tensor(self.facts[node]):
            return self.add_opaque_result(node, None, reason)
        used = self.list_used_results(node) if self.facts[node] else set()
        return tuple(
            self.add_opaque_result(node, i, reason) if i in used else None
            for i in range(len(self.facts[node] or ()))
        )

    def add_opaque_result(self, node: Any, index: int | None, reason: str) -> ValueName:
        """An opaque node for a result, by its place among several."""
        args, kwargs = self.translate(node.args), self.translate(node.kwargs)
        fact, builder = self.facts[node], self.reading.builder
        part = fact if index is None else fact[index]
        output = node.name if index is None else f"{node.name}.{index}"
        while output in builder.values:
            output += "'"
        builder.add_value(output, part.shape, self.reading.find_dtype(self.node_names[node], part))
        builder.add_node(
            "opaque",
            self.node_names[node],
            list(dict.fromkeys(list_values((args, kwargs)))),
            output,
            target=str(node.target),
            reason=reason,
            call=(node.target, args, kwargs),
            index=index,
        )
        return ValueName(output)

    def evaluate(self, node: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator of constants only, or None."""
        tensors = self.reading.tensors
        tags = getattr(node.target, "tags", ())
        names = list_values((args, kwargs))
        if not all(name in tensors for name in names) or getattr(node.target, "_schema", None) is None:
            return None
        if torch.Tag.nondeterministic_seeded in tags or "empty" in packet_of(node.target):
            return None
        writes = node.target._schema.is_mutable
        device = "meta" if any(tensors[name].is_meta for name in names) else "cpu"

        def fetch(item: Any) -> Any:
            if isinstance(item, ValueName):
                return tensors[item].to(device, copy=writes)
            if isinstance(item, list | tuple):
                return type(item)(fetch(part) for part in item)
            return torch.device(device) if isinstance(item, torch.device) else item

        try:
            with program.quiet():
                return node.target(*fetch(args), **{key: fetch(item) for key, item in kwargs.items()})
        except (RuntimeError, NotImplementedError):
            return None

    def add_known(self, node: Any, known: Any) -> Any:
        """Constants with the result of `evaluate`."""
        if is_tensor(known):
            return self.add_tensor(node.name, known)
        if isinstance(known, list | tuple):
            return tuple(
                self.add_tensor(f"{node.name}.{i}", part) if is_tensor(part) else None
                for i, part in enumerate(known)
            )
        return known


def list_defaults(schema: Any, bound: Mapping[str, Any]) -> list[str]:
    """The arguments that equal the schema's defaults."""
    return [
        a.name for a in schema.arguments if a.has_default_value() and is_equal(bound[a.name], a.default_value)
    ]


def is_equal(value: Any, default: Any) -> bool:
    """Whether an argument is the schema's default; a list of one number is that number."""
    pair = [list(x) if isinstance(x, list | tuple) else [x] for x in (value, default)]
    return pair[0] == pair[1]


def is_tensor(value: Any) -> bool:
    """Whether a value is one tensor."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


def list_values(argument: Any) -> list[ValueName]:
    """Every name of a value in arguments."""
    if isinstance(argument, ValueName):
        return [argument]
    if isinstance(argument, Mapping):
        return [name for item in argument.values() for name in list_values(item)]
    if isinstance(argument, list | tuple):
        return [name for item in argument for name in list_values(item)]
    return []


def explain(target: Any) -> str:
    """Why there is no reader for an operator."""
    library = getattr(target, "namespace", "")
    if library == "higher_order" or type(target).__name__ == "HigherOrderOperator":
        return "control flow: ekc reads straight-line programs"
    if library == "quantized_decomposed":
        return "quantisation: no kind of node"
    if library not in ("aten", "prims"):
        return f"operator of the library {library or target}"
    return KEPT_WHOLE.get(packet_of(target), "no kind of node")


def packet_of(target: Any) -> str:
    """Name of an operator without library and overload, and without the `_` of one that writes: `conv2d`."""
    name = str(getattr(getattr(target, "overloadpacket", target), "__name__", target))
    return name if name.endswith("__") else name.removesuffix("_")


def name_nodes(nodes: Any) -> dict[Any, str]:
    """Node -> path of its module, with the operator behind it where the module has several."""
    paths: dict[Any, tuple[str, str]] = {}
    for node in nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = str(stack[-1][0]) if stack else ""
        path = path.split("@")[0].removeprefix("L['self']").strip(".")
        paths[node] = (path, packet_of(node.target).strip("_"))
    counts = Counter(path for node, (path, packet) in paths.items() if packet_of(node.target) not in VIEWS)
    seen: Counter[str] = Counter()
    names = {}
    for node, (path, packet) in paths.items():
        alone = counts[path] == 1 and packet_of(node.target) not in VIEWS
        same = path.rpartition(".")[2] == packet
        name = path if path and (alone or same) else f"{path}.{packet}".strip(".")
        seen[name] += 1
        names[node] = name if seen[name] == 1 else f"{name}_{seen[name] - 1}"
    return names
