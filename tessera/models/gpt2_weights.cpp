// SPDX-License-Identifier: Apache-2.0
// Weights out of a Hugging Face folder.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/models/gpt2_hf.h"
#include "tessera/models/weights_of.h"

namespace tessera::models {

namespace {

namespace fs = std::filesystem;
using checkpoint::Weight;

constexpr std::string_view kPrefix = "transformer.", kTable = "wte.weight";

/// The tensors of the folder. Older files leave the prefix out, so names are compared without it:
/// they are ours then.
using Folder = std::map<std::string, Weight>;

/// What stands before every name; empty where the file is the state_dict, or of another family.
std::string container_of(const std::vector<Weight>& weights) {
  std::set<std::string_view> names;
  for (const Weight& weight : weights)
    names.insert(weight.name);
  for (const std::string key :
       {"", "state_dict.", "model_state_dict.", "model.", "module.", "net."}) {
    for (const std::string& container : {key, key + "module."}) {
      if (names.contains(fmt::format("{}{}", container, kTable)) ||
          names.contains(fmt::format("{}{}{}", container, kPrefix, kTable)))
        return container;
    }
  }
  return "";
}

Folder open_folder(const fs::path& folder) {
  Folder out;
  for (Weight& weight : state_dict_of(checkpoint::open_weights(folder))) {
    std::string plain = weight.name;
    if (plain.starts_with(kPrefix)) plain.erase(0, kPrefix.size());
    if (is_buffer(plain)) continue;
    const std::string file = weight.file.string(), name = weight.name;
    TESSERA_REQUIRE(out.emplace(plain, std::move(weight)).second,
                    Format,
                    fmt::format("{}: tensor {} is there twice", file, name),
                    "fetch the folder again");
  }
  return out;
}

std::map<std::string, HfTensor> expected_tensors(const nn::Model& model) {
  std::map<std::string, HfTensor> out;
  for (const nn::BlockSpec& block : model.blocks) {
    for (const auto& info : nn::declared_by(block))
      out.emplace(info->name, gpt2_hf_tensor(*info));
  }
  return out;
}

bool is_float(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16 || dtype == DType::F64;
}

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

template <class T>
T load(const std::byte* bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

/// Elements [begin, end) of our row-major order. A transposed matrix is read 16 of our rows at a
/// time, so that a cache line of theirs is used whole.
template <class At>
void copy_range(const HfTensor& tensor, std::int64_t begin, std::int64_t end, float* out, At at) {
  if (!tensor.transposed) {
    for (std::int64_t i = begin; i < end; ++i)
      out[i - begin] = at(i);
    return;
  }
  constexpr std::int64_t kRows = 16;
  const std::int64_t cols = tensor.shape[0], rows = tensor.shape[1];
  for (std::int64_t first = begin / cols; first * cols < end; first += kRows) {
    const std::int64_t last = std::min(first + kRows, rows);
    for (std::int64_t c = 0; c < cols; ++c) {
      for (std::int64_t r = first; r < last; ++r) {
        const std::int64_t i = r * cols + c;
        if (i >= begin && i < end) out[i - begin] = at(c * rows + r);
      }
    }
  }
}

/// Elements of type T, which `widen` makes floats.
template <class T, class Widen>
void read_as(const Weight& weight,
             const HfTensor& tensor,
             std::int64_t begin,
             std::int64_t end,
             float* out,
             Widen widen) {
  const std::byte* bytes = weight.data;
  if (weight.contiguous()) {
    return copy_range(
        tensor, begin, end, out, [=](std::int64_t i) { return widen(load<T>(bytes, i)); });
  }
  copy_range(tensor, begin, end, out, [&](std::int64_t i) {
    return widen(load<T>(bytes, weight.offset(i)));
  });
}

void read_range(const Weight& weight,
                const HfTensor& tensor,
                std::int64_t begin,
                std::int64_t end,
                float* out) {
  switch (weight.dtype) {
    case DType::F32:
      return read_as<float>(weight, tensor, begin, end, out, [](float v) { return v; });
    case DType::F64:
      return read_as<double>(
          weight, tensor, begin, end, out, [](double v) { return static_cast<float>(v); });
    case DType::BF16:
      return read_as<std::uint16_t>(weight, tensor, begin, end, out, from_bf16);
    case DType::F16:
      return read_as<std::uint16_t>(weight, tensor, begin, end, out, from_fp16);
    default:
      TESSERA_ASSERT(is_float(weight.dtype));
  }
}

void check(const fs::path& folder,
           const Folder& found,
           const std::map<std::string, HfTensor>& expected) {
  Mismatch mismatch;
  for (const auto& [name, tensor] : expected) {
    const auto it = found.find(name);
    if (it == found.end()) {
      mismatch.missing.push_back(tensor.name);
    } else if (const Weight& entry = it->second; entry.shape != tensor.shape) {
      mismatch.misshapen.push_back(fmt::format(
          "{} {} instead of {}", entry.name, shape_text(entry.shape), shape_text(tensor.shape)));
    } else if (!is_float(entry.dtype)) {
      mismatch.misshapen.push_back(
          fmt::format("{} has type {}", entry.name, tessera::name(entry.dtype)));
    }
  }
  // A tied head may be stored as well; it must be the token table.
  for (const auto& [name, stored] : found) {
    if (!expected.count(name) && name != "lm_head.weight")
      mismatch.unexpected.push_back(stored.name);
  }
  mismatch.require_none(folder.string(), "use the config.json that belongs to these weights");
  const auto head = found.find("lm_head.weight"), table = found.find("wte.weight");
  if (head == found.end() || table == found.end() || expected.count(head->first) > 0) return;
  const Weight &a = head->second, &b = table->second;
  const HfTensor place = expected.at(table->first);
  const auto floats = [&place](const Weight& weight) {
    return [&](std::int64_t begin, std::int64_t end, float* out) {
      read_range(weight, place, begin, end, out);
    };
  };
  const bool same = is_float(a.dtype) && a.shape == b.shape &&
                    (a.same_storage(b) || equal_floats(b.numel(), floats(a), floats(b)));
  require_tied(a.name, b.name, folder.string(), same);
  a.release();
  b.release();
}

}  // namespace

WeightSource gpt2_weights_from_hf(const fs::path& folder, const Resolved& resolved) {
  auto found = std::make_shared<const Folder>(open_folder(folder));
  check(folder, *found, expected_tensors(resolved.model));
  const auto pages = std::make_shared<ReadPages>();
  return [found, pages](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    TESSERA_ASSERT(begin >= 0 && begin <= end && end <= info.numel());
    const HfTensor tensor = gpt2_hf_tensor(info);
    const Weight& weight = found->at(info.name);
    read_range(weight, tensor, begin, end, out);
    pages->add(&weight,
               static_cast<std::uint64_t>(end - begin) * size_of(weight.dtype),
               !tensor.transposed,
               [&weight] { weight.release(); });
    // Whoever reads front to back does not need its pages any more.
    if (end == info.numel()) weight.release();
  };
}

std::vector<Weight> state_dict_of(std::vector<Weight> weights) {
  const std::string container = container_of(weights);
  std::erase_if(weights, [&](const Weight& weight) { return !weight.name.starts_with(container); });
  for (Weight& weight : weights)
    weight.name.erase(0, container.size());
  return weights;
}

}  // namespace tessera::models
