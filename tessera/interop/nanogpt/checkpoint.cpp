// SPDX-License-Identifier: Apache-2.0
// nanoGPT's ckpt.pt: the weights of a GPT-2 whose matrices are those of nn.Linear, with the sizes
// in `model_args`. Its optimizer's state is not read. Layout: docs/formats/others.md.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/torch/file.h"
#include "tessera/models/gpt_names.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "ckpt.pt";
constexpr const char* kModel = "model.";

fs::path file_at(const fs::path& path) {
  std::error_code failed;
  return fs::is_directory(path, failed) ? path / kFile : path;
}

/// The size under `key` of model_args; nothing if the file is not nanoGPT's.
std::optional<std::int64_t> size_of_model(const json::Value& values, const char* key) {
  const json::Value* const size = at_path(values, std::string("model_args.") + key);
  if (size == nullptr || !size->is_number()) return std::nullopt;
  return size->as_integer();
}

bool is_nanogpt(const json::Value& values) {
  return std::ranges::all_of(
      std::array{"n_layer", "n_head", "n_embd", "block_size", "vocab_size"},
      [&](const char* key) { return size_of_model(values, key).value_or(0) > 0; });
}

// Any program may call its file ckpt.pt, so the keys decide.
bool recognises(const fs::path& path) {
  const fs::path file = file_at(path);
  std::error_code failed;
  if (file.filename() != kFile || !fs::is_regular_file(file, failed)) return false;
  try {
    return is_nanogpt(read_torch_file(file).values);
  } catch (const std::exception&) {
    return false;  // the reader of weights reports the reason
  }
}

std::string without_wrappers(std::string_view name) {
  for (const std::string_view wrapper : {"_orig_mod.", "module.", "_orig_mod."}) {
    if (name.starts_with(wrapper)) name.remove_prefix(wrapper.size());
  }
  return std::string(name);
}

checkpoint::StreamedTensor zeros(std::string name, std::int64_t count) {
  const auto read = [](std::int64_t begin, std::int64_t end, std::byte* out) {
    std::memset(out, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
  };
  return {std::move(name), DType::F32, {count}, read, {}, {}};
}

class Reader {
 public:
  Reader(const fs::path& file, TorchContents contents)
      : file_(file),
        names_(models::names_of_gpt(file.string())),
        values_(std::move(contents.values)),
        weights_(model_of(std::move(contents.tensors)), file.string()),
        layers_(size("n_layer")),
        width_(size("n_embd")),
        vocab_(size("vocab_size")),
        positions_(size("block_size")) {}

  Foreign read() {
    out_.what = fmt::format("a checkpoint of nanoGPT ({} layers, {} channels)", layers_, width_);
    out_.path = file_;
    out_.files = 1;
    TESSERA_REQUIRE(layers_ <= 100'000,
                    Format,
                    fmt::format("{}: model_args has {} layers", file_.string(), layers_),
                    "the file is damaged: copy it again");
    add_tables();
    add(names_.positions, {positions_, width_});
    for (std::int64_t layer = 0; layer < layers_; ++layer)
      add_layer(layer);
    add_vector_pair(names_.final_norm);
    weights_.finish();
    describe();
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::int64_t size(const char* key) const {
    return size_of_model(values_, key).value_or(0);
  }
  /// The tensors under "model", without wrappers and masks.
  static std::vector<Weight> model_of(std::vector<Weight> tensors) {
    std::erase_if(tensors, [](const Weight& weight) {
      return !weight.name.starts_with(kModel) || is_stored_buffer(weight.name);
    });
    for (Weight& weight : tensors)
      weight.name = without_wrappers(std::string_view(weight.name).substr(std::strlen(kModel)));
    return tensors;
  }
  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    out_.weights.push_back(stream(weights_.take(name, shape), name));
  }
  /// Head and table are one tensor; a head of its own is left to the caller, who compares them.
  void add_tables() {
    const std::vector<std::int64_t> shape = {vocab_, width_};
    add(names_.table, shape);
    const Weight& table = weights_.take(names_.table, shape);
    if (weights_.has(names_.head) && !weights_.take(names_.head, shape).same_storage(table)) {
      add(names_.head, shape);
    } else {
      out_.weights.front().aliases = {names_.head};
    }
  }
  /// A model with `bias: false` has none, which computes as zeros do.
  void add_bias(const std::string& name, std::int64_t count) {
    if (weights_.has(name)) {
      add(name, {count});
    } else {
      out_.weights.push_back(zeros(name, count));
    }
  }
  void add_vector_pair(const std::string& module) {
    add(module + ".weight", {width_});
    add_bias(module + ".bias", width_);
  }
  void add_linear(const std::string& module, std::int64_t inputs, std::int64_t outputs) {
    const std::string name = module + ".weight";
    out_.weights.push_back(stream(transposed(weights_.take(name, {outputs, inputs})), name));
    add_bias(module + ".bias", outputs);
  }
  void add_layer(std::int64_t layer) {
    const auto in = [&](const std::string& module) { return names_.in_layer(layer, module); };
    add_vector_pair(in(names_.attention_norm));
    add_linear(in(names_.attention_input), width_, 3 * width_);
    add_linear(in(names_.attention_output), width_, width_);
    add_vector_pair(in(names_.mlp_norm));
    add_linear(in(names_.mlp_input), width_, 4 * width_);
    add_linear(in(names_.mlp_output), 4 * width_, width_);
  }
  /// A config.json next to the file says more: which GELU, and which tokens.
  void describe() {
    std::error_code failed;
    if (fs::is_regular_file(file_.parent_path() / "config.json", failed)) return;
    const auto number = [](std::int64_t value) { return json::Value::integer(value); };
    out_.model_config =
        names_.config_of(json::Value::object({{"max_positions", number(positions_)},
                                              {"vocab_size", number(vocab_)},
                                              {"num_layers", number(layers_)},
                                              {"num_heads", number(size("n_head"))},
                                              {"hidden_size", number(width_)},
                                              {"activation", json::Value::string("gelu")},
                                              {"torch_dtype", json::Value::string("float32")}}));
  }

  fs::path file_;
  const models::GptNames& names_;
  json::Value values_;
  ConsumedWeights weights_;
  std::int64_t layers_, width_, vocab_, positions_;
  Foreign out_;
};

Foreign open(const fs::path& path) {
  const fs::path file = file_at(path);
  return Reader(file, read_torch_file(file)).read();
}

TESSERA_FOREIGN_FORMAT("nanogpt", (ForeignFormat{recognises, open}));

}  // namespace
}  // namespace tessera::interop
