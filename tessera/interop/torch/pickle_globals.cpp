// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/torch/pickle_globals.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace tessera::interop {
namespace {

// Functions that tensor files call. None of them is executed; each only determines the meaning of
// its arguments.
constexpr std::array<std::string_view, 9> kFunctions = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._tensor._rebuild_from_type_v2",
    "torch.Size",
    "torch.device"};
constexpr std::array<std::string_view, 2> kTensorClasses = {"torch.Tensor",
                                                            "torch.nn.parameter.Parameter"};
constexpr std::array<std::string_view, 10> kStorages = {"torch.DoubleStorage",
                                                        "torch.FloatStorage",
                                                        "torch.HalfStorage",
                                                        "torch.BFloat16Storage",
                                                        "torch.LongStorage",
                                                        "torch.IntStorage",
                                                        "torch.ShortStorage",
                                                        "torch.CharStorage",
                                                        "torch.ByteStorage",
                                                        "torch.BoolStorage"};
constexpr std::array<std::string_view, 10> kDtypes = {"torch.float64",
                                                      "torch.float32",
                                                      "torch.float16",
                                                      "torch.bfloat16",
                                                      "torch.int64",
                                                      "torch.int32",
                                                      "torch.int16",
                                                      "torch.int8",
                                                      "torch.uint8",
                                                      "torch.bool"};

// Modules whose objects occur next to tensors and are described, and the names of others.
constexpr std::array<std::string_view, 9> kModules = {"deepspeed.",
                                                      "megatron.",
                                                      "transformers.",
                                                      "numpy.",
                                                      "accelerate.",
                                                      "bmtrain.",
                                                      "model_center.",
                                                      "colossalai.",
                                                      "datetime."};
constexpr std::array<std::string_view, 41> kClasses = {"argparse.Namespace",
                                                       "_io.BytesIO",
                                                       "signal.Signals",
                                                       "fp16.loss_scaler.LossScaler",
                                                       "fp16.loss_scaler.DynamicLossScaler",
                                                       "_codecs.encode",
                                                       "collections.defaultdict",
                                                       "collections.deque",
                                                       "pathlib.PosixPath",
                                                       "pathlib.PurePosixPath",
                                                       "types.SimpleNamespace",
                                                       "builtins.set",
                                                       "builtins.frozenset",
                                                       "builtins.slice",
                                                       "builtins.complex",
                                                       "builtins.bytearray",
                                                       "builtins.range",
                                                       "__builtin__.range",
                                                       "__builtin__.xrange",
                                                       "__builtin__.frozenset",
                                                       "__builtin__.complex",
                                                       "torch.serialization._get_layout",
                                                       "torch.storage._load_from_bytes",
                                                       "__builtin__.set",
                                                       "__builtin__.slice",
                                                       "copyreg._reconstructor",
                                                       "collections.Counter",
                                                       "builtins.list",
                                                       "builtins.dict",
                                                       "builtins.tuple",
                                                       "builtins.int",
                                                       "builtins.float",
                                                       "builtins.str",
                                                       "builtins.bool",
                                                       "__builtin__.list",
                                                       "__builtin__.dict",
                                                       "__builtin__.tuple",
                                                       "__builtin__.int",
                                                       "__builtin__.float",
                                                       "__builtin__.str",
                                                       "__builtin__.bool"};

template <std::size_t N>
bool has(const std::array<std::string_view, N>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// True for classes and types of torch; its functions are either known tensor constructors, which
/// are read or refused, or not needed.
bool is_torch_class(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  if (name.starts_with("torch._utils.") || name.starts_with("torch._tensor.")) return false;
  return !last.empty() && (std::isupper(static_cast<unsigned char>(last.front())) != 0 ||
                           (last.find('_') != 0 && last.find_first_of("0123456789") != last.npos));
}

}  // namespace

bool is_function(std::string_view name) {
  return has(kFunctions, name);
}

bool is_element_type(std::string_view name) {
  return has(kStorages, name) || has(kDtypes, name);
}

bool is_tensor_class(std::string_view name) {
  return has(kTensorClasses, name);
}

bool is_described(std::string_view name) {
  if (is_function(name) || is_element_type(name) || is_tensor_class(name)) return false;
  if (has(kClasses, name)) return true;
  if (name.starts_with("torch.")) return is_torch_class(name);
  return std::any_of(
      kModules.begin(), kModules.end(), [&](auto module) { return name.starts_with(module); });
}

const char* tensor_kind(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, const char*>, 6> kKinds = {
      {{"torch._utils._rebuild_qtensor", "a quantized tensor"},
       {"torch._utils._rebuild_sparse_tensor", "a sparse tensor"},
       {"torch._utils._rebuild_sparse_csr_tensor", "a sparse tensor"},
       {"torch._utils._rebuild_nested_tensor", "a nested tensor"},
       {"torch._utils._rebuild_meta_tensor_no_storage", "a tensor without elements"},
       {"torch._utils._rebuild_wrapper_subclass", "a tensor of a class of its own"}}};
  for (const auto& [function, kind] : kKinds) {
    if (name == function) return kind;
  }
  return nullptr;
}

}  // namespace tessera::interop
