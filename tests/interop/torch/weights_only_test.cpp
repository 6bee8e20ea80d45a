// SPDX-License-Identifier: Apache-2.0
// torch.load(weights_only=True) accepts the torch files that tessera writes, judged by its own
// rules: the opcodes, the globals, and the arguments that these may have. Source: torch 2.11,
// torch/_weights_only_unpickler.py, Unpickler._load() and _get_allowed_globals();
// torch/_tensor_classes and torch._storage_classes for the types.
#include <array>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "interop/support.h"
#include "interop/torch/torch_bytes.h"
#include <gtest/gtest.h>

#include "tessera/interop/export.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/foreign_write.h"
#include "tessera/interop/torch/value.h"
#include "tessera/interop/torch/zip.h"

namespace tessera::interop::test {
namespace {

const std::set<std::string>& allowed_functions() {
  static const std::set<std::string> all = {"collections.OrderedDict",
                                            "collections.Counter",
                                            "torch.nn.parameter.Parameter",
                                            "torch.serialization._get_layout",
                                            "torch.Size",
                                            "torch.Tensor",
                                            "torch.device",
                                            "_codecs.encode",
                                            "builtins.bytearray",
                                            "builtins.set",
                                            "builtins.complex",
                                            "torch._utils._rebuild_parameter",
                                            "torch._utils._rebuild_parameter_with_state",
                                            "torch._utils._rebuild_qtensor",
                                            "torch._utils._rebuild_tensor",
                                            "torch._utils._rebuild_tensor_v2",
                                            "torch._utils._rebuild_tensor_v3",
                                            "torch._utils._rebuild_sparse_tensor",
                                            "torch._tensor._rebuild_from_type_v2"};
  return all;
}
const std::set<std::string>& allowed_storages() {
  static const std::set<std::string> all = {"torch.storage.UntypedStorage",
                                            "torch.storage.TypedStorage",
                                            "torch.DoubleStorage",
                                            "torch.FloatStorage",
                                            "torch.LongStorage",
                                            "torch.IntStorage",
                                            "torch.ShortStorage",
                                            "torch.CharStorage",
                                            "torch.ByteStorage",
                                            "torch.HalfStorage",
                                            "torch.BoolStorage",
                                            "torch.BFloat16Storage",
                                            "torch.ComplexDoubleStorage",
                                            "torch.ComplexFloatStorage"};
  return all;
}

struct Value {
  enum class Kind { None, Number, Text, Tuple, List, Dict, Global, Storage, Tensor, Size };
  Kind kind = Kind::None;
  std::string word;  // for strings and globals
  std::vector<Value> items;
};
using Kind = Value::Kind;

/// Walks a pickle as the restricted unpickler does; throws where it would reject it. All globals
/// are added to `globals`.
class Restricted {
 public:
  Restricted(std::string_view pickle, std::set<std::string>& globals)
      : left_(pickle), globals_(globals) {}

  Value load() {
    if (take(2) != "\x80\x02") throw std::runtime_error("is not of protocol 2");
    for (;;) {
      const char op = take(1)[0];
      if (op == '.') break;
      step(op);
    }
    if (!left_.empty() || !marks_.empty() || stack_.size() != 1)
      throw std::runtime_error("leaves something behind");
    return stack_.back();
  }

 private:
  void step(char op) {
    switch (op) {
      case 'c':
        return global();
      case 'R':
        return reduce();
      case 'Q':
        return persistent();
      case '(':
        return marks_.push_back(stack_.size());
      case 't':
        return push({Kind::Tuple, "", pop_mark()});
      case ')':
        return push({Kind::Tuple, "", {}});
      case ']':
        return push({Kind::List, "", {}});
      case '}':
        return push({Kind::Dict, "", {}});
      case 'e':
        return extend(Kind::List, "APPENDS");
      case 'u':
        return extend(Kind::Dict, "SETITEMS");
      case 'N':
        return push({Kind::None, "", {}});
      case '\x88':
      case '\x89':
        return push({Kind::Number, "", {}});
      case 'J':
        return number(4);
      case 'K':
        return number(1);
      case 'M':
        return number(2);
      case 'G':
        return number(8);
      case '\x8a':
        return number(static_cast<unsigned char>(take(1)[0]));
      case 'X': {
        std::uint32_t size = 0;
        std::memcpy(&size, take(4).data(), 4);
        return push({Kind::Text, std::string(take(size)), {}});
      }
      default:
        throw std::runtime_error("has the opcode " + std::string(1, op));
    }
  }
  void global() {
    const std::string module = line(), name = line(), full = module + "." + name;
    globals_.insert(full);
    if (allowed_functions().count(full) + allowed_storages().count(full) == 0)
      throw std::runtime_error("has the global " + full);
    push({Kind::Global, full, {}});
  }
  void reduce() {
    const Value arguments = pop(), function = pop();
    if (function.kind != Kind::Global || allowed_functions().count(function.word) == 0)
      throw std::runtime_error("calls " + function.word);
    if (arguments.kind != Kind::Tuple) throw std::runtime_error("calls without a tuple");
    const auto& given = arguments.items;
    if (function.word == "collections.OrderedDict" && given.empty())
      return push({Kind::Dict, "", {}});
    if (function.word == "torch.Size" && given.size() == 1 && given[0].kind == Kind::Tuple)
      return push({Kind::Size, "", {}});
    // _rebuild_tensor_v2(storage, storage_offset, size, stride, requires_grad, backward_hooks)
    const std::vector<Kind> expected = {
        Kind::Storage, Kind::Number, Kind::Tuple, Kind::Tuple, Kind::Number, Kind::Dict};
    std::vector<Kind> kinds;
    for (const Value& value : given)
      kinds.push_back(value.kind);
    if (function.word != "torch._utils._rebuild_tensor_v2" || kinds != expected ||
        given[2].items.size() != given[3].items.size())
      throw std::runtime_error("gives other arguments to " + function.word);
    push({Kind::Tensor, "", {}});
  }
  /// ('storage', storage type, key, location, elements), as torch.serialization._load() requires.
  void persistent() {
    const Value id = pop();
    const bool right =
        id.kind == Kind::Tuple && id.items.size() == 5 && id.items[0].kind == Kind::Text &&
        id.items[0].word == "storage" && id.items[1].kind == Kind::Global &&
        allowed_storages().count(id.items[1].word) > 0 && id.items[2].kind == Kind::Text &&
        id.items[3].word == "cpu" && id.items[4].kind == Kind::Number;
    if (!right) throw std::runtime_error("has a persistent id that is not a storage");
    push({Kind::Storage, "", {}});
  }
  void extend(Kind target, const char* op) {
    std::vector<Value> items = pop_mark();
    if (stack_.empty() || stack_.back().kind != target ||
        (target == Kind::Dict && items.size() % 2))
      throw std::runtime_error(std::string("has another target of ") + op);
    auto& into = stack_.back().items;
    into.insert(into.end(), items.begin(), items.end());
  }
  void number(std::size_t bytes) {
    take(bytes);
    push({Kind::Number, "", {}});
  }
  std::string_view take(std::size_t bytes) {
    if (bytes > left_.size()) throw std::runtime_error("is cut short");
    const std::string_view out = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return out;
  }
  std::string line() {
    std::string out(take(left_.find('\n')));
    take(1);
    return out;
  }
  void push(Value value) { stack_.push_back(std::move(value)); }
  Value pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
      throw std::runtime_error("takes what is not there");
    Value out = std::move(stack_.back());
    stack_.pop_back();
    return out;
  }
  std::vector<Value> pop_mark() {
    if (marks_.empty()) throw std::runtime_error("has no mark");
    std::vector<Value> out(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                           stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return out;
  }

  std::string_view left_;
  std::set<std::string>& globals_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
};

/// Returns the pickle of a torch.save file.
std::string pickle_in(const fs::path& path) {
  const std::string bytes = slurp(path);
  for (const auto& [name, entry] : read_zip(std::as_bytes(std::span(bytes)), path.string())) {
    if (name.ends_with("/data.pkl")) return bytes.substr(entry.begin, entry.size);
  }
  ADD_FAILURE() << path << " has no data.pkl";
  return "";
}

std::set<std::string> globals_of(const fs::path& path) {
  std::set<std::string> globals;
  const std::string pickle = pickle_in(path);
  EXPECT_NO_THROW(Restricted(pickle, globals).load()) << path;
  return globals;
}

checkpoint::StreamedTensor zeros(const std::string& name, DType dtype, Shape shape) {
  const auto read = [width = size_of(dtype)](std::int64_t begin, std::int64_t end, std::byte* out) {
    std::memset(out, 0, static_cast<std::size_t>(end - begin) * width);
  };
  return {name, dtype, std::move(shape), read, {}};
}

/// A training state of Adam whose configuration has a value of every kind.
Foreign training() {
  Foreign out;
  out.step = 70'000'000'000;  // more than 32 bits
  out.lr = 0.25;
  out.weights = {zeros("wte.weight", DType::F32, {3, 2}),
                 zeros("scale", DType::F32, {}),
                 zeros("none", DType::F32, {0, 4})};
  out.weights[0].aliases = {"lm_head.weight"};
  for (const char* state : {"exp_avg", "exp_avg_sq"})
    out.state[state] = out.weights;
  out.config = json::parse(
      R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95], "eps": 1e-8}},
          "note": "\u00e4", "nothing": null, "yes": true, "list": [], "dict": {}})",
      "config");
  return out;
}

const std::set<std::string> kTensors = {
    "torch._utils._rebuild_tensor_v2", "torch.FloatStorage", "collections.OrderedDict"};

TEST(WeightsOnly, TakesWeightsOfEveryType) {
  const files::TempDir dir;
  std::vector<checkpoint::StreamedTensor> tensors;
  for (const DType dtype : {DType::F64,
                            DType::F32,
                            DType::F16,
                            DType::BF16,
                            DType::I64,
                            DType::I32,
                            DType::I16,
                            DType::I8,
                            DType::U8,
                            DType::Bool})
    tensors.push_back(zeros(std::string(name(dtype)), dtype, {2, 3}));
  tensors[1].aliases = {"tied"};

  write_torch_weights(dir.path() / "pytorch_model.bin", tensors);

  // Two functions, and a storage for each type.
  EXPECT_EQ(globals_of(dir.path() / "pytorch_model.bin").size(), 2 + tensors.size());
}

TEST(WeightsOnly, TakesBothFilesOfATrainingLoop) {
  const files::TempDir dir;

  write_torch_loop(
      dir.path() / "model_1.pth", dir.path() / "optimizer_1.pth", training(), [](auto) {});

  EXPECT_EQ(globals_of(dir.path() / "model_1.pth"), kTensors);
  EXPECT_EQ(globals_of(dir.path() / "optimizer_1.pth"), kTensors);
}

TEST(WeightsOnly, TakesEveryFileOfAUniversalCheckpoint) {
  const files::TempDir dir;

  write_universal(dir.path(), training(), [](auto) {});

  int files = 0;
  std::set<std::string> met;
  for (const auto& entry : fs::recursive_directory_iterator(dir.path())) {
    if (entry.path().extension() != ".pt") continue;
    met.merge(globals_of(entry.path()));
    ++files;
  }
  // For each parameter weights, two moments and its step; one of the optimizer; two of the model.
  EXPECT_EQ(files, 3 * 4 + 1 + 2);
  std::set<std::string> expected = kTensors;
  expected.insert("torch.Size");  // param_shapes
  EXPECT_EQ(met, expected);
}

TEST(WeightsOnly, WouldRefuseWhatTheRulesRefuse) {
  std::set<std::string> globals;
  const auto refused = [&](const std::string& value) {
    EXPECT_THROW(Restricted(pickle_of(value), globals).load(), std::runtime_error) << value;
  };
  refused(op::global("os", "system") + op::tuple({op::text("true")}) + op::kCall);
  refused(op::global("argparse", "Namespace"));
  refused(op::global("torch", "FloatStorage") + op::kNothing + op::kCall);
  refused(op::text("builtins") + op::text("eval") + "\x93");
  refused(op::tuple({op::text("module")}) + "Q");
  refused("](" + op::text("a") + op::text("b") + "u");
  EXPECT_THROW(Restricted("\x80\x04N.", globals).load(), std::runtime_error);
  EXPECT_NO_THROW(Restricted(pickle_of(op::dict({{"a", op::list_of({"N"})}})), globals).load());
}

}  // namespace
}  // namespace tessera::interop::test
