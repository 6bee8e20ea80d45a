// SPDX-License-Identifier: Apache-2.0
// llm.c's weights of a GPT: 256 numbers, then every parameter of all layers, one kind after the
// other. Byte layout: docs/formats/others.md.
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/interop/foreign.h"
#include "tessera/models/gpt_names.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<std::int64_t>;

constexpr std::int32_t kMagic = 20240326;
constexpr std::size_t kHeaderBytes = 256 * sizeof(std::int32_t);

bool recognises(const fs::path& path) {
  std::error_code failed;
  if (path.extension() != ".bin" || !fs::is_regular_file(path, failed)) return false;
  std::ifstream in(path, std::ios::binary);
  std::int32_t magic = 0;
  return in.read(reinterpret_cast<char*>(&magic), sizeof(magic)).good() && magic == kMagic;
}

/// Reads the file from front to back.
class Reader {
 public:
  explicit Reader(const fs::path& path)
      : path_(path),
        names_(models::names_of_gpt(path.string())),
        file_(std::make_shared<const files::Mapped>(path)),
        at_(kHeaderBytes) {
    if (file_->bytes().size() < kHeaderBytes) refuse("is shorter than its header");
    std::memcpy(header_.data(), file_->bytes().data(), kHeaderBytes);
  }
  Foreign read() {
    const std::int32_t version = header_[1];
    if (version != 1 && version != 3 && version != 5)
      refuse(fmt::format("is of version {}; 1, 3 (fp32) and 5 (bf16) are read", version));
    dtype_ = version == 5 ? DType::BF16 : DType::F32;
    for (std::size_t i = 2; i < 7; ++i) {
      if (header_[i] < 1) refuse(fmt::format("has {} where a size belongs", header_[i]));
    }
    positions_ = header_[2];
    vocab_ = header_[3];
    layers_ = header_[4];
    heads_ = header_[5];
    width_ = header_[6];
    padded_ = version == 1 ? vocab_ : header_[7];
    if (padded_ < vocab_ || width_ % heads_ != 0 || layers_ > 100'000)
      refuse("has sizes that contradict each other");
    add_all();
    if (at_ != file_->bytes().size())
      refuse(fmt::format("has {} bytes more than its parameters", file_->bytes().size() - at_));
    describe();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Error::Kind::Format,
                fmt::format("{}: {}", path_.string(), what),
                "the file is damaged or was cut short: fetch it again");
  }
  /// The next tensor of the file.
  Weight next(const Shape& shape) {
    const std::int64_t numel = checkpoint::checked_numel(shape);
    const std::uint64_t left = file_->bytes().size() - at_;
    if (numel < 0 || static_cast<std::uint64_t>(numel) > left / size_of(dtype_))
      refuse("ends before its last parameter");
    Weight out{"", dtype_, shape, row_major(shape), file_->bytes().data() + at_, path_, file_};
    at_ += out.bytes();
    return out;
  }
  /// Adds one kind of parameter for all layers.
  void add_layers(const std::string& name, const Shape& shape) {
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      Weight weight = next(shape);
      if (shape.size() == 2) weight = transposed(std::move(weight));
      out_.weights.push_back(stream(weight, names_.in_layer(layer, name)));
    }
  }
  void add_pair(const std::string& name, const Shape& matrix) {
    add_layers(name + ".weight", matrix);
    add_layers(name + ".bias", {matrix[0]});
  }
  void add_norm(const std::string& name) {
    add_layers(name + ".weight", {width_});
    add_layers(name + ".bias", {width_});
  }
  void add_all() {
    Weight table = next({padded_, width_});
    table.shape[0] = vocab_;  // the rest is padding and was never trained
    out_.weights.push_back(stream(table, names_.table));
    out_.weights.back().aliases = {names_.head};
    out_.weights.push_back(stream(next({positions_, width_}), names_.positions));
    add_norm(names_.attention_norm);
    add_pair(names_.attention_input, {3 * width_, width_});
    add_pair(names_.attention_output, {width_, width_});
    add_norm(names_.mlp_norm);
    add_pair(names_.mlp_input, {4 * width_, width_});
    add_pair(names_.mlp_output, {width_, 4 * width_});
    for (const char* part : {".weight", ".bias"})
      out_.weights.push_back(stream(next({width_}), names_.final_norm + part));
  }
  void describe() {
    out_.what = fmt::format("llm.c's weights of a GPT-2 ({})", name(dtype_));
    out_.path = path_;
    out_.files = 1;
    const auto number = [](std::int64_t value) { return json::Value::integer(value); };
    out_.model_config = names_.config_of(json::Value::object(
        {{"max_positions", number(positions_)},
         {"vocab_size", number(vocab_)},
         {"num_layers", number(layers_)},
         {"num_heads", number(heads_)},
         {"hidden_size", number(width_)},
         {"activation", json::Value::string("gelu_new")},
         {"torch_dtype", json::Value::string(dtype_ == DType::BF16 ? "bfloat16" : "float32")}}));
  }

  fs::path path_;
  const models::GptNames& names_;
  std::shared_ptr<const files::Mapped> file_;
  std::array<std::int32_t, 256> header_{};
  std::size_t at_;
  DType dtype_ = DType::F32;
  std::int64_t positions_ = 0, vocab_ = 0, padded_ = 0, layers_ = 0, heads_ = 0, width_ = 0;
  Foreign out_;
};

Foreign open(const fs::path& path) {
  return Reader(path).read();
}

TESSERA_FOREIGN_FORMAT("llm.c", (ForeignFormat{recognises, open}));

}  // namespace
}  // namespace tessera::interop
